"""Deadlines of what waits on one connection: one timer for all, which what is answered in time never touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from delay.timer_service import Timer, TimerService


class Waiting(Protocol):
    """Something that does not wait for ever."""

    def timed_out(self) -> None:
        """Its time is over; it is waited for no more."""


class Deadlines:
    """See the module."""

    __slots__ = ("_clock", "_timer", "_timer_at", "_timers", "_waiting")

    def __init__(self, timers: TimerService, clock: Callable[[], float]) -> None:
        self._timers = timers
        self._clock = clock
        self._waiting: dict[Waiting, float] = {}
        self._timer: Timer | None = None
        self._timer_at = 0.0

    def add(self, waiting: Waiting, wait_ms: int) -> None:
        """Call `waiting.timed_out` in so many milliseconds."""
        deadline = self._clock() + wait_ms / 1000
        self._waiting[waiting] = deadline
        if self._timer is None or deadline < self._timer_at:
            self._arm(deadline)

    def remove(self, waiting: Waiting) -> None:
        """It was in time; does nothing for one that is not there. The timer finds out by itself."""
        self._waiting.pop(waiting, None)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._timers.at(deadline, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock()
        for waiting in [waiting for waiting, deadline in self._waiting.items() if deadline <= now]:
            if self._waiting.pop(waiting, None) is not None:
                waiting.timed_out()
        if self._waiting and self._timer is None:
            self._arm(min(self._waiting.values()))
