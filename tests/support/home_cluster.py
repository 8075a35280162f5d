"""Engines that are members of a cluster, in one process: the model of etcd, disks in memory, links without sockets.

A message on a link is there when the receiver's task runs; a link that is cut delivers nothing any more, on the way or
not. `kill` ends a broker as a process ends: what its disk had then is all that is left of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from core_log.files import MemoryFiles
from core_log.replica_log import ReplicaLog
from core_log.replication.isr import ReplicationConfig
from core_log.replication.messages import Batches, Diverging, Position, Refused
from routing.broker import open_broker
from routing.cluster.cluster import Cluster
from routing.cluster.replica_links import Frame
from routing.config import BrokerConfig
from tests.routing.cluster.metadata.test_elections import start
from tests.routing.cluster.metadata.test_members import One
from tests.routing.harness import Engine, killed, wall_clock_ms
from tests.simulation.etcd_model import EtcdModel
from tests.support.engine_wire import Asking, linked

HOMES = 3
REPLICATION = ReplicationConfig(grant_s=0.1, link_down_max_s=0.2)


class Wire:
    """What one broker says to another."""

    room_bytes = 8 << 20
    credit_is_due = False

    def __init__(self, sender: Member, receiver: Member, take: Callable[[Wire, Any], None]) -> None:
        self.broker = receiver.me
        self.broker_epoch = receiver.one.members.epoch
        self.other: Wire
        self.is_cut = False
        self._sender, self._receiver = sender, receiver
        self._take = take
        self._send, self._receive = trio.open_memory_channel[Any](1 << 20)

    def send(self, messages: Sequence[Batches] | Sequence[Position], frame: Frame | None = None) -> None:
        """See `FollowerLink`, `LeaderLink`."""
        self._send.send_nowait((self._sender.part.revisions.topology, list(messages)))

    def answer(self, reply: Diverging | Refused) -> None:
        """See `FollowerLink`."""
        self._send.send_nowait((0, [reply]))

    def replaced(self) -> None:
        """There are no others."""

    async def run(self) -> None:
        """Deliver."""
        async for revision, messages in self._receive:
            if self.is_cut:
                return
            replicas = self._receiver.part.replicas
            if replicas.heard is not None:
                replicas.heard(self._sender.me, revision)
            self._take(self.other, messages)
            self._receiver.broker.end_turn()


class Member(Engine):
    """A broker."""

    one: One
    part: Cluster

    def __init__(self, me: int, files: MemoryFiles) -> None:
        self.me = me
        self.files = files
        self.links: list[tuple[Member, Wire, Wire]] = []
        self.asking: list[tuple[Member, Asking]] = []
        self.over = trio.Event()
        self._stop = trio.Event()

    async def run(self, mesh: Mesh, task_status: trio.TaskStatus[None]) -> None:
        """Serve until it is stopped or killed."""
        self.one, elections = await start(mesh.nursery, mesh.model, self.me, self.files, internal=HOMES)
        self.part = Cluster(
            self.one.store,
            self.one.members,
            elections,
            replication=REPLICATION,
            publish_patience_s=mesh.patience_s,
        )
        config = BrokerConfig(**mesh.config)
        async with open_broker(
            self.files, config, metadata=self.one.store, cluster=self.part, wall_clock_ms=wall_clock_ms
        ) as broker:
            super().__init__(broker)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tick)
                task_status.started()
                await self._stop.wait()
                nursery.cancel_scope.cancel()
        self.one.kill()
        self.over.set()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(0.02)
            self.part.replicas.tick()
            if self.broker.engine is not None:
                self.broker.engine.tick()
            self.broker.end_turn()

    def follow(self, leader: Member, nursery: trio.Nursery) -> None:
        """A link to one that may lead."""
        order = Wire(self, leader, lambda back, messages: leader.part.replicas.on_positions(back, messages))
        back = Wire(leader, self, self._replies)
        order.other, back.other = back, order
        for wire in (order, back):
            nursery.start_soon(wire.run)
        self.links.append((leader, order, back))
        leader.links.append((self, back, order))
        leader.part.replicas.follower_linked(back)
        self.part.replicas.leader_linked(order)

    def dial(self, leader: Member, nursery: trio.Nursery) -> None:
        """A link for what clients here want of queues there."""
        self.asking.append((leader, linked(self.me, self.broker, leader.me, leader.broker, nursery)))

    def _replies(self, link: Wire, messages: list[Any]) -> None:
        for message in messages:
            self.part.replicas.on_reply(link, message)

    def cut(self) -> None:
        """No word to or from anybody."""
        for other in [self, *{other: None for other, _, _ in self.links}]:
            for asked, asking in other.asking:
                if self in (other, asked):
                    asking.cut()
            other.asking = [one for one in other.asking if not one[1].is_cut]
        links, self.links = self.links, []
        for other, mine, theirs in links:
            mine.is_cut = theirs.is_cut = True
            other.links = [link for link in other.links if link[1] is not theirs]
            for member, link in ((self, mine), (other, theirs)):
                member.part.replicas.follower_lost(link)
                member.part.replicas.leader_lost(link)

    async def kill(self, by: Member) -> MemoryFiles:
        """End it as a process ends; its lease ends at once. What is found of its disk."""
        found = killed(self.files)
        self.cut()
        lease = self.one.store.lease_id
        self.one.kill()
        await by.one.store.revoke(lease)
        self._stop.set()
        return found

    def log(self, index: int) -> ReplicaLog:
        """A home's log."""
        return self.part.replicas.by_name[f"home-{index}"].log

    def leads(self, index: int) -> bool:
        """Whether a home's queues are here, and may be served."""
        home = self.broker.topology.stripes[index]
        return home in self.broker.topology.led and not home.suspended


