"""The two sparse indexes of a segment.

    .index      entries of (relative offset u32, position u32): the batch that ends with that offset begins at that
                position
    .timeindex  entries of (timestamp i64, relative offset u32): the first batch with that timestamp, which is larger
                than all before it, ends with that offset

1. An offset entry is made for a batch that begins more than `index_interval_bytes` after the last indexed one, a time
   entry beside it when the largest timestamp has risen, and one time entry more when the segment is closed, which so
   ends with its largest timestamp. The entries depend on the batches alone: rebuilding a lost index gives the same
   bytes. Bytes and meaning are Kafka's, and pass its kafka-dump-log.
2. Entries of the active segment live in memory (`SegmentIndex`) and are saved by the flusher's thread, up to where the
   log is synced; files of closed segments are searched where they are, with a few reads and no memory.
3. The last entry with an offset of at most the one that is looked for leads to its batch, or to one before it. The next
   entry's batch ends behind it, and may hold it: that is known where the batch was noted, and else looked up in its
   header, once (`first_of`). So a search begins at most an interval before, also where each batch is larger than one.
   An entry whose batch is not where it says is damaged, and the one before it taken: a start behind what is looked for
   would leave records out. So it is with a time entry of a closed segment whose batch has another time.
4. In older files an offset entry has the first offset of its batch, and a time entry that of the batch that was indexed
   with it, below which no batch has a larger timestamp. They stay, and the same file may go on with entries as above:
   offsets rise all the same. The last one with an offset of at most the one that is looked for has a batch that begins
   there or before it, as above. The next one's batch begins behind it, and ends with another offset than the entry
   has, so it is not taken. Both kinds of time entries say that nothing below the offset is later, and no more is made
   of them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from struct import Struct

from core_log.files import File, Files, read_file

OFFSET_ENTRY = Struct(">II")
TIME_ENTRY = Struct(">qI")
NO_TIMESTAMP_MS = -1
UNKNOWN = (1 << 32) - 1

FirstOf = Callable[[int, int], int]
"""The first offset of the batch at a position that begins or ends with an offset, relative ones; UNKNOWN if there is
none: then the entry is damaged.
"""

ENTRY_BYTES = 12
"""That an offset entry takes in memory."""
_SEARCH_BLOCK_ENTRIES = 512
_BACK_MAX = 32
"""So many damaged entries are passed over, one after the other; behind more of them a search begins at the start."""
_Entry = tuple[int, int]


class OffsetEntries:
    """Offset entries in memory: the last offset of each batch, its position, and its first offset where it is known."""

    __slots__ = ("firsts", "offsets", "positions")

    def __init__(self, offsets: array[int], positions: array[int]) -> None:
        self.offsets = offsets
        self.positions = positions
        self.firsts = array("I", (UNKNOWN,)) * len(offsets)

    @property
    def bytes(self) -> int:
        """That they take."""
        return len(self.offsets) * ENTRY_BYTES

    @property
    def last_position(self) -> int:
        """Where the last indexed batch begins; 0 without entries, as if the first batch were indexed."""
        return self.positions[-1] if self.positions else 0

    def entry_of(self, relative_offset: int, first_of: FirstOf) -> int:
        """The number of the last entry that leads to the batch that holds an offset, or to one before it; -1 if none
        does: that is where the segment begins. Raises what `first_of` raises.
        """
        at = bisect_right(self.offsets, relative_offset)
        for entry in range(min(at, len(self.offsets) - 1), max(at - _BACK_MAX, -1), -1):
            first = self.firsts[entry]
            if first == UNKNOWN:
                first = self.firsts[entry] = first_of(self.positions[entry], self.offsets[entry])
            if first <= relative_offset:
                return entry
        return -1

    def position_of(self, relative_offset: int, first_of: FirstOf) -> int:
        """Where to start scanning for an offset."""
        at = self.entry_of(relative_offset, first_of)
        return self.positions[at] if at >= 0 else 0


class SegmentIndex(OffsetEntries):
    """The entries of a segment in memory. The event loop appends, other threads may look up and save."""

    __slots__ = ("offsets_saved", "time_offsets", "times", "times_saved")

    def __init__(self) -> None:
        super().__init__(array("I"), array("I"))
        self.times = array("q")
        self.time_offsets = array("I")
        self.offsets_saved = 0
        self.times_saved = 0

    def add(self, first: int, last: int, position: int) -> None:
        """Index a batch, of these relative offsets."""
        self.positions.append(position)
        self.firsts.append(first)
        self.offsets.append(last)  # at last: its length is what lookups trust

    def add_time(self, max_timestamp_ms: int, relative_offset: int) -> None:
        """A time entry, if it says something new."""
        if max_timestamp_ms > (self.times[-1] if self.times else NO_TIMESTAMP_MS):
            self.time_offsets.append(relative_offset)
            self.times.append(max_timestamp_ms)

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

    @property
    def is_saved(self) -> bool:
        """All entries are in the files."""
        return self.offsets_saved == len(self.offsets) and self.times_saved == len(self.times)

    def load(self, files: Files, stem: str, offset_count: int, time_count: int) -> bool:
        """Take that many saved entries; False when the files do not hold them."""
        data = _read(files, stem + ".index", offset_count * OFFSET_ENTRY.size)
        times = _read(files, stem + ".timeindex", time_count * TIME_ENTRY.size)
        if data is None or times is None:
            return False
        flat = array("I", data)
        flat.byteswap()
        self.offsets, self.positions = flat[0::2], flat[1::2]
        self.firsts = array("I", (UNKNOWN,)) * offset_count
        for timestamp_ms, relative_offset in TIME_ENTRY.iter_unpack(times):
            self.times.append(timestamp_ms)
            self.time_offsets.append(relative_offset)
        self.offsets_saved = offset_count
        self.times_saved = time_count
        return True

    def take(self, other: SegmentIndex, position: int, offset: int) -> None:
        """The entries of another one that are about what lies below a position, where a relative offset is next."""
        count = bisect_left(other.positions, position)
        self.offsets, self.positions = other.offsets[:count], other.positions[:count]
        self.firsts = other.firsts[:count]
        times = bisect_left(other.time_offsets, offset)
        self.times, self.time_offsets = other.times[:times], other.time_offsets[:times]

    @classmethod
    def of_closed(cls, files: Files, stem: str) -> SegmentIndex:
        """That of a closed segment, as its files have it. Raises OSError."""
        index = cls()
        counts = files.size(stem + ".index") // OFFSET_ENTRY.size, files.size(stem + ".timeindex") // TIME_ENTRY.size
        index.load(files, stem, *counts)
        return index


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


def find_position(files: Files, stem: str, relative_offset: int, first_of: FirstOf) -> int:
    """`position_of` for a closed segment, from its file. Raises OSError."""
    entries, at = _find(files, stem + ".index", OFFSET_ENTRY, 0, relative_offset + 1)
    for offset, position in reversed(entries[max(at - _BACK_MAX, 0) : at + 1]):
        if first_of(position, offset) <= relative_offset:
            return position
    return 0


def find_before_position(files: Files, stem: str, below: int) -> tuple[int, int]:
    """Entry of the last indexed batch of a closed segment that begins below a position, (0, 0) if none does. Raises
    OSError.
    """
    entries, at = _find(files, stem + ".index", OFFSET_ENTRY, 1, below)
    return entries[at - 1] if at else (0, 0)


def read_entries(files: Files, stem: str) -> OffsetEntries:
    """Those of a closed segment, all of them. Raises OSError."""
    data = read_file(files, stem + ".index")
    entries = array("I", data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size])
    if sys.byteorder == "little":
        entries.byteswap()
    return OffsetEntries(entries[0::2], entries[1::2])


def find_times_before(files: Files, stem: str, timestamp_ms: int) -> list[tuple[int, int]]:
    """The last time entries of a closed segment with less than a timestamp, the last one first. Raises OSError."""
    entries, at = _find(files, stem + ".timeindex", TIME_ENTRY, 0, timestamp_ms)
    return entries[max(at - _BACK_MAX, 0) : at][::-1]


def _find(files: Files, path: str, entry: Struct, key: int, below: int) -> tuple[list[_Entry], int]:
    """Some entries that follow each other, and the number of the first of them whose `key` is not less than `below`."""
    file = files.open(path, create=False)
    try:
        low, count = 0, files.size(path) // entry.size
        high = count
        while high - low > _SEARCH_BLOCK_ENTRIES:
            middle = (low + high) // 2
            if entry.unpack(file.pread(entry.size, middle * entry.size))[key] < below:
                low = middle
            else:
                high = middle
        block = file.pread((min(high + 1, count) - low) * entry.size, low * entry.size)
    finally:
        file.close()
    block = block[: len(block) - len(block) % entry.size]
    entries: list[_Entry] = list(entry.iter_unpack(block))
    return entries, bisect_left(entries, below, key=lambda fields: fields[key])


def last_times(files: Files, stem: str) -> list[tuple[int, int]]:
    """The last time entries of a closed segment, the last one first. Raises OSError."""
    path = stem + ".timeindex"
    count = files.size(path) // TIME_ENTRY.size
    first = max(count - _BACK_MAX, 0)
    file: File = files.open(path, create=False)
    try:
        data = file.pread((count - first) * TIME_ENTRY.size, first * TIME_ENTRY.size)
    finally:
        file.close()
    return [*TIME_ENTRY.iter_unpack(data[: len(data) - len(data) % TIME_ENTRY.size])][::-1]


def is_plausible(files: Files, stem: str, log_bytes: int) -> bool:
    """Can both index files of a closed segment be read, with whole entries, the last within the segment?"""
    try:
        size, times_size = files.size(stem + ".index"), files.size(stem + ".timeindex")
        if size % OFFSET_ENTRY.size or times_size % TIME_ENTRY.size:
            return False
        if not size:
            return True
        file = files.open(stem + ".index", create=False)
        try:
            return bool(OFFSET_ENTRY.unpack(file.pread(OFFSET_ENTRY.size, size - OFFSET_ENTRY.size))[1] < log_bytes)
        finally:
            file.close()
    except OSError:
        return False
