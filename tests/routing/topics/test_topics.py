"""Topics as destinations of exchanges: what a slab becomes, which partition it goes to, and how topics come and go."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import Any

import pytest
import trio
from kafka.partitioner.default import murmur2  # type: ignore[import-untyped]

from core_log.batch_header import parse_header
from core_log.compression import Compression
from core_log.errors import Conflict
from core_log.files import FaultyFiles, MemoryFiles
from core_log.record_batch import BatchBuilder, Record, iterate_records
from routing.errors import AlreadyExists, NotFound, PreconditionFailed
from routing.message import Slab
from routing.topics.offset_store import Committed
from routing.topics.topic_config import SPLIT_GROUPS, SPLIT_STATE, log_config
from routing.topics.topic_partition import TopicPartition
from routing.topology.entries import Entry
from tests.routing.harness import PERSISTENT, engine, with_headers
from tests.routing.topology.test_changes_by_others import other


def records(partition: TopicPartition) -> list[Record]:
    log, offset = partition.log, partition.log.log_start_offset
    found: list[Record] = []
    while batches := log.read_blocking(offset, 1 << 20):
        for batch in batches:
            found += iterate_records(batch)
        offset = found[-1].offset + 1
    return found


def values(partition: TopicPartition) -> list[str]:
    return [bytes(record.value or b"").decode() for record in records(partition)]


async def test_the_routing_key_chooses_the_partition_as_kafka_clients_do() -> None:
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t", partitions=5)
        await running.broker.bind("topic", "t", "amq.topic", "sensor.#")
        client = running.client()
        keys = [f"sensor.{number}" for number in range(40)]
        for turn in range(3):
            for key in keys:
                client.publish(key, f"{key}/{turn}", exchange="amq.topic", confirm=True)
            running.turn()
        client.publish("other.1", "not for the topic", exchange="amq.topic", confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 121)
        for partition in topic.partitions:
            mine = [key for key in keys if (murmur2(key.encode()) & 0x7FFFFFFF) % 5 == partition.index]
            assert values(partition) == [f"{key}/{turn}" for turn in range(3) for key in mine]
            assert {bytes(record.key or b"").decode() for record in records(partition)} == set(mine)
            assert [record.offset for record in records(partition)] == list(range(3 * len(mine)))


async def test_what_was_let_in_is_written_though_the_limit_is_lower_by_now() -> None:
    """As of publishers at another broker, that has heard of it later; nobody's turn may fail for it."""
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t")
        await running.broker.bind("topic", "t", "amq.topic", "#")
        client = running.client()
        for body in ("x" * 50_000, "y"):
            client.publish("k", body, exchange="amq.topic", confirm=True)
        topic.configure(log_config({"max.message.bytes": "5000"}, running.broker.config), topic.config)
        running.turn()
        await running.until(lambda: client.confirmed == 2)
        assert values(topic.partitions[0]) == ["x" * 50_000, "y"]


async def test_a_header_goes_before_the_routing_key_and_headers_become_record_headers() -> None:
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t", partitions=5)
        await running.broker.bind("topic", "t", "amq.fanout", "")
        client = running.client()
        properties = with_headers({"x-partition-key": "order-7", "n": 1, "s": "ä"})
        for number in range(10):
            client.publish(f"key.{number}", number, exchange="amq.fanout", properties=properties, confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 10)
        partition = topic.partitions[(murmur2(b"order-7") & 0x7FFFFFFF) % 5]
        found = records(partition)
        assert [bytes(record.value or b"") for record in found] == [b"%d" % number for number in range(10)]
        assert all(bytes(record.key or b"") == b"order-7" for record in found)
        assert [(name, bytes(value or b"")) for name, value in found[0].headers] == [
            ("x-partition-key", b"order-7"),
            ("n", b"1"),
            ("s", "ä".encode()),
        ]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
async def test_what_only_grows_when_it_is_compressed_is_stored_as_it_came(codec: str) -> None:
    async with engine(MemoryFiles()) as running:
        config = {"compression.type": codec, "max.message.bytes": "20000"}
        topic = await running.broker.create_topic("t", config=config)
        await running.broker.bind("topic", "t", "amq.fanout", "")
        client = running.client()
        bodies = [random.Random(1).randbytes(19_909), b"small" * 100]
        for body in bodies:
            client.session.publish(Slab("amq.fanout", "k", PERSISTENT, [body]), confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 2)
        assert [bytes(record.value or b"") for record in records(topic.partitions[0])] == bodies
        large, small = map(parse_header, topic.partitions[0].log.read_blocking(0, 1 << 20))
        assert (large.compression, small.compression) == (Compression.NONE, Compression[codec.upper()])


async def test_queues_and_topics_of_one_exchange_get_the_same() -> None:
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t")
        await running.broker.bind("topic", "t", "amq.fanout", "")
        await running.queue("q")
        await running.bind("amq.fanout", "q")
        client = running.client()
        await client.publish_safely("k", "a", "b", exchange="amq.fanout")
        assert values(topic.partitions[0]) == ["a", "b"]
        assert [body for body, _ in await running.drain("q")] == ["a", "b"]


async def test_whole_batches_and_slabs_share_a_partition_in_order() -> None:
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t")
        await running.broker.bind("topic", "t", "amq.fanout", "")
        partition = topic.partitions[0]
        client = running.client()

        def batch(*bodies: bytes) -> bytes:
            builder = BatchBuilder(0, 0, 1)
            builder.add_run(0, None, list(bodies))
            return builder.build()

        assert partition.append(batch(b"1", b"2")) == 0
        client.publish("k", 3, 4, exchange="amq.fanout", confirm=True)
        assert partition.append(batch(b"5")) == 4
        client.publish("k", 6, exchange="amq.fanout", confirm=True)
        running.turn()
        assert partition.append(batch(b"7")) == 6
        await running.until(lambda: client.confirmed == 3)
        partition.log.request_sync()
        await running.until(lambda: partition.log.high_watermark == 7)
        assert values(partition) == ["1", "2", "3", "4", "5", "6", "7"]


