"""The two sparse indexes of a segment.

    .index      entries of (relative offset u32, position u32): the batch with that base offset begins at that position
    .timeindex  entries of (timestamp i64, relative offset u32): no batch below that offset has a larger timestamp

1. An offset entry is made for a batch that begins more than `index_interval_bytes` after the last indexed one, a time
   entry beside it when the largest timestamp has risen, and one time entry more when the segment is closed, which so
   ends with its largest timestamp. The entries depend on the batches alone: rebuilding a lost index gives the same
   bytes.
2. Entries of the active segment live in memory (`SegmentIndex`) and are saved by the flusher's thread, up to where the
   log is synced; files of closed segments are searched where they are, with a few reads and no memory.

All numbers are big-endian, as Kafka's. Kafka stores the last offset of a batch where we store the first.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from core_log.files import File, Files, read_file

OFFSET_ENTRY = Struct(">II")
TIME_ENTRY = Struct(">qI")
NO_TIMESTAMP_MS = -1

_SEARCH_BLOCK_ENTRIES = 512


class SegmentIndex:
    """The entries of a segment in memory. The event loop appends, other threads may look up and save."""

    __slots__ = ("offsets", "offsets_saved", "positions", "time_offsets", "times", "times_saved")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")
        self.times = array("q")
        self.time_offsets = array("I")
        self.offsets_saved = 0
        self.times_saved = 0

    def add(self, relative_offset: int, position: int, max_timestamp_ms: int) -> None:
        """Index a batch; `max_timestamp_ms` is the largest of the batches before it."""
        self.positions.append(position)
        self.offsets.append(relative_offset)  # last: its length is what lookups trust
        self.add_time(max_timestamp_ms, relative_offset)

    def add_time(self, max_timestamp_ms: int, relative_offset: int) -> None:
        """A time entry, if it says something new."""
        if max_timestamp_ms > (self.times[-1] if self.times else NO_TIMESTAMP_MS):
            self.time_offsets.append(relative_offset)
            self.times.append(max_timestamp_ms)

    @property
    def last_position(self) -> int:
        """Where the last indexed batch begins; 0 without entries, as if the first batch were indexed."""
        return self.positions[-1] if self.positions else 0

    def position_of(self, relative_offset: int) -> int:
        """Where to start scanning for an offset."""
        at = bisect_right(self.offsets, relative_offset)
        return self.positions[at - 1] if at else 0

    def offset_before(self, timestamp_ms: int) -> int:
        """The relative offset from which on batches may reach a timestamp."""
        at = bisect_left(self.times, timestamp_ms)
        return self.time_offsets[at - 1] if at else 0

    def save(self, files: Files, stem: str, offset_count: int, time_count: int) -> None:
        """Write entries not yet saved, up to the given counts, and sync. Raises OSError; calling again is harmless."""
        first, self_times = self.offsets_saved, self.times_saved
        entries = map(OFFSET_ENTRY.pack, self.offsets[first:offset_count], self.positions[first:offset_count])
        times = map(TIME_ENTRY.pack, self.times[self_times:time_count], self.time_offsets[self_times:time_count])
        _write(files, stem + ".index", b"".join(entries), first * OFFSET_ENTRY.size)
        _write(files, stem + ".timeindex", b"".join(times), self_times * TIME_ENTRY.size)
        self.offsets_saved = max(first, offset_count)
        self.times_saved = max(self_times, time_count)

    def load(self, files: Files, stem: str, offset_count: int, time_count: int) -> bool:
        """Take that many saved entries; False when the files do not hold them."""
        data = _read(files, stem + ".index", offset_count * OFFSET_ENTRY.size)
        times = _read(files, stem + ".timeindex", time_count * TIME_ENTRY.size)
        if data is None or times is None:
            return False
        flat = array("I", data)
        flat.byteswap()
        self.offsets, self.positions = flat[0::2], flat[1::2]
        for timestamp_ms, relative_offset in TIME_ENTRY.iter_unpack(times):
            self.times.append(timestamp_ms)
            self.time_offsets.append(relative_offset)
        self.offsets_saved = offset_count
        self.times_saved = time_count
        return True


def _write(files: Files, path: str, data: bytes, position: int) -> None:
    """Replace all of a file from `position` on."""
    file = files.open(path)
    try:
        file.truncate(position)
        file.pwritev([data], position)
        file.sync()
    finally:
        file.close()


def _read(files: Files, path: str, size: int) -> bytes | None:
    if not size:
        return b""
    try:
        data = read_file(files, path, size)
    except FileNotFoundError:
        return None
    return data if len(data) == size else None


def find_position(files: Files, stem: str, relative_offset: int) -> int:
    """`position_of` for a closed segment, from its file. Raises OSError."""
    position: int = _find(files, stem + ".index", OFFSET_ENTRY, 0, 1, relative_offset + 1)
    return position


def find_before_position(files: Files, stem: str, below: int) -> tuple[int, int]:
    """Relative offset and position of the last indexed batch of a closed segment that begins below a position, (0, 0)
    if none does. Raises OSError.
    """
    path = stem + ".index"
    return _find(files, path, OFFSET_ENTRY, 1, 0, below), _find(files, path, OFFSET_ENTRY, 1, 1, below)


def read_positions(files: Files, stem: str) -> tuple[array[int], array[int]]:
    """Relative offsets and positions of a closed segment, all of them. Raises OSError."""
    data = read_file(files, stem + ".index")
    entries = array("I", data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size])
    if sys.byteorder == "little":
        entries.byteswap()
    return entries[0::2], entries[1::2]


def find_offset_before(files: Files, stem: str, timestamp_ms: int) -> int:
    """`offset_before` for a closed segment, from its file. Raises OSError."""
    return _find(files, stem + ".timeindex", TIME_ENTRY, 0, 1, timestamp_ms)


def _find(files: Files, path: str, entry: Struct, key: int, field: int, below: int) -> int:
    """`field` of the last entry whose `key` is less than `below`; 0 when there is none."""
    file = files.open(path, create=False)
    try:
        low, high = 0, files.size(path) // entry.size
        while high - low > _SEARCH_BLOCK_ENTRIES:
            middle = (low + high) // 2
            if entry.unpack(file.pread(entry.size, middle * entry.size))[key] < below:
                low = middle
            else:
                high = middle
        block = file.pread((high - low) * entry.size, low * entry.size)
    finally:
        file.close()
    block = block[: len(block) - len(block) % entry.size]
    entries = list(entry.iter_unpack(block))
    at = bisect_left(entries, below, key=lambda fields: int(fields[key]))
    return int(entries[at - 1][field]) if at else 0


def largest_timestamp(files: Files, stem: str) -> int:
    """The largest timestamp of a closed segment, from its last time entry. Raises OSError."""
    path = stem + ".timeindex"
    size = files.size(path)
    if size < TIME_ENTRY.size:
        return NO_TIMESTAMP_MS
    file: File = files.open(path, create=False)
    try:
        return int(TIME_ENTRY.unpack(file.pread(TIME_ENTRY.size, size - TIME_ENTRY.size))[0])
    finally:
        file.close()


def is_plausible(files: Files, stem: str, log_bytes: int) -> bool:
    """Do both index files of a closed segment exist, with whole entries, the last within the segment?"""
    try:
        size, times_size = files.size(stem + ".index"), files.size(stem + ".timeindex")
        if size % OFFSET_ENTRY.size or times_size % TIME_ENTRY.size:
            return False
        if not size:
            return True
        file = files.open(stem + ".index", create=False)
    except FileNotFoundError:
        return False
    try:
        return bool(OFFSET_ENTRY.unpack(file.pread(OFFSET_ENTRY.size, size - OFFSET_ENTRY.size))[1] < log_bytes)
    finally:
        file.close()
