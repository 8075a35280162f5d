"""Consumers of other brokers, as whoever leads their queue knows them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from routing.cluster.clients import served_broker
from routing.cluster.clients.served import Sink
from routing.consumer import Consumer
from routing.errors import NotFound
from routing.facts import pack
from routing.message import Slab
from routing.session import Session
from routing.unsettled import Outcome
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, town_of


class Client:
    """It counts what it is given."""

    def __init__(self, node: EngineNode) -> None:
        self.got = 0
        self.cancelled_tags: list[str] = []
        self.session: Session = node.broker.session(self, protocol="amqp", owner=self)  # type: ignore[arg-type]

    def deliver(self, consumer: object, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        self.got += stop - start

    def cancelled(self, consumer: Consumer) -> None:
        self.cancelled_tags.append(consumer.tag)

    def writable(self) -> bool:
        return True


class Reader(Client):
    """It keeps what it is given, too."""

    def __init__(self, node: EngineNode) -> None:
        super().__init__(node)
        self.bodies: list[bytes] = []
        self.redelivered: list[bool] = []

    def deliver(self, consumer: object, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        super().deliver(consumer, first_id, slab, start, stop, redelivered)
        self.bodies += slab.bodies[start:stop]
        self.redelivered += [redelivered] * (stop - start)


async def test_who_could_not_be_delivered_to_is_cancelled_and_another_has_the_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, client, another = town.nodes[1].broker, Client(town.nodes[2]), Client(town.nodes[2])
        await leader.declare_queue("q", durable=True)
        await client.session.consume("q", tag="c", no_ack=False)
        deliver = Sink.deliver

        def fail_once(*_: Any) -> None:
            monkeypatch.setattr(Sink, "deliver", deliver)
            raise ValueError("a bug")

        monkeypatch.setattr(Sink, "deliver", fail_once)
        Client(town.nodes[1]).session.publish(Slab("", "q", PERSISTENT, [b"x"] * 3))
        leader.end_turn()
        with trio.fail_after(10):
            while not client.cancelled_tags:
                await trio.sleep(0.001)
            await another.session.consume("q", tag="d", no_ack=False)
            another.session.broker.end_turn()
            while another.got < 3:
                await trio.sleep(0.001)
        assert (client.got, client.cancelled_tags) == (0, ["c"])


@pytest.mark.parametrize(("unsettled", "cancelled"), [(0, False), (3, False), (3, True)])
@pytest.mark.parametrize("gone", ["deleted", "led elsewhere"])
async def test_what_is_known_of_one_goes_with_its_queue(
    gone: str, unsettled: int, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_broker, "_SAID_FOR_S", 0.05)
    async with town_of(1, 2, 3, stripes=1) as town:
        leader, client = town.nodes[1].broker, Client(town.nodes[2])
        await leader.declare_queue("q", durable=True)
        consumer = await client.session.consume("q", tag="c", no_ack=False)
        if unsettled:
            Client(town.nodes[1]).session.publish(Slab("", "q", PERSISTENT, [b"x"] * unsettled))
        leader.end_turn()
        with trio.fail_after(10):
            while client.got < unsettled:
                await trio.sleep(0.001)
            served = [one for one in leader.sessions if one.protocol == "peer"]
            assert len(served) == 1
            if cancelled:
                client.session.cancel(consumer)
                client.session.broker.end_turn()
                while served[0].consumers:
                    await trio.sleep(0.001)
            if gone == "deleted":
                await leader.delete_queue("q")
            else:
                town.lead(0, 3)
            while not served[0].closed:
                await trio.sleep(0.001)
        assert not served[0].unsettled
        assert served[0] not in leader.sessions


@pytest.mark.parametrize("count", [1, 5000])
async def test_who_begins_to_consume_is_given_nothing_that_is_over_however_much_that_is(count: int) -> None:
    async with town_of(1, 2, stripes=1) as town:
        leader, client = town.nodes[1].broker, Client(town.nodes[2])
        await leader.declare_queue("q", durable=True)
        publisher = Client(town.nodes[1]).session
        publisher.publish(Slab("", "q", PERSISTENT, [b"over"] * count, facts=[pack(True, 0, 200)] * count))
        publisher.publish(Slab("", "q", PERSISTENT, [b"last"]))
        leader.end_turn()
        leader.clock._start_ms += 1000  # nothing has run since
        await client.session.consume("q", tag="c", no_ack=True)
        with trio.fail_after(10):
            while not client.got:
                await trio.sleep(0.001)
        assert client.got == 1


async def test_who_is_about_to_consume_is_told_that_the_queue_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    consume = served_broker.ServedBroker.consume

    def consume_and_delete(self: served_broker.ServedBroker, request: int, *said: Any, **more: Any) -> None:
        consume(self, request, *said, **more)
        self.link.over(said[3], queue_is_gone=True)  # in one go with the answer

    monkeypatch.setattr(served_broker.ServedBroker, "consume", consume_and_delete)
    async with town_of(1, 2, stripes=1) as town:
        client = Client(town.nodes[2])
        await town.nodes[1].broker.declare_queue("q", durable=True)
        with trio.fail_after(5), pytest.raises(NotFound):
            await client.session.consume("q", tag="c", no_ack=False)
        assert not client.cancelled_tags, "it was never told that it consumes"
        assert not client.session.consumers


class _Numbers(dict[int, Any]):
    looked_at = 0

    def values(self) -> Any:
        self.looked_at += 1
        return super().values()


async def test_nobody_who_consumes_is_looked_at_when_partitions_of_topics_move() -> None:
    async with town_of(1, 2, stripes=1) as town:
        client, forwarding = Client(town.nodes[2]), town.nodes[2].engine.forwarding
        await town.nodes[1].broker.declare_queue("q", durable=True)
        await client.session.consume("q", tag="c", no_ack=False)
        forwarding.numbers = numbers = _Numbers(forwarding.numbers)
        for listener in town.nodes[2].cluster.moved:
            listener("topic-0123456789abcdef-0")
        assert not numbers.looked_at
        for listener in town.nodes[2].cluster.moved:
            listener("home-0")
        assert numbers.looked_at


async def test_what_a_consumer_gives_back_is_there_before_the_next_one_is_given_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with town_of(1, 2, 3, stripes=1) as town:
        leader, first, second = town.nodes[1].broker, Reader(town.nodes[2]), Reader(town.nodes[3])
        await leader.declare_queue("q", durable=True, arguments={"x-single-active-consumer": True})
        for client in (first, second):
            client.session.prefetch = 2
            await client.session.consume("q", tag="c", no_ack=False, prefetch=2)
        Client(town.nodes[1]).session.publish(Slab("", "q", PERSISTENT, [b"0", b"1", b"2", b"3"]))
        leader.end_turn()
        with trio.fail_after(10):
            while len(first.bodies) < 2:
                await trio.sleep(0.001)
            link: Any = town.nodes[2].engine.forwarding.links[1]
            frames: list[str] = []
            write = link._write
            monkeypatch.setattr(link, "_write", lambda frame: (frames.append(type(frame).__name__), write(frame)))
            first.session.close()
            assert not frames  # what is written is sent in the middle of the turn's end, and may be acted upon then
            town.nodes[2].broker.end_turn()
            while len(second.bodies) < 2:
                await trio.sleep(0.001)
        assert frames[:2] == ["Settle", "Cancel"]
        assert first.bodies == second.bodies == [b"0", b"1"]


@pytest.mark.parametrize("limit", [0, 2])
async def test_what_came_to_its_broker_and_no_further_has_not_come_back(limit: int) -> None:
    """Two consumers share a limit of one message: what has come for the other goes back when both are gone."""
    async with town_of(1, 2, leader=1) as town:
        leader, other = town.nodes[1].broker, town.nodes[2].broker
        await leader.declare_queue("q", durable=True, arguments={"x-delivery-limit": limit})
        Client(town.nodes[1]).session.publish(Slab("", "q", PERSISTENT, [b"1", b"2"]))
        leader.end_turn()
        queue = leader.topology.queues["q"]
        with trio.fail_after(10):
            for _ in range(limit + 1):
                client = Reader(town.nodes[2])
                client.session.prefetch = 1
                for tag in ("c", "d"):
                    await client.session.consume("q", tag=tag, no_ack=False)
                while client.bodies != [b"1"] or queue.outstanding < 2:
                    await trio.sleep(0.001)
                for consumer in list(client.session.consumers):
                    client.session.cancel(consumer)
                other.end_turn()
                while queue.consumers or not queue.message_count:
                    await trio.sleep(0.001)
                assert queue.message_count == 1
                client.session.settle(1, 1, Outcome.UNSEEN)
                client.session.close()
                other.end_turn()
                while queue.message_count < 2:
                    await trio.sleep(0.001)
        assert queue.returns is not None
        assert not queue.returns.tries


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-group-by": "routing-key"},
        {"x-message-ttl": 3_600_000},
        {"x-message-ttl": 3_600_000, "x-max-priority": 5},
    ],
    ids=["plain", "grouped", "mortal", "urgent"],
)
async def test_what_a_protocol_gives_back_that_its_client_was_not_given_comes_again_as_it_was(
    arguments: dict[str, object], again: bool
) -> None:
    """As MQTT does where packet ids are in use."""
    async with town_of(1, 2, leader=1) as town:
        leader, client = town.nodes[1].broker, Reader(town.nodes[2])
        await leader.declare_queue("q", durable=True, arguments=arguments)
        Client(town.nodes[1]).session.publish(Slab("", "q", PERSISTENT, [b"1"]))
        leader.end_turn()
        await client.session.consume("q", tag="c", no_ack=False)
        with trio.fail_after(10):
            while not client.got:
                await trio.sleep(0.001)
            client.session.settle(1, 1, Outcome.UNSEEN_AGAIN if again else Outcome.UNSEEN)
            client.session.broker.end_turn()
            while client.got < 2:
                await trio.sleep(0.001)
        assert client.bodies == [b"1", b"1"]
        assert client.redelivered == [False, again]


async def test_who_is_attached_again_gets_what_has_come_before_anybody_looks_at_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction that settles it may be answered next: behind that answer it would be one that comes again."""
    async with town_of(1, 2, 3, stripes=1) as town:
        client, forwarding, looks = Reader(town.nodes[2]), town.nodes[2].engine.forwarding, trio.Event()
        await town.nodes[1].broker.declare_queue("q", durable=True)
        with trio.fail_after(10):
            await client.session.consume("q", tag="c", no_ack=False)
            consume = forwarding.consume

            async def answered(*told: Any, **also: Any) -> Any:
                found = await consume(*told, **also)
                await looks.wait()
                return found

            monkeypatch.setattr(forwarding, "consume", answered)
            town.lead(0, 3)
            Client(town.nodes[3]).session.publish(Slab("", "q", PERSISTENT, [b"x"]))
            town.nodes[3].broker.end_turn()
            while not client.bodies:
                await trio.sleep(0.001)
            looks.set()
            Client(town.nodes[3]).session.publish(Slab("", "q", PERSISTENT, [b"y"]))
            town.nodes[3].broker.end_turn()
            while len(client.bodies) < 2:
                await trio.sleep(0.001)
        assert client.bodies == [b"x", b"y"]
