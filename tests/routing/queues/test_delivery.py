"""From publisher to consumer and back: order, credit, settling, and what happens to what is given back."""

from __future__ import annotations

import errno
from collections import Counter
from functools import partial

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.errors import AccessRefused, NotFound, PreconditionFailed
from routing.session import Outcome
from tests.routing.harness import Client, Engine, body_of, engine

both_kinds = pytest.mark.parametrize("durable", [True, False])


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def flags(client: Client) -> list[tuple[str, bool]]:
    return [(delivery.body, delivery.redelivered) for delivery in client.take()]


async def two_clients(broker: Engine, durable: bool) -> tuple[Client, Client]:
    await broker.queue("q", durable=durable)
    return broker.client(), broker.client()


@both_kinds
async def test_in_order_to_a_consumer_that_waits_and_to_one_that_comes_late(durable: bool) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, durable)
        publisher.publish("q", 1, 2, 3)
        publisher.publish("q", 4)
        assert broker.count("q") == 4
        await consumer.consume("q", tag="late")
        delivered = consumer.take()
        assert [(d.tag, d.id, d.body, d.redelivered, d.exchange, d.key) for d in delivered] == [
            ("late", number, str(number), False, "", "q") for number in range(1, 5)
        ]
        publisher.publish("q", 5)
        assert not consumer.deliveries, "deliveries come when the turn ends"
        assert consumer.take_bodies() == ["5"]
        assert broker.count("q") == 0


@both_kinds
async def test_settled_messages_are_gone_and_others_come_back_first(durable: bool) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, durable)
        publisher.publish("q", *range(1, 11))
        consumer.session.set_prefetch(6, per_session=False)
        await consumer.consume("q")
        assert consumer.take_bodies() == numbers(1, 6)
        consumer.ack(2)
        consumer.session.settle(5, 5, Outcome.DISCARD)
        consumer.session.close()
        broker.turn()
        assert broker.count("q") == 8
        other = broker.client()
        await other.consume("q")
        expected = [(body, True) for body in ("1", "3", "4", "6")] + [(body, False) for body in numbers(7, 10)]
        assert flags(other) == expected
        assert not consumer.deliveries


@both_kinds
async def test_requeued_messages_go_first_in_their_original_order(durable: bool) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, durable)
        consumer.session.set_prefetch(4, per_session=False)
        publisher.publish("q", *range(1, 9))
        await consumer.consume("q")
        assert flags(consumer) == [(body, False) for body in numbers(1, 4)]
        consumer.requeue(4)
        consumer.requeue(2)
        assert flags(consumer) == [("2", True), ("4", True)]
        consumer.session.settle_up_to(0, Outcome.REQUEUE)
        assert flags(consumer) == [(body, True) for body in numbers(1, 4)]
        consumer.session.settle_up_to(0, Outcome.ACK)
        assert flags(consumer) == [(body, False) for body in numbers(5, 8)]


async def test_ranges_of_ids_are_settled_in_any_order_and_shape() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        publisher.publish("q", *range(1, 31))
        await consumer.consume("q")
        consumer.take()
        for first, last in [(5, 7), (1, 2), (20, 25), (29, 30), (8, 10), (15, 15)]:
            consumer.ack(first, last)
        assert consumer.session.outstanding == 30 - 17
        assert [(e.first, e.end) for e in consumer.session.unsettled] == [(3, 5), (11, 15), (16, 20), (26, 29)]
        consumer.session.settle_up_to(12, Outcome.ACK)
        assert [(e.first, e.end) for e in consumer.session.unsettled] == [(13, 15), (16, 20), (26, 29)]
        consumer.session.recover()
        left = ["13", "14", "16", "17", "18", "19", "26", "27", "28"]
        assert flags(consumer) == [(body, True) for body in left]
        assert broker.broker.topology.queues["q"].outstanding == consumer.session.outstanding == 9


@pytest.mark.parametrize(("first", "last", "unknown"), [(4, 4, 4), (0, 0, 0), (2, 2, 2), (3, 5, 4), (9, 9, 9)])
async def test_unknown_delivery_ids(first: int, last: int, unknown: int) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        publisher.publish("q", 1, 2, 3)
        await consumer.consume("q")
        consumer.take()
        consumer.ack(2)
        with pytest.raises(PreconditionFailed, match=f"^unknown delivery tag {unknown}$"):
            consumer.ack(first, last)


