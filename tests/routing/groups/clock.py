"""A clock that a test turns."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timers:
    """Milliseconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._waiting: list[tuple[int, int, Timer]] = []
        self._numbers = count()

    def __call__(self, wait_ms: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._waiting, (self.now_ms + wait_ms, next(self._numbers), timer))
        return timer

    def pass_ms(self, wait_ms: int) -> None:
        """Let time pass; what is due is called."""
        until_ms = self.now_ms + wait_ms
        while self._waiting and self._waiting[0][0] <= until_ms:
            self.now_ms, _, timer = heapq.heappop(self._waiting)
            timer.fire()
        self.now_ms = until_ms

    @property
    def alive(self) -> int:
        """How many wait."""
        return sum(timer.callback is not None for _, _, timer in self._waiting)


class Timer:
    """One of them."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """See `Cancellable`."""
        self.callback = None

    def fire(self) -> None:
        """Call, once."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()
