"""The task in which the sockets of all connections are waited for, and read.

1. Sockets are in one set (epoll), and whoever is ready has its turn in this task: no connection has a task that waits
   for its socket. What the event loop needs to wake a task is several times what a small message needs.
2. A turn that has to wait, for other brokers or for room, keeps the task: it is that connection's until the turn is
   over, its socket is out of the set, and another task takes the place. What is waited for need not know of it.
3. Whoever needs little reads first, all of them; then those who need much, in the order in which they became ready,
   each once, or until `LOOK_S` are over while somebody is there who needs little; then it looks again who is ready. So
   who sends little waits for at most the turn that is under way, and those who saturate the broker share it. Where the
   turn of one who needs little waits, those who need much come first the next time: else as many as connect at once,
   each of whom waits for other brokers, would keep the links to these brokers from being read. With it the round is
   over; so whose last turn waited, or who has had none, comes after the others who need little.
4. What came together belongs together: `rounds` is told when a round of turns begins, and when nobody is left who was
   ready; those who need little are a round of their own. What the disk has synced is waited for here as well (`watch`):
   it is often what a client waits for. And what the end of a turn would bring may be put off until all have had theirs
   who were ready and need much (`put_off`).
5. A process that is a broker and nothing else *holds*: the task waits for the sockets and for what trio waits for at
   once, and leaves trio alone while that has nothing to do (`gateway.holding`). Elsewhere, in tests for one, it waits
   as any task does.
6. Without epoll, that is not on Linux, every socket has a task after all.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable, Coroutine, Generator
from math import inf
from time import perf_counter
from types import coroutine
from typing import Any, Protocol

import trio

from gateway.fair_reads import Neighbours
from gateway.holding import Holding

LOOK_S = 0.00025
"""How long those who need much read before it is looked who else is ready, while somebody is there who needs little.
Else each of them reads once: longer rounds make larger batches of what they publish."""

READY_MAX = 128
"""How many of those who are ready are taken at once; the kernel gives the others next. When the turns of all wait, each
time one does it is asked anew who is ready."""

Spawn = Callable[..., Any]


def open_epoll() -> select.epoll | None:
    """A set of sockets, where there is such a thing."""
    return select.epoll() if sys.platform == "linux" else None


class Reader(Protocol):
    """A connection, as it is read from."""

    @property
    def needs_little(self) -> bool:
        """Of the broker's time."""

    async def turn(self) -> bool:
        """Read once, and do what follows; whether there is more to read of which the kernel knows nothing."""


class Rounds(Protocol):
    """Who is told of rounds of turns."""

    def begin_round(self) -> None:
        """Somebody has their turn, others may have theirs at once."""

    def end_round(self) -> None:
        """All who were ready had it."""

    def break_off_round(self) -> None:
        """A turn waits: other tasks run. Without effect when no round is under way."""


