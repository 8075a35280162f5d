"""Offsets that come before all others of a queue, each with its *position*: its place in the queue's order.

A message that was only given back has its offset as position and takes its old place again. One that was *relocated*,
written again under a new offset, keeps the position of the old one.

1. What is not relocated lies in two `OffsetSet`s, one for each value of the redelivered flag: 8 bytes a range,
   contiguous neighbours joined, found by offset or from the front.
2. The relocated are rarer and cost an object a range. They are sorted twice, by position and by offset, and cost
   nothing before the first of them comes.
3. No two messages of a set share a position or an offset. With equal positions, only the order between those two is
   not defined.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict, SortedList

from routing.queues.offset_set import OffsetSet, Range

PlacedRange = tuple[int, int, int, bool]
"""Position and offset of the first message, count, redelivered: positions rise with the offsets."""

NOTHING: PlacedRange = (0, 0, 0, False)


class Placed:
    """Offsets in the order of their positions; `count` is how many there are."""

    __slots__ = ("_fresh", "_redelivered", "_relocated", "count")

    def __init__(self) -> None:
        self.count = 0
        self._fresh = OffsetSet()
        self._redelivered = OffsetSet()
        self._relocated: _Relocated | None = None

    def __len__(self) -> int:
        return self.count

    def add(self, first: int, count: int, *, position: int | None = None, redelivered: bool = True) -> None:
        """Put in `count` offsets from `first`, none of which is here; the first at `position`, else at its offset."""
        self.count += count
        if position is None or position == first:
            (self._redelivered if redelivered else self._fresh).add(first, count)
            return
        if self._relocated is None:
            self._relocated = _Relocated()
        self._relocated.add((position, first, count, redelivered))

    def head(self) -> PlacedRange:
        """The first range, `NOTHING`, whose count is 0, when the set is empty; a contiguous one may follow."""
        if not self.count:
            return NOTHING
        first, count = self._redelivered.head()
        fresh_first, fresh_count = self._fresh.head()
        redelivered = not fresh_count or (count > 0 and first < fresh_first)
        if not redelivered:
            first, count = fresh_first, fresh_count
        if self._relocated is not None:
            relocated = self._relocated.head()
            if not count or relocated[0] < first:
                return relocated
        return first, first, count, redelivered

    def drop(self, count: int) -> None:
        """Remove `count` offsets from the front; not more than `head()` said."""
        position, first, _, redelivered = self.head()
        self.count -= count
        if position == first:
            (self._redelivered if redelivered else self._fresh).drop(count)
            return
        assert self._relocated is not None
        self._relocated.remove(first, first, count)
        self._shrink()

    def present(self, offsets: Sequence[int]) -> list[int]:
        """Those of `offsets`, which rise and are distinct, that are here."""
        return self._sought(offsets, remove=False)

    def discard(self, offsets: Sequence[int]) -> list[int]:
        """Remove `offsets`, which rise and are distinct, wherever they are; returns those that were here."""
        found = self._sought(offsets, remove=True)
        self.count -= len(found)
        self._shrink()
        return found

    def _sought(self, offsets: Sequence[int], *, remove: bool) -> list[int]:
        parts: list[list[int]] = []
        for plain in (self._redelivered, self._fresh):
            if plain.count:
                parts.append(plain.discard(offsets) if remove else plain.present(offsets))
        if self._relocated is not None:
            parts.append(self._relocated.sought(offsets, remove=remove))
        parts = [part for part in parts if part]
        return parts[0] if len(parts) == 1 else sorted(offset for part in parts for offset in part)

    def ranges(self) -> Iterator[Range]:
        """All offsets as ranges (first, count), in no particular order."""
        yield from self.ranges_of(redelivered=True)
        yield from self.ranges_of(redelivered=False)

    def ranges_of(self, *, redelivered: bool) -> Iterator[Range]:
        """Those with this value of the flag."""
        yield from (self._redelivered if redelivered else self._fresh).ranges()
        if self._relocated is not None:
            for _, first, count, flag in self._relocated.by_position:
                if flag == redelivered:
                    yield first, count

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]

    def _shrink(self) -> None:
        if self._relocated is not None and not self._relocated.by_position:
            self._relocated = None


class _Relocated:
    """Ranges whose positions are not their offsets; the set goes away with the last of them."""

    __slots__ = ("_by_first", "by_position")

    def __init__(self) -> None:
        self.by_position: SortedList[PlacedRange] = SortedList()
        self._by_first: SortedDict[int, PlacedRange] = SortedDict()

    def add(self, placed: PlacedRange) -> None:
        self.by_position.add(placed)
        self._by_first[placed[1]] = placed

    def head(self) -> PlacedRange:
        placed: PlacedRange = self.by_position[0]
        return placed

    def remove(self, key: int, first: int, count: int) -> None:
        """Remove `count` offsets from `first`, which lie in the range that begins with offset `key`."""
        placed: PlacedRange = self._by_first.pop(key)
        self.by_position.remove(placed)
        position, start, total, redelivered = placed
        before = first - start
        if before:
            self.add((position, start, before, redelivered))
        after = total - before - count
        if after:
            self.add((position + before + count, first + count, after, redelivered))

    def sought(self, offsets: Sequence[int], *, remove: bool) -> list[int]:
        """Those of `offsets` that are here, removed if that is asked for."""
        found: list[int] = []
        for key in self._candidates(offsets):
            _, first, count, _ = self._by_first[key]
            start = bisect_left(offsets, first)
            hits = offsets[start : bisect_left(offsets, first + count, start)]
            found += hits
            if remove:
                # From behind, a contiguous run at a time: what is left before it keeps its key.
                end = len(hits)
                while end:
                    begin = end - 1
                    while begin and hits[begin - 1] + 1 == hits[begin]:
                        begin -= 1
                    self.remove(key, hits[begin], end - begin)
                    end = begin
        return found

    def _candidates(self, offsets: Sequence[int]) -> list[int]:
        """Keys of the ranges that may hold some of `offsets`, in order: found from the smaller side."""
        if len(offsets) > len(self._by_first):
            return list(self._by_first)
        keys: list[int] = []
        for offset in offsets:
            at = self._by_first.bisect_right(offset)
            if at:
                key: int = self._by_first.keys()[at - 1]
                if not keys or keys[-1] != key:
                    keys.append(key)
        return keys
