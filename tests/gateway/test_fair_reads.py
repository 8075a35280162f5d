"""Reads that fit into a turn, and connections that let others go first."""

from __future__ import annotations

import socket
import sys
import time

import pytest
import trio
import trio.testing

from gateway.fair_reads import LANE_MAX, LONG_TURN_S, READ_BYTES_MIN, SHARED_TURN_S, TURN_S, FairReads, Neighbours
from tests.gateway.shell import EchoAdapter, open_door, receive_exactly
from tests.support.turns import Turns

MAX = 256 << 10


class Clocked(FairReads):
    """With a clock of its own: turns follow each other without a pause."""

    def __init__(self, bytes_max: int, neighbours: Neighbours | None = None, sock: socket.socket | None = None) -> None:
        self.neighbours = neighbours or Neighbours()
        self.now_s = 1000.0
        super().__init__(bytes_max, self.neighbours, sock)

    def lasted(self, count: int, seconds: float, *, alone: bool = False) -> None:
        if not alone:
            self.neighbours.reads += 1
        self.took(count, self.now_s, self.now_s + seconds)
        self.now_s += seconds


def sizes(byte_s: float, *, count: int = 12, available: int = MAX) -> list[int]:
    """The sizes of reads that are filled as far as they can be and cost `byte_s` a byte."""
    reads = Clocked(MAX)
    found = []
    for _ in range(count):
        size = min(reads.size, available)
        found.append(size)
        reads.lasted(size, size * byte_s)
    return found


def test_cheap_reads_grow_to_the_limit() -> None:
    assert sizes(1e-9)[:4] == [READ_BYTES_MIN, 64 << 10, MAX, MAX]


def test_dear_reads_stay_within_a_turn() -> None:
    for byte_s in (2e-8, 5e-8, 1e-7):
        assert max(sizes(byte_s)) * byte_s <= TURN_S
        assert sizes(byte_s)[-1] * byte_s > TURN_S / 4
    assert set(sizes(1e-6)) == {READ_BYTES_MIN}


def test_a_read_that_became_dear_is_halved_until_it_fits() -> None:
    reads = Clocked(MAX)
    for _ in range(3):
        reads.lasted(reads.size, 0)
    found = []
    for _ in range(5):
        found.append(reads.size)
        reads.lasted(reads.size, reads.size * 2e-8)
    assert found == [MAX, MAX, 128 << 10, 64 << 10, 64 << 10]


def test_one_slow_turn_means_nothing() -> None:
    reads = Clocked(MAX)
    for seconds in (0, 0, 0, 0.1, 0):
        reads.lasted(reads.size, seconds)
    assert reads.size == MAX


def test_reads_shrink_when_little_comes() -> None:
    reads = Clocked(MAX)
    for _ in range(3):
        reads.lasted(reads.size, 0)
    for _ in range(9):
        reads.lasted(100, 0)
    assert (reads.size, reads.full) == (READ_BYTES_MIN, False)


def test_who_had_a_long_turn_gives_way() -> None:
    reads = Clocked(MAX)
    reads.lasted(100, LONG_TURN_S * 2)
    assert reads.gives_way
    reads.lasted(100, LONG_TURN_S * 2, alone=True)
    assert not reads.gives_way
    reads.lasted(100, LONG_TURN_S / 2)
    assert not reads.gives_way
    ways = []
    for _ in range(4):
        reads.lasted(reads.size, 0)
        ways.append(reads.gives_way)
    assert ways == [True, False, True, False]


def test_who_needs_little_gives_way_to_nobody() -> None:
    reads = Clocked(MAX)
    for _ in range(4):
        reads.now_s += 0.06
        reads.lasted(100, LONG_TURN_S / 2)
    ways = []
    for _ in range(40):
        reads.lasted(100, LONG_TURN_S * 2)
        ways.append(reads.gives_way)
    assert not any(ways[:5])
    assert all(ways[-20:]), "but it is not little any more"


def test_turns_are_shorter_while_somebody_reads_who_needs_little() -> None:
    neighbours = Neighbours()
    busy, small = Clocked(MAX, neighbours), Clocked(MAX, neighbours)

    def longest(count: int) -> float:
        found = []
        for _ in range(count):
            found.append(busy.size * 2e-8)
            busy.lasted(busy.size, busy.size * 2e-8)
        return max(found[-10:])

    assert SHARED_TURN_S < longest(100) <= TURN_S
    for _ in range(150):
        small.now_s = busy.now_s
        small.lasted(100, 50e-6)
        shared = longest(2)
    assert shared <= SHARED_TURN_S
    assert longest(200) > SHARED_TURN_S


def test_a_limit_below_the_least_read_counts() -> None:
    reads = Clocked(4096)
    reads.lasted(4096, 0)
    assert (reads.size, reads.full) == (4096, True)


