"""A piece of a segment's file that goes from the page cache into a socket without being read (`sendfile`).

1. It consists of whole batches that are written and below what a reader may see. Where it begins and ends is taken from
   the sparse index, and looked up in the file: headers have to stand there that belong there. Nothing else is checked;
   what a reader gets has the batches' own CRC.
2. It has the file open, so a segment that is deleted or compacted meanwhile is still there for it.
3. Only what is in the page cache now: whoever sends it does not wait for the disk. What is not is read in a thread, by
   `cold_reader`, which is also for files that are none of the operating system's, and for less than `RANGE_BYTES_MIN`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from core_log.batch_header import HEADER_BYTES, parse_header
from core_log.cached_file import CachedFile, NotInMemory, read_cached
from core_log.closed_indexes import CLOSED_INDEXES
from core_log.errors import CorruptBatch
from core_log.files import File
from core_log.segment import Segment
from core_log.segment_index import FirstOf, OffsetEntries, find_before_position, find_position

if TYPE_CHECKING:
    from core_log.readable_log import ReadableLog

RANGE_BYTES_MIN = 64 << 10
_PROBE_BYTES = 256 << 10
"""Where it is looked whether pages are there: they come and go many at a time."""
_Place = tuple[int, int, int]
"""Where to look for a batch, and where another one begins, with its offset in the index."""


class FileRange:
    """See the module. As long as its bytes; `next_offset` is no less than that behind its last record."""

    __slots__ = ("_file", "next_offset", "position", "size")

    def __init__(self, file: File, position: int, size: int, next_offset: int) -> None:
        self._file = file
        self.position = position
        self.size = size
        self.next_offset = next_offset

    def __len__(self) -> int:
        return self.size

    def after(self, size: int) -> FileRange:
        """What is left behind the first `size` bytes."""
        return FileRange(self._file, self.position + size, self.size - size, self.next_offset)

    def read(self) -> bytes:
        """Its bytes."""
        return self._file.pread(self.size, self.position)

    @property
    def descriptor(self) -> int:
        """Of the file, for the operating system, as long as this is there."""
        return self._file.for_kernel()


def find_range(
    log: ReadableLog, offset: int, max_bytes: int, limit: int, *, may_block: bool = False
) -> FileRange | None:
    """About `max_bytes` from the batch that holds `offset` on, below `limit`; None: read it. Indexes of closed segments
    that are not in memory are looked at if it `may_block`. Raises OSError.
    """
    segment = log.segments_from(offset)[0]
    index = segment.index or CLOSED_INDEXES.known(segment)
    if index is None and may_block:
        index = CLOSED_INDEXES.load(log.files, segment)
    relative, limit = max(offset - segment.base_offset, 0), limit - segment.base_offset
    if read_cached is None or not (may_block if index is None else _may_have(index, relative)):
        return None
    file = log.files.open(segment.log_path, create=False)
    found = None
    try:
        if file.for_kernel() >= 0:
            found = _in(file, log, segment, index, relative, max_bytes, limit, may_block)
    finally:
        if found is None:
            file.close()
    return found


def _may_have(index: OffsetEntries, relative: int) -> bool:
    """Whether there is enough behind an offset, as far as the index alone can tell."""
    at = bisect_right(index.offsets, relative)
    return index.last_position - (index.positions[at - 1] if at else 0) >= RANGE_BYTES_MIN


def _in(
    file: File,
    log: ReadableLog,
    segment: Segment,
    index: OffsetEntries | None,
    relative: int,
    max_bytes: int,
    limit: int,
    may_block: bool,
) -> FileRange | None:
    try:
        first_of = segment.first_of(file if may_block else CachedFile(file))
        if index is not None:
            place = _in_memory(index, relative, max_bytes, limit, segment.written_bytes, first_of)
        else:
            place = segment.by_index(
                log.files, lambda: _in_file(log, segment, relative, max_bytes, limit, first_of), None
            )
    except NotInMemory:
        return None
    if place is None or place[1] - place[0] < RANGE_BYTES_MIN or not _is_in_memory(file.for_kernel(), *place[:2]):
        return None
    return _checked(file, segment, segment.base_offset + relative, *place)


def _in_memory(
    index: OffsetEntries, relative: int, max_bytes: int, limit: int, written_bytes: int, first_of: FirstOf
) -> _Place | None:
    offsets, positions = index.offsets, index.positions
    count = len(offsets)
    first = index.entry_of(relative, first_of) + 1
    start = positions[first - 1] if first else 0
    most = min(bisect_right(positions, written_bytes, first, count), bisect_right(offsets, limit, first, count))
    last = max(bisect_right(positions, start + max_bytes, first, most), first + 1)
    return (start, positions[last - 1], offsets[last - 1]) if last <= most else None


def _in_file(
    log: ReadableLog, segment: Segment, relative: int, max_bytes: int, limit: int, first_of: FirstOf
) -> _Place | None:
    start = find_position(log.files, segment.stem, relative, first_of)
    end, position = find_before_position(log.files, segment.stem, start + max_bytes + 1)
    return (start, position, end) if end <= limit else None


def _is_in_memory(descriptor: int, start: int, end: int) -> bool:
    byte = bytearray(1)
    assert read_cached is not None, "else nobody asks"
    try:
        for position in (*range(start, end, _PROBE_BYTES), end - 1):
            read_cached(descriptor, byte, position)
    except OSError:
        return False  # a file system that cannot tell is read from
    return True


def _checked(file: File, segment: Segment, offset: int, start: int, end: int, end_entry: int) -> FileRange | None:
    """The range from the batch on that holds `offset`, if the file is what its index says."""
    try:
        following = parse_header(file.pread(HEADER_BYTES, end))
        if segment.base_offset + end_entry not in (following.base_offset, following.next_offset - 1):
            return None
        position = start
        header = parse_header(file.pread(HEADER_BYTES, position))
        if start and header.base_offset > offset:
            return None
        while header.next_offset <= offset:
            position += header.size
            if position >= end:
                return None
    except CorruptBatch:
        return None
    if not segment.base_offset <= header.base_offset < following.base_offset:
        return None
    return FileRange(file, position, end - position, following.base_offset)