async def test_topics_come_back_and_deleted_ones_do_not() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker = running.broker
        await broker.create_topic("kept", partitions=3, config={"retention.ms": "-1"})
        await broker.create_topic("gone")
        await broker.bind("topic", "kept", "amq.fanout", "")
        await broker.bind("topic", "gone", "amq.fanout", "")
        client = running.client()
        await client.publish_safely("k", "one", exchange="amq.fanout")
        await broker.offsets.commit("g", {("kept", 0): Committed(5, "note"), ("gone", 0): Committed(1)})
        await broker.delete_topic("gone")
        assert broker.offsets.known("g") == {("kept", 0): Committed(5, "note")}
        assert not files.exists("topics/gone-0")
        with pytest.raises(NotFound):
            await broker.delete_topic("gone")
        await client.publish_safely("k", "two", exchange="amq.fanout")
    for found in (files, files.crash()):
        async with engine(found) as running:
            assert list(running.broker.topics) == ["kept"]
            topic = running.broker.topics["kept"]
            assert topic.config == {"retention.ms": "-1"}
            assert [value for partition in topic.partitions for value in values(partition)] == ["one", "two"]
            assert running.broker.offsets.known("g") == {("kept", 0): Committed(5, "note")}
            client = running.client()
            await client.publish_safely("k", "three", exchange="amq.fanout")
            await running.broker.unbind("topic", "kept", "amq.fanout", "")


async def test_many_groups_forget_a_topic_in_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routing.bites.BITE_S", 0)
    seen = []
    async with engine(MemoryFiles()) as running, trio.open_nursery() as nursery:
        broker = running.broker
        await broker.create_topic("gone")
        for number in range(100):
            await broker.offsets.commit(f"g{number}", {("gone", 0): Committed(1)})

        async def look() -> None:
            while True:
                seen.append(len(broker.offsets.groups))
                if 0 < seen[-1] < 100:
                    with pytest.raises(AlreadyExists):
                        await broker.create_topic("gone")
                await trio.lowlevel.checkpoint()

        nursery.start_soon(look)
        await broker.delete_topic("gone")
        nursery.cancel_scope.cancel()
        assert broker.offsets.groups == []
    assert len(set(seen)) > 3


async def test_a_topic_created_again_begins_empty() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        for round_ in range(3):
            topic = await running.broker.create_topic("t")
            assert topic.partitions[0].log.log_end_offset == 0
            await running.broker.bind("topic", "t", "amq.fanout", "")
            await running.client().publish_safely("k", round_, exchange="amq.fanout")
            await running.broker.delete_topic("t")
            client = running.client()
            client.publish("k", "nowhere", exchange="amq.fanout", mandatory=True)
            assert client.events == [("returned", ["nowhere"], "NO_ROUTE")]


async def test_a_name_is_taken_until_its_topic_is_quite_gone() -> None:
    files = FaultyFiles(MemoryFiles())
    held, reached = threading.Event(), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation == "sync" and path.startswith("catalog"):
            reached.set()
            assert held.wait(20)

    async with engine(files) as running:
        broker = running.broker
        await broker.create_topic("t")
        files.hook = hold
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.delete_topic, "t")
            await trio.to_thread.run_sync(reached.wait, 20)
            with pytest.raises(PreconditionFailed):
                await broker.create_topic("t")
            held.set()
        topic = await broker.create_topic("t")
        assert files.exists("topics/t-0")
        assert topic.partitions[0].append(_one()) == 0


def _one() -> bytes:
    builder = BatchBuilder(0, 0, 1)
    builder.add_run(0, None, [b"x"])
    return builder.build()


async def test_what_waits_for_a_deleted_topic_is_told() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        broker = running.broker
        await broker.create_topic("t")
        await broker.bind("topic", "t", "amq.fanout", "")
        client = running.client()
        client.publish("k", 1, exchange="amq.fanout", confirm=True, properties=PERSISTENT)
        running.turn()
        await broker.delete_topic("t")
        running.turn()
        assert client.events in ([("refuse", 1, 1)], [("confirm", 1)])


@pytest.mark.parametrize("ends_split", [True, False])
async def test_what_is_altered_is_not_a_topic_that_others_make_anew_meanwhile(ends_split: bool) -> None:
    """The plan, made anew after another broker's changes, took the topic that had the name by then."""
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        catalog, theirs = broker.topology.catalog, other(broker)
        config = {SPLIT_GROUPS: "g", SPLIT_STATE: "1:0"}
        former, made = ({"partitions": 1, "config": config, "id": bytes([n] * 16), "uid": str(n)} for n in (1, 2))
        await theirs.change([Entry(("topic", "t"), former, True)])
        topic, write = broker.topics["t"], catalog.change

        async def change(*arguments: Any, **options: Any) -> None:
            catalog.change = write  # type: ignore[method-assign]
            await theirs.change([Entry(("topic", "t"), None, True)])
            await theirs.change([Entry(("topic", "t"), made, True)])
            raise Conflict("overtaken")

        catalog.change = change  # type: ignore[method-assign]
        alter = partial(broker.topic_control.alter_topic, "t", lambda before: before | {"retention.ms": "5"})
        alter = partial(broker.topic_control.end_split, topic) if ends_split else alter
        with pytest.raises(NotFound):
            await alter()
        assert broker.topics["t"].config == config
