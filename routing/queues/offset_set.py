"""Ordered sets of offsets: what a queue still has to give out.

A backlog is ranges of integers, never objects. `OffsetSet` grows at its end and shrinks at its front, and that is all a
queue needs: a contiguous backlog is one range whatever its length, a sparse one costs 8 bytes a range. Ranges are
packed into one unsigned 64-bit integer, `offset << 16 | (count - 1)`, in chunks that are dropped as they are used up.

`ReturnedOffsets` holds what consumers gave back: few ranges, in offset order, inserted anywhere.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator

_CHUNK_RANGES = 4096
_RANGE_MESSAGES_MAX = 1 << 16

Range = tuple[int, int]
"""First offset and count."""


class OffsetSet:
    """Offsets in rising order; `count` is how many there are."""

    __slots__ = ("_chunks", "_head_count", "_head_first", "_position", "_tail_count", "_tail_first", "count")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.count = 0
        self._chunks: deque[array[int]] = deque()
        self._position = 0
        self._head_first = self._head_count = 0
        self._tail_first = self._tail_count = 0
        for first, count in ranges:
            self.append(first, count)

    def __len__(self) -> int:
        return self.count

    def append(self, first: int, count: int) -> None:
        """Add `count` offsets from `first`, which lies beyond all that are in the set."""
        self.count += count
        if self._tail_count:
            if self._tail_first + self._tail_count == first:
                self._tail_count += count
                return
            self._push(self._tail_first, self._tail_count)
        self._tail_first = first
        self._tail_count = count

    def _push(self, first: int, count: int) -> None:
        chunks = self._chunks
        while count:
            if not chunks or len(chunks[-1]) == _CHUNK_RANGES:
                chunks.append(array("Q"))
            piece = min(count, _RANGE_MESSAGES_MAX)
            chunks[-1].append(first << 16 | (piece - 1))
            first += piece
            count -= piece

    def head(self) -> Range:
        """The first range, `(0, 0)` when the set is empty; it may end before a contiguous one that follows."""
        if not self._head_count:
            self._refill()
        return self._head_first, self._head_count

    def _refill(self) -> None:
        if self._chunks:
            chunk = self._chunks[0]
            packed = chunk[self._position]
            self._position += 1
            if self._position == len(chunk):
                self._chunks.popleft()
                self._position = 0
            self._head_first, self._head_count = packed >> 16, (packed & 0xFFFF) + 1
        else:
            self._head_first, self._head_count = self._tail_first, self._tail_count
            self._tail_count = 0

    def drop(self, count: int) -> None:
        """Remove `count` offsets from the front; not more than `head()` said."""
        self._head_first += count
        self._head_count -= count
        self.count -= count

    def ranges(self) -> Iterator[Range]:
        """All ranges in order, contiguous ones joined."""
        pending_first, pending_count = self._head_first, self._head_count
        position = self._position
        for chunk in self._chunks:
            for index in range(position, len(chunk)):
                first, count = chunk[index] >> 16, (chunk[index] & 0xFFFF) + 1
                if pending_count and pending_first + pending_count == first:
                    pending_count += count
                else:
                    if pending_count:
                        yield pending_first, pending_count
                    pending_first, pending_count = first, count
            position = 0
        if self._tail_count and pending_count and pending_first + pending_count == self._tail_first:
            yield pending_first, pending_count + self._tail_count
            return
        if pending_count:
            yield pending_first, pending_count
        if self._tail_count:
            yield self._tail_first, self._tail_count

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]


class ReturnedOffsets:
    """Ranges in offset order that were given out and came back."""

    __slots__ = ("_ranges", "count")

    def __init__(self) -> None:
        self.count = 0
        self._ranges: list[Range] = []

    def __len__(self) -> int:
        return self.count

    def add(self, first: int, count: int) -> None:
        """Put back `count` offsets from `first`."""
        self.count += count
        insort(self._ranges, (first, count))

    def head(self) -> Range:
        """The first range, `(0, 0)` when empty."""
        return self._ranges[0] if self._ranges else (0, 0)

    def drop(self, count: int) -> None:
        """Remove `count` offsets from the front; not more than `head()` said."""
        first, available = self._ranges[0]
        self.count -= count
        if count == available:
            del self._ranges[0]
        else:
            self._ranges[0] = (first + count, available - count)

    def ranges(self) -> Iterator[Range]:
        """All ranges in order."""
        return iter(self._ranges)

    def clear(self) -> None:
        """Forget everything."""
        self.count = 0
        self._ranges.clear()


def subtract(have: Iterable[Range], gone: Iterable[Range]) -> list[Range]:
    """What is left of the sorted, disjoint ranges `have` without the ranges `gone` (any order, may overlap)."""
    left: list[Range] = []
    holes = sorted(gone)
    at = 0
    for first, count in have:
        end = first + count
        while at < len(holes) and holes[at][0] + holes[at][1] <= first:
            at += 1
        index = at
        while first < end and index < len(holes) and holes[index][0] < end:
            hole_first, hole_count = holes[index]
            if hole_first > first:
                left.append((first, hole_first - first))
            first = max(first, hole_first + hole_count)
            index += 1
        if first < end:
            left.append((first, end - first))
    return left
