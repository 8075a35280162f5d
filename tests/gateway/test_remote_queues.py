"""Clients of a broker that leads none of their queues notice nothing of it: real clients, real links."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pika
import pytest
import trio
from pika.exceptions import ChannelClosedByBroker, NackError

from routing.cluster.clients.forwarding import Forwarding
from tests.routing.harness import Client, Engine
from tests.support import engine_node
from tests.support.engine_node import EngineNode, town_of

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connection(node: EngineNode) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0))


async def client(node: EngineNode, use: Callable[[Any], Any]) -> Any:
    """What a blocking client does with a channel."""

    def run() -> Any:
        with connection(node) as there:
            return use(there.channel())

    with trio.fail_after(30):
        return await trio.to_thread.run_sync(run)


def declare(channel: Any, name: str = "q", **arguments: Any) -> int:
    """A durable queue; how many messages it has."""
    said = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    count: int = channel.queue_declare(name, durable=True, arguments=said).method.message_count
    return count


def send(channel: Any, *bodies: str, queue: str = "q", **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body.encode(), pika.BasicProperties(delivery_mode=2, **properties))


def drain(channel: Any, queue: str = "q") -> list[str]:
    """All that can be got, settled; redelivered ones are marked."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None:
            return found
        found.append(body.decode() + ("*" if method.redelivered else ""))
        channel.basic_ack(method.delivery_tag)


async def test_what_is_published_is_confirmed_consumed_and_gone() -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> list[bytes]:
            declare(channel)
            channel.confirm_delivery()
            send(channel, *map(str, range(20)))
            assert declare(channel) == 20
            channel.basic_qos(prefetch_count=3)
            got = []
            for method, _, body in channel.consume("q", inactivity_timeout=20):
                got.append(body)
                assert not method.redelivered
                channel.basic_ack(method.delivery_tag)
                if len(got) == 20:
                    break
            channel.cancel()
            assert declare(channel) == 0
            return got

        assert await client(town.nodes[2], use) == [b"%d" % number for number in range(20)]


async def test_get_nack_reject_and_purge() -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> None:
            declare(channel)
            channel.confirm_delivery()
            send(channel, "a", "b", "c", "d")
            first = channel.basic_get("q")[0]
            second = channel.basic_get("q")[0]
            assert first.message_count == 3
            channel.basic_nack(first.delivery_tag, requeue=True)
            channel.basic_reject(second.delivery_tag, requeue=False)
            method, _, body = channel.basic_get("q", auto_ack=True)
            assert (method.redelivered, body) == (True, b"a")
            assert channel.queue_purge("q").method.message_count == 2
            assert channel.basic_get("q") == (None, None, None)
            send(channel, "e", "f")
            assert drain(channel) == ["e", "f"]

        await client(town.nodes[2], use)


@pytest.mark.parametrize("broker", [1, 2])
@pytest.mark.parametrize("delivery_mode", [1, 2])
async def test_who_publishes_and_then_gets_has_the_message(broker: int, delivery_mode: int) -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> list[bytes | None]:
            declare(channel)
            found = []
            for number in range(50):
                channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=delivery_mode))
                found.append(channel.basic_get("q", auto_ack=True)[2])
            return found

        assert await client(town.nodes[broker], use) == [b"%d" % number for number in range(50)]


async def test_a_question_waits_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = msgspec.structs.replace(engine_node.QUICK, heartbeat_ms=60_000, silence_ms_max=120_000)
    monkeypatch.setattr(engine_node, "QUICK", quiet)
    async with town_of(1, 2) as town:
        broker = town.nodes[2].broker
        await broker.declare_queue("q", durable=True)
        with trio.fail_after(5):
            for _ in range(20):
                assert (await broker.check_queue("q")).message_count == 0
                assert await broker.purge_queue("q") == 0