class Readers:
    """See the module's rules. `spawn` starts a task."""

    def __init__(self, spawn: Spawn, rounds: Rounds | None = None, *, holds: bool = False) -> None:
        self._spawn = spawn
        self.neighbours = Neighbours()
        self._rounds = rounds
        self._readers: dict[int, Reader] = {}
        self._busy: dict[int, Reader] = {}
        """Those who need much and are ready, or may be."""
        self._waiting: dict[int, trio.CancelScope] = {}
        """Whose turn waits."""
        self._may_wait: set[int] = set()
        """Whose last turn waited, and who has had none."""
        self._kept_waiting = False
        """Whether those who need much have not had a turn in the round before."""
        self._watched: dict[int, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._taking_turns = False
        self._put_off: Callable[[], None] | None = None
        self._epoll = open_epoll()
        self._holds = holds
        self._holding: Holding | None = None
        self._led = False
        self._leading: trio.CancelScope | None = None
        """Of the task that leads."""

    def add(self, sock: socket.socket, reader: Reader) -> None:
        """Read from it until `remove`."""
        number = sock.fileno()
        self._readers[number] = reader
        self._may_wait.add(number)
        if self._epoll is None:
            self._spawn(self._read_alone, sock, reader)
            return
        self._register(self._epoll, number)

    def _register(self, epoll: select.epoll, number: int) -> None:
        epoll.register(number, select.EPOLLIN)
        if not self._led:
            self._led = True
            self._spawn(self._lead)

    def watch(self, number: int, ready: Callable[[], None], given_back: Callable[[], None]) -> bool:
        """Call `ready` whenever a file is ready, until we end; then `given_back`. False: that cannot be done."""
        if self._epoll is None:
            return False
        self._watched[number] = ready, given_back
        self._register(self._epoll, number)
        return True

    def remove(self, sock: socket.socket) -> None:
        """Read no more: it is going to be closed. A turn that waits is cancelled."""
        number = sock.fileno()
        if self._readers.pop(number, None) is None:
            return
        self._busy.pop(number, None)
        self._may_wait.discard(number)
        scope = self._waiting.pop(number, None)
        if scope is not None:
            scope.cancel()
        elif self._epoll is not None:
            self._epoll.unregister(number)

    def put_off(self, work: Callable[[], None]) -> bool:
        """Call `work`, once, when those who need much and are ready now have had their turns. False: this is not the
        turn of one of them, or of the last.
        """
        if not (self._taking_turns and self._busy):
            return False
        self._put_off = work
        return True

    def _turns_are_over(self) -> None:
        self._taking_turns = False
        work, self._put_off = self._put_off, None
        if work is not None:
            work()

    async def _take_over(self) -> None:
        """Do what was put off until a turn waits, and lead. In that turn's own task it could end the very wait before
        trio knows of it, and the task would run as one that waits: whoever cancels it then ends the process.
        """
        self._turns_are_over()
        await self._lead()

    async def _lead(self) -> None:
        """Have turns until one of them waits, and after that one."""
        epoll = self._epoll
        assert epoll is not None
        if self._holds and self._holding is None:
            self._holding = Holding.begin(epoll)
            self._holds = self._holding is not None
        if self._holding is not None:
            self._holding.taken_over()
        with trio.CancelScope() as scope:
            self._leading = scope
            try:
                while await self._round(epoll, scope):
                    pass
            finally:
                if self._leading is scope:
                    self._give_back(epoll)

    def _give_back(self, epoll: select.epoll) -> None:
        """This task ends, and none comes after it."""
        if self._rounds is not None:
            self._rounds.break_off_round()
        while self._watched:
            number, (_, given_back) = self._watched.popitem()
            epoll.unregister(number)
            given_back()

    async def _round(self, epoll: select.epoll, scope: trio.CancelScope) -> bool:
        """Wait until somebody is ready, and have turns; whether this task is still the one that leads."""
        busy, holding, rounds = self._busy, self._holding, self._rounds
        if holding is not None:
            events = await holding.wait(at_once=bool(busy), most=READY_MAX)
        else:
            if busy:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(epoll)
            events = epoll.poll(0, READY_MAX)
        if rounds is not None:
            rounds.begin_round()
        if self._kept_waiting:
            self._kept_waiting = False
            those = ((number, self._readers.get(number)) for number, _ in events)
            much = {number: one for number, one in those if one is not None and not one.needs_little}
            busy.update(much)
            if busy and not await self._take_turns(scope):
                return False
            events = [event for event in events if event[0] not in much]
        self._kept_waiting = True
        last: list[int] = []
        for number, _ in events:
            reader = self._readers.get(number)
            if reader is None:
                if number in self._watched:
                    self._watched[number][0]()
            elif not reader.needs_little:
                busy[number] = reader
            elif number in self._may_wait:
                last.append(number)
            else:
                self.neighbours.little(perf_counter())
                if not await self._turn(number, reader, scope):
                    return False
        for number in last:
            reader = self._readers.get(number)
            if reader is not None:
                self.neighbours.little(perf_counter())
                if not await self._turn(number, reader, scope):
                    return False
        self._kept_waiting = False
        if busy:
            if rounds is not None and events and self.neighbours.somebody(perf_counter()):
                rounds.end_round()  # their records need not wait for those who need much
                rounds.begin_round()
            if not await self._take_turns(scope):
                return False
        if rounds is not None:
            rounds.end_round()
        return True

    async def _take_turns(self, scope: trio.CancelScope) -> bool:
        """A turn for everybody who is busy, or as many as there is time for while somebody is there who needs little;
        whether this task is still the one that leads.
        """
        busy = self._busy
        self._taking_turns = True
        began_s = perf_counter()
        look_s = LOOK_S if self.neighbours.somebody(began_s) else inf
        for number in list(busy):
            reader = busy.pop(number, None)
            if reader is not None and not await self._turn(number, reader, scope):
                return False
            if perf_counter() - began_s >= look_s:
                break
        self._turns_are_over()
        return True

    async def _turn(self, number: int, reader: Reader, scope: trio.CancelScope) -> bool:
        """Whether this task is still the one that leads."""
        waited = False

        def waits() -> None:
            nonlocal waited
            waited = True
            self._leading = None
            if self._rounds is not None:
                self._rounds.break_off_round()
            assert self._epoll is not None
            if self._readers.get(number) is reader:
                self._epoll.unregister(number)
                self._waiting[number] = scope
                self._may_wait.add(number)
            self._spawn(self._take_over)

        more = await _driven(reader.turn(), waits)
        if not waited:
            self._may_wait.discard(number)
            if more and self._readers.get(number) is reader:
                self._busy[number] = reader
            return True
        while more:
            await trio.lowlevel.checkpoint()  # the others have theirs in between
            more = await reader.turn()
        if self._waiting.get(number) is scope:
            del self._waiting[number]
            assert self._epoll is not None
            self._epoll.register(number, select.EPOLLIN)
        return False

    async def _read_alone(self, sock: socket.socket, reader: Reader) -> None:
        """Rule 6."""
        number = sock.fileno()
        with trio.CancelScope() as self._waiting[number]:
            while self._readers.get(number) is reader:
                try:
                    await trio.lowlevel.wait_readable(sock)
                except trio.ClosedResourceError:
                    continue  # this is how a connection wakes its tasks
                while await reader.turn():
                    pass


@coroutine
def _driven(work: Coroutine[Any, Any, bool], waits: Callable[[], None]) -> Generator[Any, Any, bool]:
    """Do `work` in this task; call `waits` before it waits for the first time."""
    try:
        asked = work.send(None)
        waits()
        while True:
            try:
                answer = yield asked
            except BaseException as error:
                asked = work.throw(error)
            else:
                asked = work.send(answer)
    except StopIteration as end:
        result: bool = end.value
        return result
