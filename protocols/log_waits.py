"""Who waits for news of a log: fetches at its end.

A log calls its listeners once per flush. All waiting fetches of a log, whichever connection they came by, share one
listener, so that coming and going costs a dictionary entry however many there are. While there are any, the log syncs
what it writes, also what nobody else wants synced: readers see only what is durable.
"""

from __future__ import annotations

from typing import Protocol

from core_log.partition_log import PartitionLog


class Waiter(Protocol):
    """Something that waits for logs to advance."""

    def log_advanced(self) -> None:
        """A log it waits for has more to read, or failed. May call `LogWaits.remove`."""


class Waits(Protocol):
    """Where waiters come and go."""

    def add(self, waiter: Waiter) -> None:
        """Call `waiter.log_advanced` from now on."""

    def remove(self, waiter: Waiter) -> None:
        """No longer; does nothing for one that is not there."""


class LogWaits:
    """The waiters of one log; found, or made, by `of`."""

    __slots__ = ("_log", "_waiters")

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._waiters: dict[Waiter, None] = {}

    @classmethod
    def of(cls, log: PartitionLog) -> LogWaits:
        """The waiters of `log`: one of its listeners from the first call on."""
        for listener in log.listeners:
            if isinstance(listener, cls):
                return listener
        waits = cls(log)
        log.listeners.append(waits)
        return waits

    def __call__(self, log: PartitionLog) -> None:
        for waiter in list(self._waiters):
            waiter.log_advanced()

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """Call `waiter.log_advanced` from now on."""
        if waiter not in self._waiters:
            self._waiters[waiter] = None
            self._log.reader_waits(1)

    def remove(self, waiter: Waiter) -> None:
        """No longer; does nothing for one that is not there."""
        if waiter in self._waiters:
            del self._waiters[waiter]
            self._log.reader_waits(-1)