async def test_a_link_that_is_lost_just_behind_an_answer_costs_no_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    consume = Forwarding.consume
    lost = []

    async def losing(self: Forwarding, queue: Any, consumer: Any, **how: Any) -> Any:
        found: Any = await consume(self, queue, consumer, **how)
        if not lost:
            lost.append(found.link)
            found.link.shut_down("a test")
            while found.link in self.links.values():
                await trio.sleep(0.001)
        return found

    monkeypatch.setattr(Forwarding, "consume", losing)
    async with town_of(1, 2) as town:

        def use(channel: Any) -> bytes | None:
            declare(channel)
            send(channel, "a")
            got: bytes | None = next(channel.consume("q", inactivity_timeout=10))[2]
            return got

        assert await client(town.nodes[2], use) == b"a"
    assert lost


async def test_a_closed_channel_gives_back_what_it_had_and_only_that_is_redelivered() -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> None:
            declare(channel)
            channel.confirm_delivery()
            send(channel, *map(str, range(6)))
            other = channel.connection.channel()
            other.basic_qos(prefetch_count=4)
            got = []
            for method, _, body in other.consume("q", inactivity_timeout=20):
                got.append(body)
                if len(got) == 2:
                    other.basic_ack(method.delivery_tag)
                if len(got) == 4:
                    break
            other.close()
            found = drain(channel)
            assert found[:3] == ["0*", "2*", "3*"]
            assert found[3] in ("4", "4*"), "it may have been on its way when the channel closed"
            assert found[4:] == ["5"]

        await client(town.nodes[2], use)


@pytest.mark.parametrize("broker", [1, 2])
async def test_a_limit_of_the_channel_that_is_raised_counts_at_once(broker: int) -> None:
    """As Celery's workers raise it, by one for each task that is for later; 65,535 is the highest there is."""
    async with town_of(1, 2) as town:

        def use(channel: Any) -> None:
            declare(channel)
            channel.confirm_delivery()
            send(channel, *map(str, range(60)))
            channel.basic_qos(prefetch_count=1, global_qos=True)
            got: list[bytes] = []
            channel.basic_consume("q", lambda _, method, properties, body: got.append(body))
            for limit in (1, *range(2, 20), 65_535):
                channel.basic_qos(prefetch_count=limit, global_qos=True)
                deadline = time.monotonic() + 5
                while len(got) < min(limit, 60) and time.monotonic() < deadline:
                    channel.connection.process_data_events(0.05)
                assert len(got) == min(limit, 60)

        await client(town.nodes[broker], use)


async def test_limits_that_refuse_say_so_of_each_message() -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> None:
            declare(channel, max_length=3, overflow="reject-publish")
            declare(channel, "other")
            channel.exchange_declare("x", "fanout", durable=True)
            channel.queue_bind("q", "x")
            channel.queue_bind("other", "x")
            channel.confirm_delivery()
            refused = []
            for number in range(5):
                try:
                    channel.basic_publish("x", "", b"%d" % number, PERSISTENT)
                except NackError:
                    refused.append(number)
            assert refused == [3, 4]
            assert drain(channel) == ["0", "1", "2"]
            assert drain(channel, "other") == ["0", "1", "2", "3", "4"]

        await client(town.nodes[2], use)


async def test_many_publishes_at_once_are_confirmed_or_refused_one_by_one() -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> None:
            declare(channel, max_length=100, overflow="reject-publish")

        await client(town.nodes[2], use)
        answers = await trio.to_thread.run_sync(publish_at_once, town.nodes[2].port, 300)
        assert [tag for tag, safe in sorted(answers.items()) if safe] == list(range(1, 101))
        assert len(answers) == 300


