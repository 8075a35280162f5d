"""Offsets of messages that were given back: each takes its old place again, and says whether it is a redelivery.

Two `OffsetSet`s, one for each value of the flag: 8 bytes a range, contiguous neighbours joined, found by offset or from
the front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from routing.queues.offset_set import OffsetSet, Range, together

PlacedRange = tuple[int, int, bool]
"""Offset of the first message, count, redelivered."""

NOTHING: PlacedRange = (0, 0, False)


class Placed:
    """Offsets in their order; `count` is how many there are."""

    __slots__ = ("_fresh", "_redelivered", "count")

    def __init__(self) -> None:
        self.count = 0
        self._fresh = OffsetSet()
        self._redelivered = OffsetSet()

    def __len__(self) -> int:
        return self.count

    def add(self, first: int, count: int, *, redelivered: bool = True) -> None:
        """Put in `count` offsets from `first`, none of which is here."""
        self.count += count
        (self._redelivered if redelivered else self._fresh).add(first, count)

    def head(self) -> PlacedRange:
        """The first range, `NOTHING`, whose count is 0, when the set is empty; a contiguous one may follow."""
        if not self.count:
            return NOTHING
        first, count = self._redelivered.head()
        fresh_first, fresh_count = self._fresh.head()
        if fresh_count and (not count or fresh_first < first):
            return fresh_first, fresh_count, False
        return first, count, True

    def drop(self, count: int) -> None:
        """Remove `count` offsets from the front; not more than `head()` said."""
        redelivered = self.head()[2]
        self.count -= count
        (self._redelivered if redelivered else self._fresh).drop(count)

    def present(self, offsets: Sequence[int]) -> list[int]:
        """Those of `offsets`, which rise and are distinct, that are here."""
        return _together([plain.present(offsets) for plain in self._parts()])

    def from_on(self, offset: int) -> tuple[int, int]:
        """How many lie at or behind an offset, and the first of them; `(0, 0)`: none."""
        return together([plain.from_on(offset) for plain in self._parts()])

    def discard(self, offsets: Sequence[int]) -> list[int]:
        """Remove `offsets`, which rise and are distinct, wherever they are; returns those that were here."""
        found = _together([plain.discard(offsets) for plain in self._parts()])
        self.count -= len(found)
        return found

    def _parts(self) -> list[OffsetSet]:
        return [plain for plain in (self._redelivered, self._fresh) if plain.count]

    def ranges(self) -> Iterator[Range]:
        """All offsets as ranges (first, count), in no particular order."""
        yield from self._redelivered.ranges()
        yield from self._fresh.ranges()

    def ranges_of(self, *, redelivered: bool) -> Iterator[Range]:
        """Those with this value of the flag."""
        yield from (self._redelivered if redelivered else self._fresh).ranges()

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]


def _together(found: list[list[int]]) -> list[int]:
    parts = [part for part in found if part]
    return parts[0] if len(parts) == 1 else sorted(offset for part in parts for offset in part)
