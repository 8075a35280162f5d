"""How many bytes wait in a queue, for those whose length is limited in bytes.

Sizes are known from when the limit came. What stood there before, and what a start found, counts with the average size
of its log: bodies are not looked at for this.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable

from routing.queues.offset_set import Range

_TIDY_MIN = 1024


class MessageSizes:
    """Sizes by offset; `waiting_bytes` is the sum of those that wait."""

    __slots__ = ("_columns", "_estimate", "_firsts", "_tidy_at", "waiting_bytes")

    def __init__(self, waiting: Iterable[Range], estimate: int) -> None:
        """Messages that are there already have `estimate` bytes each."""
        self._firsts: list[int] = []
        self._columns: list[array[int]] = []
        self._estimate = estimate
        self._tidy_at = _TIDY_MIN
        self.waiting_bytes = estimate * sum(count for _, count in waiting)

    def note(self, first: int, sizes: array[int]) -> None:
        """New messages, beyond all others."""
        self._firsts.append(first)
        self._columns.append(sizes)
        self.waiting_bytes += sum(sizes)

    def _of(self, offset: int) -> int:
        index = bisect_right(self._firsts, offset) - 1
        if index >= 0 and offset - self._firsts[index] < len(self._columns[index]):
            return self._columns[index][offset - self._firsts[index]]
        return self._estimate

    def leave(self, first: int, count: int) -> None:
        """Messages left the line."""
        self.waiting_bytes -= sum(map(self._of, range(first, first + count)))

    def come_back(self, offset: int) -> None:
        """A message stands in line again."""
        self.waiting_bytes += self._of(offset)

    def tidy(self, oldest_live: int) -> None:
        """Forget, now and then, what lies before the oldest message that may still be there."""
        if len(self._firsts) >= self._tidy_at:
            keep = bisect_right(self._firsts, oldest_live) - 1
            if keep > 0:
                del self._firsts[:keep], self._columns[:keep]
            self._tidy_at = max(_TIDY_MIN, 2 * len(self._firsts))
