"""Writes go in rounds, and what becomes of that when one of those in sync does not answer; the clock is the test's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from core_log.log_config import LogConfig
from core_log.log_flusher import LogFlusher
from core_log.memory_files import MemoryFiles
from core_log.replica_log import ReplicaLog
from core_log.replication.follower import Follower
from core_log.replication.isr import ReplicationConfig
from core_log.replication.messages import Batches, Diverging, Refused
from core_log.replication.replica import Replica
from core_log.replication.state import LogState
from routing.cluster.replica_links import Frame
from routing.cluster.replicas import Replicas
from tests.core_log.helpers import flush, make_batch
from tests.core_log.test_replica_log import open_replica


class Link:
    """To a follower, which reports when it is told to."""

    room_bytes = 8 << 20

    def __init__(self, leader: Leading, broker: int) -> None:
        self.broker, self.broker_epoch = broker, broker * 10
        self.follower = Follower("x", open_replica(MemoryFiles()), 1, 1)
        self.frames: list[Frame | None] = []
        """What it was given that another link had made."""
        self._leader = leader

    def send(self, messages: Sequence[Batches], frame: Frame | None = None) -> Frame:
        """See `FollowerLink`."""
        self.frames.append(frame)
        for message in messages:
            self.follower.on_batches(message)
        return (f"{self.broker}".encode(),)

    def answer(self, reply: Diverging | Refused) -> None:
        """See `FollowerLink`."""
        raise AssertionError(reply)

    def replaced(self) -> None:
        """There are no others."""

    def report(self) -> None:
        """What it has got, it has on its disk."""
        self.say()
        self._leader.end_turn()

    def say(self) -> None:
        """The same, and the leader's turn goes on."""
        flush(self.follower.log)
        order = self.follower.position(again=True)
        assert order is not None
        self._leader.replicas.on_positions(self, [order])  # type: ignore[arg-type]


class Leading:
    """Broker 1, which leads."""

    def __init__(self, nursery: trio.Nursery, flusher: LogFlusher, isr: tuple[int, ...], minimum: int) -> None:
        self.flusher = flusher
        self.replicas = Replicas(clock=trio.current_time, spawn=nursery.start_soon, want_turn=lambda: None)
        flusher.after_turn = self.end_turn
        self.log = ReplicaLog.open_replica(MemoryFiles(), "x", LogConfig(), flusher, wall_clock_ms=lambda: 0)
        self.replicas.add(Replica("x", self.log, 1, ReplicationConfig(), now_s=trio.current_time()))
        self.replicas.registered(10)
        members = tuple((broker, broker * 10) for broker in isr)
        state = LogState(
            replicas=isr, isr=members, leader=1, leader_broker_epoch=10, leader_epoch=1, min_insync=minimum
        )
        self.replicas.on_state("x", state, 100)
        self.links = {broker: Link(self, broker) for broker in isr if broker != 1}
        for link in self.links.values():
            self.replicas.follower_linked(link)  # type: ignore[arg-type]
            link.report()

    def end_turn(self) -> None:
        """As a broker does it."""
        self.flusher.hold()
        self.replicas.end_turn()
        self.flusher.end_turn()

    def publish(self) -> None:
        """Somebody waits for it."""
        self.log.append(make_batch([b"a"]))
        self.log.request_sync()
        self.end_turn()

    async def has(self, *ends: int) -> bool:
        """Whether so much is written here, and sent to each follower, without more time than now."""

        def found() -> tuple[int, ...]:
            return self.log.written_offset, *(link.follower.log.log_end_offset for link in self.links.values())

        await until(lambda: self.log.job is None)
        await trio.testing.wait_all_tasks_blocked()
        await until(lambda: self.log.job is None)
        return found() == ends


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a thread, which no clock of trio's knows."""
    for _ in range(100_000):
        if condition():
            return
        await trio.lowlevel.checkpoint()
    raise AssertionError("the disk has not answered")


@asynccontextmanager
async def leading(isr: tuple[int, ...] = (1, 2, 3), minimum: int = 2) -> AsyncIterator[Leading]:
    flusher = LogFlusher()
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        yield Leading(nursery, flusher, isr, minimum)
        nursery.cancel_scope.cancel()


async def test_what_both_are_to_have_is_made_once(mock_clock: trio.testing.MockClock) -> None:
    async with leading() as one:
        second, third = one.links.values()
        one.publish()
        assert await one.has(1, 1, 1)
        assert (second.frames[-1], third.frames[-1]) == (None, (b"2",))
        second.report()
        mock_clock.jump(0.11)
        one.publish()
        assert await one.has(2, 2, 2)
        third.report()
        one.replicas.follower_lost(third)  # type: ignore[arg-type]
        second.report()
        one.publish()
        one.replicas.follower_linked(third)  # type: ignore[arg-type]
        third.report()
        assert await one.has(3, 3, 3), "one after the other"
        assert third.frames[-1] is None
        second.report()
        third.report()
        one.publish()
        assert await one.has(4, 4, 4)
        assert third.frames[-1] == (b"2",), "messages are numbered alike, whatever the links went through"
        second.report()
        third.report()
        assert one.log.high_watermark == 4


async def test_only_the_last_report_of_a_round_is_news(mock_clock: trio.testing.MockClock) -> None:
    async with leading() as one:
        second, third = one.links.values()
        one.publish()
        one.publish()
        assert await one.has(1, 1, 1)
        second.say()
        assert not one.replicas.has_news
        third.say()
        assert one.replicas.has_news
        one.end_turn()
        assert await one.has(2, 2, 2)


async def test_who_does_not_answer_is_waited_for_once(mock_clock: trio.testing.MockClock) -> None:
    async with leading() as one:
        second, silent = one.links.values()
        one.publish()
        assert await one.has(1, 1, 1)
        second.report()
        one.publish()
        assert await one.has(1, 1, 1), "3 has not reported"
        mock_clock.jump(0.09)
        assert await one.has(1, 1, 1)
        mock_clock.jump(0.11)
        assert await one.has(2, 2, 2), "without a tick, a report or another message"
        for end in (3, 4, 5):
            second.report()
            one.publish()
            assert await one.has(end, end, end), "it keeps nothing from the others any more"
        assert one.log.high_watermark == 0, "nothing is committed without it, as long as it is in the ISR"
        second.report()
        silent.report()
        assert one.log.high_watermark == 5
        one.publish()
        assert await one.has(6, 6, 6)
        second.report()
        one.publish()
        assert await one.has(6, 6, 6), "it has answered: it is waited for again"


async def test_who_has_no_link_or_no_room_is_not_waited_for(mock_clock: trio.testing.MockClock) -> None:
    async with leading() as one:
        second, third = one.links.values()
        one.publish()
        assert await one.has(1, 1, 1)
        second.report()
        one.publish()
        assert await one.has(1, 1, 1)
        one.replicas.follower_lost(third)  # type: ignore[arg-type]
        one.publish()
        assert await one.has(3, 3, 1)
    async with leading() as one:
        second, third = one.links.values()
        third.room_bytes = 0
        for end in (1, 2, 3):
            one.publish()
            assert await one.has(end, end, 0)
            second.report()


async def test_who_leads_alone_waits_for_nobody(mock_clock: trio.testing.MockClock) -> None:
    async with leading((1,), 1) as one:
        for end in (1, 2, 3):
            one.publish()
            assert await one.has(end)
            assert one.log.high_watermark == end
