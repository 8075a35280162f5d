"""The producer against a real broker in memory: order, promises, limits, and what happens when things break."""

from __future__ import annotations

import errno
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from core_log.memory_files import FaultyFiles, MemoryFiles
from millrace import (
    BatchTooLarge,
    BlockingClient,
    BlockingProducer,
    BufferFull,
    Client,
    ConnectionLost,
    Consumer,
    Delivery,
    DeliveryTimedOut,
    LinkConfig,
    MillraceError,
    Producer,
    RecordMetadata,
    RequestTimedOut,
    UnknownPartition,
    UnknownTopic,
)
from protocols.native import wire
from protocols.native.clients.partitioner import partition_of_key
from protocols.native.config import NativeConfig
from protocols.native.connection import FrameReader
from routing.config import BrokerConfig
from tests.protocols.native.broker import Restartable, Running, native_broker, values_of

TIMEOUT_S = 20
LIMITS = {"request_bytes_max": 1 << 26, "requests_in_flight_max": 100}
QUICK = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20)


def stored(running: Running, topic: str, partition: int = 0) -> list[bytes | None]:
    """All values of a partition, from the log itself."""
    log = running.broker.topics[topic].partitions[partition].log
    return values_of([bytes(batch) for batch in log.read_blocking(0, 1 << 30, unsynced=True)])


async def test_an_answer_to_what_was_given_up_is_no_matter() -> None:
    async with native_broker() as running, Producer(running.server) as producer:
        await (await producer.send("t", b"before"))
        given_up = await producer.send("t", b"on its way", partition=0)
        while not any(queue.in_flight for queue in producer._active):
            await trio.lowlevel.checkpoint()
        producer._fail_all(MillraceError("one of the brokers lets nobody in"))
        with pytest.raises(MillraceError, match="lets nobody in"):
            await given_up
        await producer.flush()
        assert (await (await producer.send("t", b"after", partition=0))).offset >= 0


async def test_records_arrive_in_order_with_all_they_carry() -> None:
    async with native_broker() as running:
        async with Producer(running.server) as producer:
            first = await producer.send("t", b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp_ms=5)
            deliveries = [await producer.send("t", b"%d" % number) for number in range(3000)]
            tombstone = await producer.send("t", None, key=b"k")
            assert await first == RecordMetadata(0, 0, 5)
            assert [(await delivery).offset for delivery in deliveries] == list(range(1, 3001))
            assert (await tombstone).offset == 3001
            assert tombstone.done
            assert producer.buffered_bytes == 0
        assert stored(running, "t") == [b"v", *(b"%d" % number for number in range(3000)), None]
        async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            record = await anext(consumer)
            assert (record.key, record.value, record.headers) == (b"k", b"v", [("h", b"1"), ("n", None)])
            assert (record.topic, record.partition, record.offset, record.timestamp_ms) == ("t", 0, 0, 5)


@pytest.mark.parametrize(("acks", "offset"), [("all", 0), (-1, 0), (1, 0), (0, -1)])
async def test_acks(acks: object, offset: int) -> None:
    async with native_broker() as running:
        async with Producer(running.server, acks=acks) as producer:  # type: ignore[arg-type]
            delivery = await producer.send("t", b"a", timestamp_ms=7)
            assert await delivery == RecordMetadata(0, offset, 7)
        with trio.fail_after(TIMEOUT_S):
            while stored(running, "t") != [b"a"]:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_compressions(compression: str | None) -> None:
    values = [b"text that repeats " * 10 + b"%d" % number for number in range(500)]
    async with native_broker() as running:
        async with Producer(running.server, compression=compression, linger_ms=1000) as producer:
            for value in values:
                await producer.send("t", value)
        assert stored(running, "t") == values
        size = running.broker.topics["t"].partitions[0].log.size_bytes
        assert (size < 50_000) == (compression is not None)


@pytest.mark.parametrize(
    "arguments", [{"compression": "rar"}, {"acks": 2}, {"acks": "some"}, {"compression": "none"}, {"server": "nowhere"}]
)
def test_wrong_arguments(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Producer(**{"server": "h:1", **arguments})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"."):
        BlockingProducer(**{"server": "h:1", **arguments})  # type: ignore[arg-type]


