"""What can be read of a partition log: from memory near its end, else from the files.

Offsets may have gaps. Where it says `before` or `end`, the offset itself is excluded. Nothing here changes the log.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter

from core_log import cold_reader
from core_log.containing import Groups
from core_log.errors import CorruptBatch, OffsetOutOfRange
from core_log.file_range import FileRange, find_range
from core_log.files import BytesLike, Files
from core_log.log_config import LogConfig
from core_log.segment import Segment
from core_log.tail_cache import TailCache

_base_offset = attrgetter("base_offset")
_GIVEN_MAX = 64
"""So many pieces of files are remembered, the last ones."""
_UNCHECKED_MAX = 2
"""So often a piece of a file goes out from one offset before it is checked."""
_CHECKED = -(1 << 62)


class ReadableLog:
    """See the module; `PartitionLog` says what the offsets are."""

    files: Files
    directory: str
    config: LogConfig
    log_start_offset: int
    high_watermark: int
    written_offset: int
    log_end_offset: int
    leader_epoch: int
    segments: list[Segment]
    closed: bool
    truncating: bool
    cuts: int
    unreadable = False
    """A read found something else in its files than what was written, or nothing."""
    refusal_said_s = -math.inf
    """When the log said last that the disk refuses to read it; by `monotonic`."""
    may_hand_over: Callable[[], bool] | None = None
    """Whether this broker leads it and somebody else could."""
    is_led: Callable[[], bool] | None = None
    """Whether this broker leads it; None: nobody else ever does."""
    is_everywhere: Callable[[], bool] | None = None
    """Whether all who have a replica have what is committed; None: nobody else has one."""
    _tail: TailCache
    _given: dict[int, int] | None = None
    """How often pieces of files went out unchecked, by where they begin; below zero: what is there was checked."""

    @property
    def is_whole_elsewhere(self) -> bool:
        """It cannot be read here, but by somebody who will lead it instead."""
        return self.unreadable and self.may_hand_over is not None and self.may_hand_over()

    def is_lost(self, problem: Exception) -> bool:
        """Whether what could not be read is damaged or gone for good, and nobody else has it: who led the log when the
        read began may have handed it over since.
        """
        if self.is_led is not None and not self.is_led():
            return False
        return isinstance(problem, CorruptBatch | FileNotFoundError) and not self.is_whole_elsewhere

    def _check_offset(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.log_end_offset)

    def read(self, offset: int, max_bytes: int, *, before: int | None = None) -> list[BytesLike] | None:
        """Whole batches from the one that holds `offset`, about `max_bytes`, at least one, below `before`.

        `before` is at most, and by default, the high watermark. [] at the end; None: not in memory, use `read_cold`.
        Raises OffsetOutOfRange.
        """
        self._check_offset(offset)
        limit = self.high_watermark if before is None else min(before, self.high_watermark)
        return [] if offset >= limit else self._tail.read(offset, max_bytes, limit)

    def read_blocking(
        self, offset: int, max_bytes: int, *, before: int | None = None, unsynced: bool = False
    ) -> list[BytesLike]:
        """`read`, from the disk when it must; for threads, start-up and tools.

        With `unsynced` up to the written offset: for who keeps the log, and knows what a loss of power would take.
        Raises OffsetOutOfRange, CorruptBatch naming file and position, OSError.
        """
        self._check_offset(offset)
        highest = self.written_offset if unsynced else self.high_watermark
        limit = highest if before is None else min(before, highest)
        return [] if offset >= limit else cold_reader.read_batches(self, offset, max_bytes, limit)

    async def read_cold(
        self, offset: int, max_bytes: int, *, before: int | None = None, unsynced: bool = False
    ) -> list[BytesLike]:
        """`read_blocking` in a thread."""
        return await cold_reader.in_thread(
            lambda: self.read_blocking(offset, max_bytes, before=before, unsynced=unsynced)
        )

    async def read_containing(
        self, offset: int, max_bytes: int, groups: Groups, *, before: int | None = None
    ) -> cold_reader.Looked:
        """`read_cold` without the batches that cannot have what is looked for; see `cold_reader.read_containing`."""

        def look() -> cold_reader.Looked:
            self._check_offset(offset)
            limit = self.high_watermark if before is None else min(before, self.high_watermark)
            return cold_reader.read_containing(self, offset, max_bytes, limit, groups)

        return await cold_reader.in_thread(look)

    def read_range(self, offset: int, max_bytes: int, *, before: int | None = None) -> FileRange | None:
        """About what `read` gives, as a piece of a file that is in the page cache; None: `read` it, or
        `read_range_cold`. For an offset that `read` has not found in memory. Who asks for the same again and again may
        be who finds a wrong CRC in it: that is read, and checked.
        """
        if self._is_asked_again(offset):
            return None
        limit = self.high_watermark if before is None else min(before, self.high_watermark)
        try:
            found = find_range(self, offset, max_bytes, limit)
        except OSError:
            return None  # whoever reads it is told
        if found is not None:
            self._note_given(offset, 1)
        return found

    def _is_asked_again(self, offset: int) -> bool:
        return self._given is not None and self._given.get(offset, 0) >= _UNCHECKED_MAX

    def _note_given(self, offset: int, times: int) -> None:
        given = self._given = self._given or {}
        given[offset] = given.pop(offset, 0) + times
        if len(given) > _GIVEN_MAX:
            given.pop(next(iter(given)), None)

    async def read_range_cold(
        self, offset: int, max_bytes: int, *, before: int | None = None
    ) -> FileRange | list[BytesLike]:
        """`read_cold`, or a piece of a file, worked out in a thread."""
        asked_again = self._is_asked_again(offset)

        def find() -> FileRange | list[BytesLike]:
            limit = self.high_watermark if before is None else min(before, self.high_watermark)
            try:
                found = None if asked_again else find_range(self, offset, max_bytes, limit, may_block=True)
            except OSError:
                found = None
            return self.read_blocking(offset, max_bytes, before=before) if found is None else found

        found = await cold_reader.in_thread(find)
        if isinstance(found, FileRange):
            self._note_given(offset, 1)
        elif asked_again:
            self._note_given(offset, _CHECKED)
        return found

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after a time; None when there is none.

        Blocks; raises CorruptBatch, OSError.
        """
        return cold_reader.find_timestamp(self, timestamp_ms)

    async def offset_for_timestamp_cold(self, timestamp_ms: int) -> tuple[int, int] | None:
        """`offset_for_timestamp` in a thread."""
        return await cold_reader.in_thread(lambda: cold_reader.find_timestamp(self, timestamp_ms))

    def segments_from(self, offset: int) -> list[Segment]:
        """A snapshot of the segments from the one that holds `offset` on."""
        segments = self.segments.copy()
        at = bisect_right(segments, offset, key=_base_offset)
        return segments[max(at - 1, 0) :]

    def verify(self) -> list[str]:
        """Check every written batch and index entry; returns what is wrong, with file and position. Blocks."""
        return cold_reader.verify(self)