async def test_settling_up_to_what_was_never_delivered() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        consumer.session.settle_up_to(0, Outcome.ACK)
        with pytest.raises(PreconditionFailed, match="unknown delivery tag 1"):
            consumer.session.settle_up_to(1, Outcome.ACK)
        publisher.publish("q", 1, 2)
        await consumer.consume("q")
        consumer.take()
        with pytest.raises(PreconditionFailed, match="unknown delivery tag 3"):
            consumer.session.settle_up_to(3, Outcome.ACK)
        consumer.session.settle_up_to(2, Outcome.ACK)
        with pytest.raises(PreconditionFailed, match="unknown delivery tag 2"):
            consumer.session.settle_up_to(2, Outcome.ACK)


async def test_prefetch_of_a_consumer() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        consumer.session.set_prefetch(3, per_session=False)
        await consumer.consume("q", tag="three")
        consumer.session.set_prefetch(1, per_session=False)
        await consumer.consume("q", tag="one")
        publisher.publish("q", *range(1, 11))
        first = consumer.take()
        assert sorted(d.tag for d in first) == ["one", "three", "three", "three"]
        assert consumer.take() == []
        for delivery in first:
            if delivery.tag == "three":
                consumer.ack(delivery.id)
        assert [d.tag for d in consumer.take()] == ["three"] * 3


async def test_prefetch_of_a_session_is_shared_by_its_consumers_and_queues() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        await broker.queue("r")
        consumer.session.set_prefetch(5, per_session=True)
        await consumer.consume("q", tag="q")
        await consumer.consume("r", tag="r")
        publisher.publish("q", *range(4))
        publisher.publish("r", *range(4))
        assert len(consumer.take()) == 5
        consumer.ack(1)
        assert len(consumer.take()) == 1
        consumer.session.settle_up_to(0, Outcome.ACK)
        assert len(consumer.take()) == 2


@pytest.mark.parametrize("limit", [1, 4])
async def test_a_prefetch_of_a_session_starves_no_queue(limit: int) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        for queue in ("r", "s"):
            await broker.queue(queue)
        consumer.session.set_prefetch(limit, per_session=True)
        for queue in ("q", "r", "s"):
            await consumer.consume(queue, tag=queue)
            publisher.publish(queue, *range(60))
        seen: Counter[str] = Counter()
        for _ in range(30):
            (*_, last) = deliveries = consumer.take()
            seen.update(delivery.tag for delivery in deliveries)
            consumer.session.settle_up_to(last.id, Outcome.ACK)
        assert min(seen[queue] for queue in ("q", "r", "s")) >= 10 * limit - 1


async def test_what_a_consumer_waits_for_is_not_got_by_somebody_else() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        await consumer.consume("q")
        broker.turn()
        publisher.publish("q", "for the consumer")  # and in the same turn somebody asks
        assert await publisher.session.get("q", no_ack=True) is None
        assert consumer.take_bodies() == ["for the consumer"]


async def test_a_larger_session_prefetch_takes_effect_at_once() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        consumer.session.set_prefetch(1, per_session=True)
        await consumer.consume("q")
        publisher.publish("q", *range(10))
        assert len(consumer.take()) == 1
        consumer.session.set_prefetch(4, per_session=True)
        assert len(consumer.take()) == 3
        consumer.session.set_prefetch(0, per_session=True)
        assert len(consumer.take()) == 6


@both_kinds
async def test_consumers_take_turns(durable: bool) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, one = await two_clients(broker, durable)
        two = broker.client()
        for client in (one, two):
            client.session.set_prefetch(1, per_session=False)
            await client.consume("q")
        publisher.publish("q", *range(1, 7))
        seen: dict[Client, list[str]] = {one: [], two: []}
        for _ in range(3):
            broker.turn()
            for client in (one, two):
                (delivery,) = client.take()
                seen[client].append(delivery.body)
                client.ack(delivery.id)
        assert seen == {one: ["1", "3", "5"], two: ["2", "4", "6"]}


async def test_a_backlog_is_shared_evenly_among_consumers_without_limit() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, _ = await two_clients(broker, True)
        publisher.publish("q", *range(1000))
        clients = [broker.client() for _ in range(4)]
        for client in clients:
            await client.consume("q")
        broker.turn()
        shares = [len(client.deliveries) for client in clients]
        assert sum(shares) == 1000
        assert min(shares) >= 200
        assert sorted(int(d.body) for client in clients for d in client.deliveries) == list(range(1000))
        for client in clients:
            bodies = [int(d.body) for d in client.deliveries]
            assert bodies == sorted(bodies)


