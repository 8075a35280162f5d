"""Waiting for the sockets of connections and for what trio waits for at once, without trio's part in it.

A round of trio's loop costs some ten microseconds, and twice that when the processor's caches are cold, as they are
when a single message comes: as much as all the broker does with it. So the task that reads connections does not give
the process back to trio when it has nothing to read. It waits in the kernel itself, for its sockets and for trio's set
of them, which is a file that can be waited for like any other, until trio's next deadline at most; and has trio take a
round (`checkpoint`) when there is something to be done there:

1. a task became ready, by what a turn did: trio's queue of them is not empty;
2. trio's set is readable: a socket or a pipe of another task, or another thread or a signal, which write to one;
3. a deadline has come.

Tasks of one round run in any order, and we may be the first of them. Then we must not wait, for the others would: only
after a round in which nobody else was ready. That is known from the queue after trio has looked at its set, which an
instrument is told, unless a deadline expired behind that, which shows in the next one being another.

Of trio this needs the queue, the deadlines and the set, which have no public names. Where a version of trio does not
have them, `begin` says so, and who reads waits as any task does.
"""

from __future__ import annotations

import select
from math import inf
from typing import Any

import structlog
import trio

log = structlog.get_logger(__name__)

_WAIT_S_MAX = 60.0


class Holding(trio.abc.Instrument):
    """See the module; made by `begin`."""

    def __init__(self, epoll: select.epoll, runner: Any) -> None:
        self._epoll = epoll
        self._ready = runner.runq
        self._next_deadline = runner.deadlines.next_deadline
        self._clock = runner.clock.current_time
        self._theirs: int = runner.io_manager._epoll.fileno()
        self._due = True
        """Trio has something to do, or may have."""
        self._alone = False
        self._deadline = self._next_deadline()

    @classmethod
    def begin(cls, epoll: select.epoll) -> Holding | None:
        """For the loop that runs, and `epoll` with the sockets; None where that cannot be done."""
        try:
            from trio._core import _run

            runner = _run.GLOBAL_RUN_CONTEXT.runner
            if not isinstance(runner.clock, _run.SystemClock):
                return None
            holding = cls(epoll, runner)
            epoll.register(holding._theirs, select.EPOLLIN)
        except (ImportError, AttributeError, OSError) as error:
            log.warning("every wake-up goes through trio", reason=str(error))
            return None
        trio.lowlevel.add_instrument(holding)
        return holding

    def after_io_wait(self, timeout: float) -> None:
        """Trio has looked who is ready; those whose deadlines have come are not in its queue yet."""
        self._alone = len(self._ready) == 1
        self._deadline = self._next_deadline()

    def taken_over(self) -> None:
        """Another task waits from now on: it cannot know who else runs in this round."""
        self._due = True

    async def wait(self, *, at_once: bool, most: int) -> list[tuple[int, int]]:
        """What is ready, our own sockets and maybe trio's set, at most so many. `at_once`: do not wait until
        there is something.
        """
        if self._due or self._ready:
            await trio.lowlevel.checkpoint()
            self._due = not self._alone or self._next_deadline() != self._deadline
        wait_s = 0.0
        if not (self._due or self._ready):
            deadline = self._next_deadline()
            left_s = _WAIT_S_MAX if deadline == inf else deadline - self._clock()
            if left_s <= 0:
                self._due = True
            elif not at_once:
                wait_s = min(left_s, _WAIT_S_MAX)
        events = self._epoll.poll(wait_s, most)
        for number, _ in events:
            if number == self._theirs:
                self._due = True
        return events
