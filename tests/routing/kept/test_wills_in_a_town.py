"""A will that two leaders of its log publish, the second because it cannot know that the first did.

And wills of clients whose broker was taken for gone, and is there.
"""

from __future__ import annotations

import gc
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import ref

import trio

from routing.cluster.clients.asked import answer
from routing.cluster.metadata.log_names import RETAINED, log_of_kind
from routing.kept.wills import Decision, _Publisher
from routing.message import Slab
from routing.session import Session
from tests.routing.kept.test_wills import will
from tests.support.engine_node import EngineNode, town_of
from tests.support.home_cluster import mesh, until

EPOCHS = 0xFFFF0000


class Subscriber:
    """A client with a queue that ends with its connection."""

    def __init__(self, node: EngineNode) -> None:
        self.got: list[bytes] = []
        self.node = node
        self.session: Session = node.broker.session(self, protocol="amqp", owner=self)

    async def subscribe(self, queue: str, *, durable: bool = False) -> None:
        broker = self.node.broker
        await broker.declare_queue(queue, durable=durable, exclusive=not durable, owner=self)
        await broker.bind("queue", queue, "amq.topic", "#", owner=self)
        await self.session.consume(queue, tag="", no_ack=True)

    def deliver(self, consumer: object, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        self.got += slab.bodies[start:stop]

    def writable(self) -> bool:
        return True


async def test_it_comes_once_to_queues_that_end_with_their_connection() -> None:
    async with town_of(1, 2, 3) as town:
        subscribers = {me: Subscriber(node) for me, node in town.nodes.items()}
        for me, one in subscribers.items():
            await one.subscribe(f"q{me}")
        lasting = Subscriber(town.nodes[3])
        await lasting.subscribe("lasting", durable=True)
        safe: list[Decision] = []

        def over(decisions: list[Decision], *, published: bool) -> None:
            assert published
            safe.extend(decisions)

        publishers = {me: _Publisher(node.broker, "/", over) for me, node in town.nodes.items()}

        def decided(number: int, leadership: int = 1) -> Decision:
            body = b"%d of %d" % (number, leadership)
            return Decision(number, "/", "a", will(body), {}, EPOCHS | leadership)

        async def publish(me: int, decision: Decision) -> None:
            count = len(safe)
            publishers[me].publish(decision, frozenset())
            town.nodes[me].broker.end_turn()
            with trio.fail_after(10):
                while len(safe) == count:
                    await trio.sleep(0.001)

        await publish(1, decided(1))
        await publish(2, decided(1))
        await publish(2, decided(1))
        await publish(2, decided(1, leadership=2))
        await publish(2, decided(2))
        wanted = [b"1 of 1", b"1 of 2", b"2 of 1"]
        with trio.fail_after(10):
            while any(len(one.got) < len(wanted) for one in (*subscribers.values(), lasting)):
                await trio.sleep(0.001)
        assert {me: one.got for me, one in subscribers.items()} == dict.fromkeys(subscribers, wanted)
        assert lasting.got == wanted


async def test_who_publishes_them_is_forgotten_when_another_broker_leads_their_log() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = next(iter(brokers.members.values())).part
        log = log_of_kind(RETAINED, 0)
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in brokers.members.values()))
        leader = brokers.members[one.leader_of(log)[0]]
        keeping = leader.broker.keeping
        assert keeping is not None
        await until(lambda: keeping.led is not None)
        led = keeping.led
        assert led is not None
        sessions = len(leader.broker.sessions)
        led.wills._publish(Decision(1, "/", "a", will(), {}, EPOCHS | 1))
        assert len(leader.broker.sessions) == sessions + 1
        forgotten = ref(led)
        del led
        await leader.one.members.update(draining=True)
        await until(lambda: keeping.part is not None and keeping.part.store is None)
        await until(lambda: one.leader_of(log)[0] not in (None, leader.me))
        assert len(leader.broker.sessions) == sessions
        await until(lambda: gc.collect() >= 0 and forgotten() is None)


async def test_a_broker_that_was_taken_for_gone_is_told_which_wills_were_published() -> None:
    """A client that stayed connected to it was announced dead, and nobody was told any more when it died."""
    async with mesh(serve_each_other=True, will_grace_ms=0) as brokers:
        members = brokers.members.values()
        one, log = next(iter(members)).part, log_of_kind(RETAINED, 0)
        await until(lambda: all(len(m.part.state_of(log).isr) == 3 for m in members))
        leader = brokers.members[one.leader_of(log)[0]]
        await until(lambda: leader.broker.keeping is not None and leader.broker.keeping.led is not None)
        keeping = leader.broker.keeping
        assert keeping is not None
        assert keeping.led is not None
        follower = next(member for member in members if member is not leader)  # the third one stays in sync
        for away in (leader, follower):
            assert away.broker.engine is not None
            link: Any = SimpleNamespace(ask=partial(answer, leader.broker))
            away.broker.engine.coordinator_links[leader.me] = link
            lost: list[str] = []
            wills, names = away.broker.wills, [f"{away.me} at once", f"{away.me} later", f"{away.me} not there"]
            for name, delay_ms in zip(names, (0, 60_000, 0), strict=True):
                kept = will()._replace(delay_ms=delay_ms)
                await wills.keep("/", name, kept, lambda lost=lost, name=name: lost.append(name))  # type: ignore[misc]
            keeping.led.wills.look(lambda broker, _, me=away.me: broker == me, 0)  # type: ignore[misc]
            wills.erase("/", names[2])
            assert len(keeping.led.wills._waiting) == 3
            await until(lambda led=keeping.led: len(led.wills._waiting) == 1)
            if away is leader:
                await keeping.ask_for_wills()
            else:
                await leader.one.store.revoke(away.one.store.lease_id)
            await until(lambda lost=lost: lost)
            assert lost == [names[0]]
            await until(lambda led=keeping.led: not led.wills._waiting)
            wills.erase("/", names[1])