async def test_single_messages_go_around() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, _ = await two_clients(broker, True)
        clients = [broker.client() for _ in range(3)]
        for client in clients:
            await client.consume("q")
        for number in range(6):
            publisher.publish("q", number)
            broker.turn()
        assert [[d.body for d in client.deliveries] for client in clients] == [["0", "3"], ["1", "4"], ["2", "5"]]


@both_kinds
async def test_no_ack_settles_at_delivery(durable: bool) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, durable)
        consumer.session.set_prefetch(1, per_session=False)
        await consumer.consume("q", no_ack=True)
        publisher.publish("q", *range(1, 6))
        assert consumer.take_bodies() == numbers(1, 5)
        assert consumer.session.outstanding == 0
        assert broker.home("q").first_live_offset == broker.home("q").next_offset
        with pytest.raises(PreconditionFailed):
            consumer.ack(1)
        consumer.session.close()
        assert broker.count("q") == 0


@both_kinds
async def test_get(durable: bool) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, client = await two_clients(broker, durable)
        assert await client.session.get("q", no_ack=False) is None
        publisher.publish("q", "a", "b", "c")
        first = await client.session.get("q", no_ack=False)
        assert first is not None
        assert (body_of(first), first.delivery_id, first.redelivered, first.message_count) == ("a", 1, False, 2)
        second = await client.session.get("q", no_ack=True)
        assert second is not None
        assert (body_of(second), second.delivery_id, second.message_count) == ("b", 2, 1)
        with pytest.raises(PreconditionFailed):
            client.ack(2)
        client.requeue(1)
        again = await client.session.get("q", no_ack=False)
        assert again is not None
        assert (body_of(again), again.delivery_id, again.redelivered) == ("a", 3, True)
        client.ack(3)
        assert [body for body, _ in await broker.drain("q")] == ["c"]
        with pytest.raises(NotFound, match="no queue 'nowhere' in vhost '/'"):
            await client.session.get("nowhere", no_ack=True)


@both_kinds
async def test_purge_leaves_what_is_delivered(durable: bool) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, durable)
        consumer.session.set_prefetch(3, per_session=False)
        publisher.publish("q", *range(1, 11))
        tag = await consumer.consume("q")
        consumer.take()
        consumer.session.cancel(tag)
        consumer.requeue(2)
        assert await broker.broker.purge_queue("q") == 8
        assert broker.count("q") == 0
        publisher.publish("q", "new")
        consumer.requeue(1)
        consumer.ack(3)
        assert await broker.drain("q") == [("1", True), ("new", False)]
        assert broker.home("q").first_live_offset == broker.home("q").next_offset


@both_kinds
async def test_a_deleted_queue_takes_its_messages_and_consumers_along(durable: bool) -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, durable)
        home = broker.home("q")
        consumer.session.set_prefetch(4, per_session=False)
        await consumer.consume("q", tag="doomed")
        publisher.publish("q", *range(1, 11))
        assert len(consumer.take()) == 4
        assert await broker.broker.delete_queue("q") == 6
        assert consumer.events == [("cancelled", "doomed")]
        assert not consumer.session.consumers
        consumer.ack(1, 2)
        consumer.requeue(3)
        consumer.session.close()
        broker.turn()
        assert home.first_live_offset == home.next_offset
        await broker.queue("q", durable=durable)
        assert broker.count("q") == 0


async def test_cancel_keeps_what_is_unsettled() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        tag = await consumer.consume("q")
        publisher.publish("q", 1, 2)
        assert len(consumer.take()) == 2
        consumer.session.cancel(tag)
        consumer.session.cancel(tag)
        publisher.publish("q", 3)
        assert consumer.take() == []
        consumer.ack(1)
        consumer.session.recover()
        assert await broker.drain("q") == [("2", True), ("3", False)]
        assert consumer.events == []


