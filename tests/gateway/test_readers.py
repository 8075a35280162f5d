"""The task that reads all connections: its order, turns that wait, and waiting in trio's stead."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest
import trio
import trio.testing

from gateway.readers import Readers, Rounds
from tests.gateway.shell import EchoAdapter, open_door, receive_exactly

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="epoll")


class Noted:
    """A reader that notes its turns, and may have to wait in them."""

    def __init__(self, name: str, order: list[str], *, needs_little: bool = False) -> None:
        self.name, self.order, self.needs_little = name, order, needs_little
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.may_go_on: trio.Event | None = None
        self.more = 0
        """How many turns it wants after one, though there is nothing to read."""
        self.then: Callable[[], None] = lambda: None
        self.at_last: Callable[[], None] = lambda: None
        """At the end of a turn that had to wait."""

    async def turn(self) -> bool:
        self.order.append(self.name)
        try:
            self.ours.recv(1)
        except BlockingIOError:
            assert self.more
        self.then()
        if self.may_go_on is not None:
            await self.may_go_on.wait()
            self.order.append(self.name + " went on")
            self.at_last()
        self.more -= bool(self.more)
        return self.more > 0


@contextmanager
def noted(order: list[str], **needs_little: bool) -> Iterator[list[Noted]]:
    """Readers by name, each with something to read."""
    found = [Noted(name, order, needs_little=little) for name, little in needs_little.items()]
    for one in found:
        one.theirs.send(b"x")
    try:
        yield found
    finally:
        for one in found:
            one.ours.close()
            one.theirs.close()


@asynccontextmanager
async def reading(*those: Noted, rounds: Rounds | None = None, holds: bool = False) -> AsyncIterator[Readers]:
    """Who reads them until the block ends."""
    async with trio.open_nursery() as nursery:
        readers = Readers(nursery.start_soon, rounds, holds=holds)
        for one in those:
            readers.add(one.ours, one)
        yield readers
        nursery.cancel_scope.cancel()


@only_linux
async def test_who_needs_little_reads_first_and_again_after_each_who_needs_much() -> None:
    order: list[str] = []
    with noted(order, much=False, more=False, little=True) as (much, more, little):
        async with reading(much, more, little):

            def long_turn() -> None:
                little.theirs.send(b"x")
                time.sleep(0.001)

            much.then = more.then = long_turn
            await trio.testing.wait_all_tasks_blocked()
        assert order[0] == order[2] == order[4] == "little"
        assert sorted(order) == ["little"] * 3 + ["more", "much"]


@only_linux
async def test_who_has_more_to_read_after_a_turn_that_waited_takes_turns_with_the_others() -> None:
    order: list[str] = []
    with noted(order, waits=False, other=False) as (waits, other):
        waits.may_go_on, waits.more = trio.Event(), 100
        async with reading(waits, other):
            await trio.testing.wait_all_tasks_blocked()
            waits.at_last = partial(other.theirs.send, b"x")
            may_go_on, waits.may_go_on = waits.may_go_on, None
            may_go_on.set()
            await trio.testing.wait_all_tasks_blocked()
        assert order.count("waits") == 100
        assert "other" in order[order.index("waits went on") :][:10]


@only_linux
async def test_those_who_need_much_are_not_kept_by_many_who_need_little_and_whose_turns_wait() -> None:
    order: list[str] = []
    names = {f"little {number}": True for number in range(20)}
    with noted(order, much=False, **names) as (much, *others):
        for one in others:
            one.may_go_on = trio.Event()
        async with reading(*others, much):
            await trio.testing.wait_all_tasks_blocked()
        assert order.index("much") <= 2
        assert len(order) == 21


@only_linux
async def test_who_is_answered_at_once_is_not_kept_by_many_who_come_and_whose_turns_wait() -> None:
    order: list[str] = []
    names = {f"comes {number}": True for number in range(20)}
    with noted(order, quick=True, **names) as (quick, *others):
        async with reading(quick) as readers:
            await trio.testing.wait_all_tasks_blocked()
            for one in others:
                one.may_go_on = trio.Event()
                readers.add(one.ours, one)
            quick.theirs.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert order[:2] == ["quick", "quick"]
            for one in others:
                assert one.may_go_on is not None
                one.may_go_on.set()
            await trio.testing.wait_all_tasks_blocked()
            for one in (*others, quick):
                one.theirs.send(b"x")
                one.may_go_on = None
            order.clear()
            await trio.testing.wait_all_tasks_blocked()
            assert order[0] == "quick", "the others have waited the last time"
        assert len(order) == 21


@only_linux
async def test_who_needs_little_is_not_kept_by_many_who_need_much_and_whose_turns_wait() -> None:
    order: list[str] = []
    names = {f"much {number}": False for number in range(20)}
    with noted(order, quick=True, little=True, **names) as (quick, little, *others):
        async with reading(quick) as readers:
            await trio.testing.wait_all_tasks_blocked()
            for one in (little, *others):
                one.may_go_on = trio.Event()
                readers.add(one.ours, one)
                one.then = lambda: quick.theirs.send(b"x") if order[-1] != "little" and order.count("quick") == 1 else 0
            await trio.testing.wait_all_tasks_blocked()
            first = next(at for at, name in enumerate(order) if name.startswith("much"))
            assert order.index("quick", 1) == first + 1
            assert len(order) == 23


@only_linux
async def test_all_of_more_than_are_taken_at_once_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.readers.READY_MAX", 3)
    order: list[str] = []
    names = {f"little {number}": True for number in range(20)}
    with noted(order, much=False, **names) as those:
        for one in those[10:]:
            one.may_go_on = trio.Event()
        async with reading(*those):
            await trio.testing.wait_all_tasks_blocked()
        assert len(order) == len(set(order)) == 21


@only_linux
async def test_what_was_put_off_may_end_the_wait_of_the_turn_after_which_it_is_done() -> None:
    order: list[str] = []
    with noted(order, waits=False, other=False) as (waits, other):
        waits.may_go_on = trio.Event()
        async with reading(waits, other) as readers:

            def put_off() -> None:
                assert waits.may_go_on is not None
                assert readers.put_off(waits.may_go_on.set)

            waits.then = put_off
            waits.at_last = lambda: readers.remove(waits.ours)  # as a connection does that ends with this turn
            await trio.testing.wait_all_tasks_blocked()
            other.theirs.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
        assert sorted(order) == ["other", "other", "waits", "waits went on"]


async def test_a_turn_that_waits_keeps_nobody_and_is_not_read_meanwhile() -> None:
    order: list[str] = []
    with noted(order, waits=False, goes=False) as (waits, goes):
        waits.may_go_on = trio.Event()
        async with reading(waits, goes):
            waits.theirs.send(b"y")
            await trio.testing.wait_all_tasks_blocked()
            goes.theirs.send(b"y")
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(order) == ["goes", "goes", "waits"]
            waits.may_go_on.set()
            await trio.testing.wait_all_tasks_blocked()
            assert order[3:] == ["waits went on", "waits", "waits went on"]


async def test_who_is_removed_while_its_turn_waits_has_its_turn_cancelled() -> None:
    order: list[str] = []
    with noted(order, waits=False, goes=False) as (waits, goes):
        waits.may_go_on = trio.Event()
        async with reading(waits, goes) as readers:
            await trio.testing.wait_all_tasks_blocked()
            readers.remove(waits.ours)
            readers.remove(waits.ours)
            waits.ours.close()
            await trio.testing.wait_all_tasks_blocked()
            waits.may_go_on.set()
            goes.theirs.send(b"y")
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(order) == ["goes", "goes", "waits"]


@only_linux
@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_put_off_is_done_once_when_all_who_were_ready_had_their_turns(waits: bool) -> None:
    order: list[str] = []
    with noted(order, first=False, second=False, third=False, little=True) as (*much, little):
        async with reading(*much, little) as readers:
            assert not readers.put_off(lambda: None), "nobody's turn"
            taken: list[bool] = []
            for one in much:
                one.then = lambda: taken.append(readers.put_off(lambda: order.append("done")))
            little.then = lambda: taken.append(readers.put_off(lambda: None))
            if waits:
                much[1].may_go_on = trio.Event()
            await trio.testing.wait_all_tasks_blocked()
            if waits:
                assert order[order.index("second") + 1] == "done", "other tasks run now"
            else:
                assert (order[0], order[-1]) == ("little", "done")
                assert taken == [False, True, True, False], "who comes last does it itself"


@pytest.mark.parametrize("waits", [False, True])
async def test_what_the_kernel_knows_nothing_of_is_read_as_well(waits: bool) -> None:
    order: list[str] = []
    with noted(order, layered=True) as (layered,):
        layered.more = 3
        if waits:
            layered.may_go_on = trio.Event()
        async with reading(layered):
            await trio.testing.wait_all_tasks_blocked()
            if layered.may_go_on is not None:
                assert order == ["layered"]
                layered.may_go_on.set()
                await trio.testing.wait_all_tasks_blocked()
            assert order.count("layered") == 3


class Dear(EchoAdapter):
    """What it gets costs 0.1 us a byte; it notes in which order reads were handled."""

    order: list[Dear]

    async def handle(self, data: bytes) -> None:
        type(self).order.append(self)
        until = time.perf_counter() + len(data) * 1e-7
        while time.perf_counter() < until:
            pass
        await super().handle(data)


async def test_a_small_client_waits_for_no_more_than_a_few_turns_of_a_saturating_one() -> None:
    Dear.order = []
    async with (
        open_door(Dear) as door,
        await door.connect() as busy,
        await door.connect() as small,
        trio.open_nursery() as nursery,
    ):
        total = 4 << 20
        nursery.start_soon(busy.send_all, bytes(total))
        nursery.start_soon(receive_exactly, busy, total)
        turns = []
        for _ in range(20):
            before = len(Dear.order)
            await small.send_all(b"x")
            await receive_exactly(small, 1)
            turns.append(len(Dear.order) - before)
        reads = [len(read) for adapter in door.adapters for read in adapter.reads]
        assert max(reads) <= 32 << 10
        assert sorted(turns)[15] <= 5


class Echo:
    """A reader that sends back what it reads."""

    needs_little = True

    def __init__(self, ours: socket.socket, also: Callable[[], None] = lambda: None) -> None:
        ours.setblocking(False)
        self._ours, self._also = ours, also

    async def turn(self) -> bool:
        self._ours.send(self._ours.recv(100))
        self._also()
        return False


class LoopRounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


def ask(theirs: socket.socket, count: int, done: Callable[[], None]) -> None:
    """Send and wait for what comes back, as a program of its own would."""
    theirs.settimeout(10)
    for number in range(count):
        theirs.send(b"%d" % number)
        assert theirs.recv(100) == b"%d" % number
    done()


@only_linux
def test_holding_takes_no_round_of_the_event_loop_for_a_message() -> None:
    rounds = LoopRounds()
    ours, theirs = socket.socketpair()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            readers = Readers(nursery.start_soon, holds=True)
            readers.add(ours, Echo(ours))
            over = trio.Event()
            done = partial(trio.lowlevel.current_trio_token().run_sync_soon, over.set)
            threading.Thread(target=ask, args=(theirs, 1000, done), daemon=True).start()
            await over.wait()
            nursery.cancel_scope.cancel()

    with ours, theirs:
        trio.run(main, instruments=[rounds])
    assert rounds.count < 30


class Bustle:
    """Tasks that wait for time, each other, threads and sockets of their own; how often each had its way."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.late_s: list[float] = []
        self._wake = trio.Event()
        self._chance = random.Random(5)

    def wake(self) -> None:
        """What a turn does to wake a task."""
        self._wake.set()

    async def is_woken(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self.counts["woken"] += 1

    async def sleeps(self) -> None:
        while True:
            until_s = trio.current_time() + self._chance.choice([0, 0.0001, 0.001, 0.01])
            await trio.sleep_until(until_s)
            self.late_s.append(trio.current_time() - until_s)

    async def works(self) -> None:
        while True:
            await trio.to_thread.run_sync(time.sleep, 0.0005)
            self.counts["worked"] += 1

    async def answers(self, ours: trio.SocketStream) -> None:
        async for data in ours:
            await ours.send_all(data)

    async def asks(self, theirs: trio.SocketStream) -> None:
        while True:
            await theirs.send_all(b"x")
            self.counts["answered"] += len(await theirs.receive_some(1))


@only_linux
def test_holding_keeps_nobody_waiting() -> None:
    bustle: Bustle

    async def main(ours: socket.socket, theirs: socket.socket, *pair: socket.socket) -> None:
        nonlocal bustle
        bustle, token = Bustle(), trio.lowlevel.current_trio_token()
        answering, asking = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in pair)
        async with trio.open_nursery() as nursery:
            Readers(nursery.start_soon, holds=True).add(ours, Echo(ours, bustle.wake))
            for task in (bustle.is_woken, bustle.sleeps, bustle.sleeps, bustle.works):
                nursery.start_soon(task)
            nursery.start_soon(bustle.answers, answering)
            nursery.start_soon(bustle.asks, asking)
            with trio.fail_after(20):
                while min(bustle.counts[kind] for kind in ("woken", "worked", "answered")) <= 20:
                    done = partial(token.run_sync_soon, (over := trio.Event()).set)
                    threading.Thread(target=ask, args=(theirs, 300, done), daemon=True).start()
                    await over.wait()
            nursery.cancel_scope.cancel()

    ends = [*socket.socketpair(), *socket.socketpair()]
    trio.run(main, *ends)
    for end in ends:
        end.close()
    assert sorted(bustle.late_s)[len(bustle.late_s) // 2] < 0.1


async def wake_each_other() -> None:
    """300 times, with nothing else that could wake anybody."""
    events = [trio.Event(), trio.Event()]

    async def take_turns(number: int) -> None:
        for _ in range(300):
            events[1 - number].set()
            await events[number].wait()
            events[number] = trio.Event()
        events[1 - number].set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns, 0)
        nursery.start_soon(take_turns, 1)


async def sleep_often() -> None:
    for _ in range(100):
        await trio.sleep(0.001)


@only_linux
@pytest.mark.parametrize("work", [wake_each_other, sleep_often])
def test_holding_waits_for_nothing_while_somebody_is_ready(work: Callable[[], Awaitable[None]]) -> None:
    ours, theirs = socket.socketpair()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            Readers(nursery.start_soon, holds=True).add(ours, Echo(ours))
            with trio.fail_after(5):
                await work()
            nursery.cancel_scope.cancel()

    with ours, theirs:
        trio.run(main)


@only_linux
async def test_a_loop_with_another_clock_is_left_to_itself(autojump_clock: trio.testing.MockClock) -> None:
    order: list[str] = []
    with noted(order, one=True) as (one,):
        async with reading(one, holds=True):
            await trio.sleep(1000)
    assert order == ["one"]


@only_linux
async def test_a_trio_without_those_names_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("trio._core._run.SystemClock")
    order: list[str] = []
    with noted(order, one=True) as (one,):
        async with reading(one, holds=True):
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["one"]
