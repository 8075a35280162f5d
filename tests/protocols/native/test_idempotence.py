"""Records are stored once, in order, whatever is sent again; and what hangs into a producer or a consumer."""

from __future__ import annotations

import json
import random

import pytest
import trio
import trio.lowlevel

from core_log.batch_header import HEADER, encode_batch, parse_header, validate, with_producer
from core_log.compression import Compression
from core_log.memory_files import MemoryFiles
from millrace import (
    BatchTooLarge,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    DeliveryTimedOut,
    DeserializationFailed,
    LinkConfig,
    MillraceError,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    UnknownPartition,
)
from protocols.native.clients.producer_batches import Batch, Waiting
from tests.gateway.relay import relay
from tests.protocols.native.broker import Restartable, Running, batch_of, native_broker, values_of

TIMEOUT_S = 20
QUICK = LinkConfig(reconnect_backoff_ms=5, reconnect_backoff_ms_max=20)


def stored(running: Running, topic: str = "t") -> list[bytes | None]:
    log = running.broker.topics[topic].partitions[0].log
    return values_of([bytes(batch) for batch in log.read_blocking(0, 1 << 30, unsynced=True)])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_batch_of_another_producer() -> None:
    batch = with_producer(batch_of(b"a", b"b"), (1 << 61, 7, 5))
    header = validate(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 61, 7, 5)
    assert with_producer(batch, (-1, -1, -1)) == batch_of(b"a", b"b")


def test_numbers_go_on_and_begin_anew() -> None:
    waiting = Waiting("t", 0, 9)
    assert waiting.sequences.stamp((1 << 31) - 1) == (9, 0, 0)
    assert waiting.sequences.stamp(3) == (9, 0, (1 << 31) - 1)
    assert waiting.sequences.stamp(1) == (9, 0, 2)
    batch = Batch(1, 1.0, 1)
    for value in (b"a", b"b"):
        batch.add(value, None, None, None, 1)
    batch.data = batch_of(b"a", b"b")
    for epoch in range(1, 1 << 15):
        waiting.failed.append(batch)
        waiting.renumber = True
        waiting.ready.clear()
        waiting.put_back()
        assert parse_header(batch.data)[9:12] == (9, epoch, 0)
    waiting.failed.append(batch)
    waiting.renumber = True
    waiting.ready.clear()
    waiting.put_back()
    producer_id, epoch, _ = waiting.sequences.stamp(1)
    assert producer_id != 9
    assert epoch == 0


async def test_lost_answers_double_nothing() -> None:
    async with native_broker() as running, relay(running.server) as between:
        with trio.fail_after(TIMEOUT_S):
            async with Producer(between.address, batch_bytes=300, retry_backoff_ms=1, link=QUICK) as producer:
                sent = []
                for number in range(1000):
                    sent.append(await producer.send("t", b"%d" % number))
                    if number % 200 == 150:
                        await producer.flush()
                        between.hold_back()
                        before = len(stored(running))
                    elif number % 200 == 160:
                        while len(stored(running)) <= before:
                            await trio.sleep(0.002)
                        between.cut()
                        between.go_on()
            assert stored(running) == numbers(1000)
            assert [(await delivery).offset for delivery in sent] == list(range(1000))


async def test_without_idempotence_they_do() -> None:
    async with native_broker() as running, relay(running.server) as between:
        link = LinkConfig(reconnect_backoff_ms=5)
        async with Producer(between.address, retry_backoff_ms=1, link=link, idempotent=False) as producer:
            await producer.send("t", b"0")
            await producer.flush()
            between.hold_back()
            await producer.send("t", b"1")
            while len(stored(running)) < 2:
                await trio.sleep(0.002)
            between.cut()
            between.go_on()
        assert stored(running) == [b"0", b"1", b"1"]


