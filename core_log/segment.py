"""One segment of a log: a file of batches, named by the offset it begins with (`segment_names.py`), and its indexes.

1. The event loop notes batches as they are appended (`note`), the flusher's thread writes and syncs them. `size` is
   what was appended, `written_bytes` what a reader may take from the file.
2. A segment with an `index` is open: the active one, or one whose closing is still on its way through the flusher. A
   closed segment has `index` None and answers from its files.
3. `scan` is the one reader of whole segments: recovery, rebuilding of indexes and verification differ in what they do
   with what it yields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from crc32c import crc32c

from core_log.batch_header import CRC_START, HEADER, HEADER_BYTES, LENGTH_START, MAGIC, RECORD_BYTES_MIN, parse_header
from core_log.errors import CorruptBatch
from core_log.files import BytesLike, File, Files
from core_log.log_config import LogConfig
from core_log.segment_index import (
    NO_TIMESTAMP_MS,
    OFFSET_ENTRY,
    UNKNOWN,
    FirstOf,
    SegmentIndex,
    find_position,
    find_times_before,
    last_times,
)
from core_log.segment_names import SegmentName

if TYPE_CHECKING:
    from core_log.key_index import Block

RELATIVE_OFFSET_MAX = (1 << 31) - 1

_SCAN_BYTES = 4 << 20
_LOOK_BYTES = 64 << 10

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Readable(Protocol):
    """What `scan` needs of a file."""

    def pread(self, size: int, position: int) -> bytes:
        """See `File`."""


class BatchPlace(NamedTuple):
    """A batch in a segment."""

    position: int
    size: int
    base_offset: int
    next_offset: int
    max_timestamp_ms: int


class Segment:
    """See the module."""

    __slots__ = (
        "_is_largest_checked", "_largest_timestamp_ms", "base_offset", "created_ms", "deleted", "file", "index",
        "index_damaged", "interval_bytes", "keys", "max_timestamp_last", "max_timestamp_ms", "missing", "named_until_s",
        "room_end", "size", "small_syncs", "stem", "written_bytes",
    )  # fmt: skip

    def __init__(
        self, directory: str, name: int | SegmentName, interval_bytes: int, index: SegmentIndex | None
    ) -> None:
        """`name`: the base offset will do for one that was not compacted."""
        if isinstance(name, int):
            name = SegmentName(name)
        self.stem = f"{directory}/{name}"
        self.base_offset = name.base_offset
        self.interval_bytes = interval_bytes
        self.index = index
        self.index_damaged = False
        """An entry of it was found to lead nowhere, or it cannot be read, which was said."""
        self.size = 0
        self.written_bytes = 0
        self.room_end = 0
        """Its file was given this length (`room_ahead.py`); 0: it has that of its batches."""
        self.small_syncs = 0
        self.named_until_s = 0.0
        """Until then nobody looks again whether its file has a name; by `perf_counter`."""
        self.max_timestamp_ms = NO_TIMESTAMP_MS
        self.max_timestamp_last = 0
        """The relative offset with which the first batch that has it ends."""
        self.created_ms = 0
        self.deleted = False
        self.missing = False
        """Its files were there and are not: who reads it is told, as where they are removed later."""
        self.keys: tuple[Block, ...] | None = None
        """What its index of keys has (`key_index.py`); None: its file was not looked at."""
        self.file: File | None = None
        self._largest_timestamp_ms: int | None = None
        self._is_largest_checked = False

    @property
    def log_path(self) -> str:
        """Path of the file of batches."""
        return self.stem + ".log"

    def is_full(self, size: int, next_offset: int, config: LogConfig, wall_clock_ms: Callable[[], int]) -> bool:
        """Whether a batch of `size` bytes that ends before `next_offset` begins the next segment."""
        if not self.size:
            self.created_ms = wall_clock_ms()
            return next_offset - self.base_offset > RELATIVE_OFFSET_MAX
        index = self.index
        return (
            self.size + size > config.segment_bytes
            or next_offset - self.base_offset > RELATIVE_OFFSET_MAX
            or (index is not None and len(index.offsets) * OFFSET_ENTRY.size >= config.index_bytes_max)
            or self.age_ms(wall_clock_ms()) >= config.segment_ms
        )

    def age_ms(self, now_ms: int) -> int:
        """How long ago its first batch came; since now, where the clock was ahead then."""
        self.created_ms = min(self.created_ms, now_ms)
        return now_ms - self.created_ms

    def note(self, base_offset: int, next_offset: int, size: int, max_timestamp_ms: int) -> None:
        """A batch was put at the end of an open segment: index it if it is time."""
        index = self.index
        assert index is not None
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_last = next_offset - 1 - self.base_offset
        if self.size - index.last_position > self.interval_bytes:
            index.add(base_offset - self.base_offset, next_offset - 1 - self.base_offset, self.size)
            index.add_time(self.max_timestamp_ms, self.max_timestamp_last)
        self.size += size

    def save_index(self, files: Files, stem: str) -> None:
        """It is full: the files of its index, complete. Raises OSError; calling again is harmless."""
        index = self.index
        assert index is not None
        index.add_time(self.max_timestamp_ms, self.max_timestamp_last)
        index.save(files, stem, len(index.offsets), len(index.times))

    def writable(self, files: Files) -> File:
        """The handle to write with; made on first use. Called by the flusher's thread, one at a time a log."""
        if self.file is None:
            self.file = files.open(self.log_path)
        return self.file

    def close_file(self) -> None:
        """Give the handle back."""
        file, self.file = self.file, None
        if file is not None:
            file.close()

    def let_go(self) -> None:
        """It is closed: its index is read from its files, and nothing more is written."""
        self._largest_timestamp_ms = None  # it may have been closed before, and cut since
        self.index = None
        self.close_file()

    def first_of(self, file: Readable) -> FirstOf:
        """What looks into the headers of batches in its file."""
        base = self.base_offset

        def found(position: int, last: int) -> int:
            try:
                header = parse_header(file.pread(HEADER_BYTES, position))
            except CorruptBatch:
                self._say_damaged(last)
                return UNKNOWN
            if base + last in (header.base_offset, header.next_offset - 1):
                return header.base_offset - base
            self._say_damaged(last)
            return UNKNOWN

        return found

    def _say_damaged(self, entry: int, suffix: str = ".index") -> None:
        if not self.index_damaged:
            self.index_damaged = True
            offset = self.base_offset + entry
            logger.warning(
                "%s%s leads to no batch at offset %d: more of the log is read instead", self.stem, suffix, offset
            )

    def by_index(self, files: Files, read: Callable[[], T], otherwise: T) -> T:
        """What the files of its index say; `otherwise`, which is what they would say without entries, where those are
        gone or cannot be read, with a line for it. Raises FileNotFoundError where all of it is gone.
        """
        try:
            return read()
        except OSError as error:
            if not files.exists(self.log_path):
                raise
            if not self.index_damaged:
                self.index_damaged = True
                logger.warning("the index of %s cannot be read, more of the log is read instead: %s", self.stem, error)
            return otherwise

    def position_of(self, files: Files, file: Readable, offset: int) -> int:
        """Where to start scanning its file for an offset. Raises OSError."""
        index, relative = self.index, offset - self.base_offset
        if index is not None:
            return index.position_of(relative, self.first_of(file))
        first_of = self.first_of(file)
        return self.by_index(files, lambda: find_position(files, self.stem, relative, first_of), 0)

    def offset_before(self, files: Files, timestamp_ms: int) -> int:
        """The offset from which on batches may reach a timestamp. Raises OSError."""
        index = self.index
        if index is not None:
            return self.base_offset + index.offset_before(timestamp_ms)
        none: list[tuple[int, int]] = []
        times = self.by_index(files, lambda: find_times_before(files, self.stem, timestamp_ms), none)
        return self.base_offset + self._first_that_holds(files, times)[1]

    def largest_timestamp_ms(self, files: Files, *, checked: bool = False) -> int:
        """The largest timestamp of all batches, -1 without any; `checked`: looked up in the batches, once, where it is
        the index that says so. Raises OSError.
        """
        if self.index is not None or self.missing:
            return self.max_timestamp_ms
        if self._largest_timestamp_ms is None or (checked and not self._is_largest_checked):
            none: list[tuple[int, int]] = []
            times = self.by_index(files, lambda: last_times(files, self.stem), none)
            self._largest_timestamp_ms = times[0][0] if times else NO_TIMESTAMP_MS
            if checked:
                self._largest_timestamp_ms = self._largest_of_batches(files, times)
            self._is_largest_checked = checked
        return self._largest_timestamp_ms

    def _largest_of_batches(self, files: Files, times: list[tuple[int, int]]) -> int:
        largest_ms, offset = self._first_that_holds(files, times)
        if times and (largest_ms, offset) == times[0]:
            return largest_ms
        for place in self._places(files, self.base_offset + offset):
            if place.size > HEADER_BYTES:  # compaction may leave a header alone, whose time is nobody's
                largest_ms = max(largest_ms, place.max_timestamp_ms)
        return largest_ms

    def _first_that_holds(self, files: Files, times: list[tuple[int, int]]) -> tuple[int, int]:
        """The first of some time entries whose batch has that time; without one what is so where the segment begins."""
        for largest_ms, last in times:
            offset = self.base_offset + last
            with closing(self._places(files, offset)) as places:
                place = next(places, None)
            if place is not None and place.next_offset - 1 == offset:
                holds = place.max_timestamp_ms == largest_ms
            else:  # in an older file
                holds = place is not None and place.base_offset == offset and place.max_timestamp_ms <= largest_ms
            if holds:
                return largest_ms, last
            self._say_damaged(last, ".timeindex")
        return NO_TIMESTAMP_MS, 0

    def _places(self, files: Files, offset: int) -> Generator[BatchPlace]:
        """The batches of its file from the one that holds an offset on, as far as their headers can be read."""
        file = files.open(self.log_path, create=False)
        try:
            position = self.position_of(files, file, offset)
            for place in scan(
                file, self.log_path, position, self.written_bytes, check_crc=False, piece_bytes=_LOOK_BYTES
            ):
                if place.next_offset > offset:
                    yield place
        except CorruptBatch:
            return
        finally:
            file.close()

    def remove(self, files: Files) -> None:
        """Remove the files. Raises OSError."""
        for suffix in (".log", ".index", ".timeindex", ".keys"):
            try:
                files.remove(self.stem + suffix)
            except FileNotFoundError:
                pass


