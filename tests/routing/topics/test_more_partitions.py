"""Partitions that a topic gets while it is in use."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
from kafka.partitioner.default import murmur2  # type: ignore[import-untyped]

from core_log.files import FaultyFiles, MemoryFiles
from routing.errors import InvalidArgument, NotFound, PreconditionFailed, StorageUnavailable
from tests.routing.harness import engine, killed
from tests.routing.topics.test_topics import values

KEYS = [f"sensor.{number}" for number in range(40)]


async def at_once(*calls: Callable[[], Awaitable[object]]) -> list[str]:
    """Why each was refused; "" for those that were not."""
    said = [""] * len(calls)

    async def one(number: int) -> None:
        try:
            await calls[number]()
        except PreconditionFailed as error:
            said[number] = str(error)

    async with trio.open_nursery() as nursery:
        for number in range(len(calls)):
            nursery.start_soon(one, number)
    return said


def place(key: str, partitions: int) -> int:
    found: int = (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
    return found


async def test_keys_go_by_the_new_number_and_what_was_there_stays() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        topic = await running.broker.create_topic("t", partitions=2, config={"retention.ms": "-1"})
        await running.broker.bind("topic", "t", "amq.topic", "#")
        client = running.client()
        for number, partitions in enumerate((2, 5)):
            for key in KEYS:
                client.publish(key, f"{key}/{number}", exchange="amq.topic", confirm=True)
            running.turn()
            await running.until(lambda count=number: client.confirmed == 40 * (count + 1))  # type: ignore[misc]
            for partition in topic.partitions:
                mine = [f"{key}/{number}" for key in KEYS if place(key, partitions) == partition.index]
                assert values(partition)[-len(mine) :] == mine
            await running.broker.create_partitions("t", 5)
        assert [partition.index for partition in topic.partitions] == [0, 1, 2, 3, 4]
        assert topic.partitions[4].log.config == topic.partitions[0].log.config
        await running.broker.create_partitions("t", 6)
        after = killed(files)
    for left in (after, files):
        async with engine(left) as running:
            topic = running.broker.topics["t"]
            assert len(topic.partitions) == 6, "it stands as soon as it is answered"
            assert topic.config == {"retention.ms": "-1"}
            assert sum(len(values(partition)) for partition in topic.partitions) == 80
            await running.broker.delete_topic("t")
            assert not left.list("topics")


async def test_what_cannot_be_is_refused() -> None:
    async with engine(MemoryFiles(), partitions_max=8) as running:
        broker = running.broker
        await broker.create_topic("t", partitions=3)
        await broker.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        with pytest.raises(NotFound):
            await broker.create_partitions("u", 3)
        with pytest.raises(InvalidArgument, match="topic 't' has 3 partitions, and there are never fewer than before"):
            await broker.create_partitions("t", 2)
        with pytest.raises(InvalidArgument, match="1 to 8, not 9"):
            await broker.create_partitions("t", 9)
        with pytest.raises(PreconditionFailed, match="'s' is a stream, which has one partition"):
            await broker.create_partitions("s", 2)
        await broker.create_partitions("t", 3)
        assert len(broker.topics["t"].partitions) == 3
        refused = await at_once(
            lambda: broker.create_partitions("t", 5),
            lambda: broker.create_partitions("t", 6),
            lambda: broker.delete_topic("t"),
        )
        assert refused.count("topic 't' is being changed or deleted") == 2
        assert "t" not in broker.topics or len(broker.topics["t"].partitions) == (6 if refused[0] else 5)


async def test_a_topic_with_more_partitions_is_no_stream_to_be() -> None:
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t")
        grown, declared = await at_once(
            lambda: running.broker.create_partitions("t", 2),
            lambda: running.broker.declare_queue("t", durable=True, arguments={"x-queue-type": "stream"}),
        )
        assert bool(grown) != bool(declared)
        assert (len(topic.partitions), topic.is_stream) == ((1, True) if grown else (2, False))


async def test_a_disk_that_refuses_has_changed_nothing() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        topic = await running.broker.create_topic("t")
        for operation in ("write", "sync"):
            files.failing[operation] = errno.ENOSPC
            with pytest.raises(StorageUnavailable):
                await running.broker.create_partitions("t", 3)
            assert len(topic.partitions) == 1
            files.failing.clear()
        with trio.fail_after(20):
            while len(topic.partitions) == 1:
                with suppress(StorageUnavailable):
                    await running.broker.create_partitions("t", 3)
                await trio.sleep(0.01)
        assert len(topic.partitions) == 3
