"""Where deliveries of a queue that is led elsewhere lie in its home: what its leader told, until they are settled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence


class _Run:
    """Offsets [offset, offset + count) are the places from `first` on; `left` of them are not settled."""

    __slots__ = ("count", "first", "left", "offset")

    def __init__(self, first: int, count: int, offset: int) -> None:
        self.first = first
        self.offset = offset
        self.count = self.left = count


def _first(run: _Run) -> int:
    return run.first


class Places:
    """See the module; runs in the order of their places, which rise."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._done: set[int] = set()

    def add(self, first: int, ranges: Sequence[int]) -> None:
        """The deliveries from a place on have these offsets: first and last of each range."""
        for low, high in zip(ranges[::2], ranges[1::2], strict=True):
            self._runs.append(_Run(first, high - low + 1, low))
            first += high - low + 1

    def _at(self, place: int) -> _Run | None:
        index = bisect_right(self._runs, place, key=_first) - 1
        run = self._runs[index] if index >= 0 else None
        return run if run is not None and place < run.first + run.count else None

    def offsets_of(self, places: Iterable[int]) -> list[int] | None:
        """Of deliveries that are not settled; None: nobody knows."""
        found = []
        for place in places:
            run = self._at(place)
            if run is None:
                return None
            found.append(run.offset + place - run.first)
        return found

    def settle(self, places: Iterable[int]) -> None:
        """Nobody asks for these any more."""
        for place in places if self._runs else ():
            run = self._at(place)
            if run is not None:
                run.left -= 1
                if not run.left:
                    self._runs.remove(run)

    # ---- what is received

    def receive(self, offsets: Iterable[int]) -> None:
        """Whatever the leader sends of these yet, nobody is to get it."""
        self._done.update(offsets)

    def complete(self, offsets: Iterable[int]) -> None:
        """The leader sends them no more."""
        self._done.difference_update(offsets)

    def fresh(self, first: int, count: int) -> list[tuple[int, int]]:
        """Those of the deliveries from a place on that are not received: runs of places, and how many."""
        found: list[tuple[int, int]] = []
        offsets = self.offsets_of(range(first, first + count)) if self._done else None
        if offsets is None:
            return [(first, count)]
        for place, offset in enumerate(offsets, first):
            if offset in self._done:
                self.settle((place,))
            elif found and sum(found[-1]) == place:
                found[-1] = found[-1][0], found[-1][1] + 1
            else:
                found.append((place, 1))
        return found
