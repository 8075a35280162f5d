"""Room that a segment's file is given before there is anything to write there.

1. A file that grows by a little with each sync costs the file system a change of its own journal each time, which the
   sync waits for. So a segment that is synced again and again with little to write is made longer at once, by as much
   as it has, between `room_bytes_min` and `ROOM_BYTES_MAX`. What is behind its last batch reads as zeros. Large writes
   between the small ones gain nothing by it, and would use up the room at once: there is none then.
2. The file gets its length back before the next segment has a byte, when a log is cut, and at a clean stop. After
   another stop recovery finds the zeros, which are no batch, and takes them off (`recovery.py`, rule 8).
3. It is only for speed: a disk that refuses it is not asked again for that segment, and one that is nearly full not
   at all (`disk_space.py`).
4. Small stores (`keyed_store.py`) have none: `damage.py` tells damage from a torn tail by the zeros in it.
"""

from __future__ import annotations

from core_log.files import File
from core_log.log_config import LogConfig
from core_log.segment import Segment

ROOM_BYTES_MAX = 1 << 20
_SMALL_BYTES = 16 << 10


def lacks_room(segment: Segment, config: LogConfig, write_bytes: int, end: int) -> bool:
    """Whether a write of so much up to `end`, which is synced, is to be given room before."""
    if write_bytes > _SMALL_BYTES:
        segment.small_syncs = min(segment.small_syncs, 0)
        return False
    if not write_bytes or end <= segment.room_end:
        return False
    segment.small_syncs += 1
    return segment.small_syncs > config.room_syncs_min >= 0


def make_room(segment: Segment, config: LogConfig, file: File, position: int, end: int) -> int:
    """Have the file hold what follows `end`, too, before what is at `position` is written; how many bytes that took.
    Raises OSError where the disk refuses it, and to forget it as well.
    """
    there = max(position, segment.written_bytes)
    end = max(end, there)
    room_end = end + min(max(end, config.room_bytes_min), ROOM_BYTES_MAX)
    before = max(there, segment.room_end)
    segment.room_end = room_end
    try:
        file.allocate(room_end, there)
    except OSError:
        segment.small_syncs = -1 << 62
        give_back(segment, file, there)  # a disk that is full may have made it longer
        return 0
    return room_end - before


def give_back(segment: Segment, file: File, end: int) -> None:
    """The file ends at `end` now. Raises OSError."""
    if segment.room_end > end:
        file.truncate(end)
    segment.room_end = 0


def is_room(file: File, start: int, end: int) -> bool:
    """Whether [start, end) of a file is zeros that nobody wrote: no more than there can be."""
    if end - start > ROOM_BYTES_MAX + _SMALL_BYTES:
        return False
    try:
        data = file.pread(end - start, start)
    except OSError:
        return False
    return len(data) == data.count(0) == end - start
