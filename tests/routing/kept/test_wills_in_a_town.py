"""A will that two leaders of its log publish, the second because it cannot know that the first did."""

from __future__ import annotations

import gc
from weakref import ref

import trio

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