async def test_a_blocking_producer_stores_once_as_well() -> None:
    async with native_broker() as running, relay(running.server) as between:

        def produce() -> None:
            with BlockingProducer(between.address, timeout_s=0.3) as producer:
                for number in range(300):
                    producer.send("t", b"%d" % number)
                    if number % 100 == 50:
                        producer.flush()
                        trio.from_thread.run_sync(between.hold_back)
                        trio.from_thread.run_sync(trigger.set)
                    elif number % 10 == 0:
                        producer.flush()

        trigger = trio.Event()

        async def cut() -> None:
            nonlocal trigger
            while True:
                await trigger.wait()
                trigger = trio.Event()
                before = len(stored(running))
                while len(stored(running)) <= before:
                    await trio.sleep(0.002)
                between.cut()
                between.go_on()

        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut)
                await trio.to_thread.run_sync(produce)
                nursery.cancel_scope.cancel()
        assert stored(running) == numbers(300)


async def test_what_follows_a_batch_that_is_refused_is_stored_once_in_order() -> None:
    async with native_broker() as running:
        await running.broker.create_topic("t", config={"max.message.bytes": "1000"})
        async with Producer(running.server, batch_bytes=5000, linger_ms=0) as producer:
            good, bad = [], []
            for number in range(200):
                if number % 20 == 7:
                    bad.append(await producer.send("t", b"x" * 4900))
                good.append(await producer.send("t", b"%d" % number))
                if number % 5 == 0:
                    await trio.lowlevel.checkpoint()
            for delivery in bad:
                with pytest.raises(BatchTooLarge):
                    await delivery
            with trio.fail_after(TIMEOUT_S):
                fates = []
                for delivery in good:
                    try:
                        fates.append((await delivery).offset)
                    except BatchTooLarge:
                        fates.append(-1)  # in one batch with a record that is too large
            offsets = [offset for offset in fates if offset >= 0]
            assert offsets == sorted(set(offsets))
            found = [value for value in stored(running) if value is not None]
            assert found == [b"%d" % number for number, offset in enumerate(fates) if offset >= 0]
            assert len(found) > 20


async def test_what_follows_a_batch_that_was_given_up_is_stored_once() -> None:
    async with native_broker() as running, relay(running.server) as between:
        link = LinkConfig(request_timeout_ms=1000, reconnect_backoff_ms=5)
        settings = {"delivery_timeout_ms": 1000, "retry_backoff_ms": 5, "batch_bytes": 100, "link": link}
        async with Producer(between.address, **settings) as producer:  # type: ignore[arg-type]
            await producer.send("t", b"0")
            await producer.flush()
            between.hold()
            lost = [await producer.send("t", b"lost %d" % number) for number in range(6)]
            for delivery in lost:
                with pytest.raises(DeliveryTimedOut):
                    await delivery
            between.cut()
            between.go_on()
            with trio.fail_after(TIMEOUT_S):
                for number in range(1, 20):
                    await (await producer.send("t", b"%d" % number))
        values = stored(running)
        assert len(values) == len(set(values))
        assert [value for value in values if not (value or b"").startswith(b"lost")] == numbers(20)


@pytest.mark.parametrize("seed", range(3))
async def test_random_cuts_and_restarts(seed: int) -> None:
    dice = random.Random(seed)
    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())
        running = await broker.start()
        async with relay(running.server) as between:

            async def disturb() -> None:
                for _ in range(6):
                    await trio.sleep(dice.uniform(0.05, 0.2))
                    if dice.random() < 0.5:
                        between.hold_back()
                        await trio.sleep(dice.uniform(0, 0.02))
                        between.cut()
                        between.go_on()
                    elif dice.random() < 0.3:
                        nonlocal running
                        await broker.stop()
                        running = await broker.start()
                        between.cut()
                    else:
                        running.drop_connections()

            with trio.fail_after(TIMEOUT_S):
                async with Producer(between.address, batch_bytes=300, retry_backoff_ms=1, link=QUICK) as producer:
                    nursery.start_soon(disturb)  # who cannot connect at all is told so at once
                    for number in range(3000):
                        await producer.send("t", b"%d" % number)
                        if number % 10 == 0:
                            await trio.sleep(0.002)
        nursery.cancel_scope.cancel()
        assert stored(running) == numbers(3000)


