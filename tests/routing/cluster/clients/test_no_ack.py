"""Consumers that acknowledge nothing, of a queue that another broker leads."""

from __future__ import annotations

import pytest
import trio

from routing.cluster.clients.served import PeerConsumer
from routing.consumer import Consumer
from routing.message import Slab
from routing.session import Session
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, Town, town_of

COUNT = 5000
PATIENCE_S = 10


class Client:
    """It counts what it is given, as long as it is open."""

    def __init__(self, node: EngineNode) -> None:
        self.broker = node.broker
        self.open = True
        self.given: list[bytes] = []
        self.redelivered = 0
        self.session: Session = node.broker.session(self, protocol="amqp", owner=self)  # type: ignore[arg-type]

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        self.given += slab.bodies[start:stop]
        self.redelivered += redelivered * (stop - start)

    def writable(self) -> bool:
        return self.open


async def scene(town: Town) -> Client:
    """Broker 1 leads a queue of 5,000 messages; a client of broker 2."""
    leader = town.nodes[1].broker
    await leader.declare_queue("q", durable=True)
    publisher = Client(town.nodes[1])
    publisher.session.publish(Slab("", "q", PERSISTENT, [b"%d" % number for number in range(COUNT)]))
    leader.end_turn()
    return Client(town.nodes[2])


async def until_all_is_somewhere(town: Town, client: Client) -> None:
    """Each message was given to the client, or is in the queue."""
    queue = town.nodes[1].broker.topology.queues["q"]
    with trio.fail_after(PATIENCE_S):
        while len(client.given) + queue.message_count != COUNT or queue.outstanding:
            await trio.sleep(0.01)


async def until_all_is_sent(town: Town) -> None:
    consumers = [one for session in town.nodes[1].broker.sessions for one in session.consumers]
    (consumer,) = [one for one in consumers if isinstance(one, PeerConsumer)]
    with trio.fail_after(PATIENCE_S):
        while consumer.sent < consumer.allowed:
            await trio.sleep(0.01)


@pytest.mark.parametrize("takes", [True, False])
async def test_what_has_come_and_was_not_passed_on_goes_back_when_it_cancels(takes: bool) -> None:
    async with town_of(1, 2, leader=1) as town:
        client = await scene(town)
        consumer = await client.session.consume("q", tag="t", no_ack=True)
        client.open = takes
        if not takes:
            await until_all_is_sent(town)
        client.session.cancel(consumer)
        client.broker.end_turn()
        await until_all_is_somewhere(town, client)
        assert town.nodes[1].broker.topology.queues["q"].message_count


async def test_all_of_it_comes_once_and_nothing_is_left() -> None:
    async with town_of(1, 2, leader=1) as town:
        client = await scene(town)
        await client.session.consume("q", tag="t", no_ack=True)
        client.broker.end_turn()
        await until_all_is_somewhere(town, client)
        with trio.fail_after(PATIENCE_S):
            while len(client.given) < COUNT:
                await trio.sleep(0.01)
        await until_all_is_somewhere(town, client)
        assert client.given == [b"%d" % number for number in range(COUNT)]


async def test_what_was_on_its_way_when_the_link_was_lost_does_not_come_twice() -> None:
    async with town_of(1, 2, leader=1) as town:
        client = await scene(town)
        consumer = await client.session.consume("q", tag="t", no_ack=True)
        client.broker.end_turn()
        client.open = False
        await until_all_is_sent(town)
        town.nodes[1].engine.serving.links[2].link.replaced()
        client.open = True
        client.broker.end_turn()
        with trio.fail_after(PATIENCE_S):
            while town.nodes[1].broker.topology.queues["q"].message_count:
                consumer.queue.wake()
                client.broker.end_turn()
                await trio.sleep(0.01)
        assert len(set(client.given)) == len(client.given)
        assert not client.redelivered
