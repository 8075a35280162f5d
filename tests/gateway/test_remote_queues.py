"""Clients of a broker that leads none of their queues notice nothing of it: real clients, real links."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pika
import pytest
import trio
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError

from routing.errors import StorageUnavailable
from tests.gateway.relay import Relay, relay
from tests.support import engine_node
from tests.support.engine_node import EngineNode, Town, town_of

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
            for method, _, body in channel.consume("q", inactivity_timeout=2):
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


async def test_a_closed_channel_gives_back_what_it_had_and_only_that_is_redelivered() -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> None:
            declare(channel)
            channel.confirm_delivery()
            send(channel, *map(str, range(6)))
            other = channel.connection.channel()
            other.basic_qos(prefetch_count=4)
            got = []
            for method, _, body in other.consume("q", inactivity_timeout=2):
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


# --- links and leaders that go ---------------------------------------------------------------


class Work:
    """A publisher that confirms and a consumer, each at a broker, in threads of their own."""

    def __init__(self, town: Town, publisher: int, consumer: int, count: int) -> None:
        self.town = town
        self.count = count
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()
        self.got: list[tuple[int, bool]] = []
        self._at = publisher, consumer
        self.over = threading.Event()

    def publish(self, channel: Any) -> None:
        channel.confirm_delivery()
        for number in range(self.count):
            try:
                send(channel, str(number))
                self.confirmed.add(number)
            except NackError:
                self.refused.add(number)
            time.sleep(0.001)

    def consume(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=7)
        for method, _, body in channel.consume("q", inactivity_timeout=0.5):
            if method is not None:
                self.got.append((int(body), method.redelivered))
                channel.basic_ack(method.delivery_tag)
            elif self.over.is_set():
                return

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """While the block does something, and until all is done."""
        await client(self.town.nodes[self._at[0]], declare)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, self.town.nodes[self._at[1]], self.consume)
            async with trio.open_nursery() as publishing:
                publishing.start_soon(client, self.town.nodes[self._at[0]], self.publish)
                yield
            self.over.set()

    def check(self) -> None:
        """Nothing that was confirmed is lost; what came twice says so, and came in order otherwise."""
        numbers = [number for number, _ in self.got]
        assert self.confirmed <= set(numbers)
        first = [number for number, redelivered in self.got if not redelivered]
        assert len(first) == len(set(first)), "a message came twice and did not say so"


@pytest.mark.parametrize("how", ["cut", "hold"])
async def test_a_link_that_is_cut_loses_nothing(how: str) -> None:
    async with town_of(1, 2) as town, relay(town.nodes[1].address) as between:
        town.introduce(to1=between.address)
        await trio.sleep(0.1)
        await town.linked()
        work = Work(town, 2, 2, 400)
        async with work.going_on():
            for _ in range(4):
                await trio.sleep(0.15)
                await interrupt(between, how)
        work.check()
        assert not work.refused


async def interrupt(between: Relay, how: str) -> None:
    if how == "hold":
        between.hold()
        await trio.sleep(0.2)
    between.cut()
    between.go_on()


async def test_what_a_leader_cannot_take_for_a_while_is_not_confirmed_until_it_has_taken_it() -> None:
    async with town_of(1, 2) as town:
        for index in town.nodes[1].led:
            town.lead(index, 1)
        await town.linked()
        work = Work(town, 2, 1, 300)
        async with work.going_on():
            for _ in range(3):
                await trio.sleep(0.15)
                for home in town.nodes[1].led.values():
                    home.error = StorageUnavailable("too few replicas")  # type: ignore[misc]
                await trio.sleep(0.3)
                for home in town.nodes[1].led.values():
                    home.error = None  # type: ignore[misc]
        work.check()
        assert not work.refused
        assert len(work.confirmed) == 300


async def test_publishers_are_refused_when_their_patience_is_over_and_then_all_goes_on() -> None:
    async with town_of(1, 2) as town:
        node = town.nodes[2]
        node.engine.forwarding.patience_s = 0.5
        town.lead(0, 2)

        def publish(channel: Any, *, refused: bool) -> None:
            channel.confirm_delivery()
            if not refused:
                send(channel, "x")
                return
            with pytest.raises(NackError):
                send(channel, "y")

        await client(node, lambda channel: [declare(channel, name) for name in ("q", "r")])
        queue = node.broker.topology.queues["q"]
        home = queue.partition.index
        town.lead(home, 1)
        await client(node, lambda channel: publish(channel, refused=False))
        town.lead(home, None)
        await client(node, lambda channel: publish(channel, refused=True))
        town.lead(home, 1)
        await client(node, lambda channel: publish(channel, refused=False))


async def test_publishers_are_not_read_from_while_too_much_waits_for_a_leader_and_all_others_are() -> None:
    async with town_of(1, 2) as town:
        node = town.nodes[2]
        await client(node, declare)
        queue = node.broker.topology.queues["q"]
        home = queue.partition.index
        town.lead(home, None)
        stream = node.engine.forwarding.stream(f"home-{home}")
        sent = 0

        def publish(channel: Any) -> None:
            nonlocal sent
            for _ in range(300):
                send(channel, "." * 65536)
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, node, publish)
            with trio.fail_after(20):
                while stream.has_room:
                    await trio.sleep(0.01)
            await client(node, lambda channel: channel.queue_declare("other", exclusive=True))
            assert sent < 300, "the publisher waits"
            assert stream.kept_bytes < 10 << 20
            town.lead(home, 1)
        assert await client(node, lambda channel: declare(channel)) == 300


async def test_what_nobody_answers_is_refused_after_a_while() -> None:
    async with town_of(1, 2) as town:
        node = town.nodes[2]
        node.engine.forwarding.timeout_s = node.engine.forwarding.patience_s = 0.5
        await client(node, declare)
        town.nodes[1].cluster.may_serve = False

        def use(channel: Any) -> None:
            channel.confirm_delivery()
            began = time.monotonic()
            with pytest.raises(NackError):
                send(channel, "y")
            assert 0.3 < time.monotonic() - began < 5
            channel.basic_get("q")

        with pytest.raises(ConnectionClosedByBroker, match="led by broker 1, which does not answer"):
            await client(node, use)


@pytest.mark.parametrize("path", [(1, 3), (1, 2, 1), (2, 3, 2, 1)], ids=str)
async def test_clients_do_not_notice_that_another_broker_leads(path: tuple[int, ...]) -> None:
    """Nothing is replicated here, so who leads next has nothing: only what is not answered yet, and the consumers."""
    async with town_of(1, 2, 3, stripes=1, leader=path[0]) as town:
        work = Work(town, 2, 2, 10_000)
        ends = trio.Event()

        def publish(channel: Any) -> None:
            channel.confirm_delivery()
            number = 0
            while not ends.is_set() or number % 20:
                send(channel, str(number))
                work.confirmed.add(number)
                number += 1

        work.publish = publish  # type: ignore[method-assign]
        async with work.going_on():
            for broker in path[1:]:
                await trio.sleep(0.2)
                before = len(work.got)
                town.lead(0, broker)
                with trio.fail_after(20):
                    while len(work.got) < before + 100:
                        await trio.sleep(0.01)
            ends.set()
        lost = work.confirmed - {number for number, _ in work.got}
        assert len(lost) < 60 * len(path), "what was in a queue that is not there any more"
        last = max(work.confirmed)
        assert last in {number for number, _ in work.got}


async def test_what_a_leader_cannot_take_is_never_confirmed() -> None:
    async with town_of(1, 2) as town:
        node = town.nodes[2]
        node.engine.forwarding.timeout_s = node.engine.forwarding.patience_s = 0.5
        await client(node, declare)
        await client(node, lambda channel: declare(channel, "limited", max_length=5, overflow="reject-publish"))
        for home in town.nodes[1].led.values():
            home.error = StorageUnavailable("too few replicas in sync")  # type: ignore[misc]

        def use(channel: Any) -> None:
            channel.confirm_delivery()
            for queue in ("q", "limited"):
                with pytest.raises(NackError):
                    send(channel, "lost", queue=queue)

        await client(node, use)
        for home in town.nodes[1].led.values():
            home.error = None  # type: ignore[misc]
        await trio.sleep(0.3)

        def use_again(channel: Any) -> None:
            channel.confirm_delivery()
            for queue in ("q", "limited"):
                send(channel, "kept", queue=queue)
                assert drain(channel, queue) == ["kept"]

        await client(node, use_again)