class Seen(ProducerInterceptor):
    """Marks what is sent and keeps what it is told."""

    def __init__(self) -> None:
        self.fates: list[tuple[RecordMetadata | None, MillraceError | None]] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        record.headers = [*(record.headers or ()), ("seen", b"yes")]
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: MillraceError | None) -> None:
        self.fates.append((metadata, error))
        raise RuntimeError("is logged, and stops nobody")


class Read(ConsumerInterceptor):
    """Leaves out every second record and keeps what was committed."""

    def __init__(self) -> None:
        self.committed: list[dict[tuple[str, int], int]] = []

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        return records[::2]

    def on_commit(self, offsets: object) -> None:
        self.committed.append(dict(offsets))  # type: ignore[call-overload]
        raise RuntimeError("is logged, and stops nobody")


async def test_hooks() -> None:
    seen, read = Seen(), Read()

    def last(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
        return partitions - 1 if key is None else None

    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=3)
        async with Producer(
            running.server,
            partitioner=last,
            key_serializer=str.encode,
            value_serializer=lambda value: json.dumps(value).encode(),
            interceptors=[seen],
        ) as producer:
            for number in range(6):
                await producer.send("t", {"n": number})  # type: ignore[arg-type]
            by_key = await producer.send("t", {}, "key", partition=None)  # type: ignore[arg-type]
            there = await producer.send("t", None, partition=1)
            await producer.flush()
            assert (await by_key).partition in (0, 1, 2)
            assert (await there).partition == 1
            with pytest.raises(UnknownPartition, match="no partition 9"):
                await producer.send("t", None, partition=9)
        assert len(seen.fates) == 9
        assert [fate[0].partition for fate in seen.fates if fate[0]].count(2) >= 6
        async with Consumer(
            running.server, "g", auto_offset_reset="earliest", value_deserializer=json.loads, interceptors=[read]
        ) as consumer:
            await consumer.assign([("t", 2)])
            got = await consumer.fetch()
            assert [record.value for record in got] == [{"n": 0}, {"n": 2}, {"n": 4}]
            assert got[0].headers == [("seen", b"yes")]
            await consumer.commit()
            assert read.committed == [{("t", 2): consumer.position("t", 2)}]
        async with Consumer(running.server, "g2", auto_commit_interval_ms=0, interceptors=[read]) as consumer:
            await consumer.assign([("t", 2)])
            for _ in range(3):
                await consumer.poll(1)
            assert await consumer.committed() == {("t", 2): consumer.position("t", 2)}


def blocking_hooks(server: str) -> None:
    seen, read = Seen(), Read()
    with BlockingProducer(
        server, partitioner=lambda topic, key, value, partitions: partitions - 1 if key is None else None,
        key_serializer=str.encode, value_serializer=lambda value: json.dumps(value).encode(), interceptors=[seen],
    ) as producer:  # fmt: skip
        for number in range(6):
            producer.send("t", {"n": number})  # type: ignore[arg-type]
        producer.send("t", {}, "key")  # type: ignore[arg-type]
        assert not seen.fates
        producer.flush()
        assert sorted(fate[0].offset for fate in seen.fates if fate[0] and fate[0].partition == 2)[:6] == [*range(6)]
        with pytest.raises(UnknownPartition):
            producer.send("t", None, partition=9)
        assert isinstance(seen.fates[-1][1], UnknownPartition)
        producer.send("t", "x" * 5_000_000)  # type: ignore[arg-type]
        with pytest.raises(BatchTooLarge):
            producer.flush()
        assert (len(seen.fates), type(seen.fates[-1][1])) == (9, BatchTooLarge)
        producer.send("t", "x" * 5_000_000)  # type: ignore[arg-type]
        with pytest.raises(BatchTooLarge):
            producer.send("t", "y")  # type: ignore[arg-type]
        assert len(seen.fates) == 11
    with BlockingConsumer(
        server, "g", auto_offset_reset="earliest", value_deserializer=json.loads, interceptors=[read]
    ) as consumer:
        consumer.assign([("t", 2)])
        got = consumer.fetch()
        assert [record.value for record in got][:3] == [{"n": 0}, {"n": 2}, {"n": 4}]
        assert got[0].headers == [("seen", b"yes")]
        consumer.commit()
        assert read.committed[0].keys() == {("t", 2)}