@pytest.mark.parametrize("broker", [1, 2])
async def test_a_message_that_fits_is_taken_whatever_came_before_it(broker: int) -> None:
    """They come in one slab. Broker 1 leads the queue."""
    async with town_of(1, 2) as town:

        def use(channel: Any) -> None:
            declare(channel, max_length_bytes=20, overflow="reject-publish")
            declare(channel, "other")
            channel.queue_bind("q", "amq.direct", "q")
            channel.queue_bind("other", "amq.direct", "q")

        node = town.nodes[broker]
        await client(node, use)
        after_turn = node.broker.after_turn
        publisher = Client(Engine(node.broker), object())
        node.broker.after_turn = after_turn  # of the gateway, which sends
        sizes = (9, 12, 8, 5, 2, 4, 1)
        publisher.publish("q", *("x" * size for size in sizes), exchange="amq.direct", confirm=True)
        node.broker.end_turn()
        with trio.fail_after(20):
            while publisher.confirmed < len(sizes):
                await trio.sleep(0.01)
        assert [event[1:] for event in publisher.events if event[0] == "refuse"] == [(2, 2), (4, 4), (6, 6)]
        for name, taken in (("q", [9, 8, 2, 1]), ("other", [*sizes])):
            found = await client(town.nodes[1], partial(drain, queue=name))
            assert [len(body) for body in found] == taken


def publish_at_once(port: int, count: int) -> dict[int, bool]:
    """Publish without waiting; what was said of each."""
    answers: dict[int, bool] = {}
    last = [0]

    def answered(frame: Any) -> None:
        method = frame.method
        safe = isinstance(method, pika.spec.Basic.Ack)
        first = last[0] + 1 if method.multiple else method.delivery_tag
        answers.update(dict.fromkeys(range(first, method.delivery_tag + 1), safe))
        last[0] = method.delivery_tag
        if len(answers) >= count:
            found.close()

    def opened(channel: Any) -> None:
        channel.confirm_delivery(answered)
        for number in range(count):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)

    parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
    found = pika.SelectConnection(
        parameters,
        on_open_callback=lambda there: there.channel(on_open_callback=opened),
        on_close_callback=lambda there, _: there.ioloop.stop(),
    )
    found.ioloop.call_later(10, found.ioloop.stop)
    found.ioloop.start()
    return answers


async def test_duplicates_priorities_times_to_live_and_dead_letters_are_the_leaders() -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> None:
            channel.confirm_delivery()
            declare(channel, "once", deduplication_window_ms=60_000)
            for message_id in ("a", "b", "a", "c", "b"):
                send(channel, message_id, queue="once", message_id=message_id)
            assert drain(channel, "once") == ["a", "b", "c"]
            declare(channel, "ranked", max_priority=5)
            for number in (1, 5, 3, 5):
                send(channel, str(number), queue="ranked", priority=number)
            assert drain(channel, "ranked") == ["5", "5", "3", "1"]
            declare(channel, "dead")
            declare(channel, "short", message_ttl=30, dead_letter_exchange="", dead_letter_routing_key="dead")
            send(channel, "x", "y", queue="short")
            deadline = time.monotonic() + 5
            while declare(channel, "dead") < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            _, properties, body = channel.basic_get("dead")
            assert (body, properties.headers["x-death"][0]["reason"]) == (b"x", "expired")

        await client(town.nodes[2], use)


async def test_who_is_exclusive_is_so_at_all_brokers() -> None:
    async with town_of(1, 2, 3) as town:

        def use(channel: Any) -> None:
            declare(channel)
            channel.basic_consume("q", lambda *_: None, exclusive=True)
            for node in (town.nodes[1], town.nodes[3]):
                with connection(node) as there:
                    with pytest.raises(ChannelClosedByBroker) as caught:
                        there.channel().basic_consume("q", lambda *_: None)
                    assert (caught.value.reply_code, "in exclusive use" in caught.value.reply_text) == (403, True)
                    with pytest.raises(ChannelClosedByBroker) as caught:
                        there.channel().queue_delete("q", if_unused=True)
                    assert caught.value.reply_code == 406
            declared = channel.queue_declare("q", passive=True).method
            assert declared.consumer_count == 1
            send(channel, "one")
            with connection(town.nodes[3]) as there, pytest.raises(ChannelClosedByBroker) as caught:
                there.channel().basic_get("absent")
            assert caught.value.reply_code == 404

        await client(town.nodes[2], use)


