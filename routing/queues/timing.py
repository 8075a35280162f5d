"""When messages of a queue expire, and when delayed ones may be given out.

1. An expiry acts on time wherever the message stands. Messages with a time to live of their own wait in a wheel; those
   that only have the queue's expire in the order they came, so a list of ranges does. Of a whole slab, or a block that
   a start found, only the first deadline is watched: most of it is gone by then, and only what still waits goes to the
   wheel (`opened`).
2. What is given out within the turn it came in never gets here: `Queue` registers what is left afterwards.
3. An entry is not removed when its message goes: when it is due, the lines say whether the message still waits. When
   most entries are of messages that are gone, the wheel is swept.
4. A delayed message waits in a wheel of its own and in no line; it begins to live when it is due.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from delay.timing_wheel import TimingWheel

_JOINED_MS = 2
"""Neighbours whose deadlines are no further apart expire together, at the later."""
_STALE_MIN = 4096
_AHEAD_MS = 64
"""What is due within so long is told beforehand, half of that at a time."""
_AHEAD_MAX = 2048
_BITE = 2048
"""Most timers that are looked at in one go."""


class Timing:
    """See the module."""

    __slots__ = ("_expiry", "_in_order", "_now_ms", "_pending", "_slabs", "_sweep_at", "_told_ms")

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._expiry: TimingWheel | None = None
        self._pending: TimingWheel | None = None
        self._in_order: deque[tuple[int, int, int]] = deque()
        """(deadline, first, end) of messages that live as long as the queue says."""
        self._slabs: list[tuple[int, int, int]] = []
        """A heap of (first deadline, first, end)."""
        self._sweep_at = _STALE_MIN
        self._told_ms = 0
        """What is due until then was told of."""

    @property
    def pending(self) -> int:
        """How many messages are delayed."""
        return 0 if self._pending is None else len(self._pending)

    def expire_at(self, deadlines_ms: Sequence[int], offsets: Sequence[int]) -> None:
        """Messages with a time to live of their own."""
        if self._expiry is None:
            self._expiry = TimingWheel(1, now_ms=self._now_ms)
        self._expiry.add_many(deadlines_ms, offsets)

    def expire_slab(self, deadline_ms: int, first: int, end: int) -> None:
        """Messages [first, end), none of which expires before that: `opened` tells when they have to be looked at."""
        heapq.heappush(self._slabs, (deadline_ms, first, end))

    def opened(self, now_ms: int) -> list[tuple[int, int]]:
        """[first, end) of slabs in which the first messages expire now: a bite of them."""
        slabs, found, count = self._slabs, [], 0
        while slabs and slabs[0][0] <= now_ms and count < _BITE:
            deadline_ms, first, end = heapq.heappop(slabs)
            stop = min(end, first + _BITE)
            if stop < end:
                heapq.heappush(slabs, (deadline_ms, stop, end))
            found.append((first, stop))
            count += stop - first
        return found

    def expire_in_order(self, deadline_ms: int, first: int, end: int, *, waiting_from: int) -> None:
        """Messages [first, end), none of which expires before those that came before them.

        Nothing below the offset `waiting_from` waits any more.
        """
        in_order = self._in_order
        while in_order and in_order[0][2] <= waiting_from:
            in_order.popleft()
        if in_order:
            last_deadline, last_first, last_end = in_order[-1]
            if deadline_ms < last_deadline:  # the queue's time to live was shortened
                self.expire_at([deadline_ms] * (end - first), range(first, end))
                return
            if last_end == first and deadline_ms - last_deadline <= _JOINED_MS:
                in_order[-1] = (deadline_ms, last_first, end)
                return
        in_order.append((deadline_ms, first, end))

    def delay(self, due_ms: Sequence[int], offsets: Sequence[int]) -> None:
        """Messages that may not be given out yet."""
        if self._pending is None:
            self._pending = TimingWheel(1, now_ms=self._now_ms)
        self._pending.add_many(due_ms, offsets)

    def withdraw(self, offset: int) -> None:
        """A delayed message, which must be pending, is cancelled."""
        assert self._pending is not None
        self._pending.cancel(offset)

    def delayed(self) -> Iterable[tuple[int, int]]:
        """(due time, offset) of every delayed message, in no particular order."""
        return () if self._pending is None else self._pending.timers()

    def due(self, now_ms: int) -> list[int]:
        """Delayed messages whose time has come, the earliest first; a bite of them."""
        return [] if self._pending is None else self._pending.advance(now_ms, _BITE)

    def soon(self, now_ms: int) -> list[int]:
        """Some delayed messages that will be due in a moment, each told once, if it is time to tell of more."""
        if self._pending is None or now_ms + _AHEAD_MS // 2 < self._told_ms:
            return []
        after_ms, self._told_ms = max(now_ms, self._told_ms), now_ms + _AHEAD_MS
        return self._pending.between(after_ms, self._told_ms, _AHEAD_MAX)

    def expired(self, now_ms: int) -> list[int]:
        """Messages whose time is over, if they still wait; a bite of them, rising."""
        found = [] if self._expiry is None else self._expiry.advance(now_ms, _BITE)
        in_order = self._in_order
        while in_order and in_order[0][0] <= now_ms and len(found) < _BITE:
            deadline_ms, first, end = in_order.popleft()
            stop = min(end, first + _BITE)
            if stop < end:
                in_order.appendleft((deadline_ms, stop, end))
            found += range(first, stop)
        return sorted(set(found))

    def next_ms(self) -> int | None:
        """When there is something to do next."""
        times = [entries[0][0] for entries in (self._in_order, self._slabs) if entries]
        for wheel in (self._expiry, self._pending):
            next_due_ms = None if wheel is None else wheel.next_due_ms()
            if next_due_ms is not None:
                times.append(next_due_ms)
        return min(times, default=None)

    def sweep(self, waiting: int, present: Callable[[list[int]], Iterable[int]]) -> None:
        """Drop timers of messages that are gone, if they are most: `waiting` messages are still there."""
        wheel = self._expiry
        if wheel is not None and len(wheel) > max(self._sweep_at, 2 * waiting):
            wheel.keep(present)
            self._sweep_at = max(_STALE_MIN, 2 * len(wheel))
        in_order = self._in_order
        if len(in_order) > max(_STALE_MIN, 2 * waiting):
            self._in_order = deque(entry for entry in in_order if any(present(list(range(entry[1], entry[2])))))
        if len(self._slabs) > max(_STALE_MIN, 2 * waiting):
            self._slabs = [entry for entry in self._slabs if any(present(list(range(entry[1], entry[2]))))]
            heapq.heapify(self._slabs)