async def test_a_crowd_is_not_made_to_wait_for_each_other() -> None:
    neighbours, through = Neighbours(), list[bool]()
    neighbours.little(time.perf_counter() + 60)
    assert await neighbours.enter_lane()

    async def enter() -> None:
        in_lane = await neighbours.enter_lane()
        through.append(in_lane)
        if in_lane:
            neighbours.leave_lane()

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(enter)
        await trio.testing.wait_all_tasks_blocked()
        assert through == [False] * (300 - LANE_MAX)
        neighbours.leave_lane()
    assert through[-LANE_MAX:] == [True] * LANE_MAX


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


async def saturate(neighbours: Neighbours, order: list[str], name: str, small: trio.Event | None, count: int) -> None:
    """Read again and again with long turns; in the middle of a turn somebody else becomes ready."""
    for _ in range(count):
        entered = await neighbours.enter_lane()
        if entered:
            neighbours.leave_lane()
        order.append(name)
        if small is not None:
            small.set()


async def test_long_turns_come_one_by_one_and_after_who_became_ready_meanwhile() -> None:
    for _ in range(50):  # the event loop shuffles
        neighbours, order, ready = Neighbours(), [], trio.Event()
        neighbours.little(time.perf_counter() + 60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(saturate, neighbours, order, "a", ready, 3)
            nursery.start_soon(saturate, neighbours, order, "b", ready, 3)
            nursery.start_soon(saturate, neighbours, order, "c", ready, 3)
            await ready.wait()
            order.append("small")
        assert order.index("small") == 1
        assert len(order) == 10


async def test_who_gives_up_in_the_lane_leaves_it_to_the_next() -> None:
    neighbours: Neighbours = Neighbours()
    neighbours.little(time.perf_counter() + 60)
    order: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await neighbours.enter_lane()
    assert scope.cancelled_caught
    with trio.fail_after(5):
        await saturate(neighbours, order, "a", None, 2)
        async with trio.open_nursery() as nursery:
            assert await neighbours.enter_lane()
            nursery.start_soon(saturate, neighbours, order, "b", None, 1)
            nursery.start_soon(saturate, neighbours, order, "c", None, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["a", "a"]
            neighbours.leave_lane()
    assert sorted(order) == ["a", "a", "b", "c"]


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="epoll")


@only_linux
def test_who_needs_much_goes_after_who_needs_little_and_has_something_to_read() -> None:
    neighbours = Neighbours()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        busy, small = Clocked(MAX, neighbours), Clocked(MAX, neighbours, ours)
        busy.lasted(100, LONG_TURN_S / 2)
        theirs.send(b"x")
        assert not busy.gives_way, "nothing is known of the small one yet"
        for _ in range(4):
            small.now_s += 0.06
            small.lasted(100, LONG_TURN_S / 2)
        assert busy.gives_way
        assert not small.gives_way
        ours.recv(1)
        assert not busy.gives_way
        theirs.send(b"x")
        for _ in range(200):
            small.lasted(100, LONG_TURN_S * 2)
        busy.lasted(100, LONG_TURN_S / 2)
        assert not busy.gives_way, "it is not little any more"


@only_linux
async def test_in_the_lane_as_well() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        neighbours = Neighbours()
        neighbours.little(time.perf_counter() + 60)
        neighbours.watch(ours)
        order: list[str] = []

        async def small() -> None:
            await trio.lowlevel.wait_readable(ours)
            order.append(ours.recv(1).decode())

        for _ in range(50):  # the event loop shuffles
            order.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(small)
                await trio.testing.wait_all_tasks_blocked()
                theirs.send(b"s")
                assert await neighbours.enter_lane(look=False)
                neighbours.leave_lane()
                order.append("long")
            assert order == ["s", "long"]
        neighbours.forget(ours)
        theirs.send(b"s")
        assert not neighbours.small_waits()


@only_linux
async def test_nobody_waits_for_a_connection_that_is_lost() -> None:
    async with open_door() as door:
        with socket.create_connection(("127.0.0.1", door.port)) as client:
            await door.adapter()
            connection, neighbours = next(iter(door.shell.connections)), door.shell.neighbours
            neighbours.watch(connection._socket)
            client.send(b"x")
            assert neighbours.small_waits()
            connection._lose()
            assert not neighbours.small_waits()


async def test_filled_reads_look_who_is_ready_now_and_then() -> None:
    neighbours = Neighbours()
    neighbours.little(time.perf_counter() + 60)
    reads = Clocked(MAX, neighbours)
    others = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others.take)
        for _ in range(30):
            reads.lasted(reads.size, LONG_TURN_S * 1.5)
            assert reads.gives_way
            await reads.give_way()
            reads.has_read()
        nursery.cancel_scope.cancel()
    assert 12 <= others.count <= 16
