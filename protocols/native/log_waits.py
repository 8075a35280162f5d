"""Who waits for news of a log: fetches at its end.

A log calls its listeners once per flush. All waiting fetches of a log, whichever connection they came by, share one
listener, so that coming and going costs a dictionary entry however many there are.
"""

from __future__ import annotations

from typing import Protocol

from core_log.partition_log import PartitionLog


class Waiter(Protocol):
    """Something that waits for logs to advance."""

    def log_advanced(self) -> None:
        """A log it waits for has more to read, or failed. May call `LogWaits.remove`."""


class LogWaits:
    """The waiters of one log; found, or made, by `of`."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[Waiter, None] = {}

    @classmethod
    def of(cls, log: PartitionLog) -> LogWaits:
        """The waiters of `log`: one of its listeners from the first call on."""
        for listener in log.listeners:
            if isinstance(listener, cls):
                return listener
        waits = cls()
        log.listeners.append(waits)
        return waits

    def __call__(self, log: PartitionLog) -> None:
        for waiter in list(self._waiters):
            waiter.log_advanced()

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """Call `waiter.log_advanced` from now on."""
        self._waiters[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """No longer; does nothing for one that is not there."""
        self._waiters.pop(waiter, None)
