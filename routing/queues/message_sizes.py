"""How many bytes wait in a queue, for those whose length is limited in bytes.

Sizes are known from when the limit came: they are noted in the home's log and in checkpoints. What stood there before
and is not in memory counts with the average size of its log, as does what a crash left without its note: bodies are not
read for this.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from routing.queues.offset_set import Range

if TYPE_CHECKING:
    from routing.queues.slab_cache import CachedSlab

_TIDY_MIN = 1024


def in_memory(find: Callable[[int], CachedSlab | None], waiting: Iterable[Range]) -> dict[int, array[int]]:
    """Sizes of the last messages of each range, as far back as their slabs are found."""
    columns = {}
    for first, count in waiting:
        end = first + count
        while end > first and (entry := find(end - 1)) is not None:
            start = max(entry.first, first)
            columns[start] = array("I", map(len, entry.slab.bodies[start - entry.first : end - entry.first]))
            end = start
    return columns


class MessageSizes:
    """Sizes by offset; `waiting_bytes` is the sum of those that wait."""

    __slots__ = ("_columns", "_estimate", "_firsts", "_tidy_at", "waiting_bytes")

    def __init__(self, waiting: Iterable[Range], estimate: int, known: Mapping[int, array[int]]) -> None:
        """Messages that are there already; those whose size is not `known` have `estimate` bytes each."""
        self._firsts: list[int] = []
        self._columns: list[array[int]] = []
        for first in sorted(known):
            self.note(first, known[first])
        self._estimate = estimate
        self._tidy_at = max(_TIDY_MIN, 2 * len(self._firsts))
        self.waiting_bytes = sum(self._sum(first, count) for first, count in waiting)

    def note(self, first: int, sizes: array[int]) -> None:
        """New messages, beyond all others."""
        self._firsts.append(first)
        self._columns.append(sizes)

    def dump(self) -> list[tuple[int, array[int]]]:
        """What is known, for a checkpoint; the columns do not change any more."""
        return list(zip(self._firsts, self._columns, strict=True))

    def _sum(self, first: int, count: int) -> int:
        firsts, columns = self._firsts, self._columns
        end = first + count
        known = total = 0
        for index in range(max(bisect_right(firsts, first) - 1, 0), len(firsts)):
            start = firsts[index]
            if start >= end:
                break
            part = columns[index][max(first - start, 0) : end - start]
            known += len(part)
            total += sum(part)
        return total + self._estimate * (count - known)

    def until(self, first: int, count: int, wanted: int) -> int:
        """How many of these messages, from the first on, have so many bytes together; all if they have fewer."""
        firsts, at, end = self._firsts, first, first + count
        for index in range(max(bisect_right(firsts, first) - 1, 0), len(firsts) + 1):
            start = min(firsts[index], end) if index < len(firsts) else end
            unknown = max(start - at, 0)
            if unknown and self._estimate * unknown >= wanted:
                return at - first + -(-wanted // self._estimate)
            wanted, at = wanted - self._estimate * unknown, at + unknown
            if at == end:
                break
            part = self._columns[index][at - start : end - start]
            total = sum(part)
            if total >= wanted:
                return at - first + next(n for n, so_far in enumerate(accumulate(part), 1) if so_far >= wanted)
            wanted, at = wanted - total, at + len(part)
        return count

    def come(self, first: int, count: int) -> None:
        """Messages stand in line."""
        self.waiting_bytes += self._sum(first, count)

    def leave(self, first: int, count: int) -> None:
        """Messages left the line."""
        self.waiting_bytes -= self._sum(first, count)

    def tidy(self, oldest_live: int) -> None:
        """Forget, now and then, what lies before the oldest message that may still be there."""
        if len(self._firsts) >= self._tidy_at:
            keep = bisect_right(self._firsts, oldest_live) - 1
            if keep > 0:
                del self._firsts[:keep], self._columns[:keep]
            self._tidy_at = max(_TIDY_MIN, 2 * len(self._firsts))