WRONG: list[dict[str, Any]] = [
    {"value": "text"}, {"key": 5}, {"headers": [("a", "text")]}, {"headers": [("\ud800", b"")]},
    {"headers": {"a": b"b"}}, {"headers": [(b"a", b"b")]}, {"headers": [(1, b"b")]}, {"timestamp_ms": 1.5},
    {"timestamp_ms": -1}, {"timestamp_ms": 1 << 63}, {"timestamp_ms": "now"}, {"partition": 0.0},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
async def test_what_can_be_no_record_is_refused_and_takes_no_others_with_it(wrong: dict[str, Any]) -> None:
    def work(server: str) -> None:
        with BlockingProducer(server) as producer:
            producer.send("t", b"before", b"k")
            with pytest.raises((TypeError, ValueError)):
                producer.send("t", **{"value": b"x", **wrong})
            producer.send("t", b"after", b"k")

    async with native_broker() as running:
        async with Producer(running.server, linger_ms=50) as producer:
            before = await producer.send("t", b"before", b"k")
            with pytest.raises((TypeError, ValueError)):
                await producer.send("t", **{"value": b"x", **wrong})
            after = await producer.send("t", b"after", b"k", headers=(("a", value) for value in (b"b", None)))
            assert ((await before).offset, (await after).offset) == (0, 1)
        await trio.to_thread.run_sync(work, running.server)
        async with Consumer(running.server, auto_offset_reset="earliest") as consumer:
            await consumer.assign("t")
            got = [await anext(consumer) for _ in range(4)]
        assert [record.value for record in got] == [b"before", b"after"] * 2
        assert got[1].headers == [("a", b"b"), ("a", None)]


async def test_keys_go_where_kafka_puts_them_and_numbers_win() -> None:
    async with native_broker() as running:
        with BlockingClientOf(running) as client:
            await client("create_topic", "t", partitions=4)
        async with Producer(running.server) as producer:
            keys = [b"key-%d" % number for number in range(40)]
            for key in keys:
                delivery = await producer.send("t", b"", key=key)
                assert (await delivery).partition == partition_of_key(key, 4)
            chosen = await producer.send("t", b"", key=keys[0], partition=3)
            assert (await chosen).partition == 3
            for wrong in (-1, 4):
                with pytest.raises(UnknownPartition):
                    await producer.send("t", b"", partition=wrong)
            for value in ("text", 5):
                with pytest.raises(TypeError):
                    await producer.send("t", value)  # type: ignore[arg-type]
            await producer.send("t", bytearray(b"x"), key=memoryview(b"y"))  # type: ignore[arg-type]


class BlockingClientOf:
    """A blocking client of an in-process broker, its calls made in a thread."""

    def __init__(self, running: Running) -> None:
        self._client = BlockingClient(running.server)

    def __enter__(self) -> BlockingClientOf:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    async def __call__(self, name: str, *arguments: object, **options: object) -> object:
        return await trio.to_thread.run_sync(lambda: getattr(self._client, name)(*arguments, **options))


async def test_records_without_a_key_fill_one_batch_after_the_other() -> None:
    async with native_broker() as running:
        with BlockingClientOf(running) as client:
            await client("create_topic", "t", partitions=3)
        async with Producer(running.server, batch_bytes=2000, linger_ms=20) as producer:
            deliveries = [await producer.send("t", b"x" * 76) for _ in range(300)]
            partitions = [(await delivery).partition for delivery in deliveries]
        runs = [(partition, len(list(group))) for partition, group in itertools.groupby(partitions)]
        assert max(count for _, count in runs) <= 20
        spread = Counter(partitions)
        assert len(spread) == 3
        assert max(spread.values()) - min(spread.values()) <= 40


async def test_linger_waits_and_flush_does_not() -> None:
    async with native_broker() as running, Producer(running.server, linger_ms=3_600_000) as producer:
        deliveries = [await producer.send("t", b"%d" % number) for number in range(10)]
        with trio.move_on_after(0.05) as scope:
            await deliveries[0]
        assert scope.cancelled_caught
        await producer.flush()
        assert all(delivery.done for delivery in deliveries)
        log = running.broker.topics["t"].partitions[0].log
        assert len(log.read_blocking(0, 1 << 20)) == 1


async def test_send_does_not_suspend_while_there_is_room() -> None:
    async with native_broker() as running, Producer(running.server) as producer:
        await producer.send("t", b"the topic is known now")
        steps = 0
        for _ in range(100):
            coroutine = producer.send("t", b"x" * 100)
            try:
                while True:
                    coroutine.send(None)
                    steps += 1
            except StopIteration:
                pass
        assert steps == 0


async def test_no_more_requests_under_way_than_the_broker_allows() -> None:
    config = NativeConfig(requests_in_flight_max=1)
    async with native_broker(config=config) as running, Producer(running.server, batch_bytes=200) as producer:
        for number in range(300):
            await producer.send("t", b"%d" % number)
            await producer.send("u", b"%d" % number)
        await producer.flush()
        for topic in ("t", "u"):
            assert stored(running, topic) == [b"%d" % number for number in range(300)]


async def test_topics_that_cannot_be() -> None:
    engine = BrokerConfig(stripes=1, auto_create_topics=False)
    async with native_broker(engine=engine) as running, Producer(running.server) as producer:
        with pytest.raises(UnknownTopic):
            await producer.send("t", b"x")
        with BlockingClientOf(running) as client:
            await client("create_topic", "t")
        with pytest.raises(BatchTooLarge):
            await producer.send("t", b"x" * (40 << 20))


# A broker that keeps silent


@asynccontextmanager
async def silent_broker(*others: tuple[int, str, int]) -> AsyncIterator[str]:
    """Says hello and describes topics of one partition, which the last of the brokers leads, then never answers."""
    leader = others[-1][0] if others else 0

    async def serve(stream: trio.SocketStream) -> None:
        frames = FrameReader(1 << 26)
        while data := await stream.receive_some(1 << 16):
            for frame in frames.feed(data):
                request = wire.decode_request(frame)
                reply: wire.Reply
                if isinstance(request, wire.Hello):
                    reply = wire.HelloReply(request.correlation_id, 1, "", 0, LIMITS)
                elif isinstance(request, wire.Metadata):
                    names = request.topics or []
                    reply = wire.MetadataReply(
                        request.correlation_id, list(others), [(name, None, [(0, leader, 0)]) for name in names]
                    )
                else:
                    continue
                await stream.send_all(b"".join(wire.encode(reply)))

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_the_buffer_is_bounded_and_says_so() -> None:
    async with silent_broker() as server:
        with pytest.raises(MyError):  # noqa: PT012
            async with Producer(server, buffer_bytes_max=10_000, max_block_ms=20) as producer:
                sent = 0
                with pytest.raises(BufferFull):  # noqa: PT012
                    while True:
                        await producer.send("t", b"x" * 976)
                        sent += 1
                        assert producer.buffered_bytes == 1000 * sent
                assert sent == 10
                raise MyError


class MyError(Exception):
    """What a program raises for its own reasons."""


async def test_room_comes_back_with_the_answers() -> None:
    async with native_broker() as running, Producer(running.server, buffer_bytes_max=5000) as producer:
        for _ in range(200):
            await producer.send("t", b"x" * 500)
            assert producer.buffered_bytes <= 5000
        await producer.flush()
        assert len(stored(running, "t")) == 200


async def test_a_record_that_is_not_acknowledged_in_time() -> None:
    async with silent_broker() as server:
        link = LinkConfig(request_timeout_ms=40, reconnect_backoff_ms=5)
        async with Producer(server, delivery_timeout_ms=60, link=link, retry_backoff_ms=5) as producer:
            delivery = await producer.send("t", b"x")
            with trio.fail_after(TIMEOUT_S), pytest.raises(DeliveryTimedOut):
                await delivery
            assert producer.buffered_bytes == 0


async def test_a_record_under_way_is_given_up_in_time_while_its_broker_stands_still() -> None:
    async with silent_broker() as server, Producer(server, delivery_timeout_ms=60) as producer:
        delivery = await producer.send("t", b"x")
        with trio.fail_after(TIMEOUT_S), pytest.raises(DeliveryTimedOut):
            await delivery
        assert producer.buffered_bytes == 0


async def test_who_does_not_reach_a_leader_is_told_where_it_would_be() -> None:
    """As behind a proxy that leads to one broker of several."""
    text = r"broker 7 at \[::1\]:1, which leads partition 0 of topic 't', is not reached"
    async with silent_broker((0, "", 0), (7, "::1", 1)) as server:
        link = LinkConfig(request_timeout_ms=500, reconnect_backoff_ms=5)
        async with (
            Producer(server, delivery_timeout_ms=500, link=link) as producer,
            Client(server, link=link) as client,
        ):
            delivery = await producer.send("t", b"x")
            with trio.fail_after(TIMEOUT_S), pytest.raises(DeliveryTimedOut, match=text):
                await delivery
            with trio.fail_after(TIMEOUT_S), pytest.raises(RequestTimedOut, match=text):
                await client.list_offsets([("t", 0)], "latest")


async def test_leaving_by_an_error_sends_nothing_more_and_tells_who_waits() -> None:
    async with silent_broker() as server, trio.open_nursery() as nursery:
        outcome: list[MillraceError] = []

        async def wait(delivery: Delivery) -> None:
            try:
                await delivery
            except MillraceError as error:
                outcome.append(error)

        with pytest.raises(MyError):  # noqa: PT012
            async with Producer(server) as producer:
                for linger in (b"in flight", b"open"):
                    nursery.start_soon(wait, await producer.send("t", linger))
                    await trio.testing.wait_all_tasks_blocked()
                raise MyError
        with trio.fail_after(TIMEOUT_S):
            while len(outcome) < 2:
                await trio.lowlevel.checkpoint()
        assert all(isinstance(error, ConnectionLost) for error in outcome)


# Failures


async def test_nobody_listens() -> None:
    with pytest.raises(ConnectionLost):
        async with Producer("127.0.0.1:1"):
            pass


async def test_flush_raises_what_nobody_was_told() -> None:
    async with native_broker() as running, Producer(running.server, batch_bytes=4 << 20) as producer:
        await producer.send("t", b"x" * (2 << 20))
        with pytest.raises(BatchTooLarge):
            await producer.flush()
        told = await producer.send("t", b"x" * (2 << 20))
        with pytest.raises(BatchTooLarge):
            await told
        await producer.send("t", b"fine")
        await producer.flush()
        assert stored(running, "t") == [b"fine"]


async def test_a_batch_no_request_can_hold_fails_alone() -> None:
    config = NativeConfig(request_bytes_max=20_000)
    async with native_broker(config=config) as running, Producer(running.server, batch_bytes=1 << 20) as producer:
        large = await producer.send("t", b"x" * 20_000)
        many = [await producer.send("t", b"x" * 1000, partition=0) for _ in range(30)]
        with pytest.raises(BatchTooLarge):
            await large
        assert [(await delivery).offset for delivery in many] == list(range(30))


async def test_cut_connections_lose_nothing_and_keep_the_order() -> None:
    async with native_broker() as running:
        async with Producer(running.server, batch_bytes=500, retry_backoff_ms=1, link=QUICK) as producer:
            for number in range(2000):
                await producer.send("t", b"%d" % number)
                if number % 400 == 399:
                    await trio.testing.wait_all_tasks_blocked()
                    running.drop_connections()
        values = stored(running, "t")
        assert values == [b"%d" % number for number in range(2000)]


async def test_a_restarted_broker_gets_what_it_missed() -> None:
    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())
        running = await broker.start()
        with trio.fail_after(TIMEOUT_S):
            async with Producer(running.server, batch_bytes=500, retry_backoff_ms=1, link=QUICK) as producer:
                sent = [await producer.send("t", b"%d" % number) for number in range(500)]
                await broker.stop()
                sent += [await producer.send("t", b"%d" % number) for number in range(500, 1000)]
                await trio.testing.wait_all_tasks_blocked()
                running = await broker.start()
        assert all(delivery.done for delivery in sent)
        assert stored(running, "t") == [b"%d" % number for number in range(1000)]
        await broker.stop()


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_disk_that_refuses_for_a_while_keeps_the_order(operation: str) -> None:
    files = FaultyFiles(MemoryFiles())
    engine = BrokerConfig(stripes=1, flush_retry_interval_ms=5)
    async with native_broker(files, engine=engine) as running:
        async with Producer(running.server, batch_bytes=500, retry_backoff_ms=1) as producer:
            await producer.send("t", b"0")
            await producer.flush()
            deliveries = []
            for number in range(1, 2000):
                if number % 500 == 100:
                    files.failing[operation] = errno.EIO
                elif number % 500 == 300:
                    files.failing.clear()
                deliveries.append(await producer.send("t", b"%d" % number))
                if number % 50 == 0:
                    await trio.sleep(0.001)
            with trio.fail_after(TIMEOUT_S):
                await producer.flush()
        values = stored(running, "t")
        assert values == [b"%d" % number for number in range(2000)]
        for number, delivery in enumerate(deliveries, 1):
            assert values[(await delivery).offset] == b"%d" % number


async def test_an_impatient_application_may_stop_waiting() -> None:
    async with silent_broker() as server:
        with pytest.raises(MyError):  # noqa: PT012
            async with Producer(server, max_block_ms=10_000) as producer:
                delivery = await producer.send("t", b"x")
                with trio.move_on_after(0.01) as scope:
                    await delivery
                assert scope.cancelled_caught
                assert not delivery.done
                raise MyError


async def test_a_topic_that_is_never_described() -> None:
    async with native_broker() as running, Producer(running.server, max_block_ms=30, link=QUICK) as producer:
        running.shell.limits.connections_max = 0
        running.drop_connections()
        with trio.fail_after(TIMEOUT_S), pytest.raises(RequestTimedOut):
            await producer.send("t", b"x")