class Mesh:
    """All of them."""

    def __init__(
        self, nursery: trio.Nursery, patience_s: float = 10.0, serve_each_other: bool = False, **config: Any
    ) -> None:
        self.nursery = nursery
        self.patience_s = patience_s
        self._serve_each_other = serve_each_other
        self.model = EtcdModel()
        self.config = {"housekeeping_interval_ms": 3_600_000, "settle_delay_ms": 0, "stripes": HOMES} | config
        self.members: dict[int, Member] = {}

    async def add(self, me: int, files: MemoryFiles | None = None) -> Member:
        """Start a broker, and link it to all others."""
        member = Member(me, files or MemoryFiles())
        await self.nursery.start(member.run, self)
        self.link(member)
        self.members[me] = member
        return member

    def link(self, member: Member) -> None:
        """Link a broker to all others."""
        for other in [one for one in self.members.values() if one is not member]:
            member.follow(other, self.nursery)
            other.follow(member, self.nursery)
            if self._serve_each_other:
                member.dial(other, self.nursery)
                other.dial(member, self.nursery)

    async def kill(self, me: int) -> MemoryFiles:
        """See `Member.kill`."""
        gone = self.members.pop(me)
        return await gone.kill(next(iter(self.members.values())))

    def leader(self, index: int) -> Member:
        """Who leads a home."""
        return next(member for member in self.members.values() if member.leads(index))

    async def settled(self, index: int, among: int | None = None) -> Member:
        """Wait until a home is led and all its replicas are in sync; the leader."""
        wanted = len(self.members) if among is None else among

        def is_settled() -> bool:
            for member in self.members.values():
                state = member.part.state_of(f"home-{index}")
                if state is None or len(state.isr) != wanted or not any(m.leads(index) for m in self.members.values()):
                    return False
            return True

        try:
            await until(is_settled)
        except trio.TooSlowError:
            states = {me: member.part.state_of(f"home-{index}") for me, member in self.members.items()}
            raise AssertionError(f"home {index} is not settled: {states}") from None
        return self.leader(index)


async def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for something that will be so."""
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.002)


@asynccontextmanager
async def mesh(count: int = 3, **config: Any) -> AsyncIterator[Mesh]:
    """So many brokers, of which the homes are led and in sync."""
    async with trio.open_nursery() as nursery:
        found = Mesh(nursery, **config)
        nursery.start_soon(found.model.run)
        for me in range(1, count + 1):
            await found.add(me)
        for index in range(HOMES):
            await found.settled(index)
        yield found
        for member in found.members.values():
            member.cut()
            member._stop.set()
        for member in found.members.values():
            await member.over.wait()
        nursery.cancel_scope.cancel()