async def test_hooks_of_blocking_clients() -> None:
    async with native_broker() as running:
        await running.broker.create_topic("t", partitions=3)
        await trio.to_thread.run_sync(blocking_hooks, running.server)


async def test_a_record_that_cannot_be_read_is_an_error_each_time() -> None:
    async with native_broker() as running:
        async with Producer(running.server) as producer:
            await producer.send("t", b"no json")
        async with Consumer(running.server, auto_offset_reset="earliest", value_deserializer=json.loads) as consumer:
            await consumer.assign("t")
            for _ in range(2):
                with pytest.raises(DeserializationFailed, match="Expecting value"):
                    await anext(consumer)
            await consumer.seek("t", 0, 1)
            assert await consumer.poll(10) == []


async def test_a_batch_that_cannot_be_decompressed_is_an_error_each_time() -> None:
    """Brokers take what is compressed as it comes. What is in one poll with it must not hide it."""
    async with native_broker() as running, Producer(running.server) as producer:
        for value in (b"0", b"1"):
            await producer.send("t", value)
            await producer.flush()
        log = running.broker.topics["t"].partitions[0].log
        fields = HEADER.unpack_from(batch_of(b"x"))
        log.append(encode_batch((*fields[:5], Compression.GZIP, *fields[6:]), b"no gzip"))
        await producer.send("t", b"2")
        await producer.flush()
        async with Consumer(running.server, auto_offset_reset="earliest", fetch_min_bytes=300) as consumer:
            await consumer.assign("t")
            with trio.fail_after(20):
                got = [record.value for record in await consumer.poll(2000)]
                while len(got) < 2:
                    got += [record.value for record in await consumer.poll(2000)]
                for _ in range(2):
                    with pytest.raises(MillraceError, match="corrupt batch"):
                        await consumer.poll(2000)
                    assert consumer.position("t", 0) == 2
                await consumer.seek("t", 0, 3)
                got += [record.value for record in await consumer.poll(2000)]
            assert got == [b"0", b"1", b"2"]


@pytest.mark.parametrize("most", [1, 500])
async def test_all_records_around_those_that_cannot_be_read_are_handed_out(most: int) -> None:
    def blocking(server: str) -> list[int]:
        with BlockingConsumer(server, "h", auto_offset_reset="earliest", value_deserializer=int) as consumer:
            consumer.assign("t")
            got: list[int] = []
            for _ in range(20):
                try:
                    got += [record.value for record in consumer.fetch(most, timeout_ms=100)]  # type: ignore[misc]
                except DeserializationFailed as error:
                    consumer.seek(error.topic, error.partition, error.offset + 1)
            return got

    async with native_broker() as running, Producer(running.server) as producer:
        for values in ((b"0", b"1"), (b"2", b"3", b"x", b"y", b"4"), (b"z",), (b"5", b"6")):
            for value in values:
                await producer.send("t", value)
            await producer.flush()
        async with Consumer(
            running.server, "g", auto_offset_reset="earliest", value_deserializer=int, fetch_min_bytes=500
        ) as consumer:
            await consumer.assign("t")
            got, failed = list[int](), list[tuple[int, int]]()
            with trio.fail_after(20):
                while len(got) < 7:
                    try:
                        got += [record.value for record in await consumer.poll(2000, most)]  # type: ignore[misc]
                        consumer.pause([("t", 0)])
                        consumer.resume([("t", 0)])
                    except DeserializationFailed as error:
                        failed.append((error.offset, consumer.position("t", 0)))
                        await consumer.commit()
                        if failed.count(failed[-1]) == 2:
                            await consumer.seek(error.topic, error.partition, error.offset + 1)
            assert got == list(range(7))
            assert failed == [(offset, offset) for offset in (4, 5, 7) for _ in range(2)]
            with trio.fail_after(20):
                assert await trio.to_thread.run_sync(blocking, running.server) == got