async def test_a_paused_session_and_a_full_outbox_get_nothing() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, consumer = await two_clients(broker, True)
        await consumer.consume("q")
        consumer.session.pause(True)
        publisher.publish("q", 1)
        assert consumer.take() == []
        consumer.session.pause(False)
        assert consumer.take_bodies() == ["1"]
        consumer.open = False
        publisher.publish("q", 2, 3)
        assert consumer.take() == []
        consumer.open = True
        assert consumer.take() == []
        consumer.session.resume()
        assert consumer.take_bodies() == ["2", "3"]


async def test_others_get_what_a_full_outbox_cannot_take() -> None:
    async with engine(MemoryFiles()) as broker:
        publisher, stuck = await two_clients(broker, True)
        healthy = broker.client()
        await stuck.consume("q")
        await healthy.consume("q")
        stuck.open = False
        publisher.publish("q", 1, 2, 3)
        assert healthy.take_bodies() == ["1", "2", "3"]


async def test_exclusive_consumers() -> None:
    async with engine(MemoryFiles()) as broker:
        _, one = await two_clients(broker, True)
        two = broker.client()
        tag = await one.consume("q", exclusive=True)
        with pytest.raises(AccessRefused, match="queue 'q' in vhost '/' in exclusive use"):
            await two.consume("q")
        one.session.cancel(tag)
        await two.consume("q")
        with pytest.raises(AccessRefused):
            await one.consume("q", exclusive=True)
        await one.consume("q")


@both_kinds
async def test_a_body_for_several_queues_is_settled_by_each_alone(durable: bool) -> None:
    async with engine(MemoryFiles(), stripes=1) as broker:
        client = broker.client()
        for name in ("a", "b", "c"):
            await broker.queue(name, durable=durable)
            await broker.bind("amq.fanout", name)
        client.publish("", 1, 2, exchange="amq.fanout")
        home = broker.home("a")
        assert await broker.drain("a") == [("1", False), ("2", False)]
        await client.consume("b")
        client.take()
        client.requeue(1)
        assert home.first_live_offset == 0
        assert await broker.broker.purge_queue("c") == 2
        assert client.take_bodies() == ["1"]
        client.session.settle_up_to(0, Outcome.ACK)
        assert home.first_live_offset == home.next_offset
        assert home.find(1) is None, "memory is given back when the last queue has settled"


async def test_fan_out_over_stripes_and_kinds_of_queues() -> None:
    async with engine(MemoryFiles(), stripes=4) as broker:
        client = broker.client()
        names = [f"q{number}" for number in range(12)]
        for number, name in enumerate(names):
            await broker.queue(name, durable=number % 3 != 0)
            await broker.bind("amq.topic", name, "a.*")
        assert len({broker.home(name) for name in names}) == 5
        for number in range(5):
            client.publish(f"a.{number}", number, exchange="amq.topic")
        for name in names:
            assert await broker.drain(name) == [(str(number), False) for number in range(5)]


async def test_a_queue_bound_twice_gets_a_message_once() -> None:
    async with engine(MemoryFiles()) as broker:
        client = broker.client()
        await broker.queue("q")
        for pattern in ("a.#", "*.b", "#"):
            await broker.bind("amq.topic", "q", pattern)
        client.publish("a.b", 1, exchange="amq.topic")
        assert await broker.drain("q") == [("1", False)]


async def test_a_get_that_waits_for_the_disk_takes_nothing_for_a_session_that_is_closed() -> None:
    files = MemoryFiles()
    async with engine(files, stripe_cache_bytes=1) as running:
        await running.queue("q")
        client = running.client()
        await client.publish_safely("q", "a", "b")
        answers: list[object] = []

        async def get() -> None:
            answers.append(await client.session.get("q", no_ack=False))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(get)
            await trio.lowlevel.checkpoint()
            assert not answers  # it is read in a thread
            client.session.close()
        assert answers == [None]
        assert running.broker.topology.queues["q"].outstanding == 0
        assert [body for body, _ in await running.drain("q")] == ["a", "b"]


async def test_a_consumer_gets_what_a_get_was_reading_that_was_cancelled() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripe_cache_bytes=1) as running:
        await running.queue("q")
        client = running.client()
        await client.publish_safely("q", "a", "b")
        files.failing["read"] = errno.EIO
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.session.get, "q", no_ack=False))
            await trio.sleep(0.02)  # it tries again and again
            await client.consume("q")
            running.turn()
            nursery.cancel_scope.cancel()
        del files.failing["read"]
        await running.until(lambda: len(client.deliveries) == 2)
