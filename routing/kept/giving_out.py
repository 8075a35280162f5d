"""Giving what is retained to those who subscribe, without keeping others waiting.

1. A broker gives out one piece at a time, to one subscriber after the other: between two pieces all others have their
   turns, however many subscribe to however much at once.
2. A connected subscriber gets a piece when no more than the one before is waiting for it: what it does not read is not
   piled up in its queue. One clock looks for all who wait, the less often at each the longer it does.
3. What a durable queue is owed goes into it at once: who comes back, after a kill of the broker as well, has subscribed
   once and asks for nothing again. One that holds so much and no more gets it as its client reads, and the rest when
   that has gone. The queue of one that has no session ends with it.
4. It ends with the queue, and goes on when another home has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

import trio

from routing.message import Slab
from routing.queues.queue import Queue
from routing.session import Session
from routing.topology.route import Route

_LOOK_S, _LOOK_S_MAX = 0.002, 2.0
"""When it is looked first whether one who waits has room; each time without, it is twice as long until the next."""


class GivingOut:
    """See the module; of one broker, whose `spawn` starts a task."""

    def __init__(self, spawn: Callable[..., Any]) -> None:
        self.turn = trio.Lock()
        self._spawn = spawn
        self._waiting: list[tuple[float, int, float, Callable[[], bool], trio.Event]] = []
        """A heap: when to look again, after how long, whether there is room, and whom to tell."""
        self._numbers = count()
        self._pause = trio.CancelScope()
        """Until the first of them is looked at."""

    async def begin(self, give: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Have a task do it; return when that has ended, or has called what it is given."""
        may_return = trio.Event()

        async def run() -> None:
            try:
                await give(may_return.set)
            finally:
                may_return.set()

        self._spawn(run)
        await may_return.wait()

    async def until(self, has_room: Callable[[], bool]) -> None:
        """Wait until there is room."""
        event = trio.Event()
        if not self._waiting:
            self._spawn(self._look)
        self._look_in(_LOOK_S, has_room, event)
        await event.wait()

    def _look_in(self, wait_s: float, has_room: Callable[[], bool], event: trio.Event) -> None:
        at_s = trio.current_time() + wait_s
        heappush(self._waiting, (at_s, next(self._numbers), wait_s, has_room, event))
        self._pause.deadline = min(self._pause.deadline, at_s)

    async def _look(self) -> None:
        while waiting := self._waiting:
            self._pause = trio.CancelScope(deadline=waiting[0][0])
            with self._pause:
                await trio.sleep_forever()
            now_s = trio.current_time()
            while waiting and waiting[0][0] <= now_s:
                _, _, wait_s, has_room, event = heappop(waiting)
                if has_room():
                    event.set()
                else:
                    self._look_in(min(2 * wait_s, _LOOK_S_MAX), has_room, event)


class Subscriber:
    """A queue that is given what is retained, and its session. `waits` is called when there is more than goes into it
    whether its client reads or not.
    """

    def __init__(self, session: Session, queue_name: str, waits: Callable[[], None]) -> None:
        self._session = session
        self._name = queue_name
        self._waits = waits
        self.is_wanted: Callable[[], bool] = lambda: True
        """Whether what is given now is still wanted."""
        self._queues = session.vhost.queues
        self._queue = self._queues.get(queue_name)
        self._ends: list[int] = []
        """Where the last pieces end in the log of the queue's home."""

    async def may_have(self) -> bool:
        """Wait until the queue has room for another piece; whether it is still to have any. What is looked up for it
        before that may not be true any more when it gets there.
        """
        session, giving_out = self._session, self._session.broker.giving_out
        while (queue := self._found()) is not None:
            if len(self._ends) < 2:
                return True
            self._waits()
            if _has_room(session, queue, self._ends[-2]):
                return True
            await giving_out.until(partial(_has_room, session, queue, self._ends[-2]))
        return False

    async def give(self, pieces: Iterable[Iterable[Slab]]) -> None:
        """Put messages into the queue, past any exchange. Raises BrokerError."""
        session, broker, rest = self._session, self._session.broker, iter(pieces)
        while await self.may_have():
            await broker.wait_for_room()
            async with broker.giving_out.turn:
                queue = self._found()  # it may be gone, or another's, since that was asked for
                piece = None if queue is None else next(rest, None)
                if queue is None or piece is None:
                    return
                for slab in piece:
                    session.deliver_to(Route([queue], []), slab, False)
                broker.end_turn()
                self._ends = [*self._ends[-1:], queue.partition.next_offset]
                await trio.lowlevel.checkpoint()

    def _found(self) -> Queue | None:
        """The queue, if it is to have more."""
        before, found = self._queue, self._queues.get(self._name)
        if before is None or found is None or found.id != before.id or (self._session.closed and not found.durable):
            return None
        if not self.is_wanted():
            return None
        if found is not before:
            self._queue, self._ends = found, []  # they were of another home
        return found


def _has_room(session: Session, queue: Queue, end: int) -> bool:
    """Whether a queue may have more of its client: what lies before an offset of its home has been taken off its line,
    or nobody is there to take it. What other brokers lead is not known here.
    """
    if queue.deleted or session.closed or queue.elsewhere or queue.groups is not None:
        return True
    if queue.durable and not queue.settings.limited:
        return True
    first, count, _ = queue.head()
    return not count or first >= end
