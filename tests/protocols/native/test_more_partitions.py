"""Clients that run while a topic gets more partitions."""

from __future__ import annotations

import pytest
import trio

from core_log.murmur2 import partition_of_key
from millrace import (
    BlockingConsumer,
    BlockingProducer,
    Client,
    Consumer,
    LinkConfig,
    MillraceError,
    Producer,
    UnknownPartition,
)
from protocols.native.errors import ErrorCode
from tests.protocols.native.broker import native_broker

QUICK = LinkConfig(metadata_max_age_ms=5)
KEYS = [b"key %d" % number for number in range(30)]


async def test_a_producer_and_a_consumer_go_on_with_all_partitions() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", partitions=2)
        async with Producer(running.server, link=QUICK) as producer, Consumer(running.server, link=QUICK) as consumer:
            await consumer.assign("t")
            for key in KEYS:
                assert (await (await producer.send("t", b"before", key=key))).partition == partition_of_key(key, 2)
            await client.create_partitions("t", 7)
            # What is at the new partitions before the consumer knows them is read as well, also with "latest".
            async with Producer(running.server) as other:
                await (await other.send("t", b"early", partition=6))
            with trio.fail_after(20):
                while (await (await producer.send("t", b"between", key=KEYS[0]))).partition != partition_of_key(
                    KEYS[0], 7
                ):
                    await trio.sleep(0.001)
                for key in KEYS:
                    assert (await (await producer.send("t", b"after", key=key))).partition == partition_of_key(key, 7)
                read = [await anext(consumer)]
                while sum(record.value == b"after" for record in read) < 30:
                    read.append(await anext(consumer))
                read += [await anext(consumer)] if not any(record.value == b"early" for record in read) else []
            assert {record.key: record.partition for record in read if record.value == b"after"} == {
                key: partition_of_key(key, 7) for key in KEYS
            }
            assert sum(record.value == b"before" for record in read) == 30
            assert sum(record.value == b"early" for record in read) == 1
            assert sorted(consumer.assignment) == [("t", number) for number in range(7)]
            with pytest.raises(MillraceError, match="never fewer") as caught:
                await client.create_partitions("t", 6)
            assert caught.value.code == ErrorCode.INVALID_ARGUMENT
            assert await client.list_topics() == {"t": 7}


async def test_a_group_goes_on_where_it_committed_in_a_partition_that_is_new_to_a_reader() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t")
        async with Consumer(running.server, "g", link=QUICK) as consumer, Producer(running.server) as producer:
            await consumer.assign("t")
            async with Consumer(running.server, "g") as other:
                await client.create_partitions("t", 2)
                for value in (b"0", b"1", b"2"):
                    await (await producer.send("t", value, partition=1))
                await other.assign([("t", 1)])
                await other.commit({("t", 1): 2})
            with trio.fail_after(20):
                while len(consumer.assignment) < 2:
                    await trio.sleep(0.001)
                assert (await anext(consumer)).offset in (0, 2)  # it may have looked before the other one committed


async def test_blocking_clients_learn_of_them_too() -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t")

        def work() -> list[tuple[int, bytes | None]]:
            with (
                BlockingProducer(running.server, metadata_max_age_ms=0) as producer,
                BlockingConsumer(running.server, metadata_max_age_ms=0) as consumer,
            ):
                consumer.assign("t")
                producer.send("t", b"before", key=KEYS[1])
                producer.flush()
                trio.from_thread.run(client.create_partitions, "t", 5)
                producer.flush()  # looks
                for key in KEYS:
                    producer.send("t", key, key=key)
                producer.flush()
                read: list[tuple[int, bytes | None]] = []
                while len(read) < 31:
                    read += [(record.partition, record.value) for record in consumer.fetch(timeout_ms=100)]
                return read

        with trio.fail_after(20):
            read = await trio.to_thread.run_sync(work)
        assert sorted(read) == sorted([(0, b"before"), *((partition_of_key(key, 5), key) for key in KEYS)])


async def test_producers_go_by_the_fewer_partitions_of_a_topic_that_was_made_again() -> None:
    rarely = 3_600_000
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", partitions=8)
        with BlockingProducer(running.server, metadata_max_age_ms=rarely) as blocking:

            def send_all() -> None:
                for key in KEYS:
                    blocking.send("t", b"blocking", key=key)
                blocking.flush()

            async with Producer(running.server, link=LinkConfig(metadata_max_age_ms=rarely)) as producer:
                await trio.to_thread.run_sync(send_all)
                for key in KEYS:
                    await (await producer.send("t", b"before", key=key))
                await client.delete_topic("t")
                await client.create_topic("t", partitions=2)
                gone = next(key for key in KEYS if partition_of_key(key, 8) >= 2)
                refused = await producer.send("t", b"refused", key=gone)
                with pytest.raises(UnknownPartition):
                    await refused
                with trio.fail_after(20):
                    while producer._topics["t"].keys.partitions != 2:
                        await trio.sleep(0.001)
                for key in KEYS:
                    assert (await (await producer.send("t", b"after", key=key))).partition == partition_of_key(key, 2)
            with pytest.raises(UnknownPartition):
                await trio.to_thread.run_sync(send_all)
            await trio.to_thread.run_sync(blocking.flush)
            await trio.to_thread.run_sync(send_all)


async def test_a_blocking_producer_does_not_go_by_the_former_topic_of_a_broker_that_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with native_broker() as running, Client(running.server) as client:
        await client.create_topic("t", partitions=8)

        def work() -> None:
            with BlockingProducer(running.server, metadata_max_age_ms=0) as producer:
                producer.send("t", b"before")
                producer.flush()
                former = producer.client.topics_found(["t"])
                trio.from_thread.run(client.delete_topic, "t")
                trio.from_thread.run(lambda: client.create_topic("t", partitions=2))
                producer.flush()  # looks
                monkeypatch.setattr(producer.client, "topics_found", lambda _: former)
                producer.flush()
                for key in KEYS:
                    producer.send("t", b"after", key=key)

        with trio.fail_after(20):
            await trio.to_thread.run_sync(work)


async def test_one_topic_that_is_gone_does_not_keep_blocking_clients_from_learning_of_the_others() -> None:
    async with native_broker() as running, Client(running.server) as client:
        for topic in ("a", "b"):
            await client.create_topic(topic)

        def work() -> list[int]:
            with BlockingProducer(running.server, metadata_max_age_ms=0) as producer:
                for topic in ("a", "b"):
                    producer.send(topic, b"before", key=KEYS[0])
                producer.flush()
                trio.from_thread.run(client.delete_topic, "a")
                trio.from_thread.run(client.create_partitions, "b", 5)
                producer.flush()  # looks
                for key in KEYS:
                    producer.send("b", key, key=key)
            with BlockingConsumer(running.server, auto_offset_reset="earliest") as consumer:
                consumer.assign("b")
                read: list[int] = []
                while len(read) < 31:
                    read += [record.partition for record in consumer.fetch(timeout_ms=100)]
                return read

        with trio.fail_after(20):
            read = await trio.to_thread.run_sync(work)
        assert sorted(read) == sorted([0, *(partition_of_key(key, 5) for key in KEYS)])