def check_batch(data: BytesLike, at: int, end: int, check_crc: bool = True) -> tuple[int, int, int, int]:
    """(size, base offset, next offset, largest timestamp) of the batch at `at`; whole if it ends by `end`.

    Raises CorruptBatch. A size beyond `end - at` is returned as it is, unchecked: the caller decides to read on.
    """
    (base_offset, length, _, magic, crc, _, last_delta, _, max_timestamp_ms, _, _, _, count) = HEADER.unpack_from(
        data, at
    )
    size = length + LENGTH_START
    # Compaction may leave nothing of a batch but its header.
    least = HEADER_BYTES + RECORD_BYTES_MIN if count else HEADER_BYTES
    if magic != MAGIC or size < least or base_offset < 0 or last_delta < 0 or count < 0:
        raise CorruptBatch("not a batch header")
    if check_crc and at + size <= end and crc32c(memoryview(data)[at + CRC_START : at + size]) != crc:
        raise CorruptBatch("wrong CRC")
    return size, base_offset, base_offset + last_delta + 1, max_timestamp_ms


def scan(
    file: Readable,
    path: str,
    start: int,
    end: int,
    *,
    expected: int = 0,
    check_crc: bool = True,
    piece_bytes: int = _SCAN_BYTES,
) -> Iterator[BatchPlace]:
    """The batches in [start, end) of a segment's file, read in pieces; offsets begin at `expected` or above.

    Raises CorruptBatch with file and position at the first that is damaged, cut short or out of order; OSError.
    """
    position = start
    data = b""
    data_start = start
    try:
        while position < end:
            at = position - data_start
            if len(data) - at < HEADER_BYTES:
                data, data_start, at = file.pread(min(piece_bytes, end - position), position), position, 0
                if len(data) < HEADER_BYTES:
                    raise CorruptBatch(f"{len(data)} bytes are no batch")
            size, base_offset, next_offset, max_timestamp_ms = check_batch(data, at, len(data), check_crc)
            if size > len(data) - at:
                if size > end - position:
                    raise CorruptBatch(f"batch of {size} bytes in {end - position}")
                data, data_start, at = file.pread(max(min(piece_bytes, end - position), size), position), position, 0
                if size > len(data):
                    raise CorruptBatch(f"batch of {size} bytes in {len(data)}")
                check_batch(data, at, len(data), check_crc)
            if base_offset < expected:
                raise CorruptBatch(f"base offset {base_offset} after {expected}")
            expected = next_offset
            yield BatchPlace(position, size, base_offset, next_offset, max_timestamp_ms)
            position += size
    except CorruptBatch as error:
        raise CorruptBatch(f"{path} at position {position}: {error}") from None
