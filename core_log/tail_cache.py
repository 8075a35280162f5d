"""The newest batches of a log in memory, so that readers near the end never wait for the disk.

1. Four parallel lists in offset order: finding, counting bytes and slicing are done by `bisect` and slices, in C.
2. A large batch whose first 16 bytes were patched is kept as two pieces, and joined when it is read for the first time.
3. Over the limit the oldest batches go, an eighth more than needed, so that trimming is rare.
4. All caches of a process share a limit as well: over it others than the one that grows are emptied, those first that
   have been in use for the longest. What is not here is read from the files, so nothing but time is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from core_log.files import BytesLike


class TailBudget:
    """What the tail caches of a process hold, and may hold together: `bytes_held` and `bytes_max`, in bytes."""

    __slots__ = ("_caches", "bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._caches: OrderedDict[TailCache, None] = OrderedDict()  # a dict is slow to find its first again and again
        """Those that hold anything, in the order in which they began to."""

    def begun(self, cache: TailCache) -> None:
        """A cache that was empty holds something."""
        self._caches[cache] = None

    def limit(self, bytes_max: int) -> None:
        """Hold no more from now on."""
        self.bytes_max = bytes_max
        while self.bytes_held > bytes_max:
            next(iter(self._caches)).clear()

    def make_room(self, growing: TailCache) -> None:
        """Empty caches until the limit is kept, but for the one that grows: its own limit holds for it."""
        caches = self._caches
        while self.bytes_held > self.bytes_max and len(caches) > 1:
            first = next(iter(caches))
            if first is growing:
                caches.move_to_end(first)
            else:
                first.clear()

    def ended(self, cache: TailCache) -> None:
        """It is empty."""
        self._caches.pop(cache, None)


class TailCache:
    """See the module. Offsets below `start_offset` are not here."""

    __slots__ = ("_batches", "_budget", "_bytes_max", "_ends", "_in_pieces", "_next_offsets", "_starts", "start_offset")

    def __init__(self, bytes_max: int, start_offset: int, budget: TailBudget) -> None:
        self._bytes_max = bytes_max
        self._budget = budget
        self.start_offset = start_offset
        self._next_offsets: list[int] = []
        self._starts: list[int] = []
        """Bytes of all batches ever added before this one."""
        self._batches: list[BytesLike | tuple[BytesLike, BytesLike]] = []
        self._ends = 0
        self._in_pieces = False

    def add(self, batch: BytesLike | tuple[BytesLike, BytesLike], size: int, next_offset: int) -> None:
        """A batch at the end of the log."""
        budget = self._budget
        if not self._starts:
            budget.begun(self)
        self._next_offsets.append(next_offset)
        self._starts.append(self._ends)
        self._batches.append(batch)
        self._ends += size
        if type(batch) is tuple:
            self._in_pieces = True
        budget.bytes_held += size
        if self._ends - self._starts[0] > self._bytes_max:
            self._trim()
        if budget.bytes_held > budget.bytes_max:
            budget.make_room(self)

    def clear(self) -> None:
        """Nothing is here any more."""
        if self._starts:
            self._drop(len(self._starts))

    def drop_before(self, offset: int) -> None:
        """The files say it better: batches that end there or before go."""
        count = bisect_right(self._next_offsets, offset)
        if count:
            self._drop(count)

    def _trim(self) -> None:
        count = bisect_right(self._starts, self._ends - self._bytes_max + self._bytes_max // 8)
        self._drop(min(count, len(self._starts)))

    def _drop(self, count: int) -> None:
        self.start_offset = self._next_offsets[count - 1]
        starts, budget = self._starts, self._budget
        budget.bytes_held -= (starts[count] if count < len(starts) else self._ends) - starts[0]
        if count == len(starts):
            budget.ended(self)
        del self._next_offsets[:count], self._starts[:count], self._batches[:count]

    def read(self, offset: int, bytes_max: int, before: int) -> list[BytesLike] | None:
        """Whole batches from the one that holds `offset`, below `before`; at least one if any is; None: not here."""
        if offset < self.start_offset:
            return None
        first = bisect_right(self._next_offsets, offset)
        stop = bisect_right(self._next_offsets, before)
        if first >= stop:
            return []
        starts = self._starts
        last = bisect_right(starts, starts[first] + bytes_max, first + 1, stop)
        # `last` is the first batch that begins beyond the limit; the one before it may reach over it.
        end = starts[last] if last < len(starts) else self._ends
        if end - starts[first] > bytes_max and last > first + 1:
            last -= 1
        if self._in_pieces:
            self._join(first, last)
        return self._batches[first:last]  # type: ignore[return-value]

    def _join(self, first: int, last: int) -> None:
        for at in range(first, last):
            batch = self._batches[at]
            if type(batch) is tuple:
                self._batches[at] = b"".join(batch)
