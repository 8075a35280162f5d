"""What is tried again until etcd takes it: a line in the log when that begins, each half minute, and when it is over.

Whoever tries does so for each log by itself, twice a second: an etcd that is full, or away while a broker dies, would
otherwise be told of thousands of times a second for as long as it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

logger = logging.getLogger(__name__)

_SAY_S = 30.0
_NAMES = 3


class Waiting:
    """See the module; `what` is told of, such as "elections"."""

    def __init__(
        self, what: str, *, clock: Callable[[], float] = trio.current_time, called: Callable[[str], str] = str
    ) -> None:
        """`called` is what operators call a log."""
        self._what = what
        self._called = called
        self._clock = clock
        self._names: dict[str, None] = {}
        self._told = False
        self._silent_until = float("-inf")

    def failed(self, error: Exception, name: str = "") -> None:
        """It has to be tried again; `name` is that of the log that it was for, if it is for one."""
        self._names[name] = None
        now = self._clock()
        if now < self._silent_until:
            return
        self._told, self._silent_until = True, now + _SAY_S
        logger.warning("%s have to wait%s: %s", self._what, self._whose(), error)

    def over(self, name: str = "") -> None:
        """It has come to its end, or need not be tried any more; nothing is said of what never had to wait."""
        self._names.pop(name, None)
        if self._told and not self._names:
            self._told = False
            logger.info("%s do not have to wait any more", self._what)

    def _whose(self) -> str:
        names = [name for name in self._names if name]
        if len(names) < 2:
            return "".join(f", of {self._called(name)}" for name in names)
        more = " ..." if len(names) > _NAMES else ""
        return f", of {len(names)} logs, {', '.join(map(self._called, names[:_NAMES]))}{more}"