async def test_a_queue_that_is_deleted_anywhere_cancels_its_consumers_everywhere() -> None:
    async with town_of(1, 2, 3) as town:

        def use(channel: Any) -> list[Any]:
            declare(channel)
            send(channel, "a", "b", "c")
            channel.basic_get("q", auto_ack=True)
            cancelled: list[Any] = []
            channel.add_on_cancel_callback(cancelled.append)
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume("q", lambda *_: None)
            with connection(town.nodes[3]) as there:
                other = there.channel()
                assert other.queue_delete("q").method.message_count in (1, 2)
            deadline = time.monotonic() + 5
            while not cancelled and time.monotonic() < deadline:
                channel.connection.process_data_events(time_limit=0.1)
            return cancelled

        assert len(await client(town.nodes[2], use)) == 1


async def test_consumers_at_several_brokers_share_the_queue() -> None:
    async with town_of(1, 2, 3) as town:
        got: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
        ready = threading.Barrier(4)

        def consume(broker: int) -> None:
            with connection(town.nodes[broker]) as there:
                channel = there.channel()
                channel.basic_qos(prefetch_count=5)
                deliveries = channel.consume("q", inactivity_timeout=0.2)
                next(deliveries)
                ready.wait(10)
                until = time.monotonic() + 20
                for method, _, body in deliveries:
                    if method is not None:
                        got[broker].append(body)
                        channel.basic_ack(method.delivery_tag)
                    elif sum(map(len, got.values())) >= 300 or time.monotonic() > until:
                        return

        def publish(channel: Any) -> None:
            declare(channel)
            declared.set()
            ready.wait(10)
            channel.confirm_delivery()
            send(channel, *map(str, range(300)))

        declared = threading.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, town.nodes[3], publish)
            await trio.to_thread.run_sync(declared.wait)
            for broker in got:
                nursery.start_soon(trio.to_thread.run_sync, consume, broker)
        assert sorted(int(body) for bodies in got.values() for body in bodies) == list(range(300))
        assert all(len(bodies) > 20 for bodies in got.values()), {who: len(bodies) for who, bodies in got.items()}


@pytest.mark.parametrize("by", ["queue", "exchange", "ladder"])
async def test_dead_letters_are_no_duplicates_where_another_broker_leads_either(by: str) -> None:
    async with town_of(1, 2) as town:
        town.lead(1, 2)
        for node in town.nodes.values():
            node.broker.topology.place_queue = lambda queue_id, arguments: arguments["x-max-length"] % 2
            if by == "exchange":
                await node.broker.set_policy("once", "^amq.fanout$", {"deduplication-window-ms": 60_000})

        def use(channel: Any) -> list[str]:
            last = {"retry": [1], "retry_then": "dead"} if by == "ladder" else {"dead_letter_exchange": "amq.fanout"}
            declare(channel, max_length=1000, **last)
            declare(
                channel, "dead", max_length=1001, **({"deduplication_window_ms": 60_000} if by != "exchange" else {})
            )
            channel.queue_bind("dead", "amq.fanout")
            channel.confirm_delivery()
            channel.basic_publish("amq.fanout", "", b"before", pika.BasicProperties(message_id="m", delivery_mode=2))
            send(channel, "died", message_id="m")
            left = 2 if by == "ladder" else 1
            for method, _, _ in channel.consume("q", inactivity_timeout=20):
                channel.basic_reject(method.delivery_tag, requeue=False)
                left -= 1
                if not left:
                    break
            channel.cancel()
            found: list[str] = []
            until_s = time.monotonic() + 10
            while len(found) < 2 and time.monotonic() < until_s:
                found += drain(channel, "dead")
            return found

        assert await client(town.nodes[1], use) == ["before", "died"]
