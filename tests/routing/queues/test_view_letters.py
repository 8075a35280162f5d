"""Dead letters of views whose records are read again for them."""

from __future__ import annotations

from typing import Any

from core_log.memory_files import MemoryFiles
from routing.session import Outcome
from routing.topics.partition_reader import PartitionReader
from tests.routing.harness import Engine, engine
from tests.routing.queues.test_views import append, bodies, topic, view, worker


def forgotten(running: Engine) -> None:
    """Nothing of the topic is in memory any more."""
    for partition in running.broker.topics["t"].partitions:
        log = partition.log
        log._tail = type(log._tail)(0, log.log_end_offset, log._tail._budget)
    for queue in running.broker.topology.stream_host._readers.values():
        queue._chunks.clear()


async def test_what_others_have_put_out_of_memory_before_its_copy_is_made_is_read_once_more(monkeypatch: Any) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running, 1)
        await append(running, "x")
        await running.queue("dead")
        queue = await view(running, stream_offset="first", dead_letter_exchange="", dead_letter_routing_key="dead")
        client = await worker(running)
        (got,) = client.take()
        forgotten(running)
        queue.view._last = None
        load, reads = PartitionReader._load, []

        async def read(reader: PartitionReader, offset: int) -> None:
            await load(reader, offset)
            reads.append(offset)
            if len(reads) < 3:
                forgotten(running)  # as if others had read as much as there is room for

        monkeypatch.setattr(PartitionReader, "_load", read)
        client.session.settle(got.id, got.id, Outcome.DISCARD)
        running.turn()
        await running.until(lambda: queue.outstanding == 0)
        assert await running.drain("dead") == [("x", False)]
        assert reads == [0, 0, 0]


async def test_what_came_back_of_a_partition_that_the_topic_does_not_have_any_more_holds_up_nobody() -> None:
    """As where etcd was put back to what it had before the partition was added."""
    async with engine(MemoryFiles()) as running:
        await topic(running, 2)
        await append(running, "kept", partition=0)
        await append(running, "cut", "as well", partition=1)
        queue = await view(running, stream_offset="first")
        client = await worker(running)
        held = client.take()
        assert sorted(bodies(held)) == ["as well", "cut", "kept"]
        running.broker.topics["t"].keep_partitions(1)
        queue.host.topics_changed()
        queue.view._last = None
        client.session.close()
        client = await worker(running)
        assert bodies(client.take()) == ["kept"]
        await append(running, "later", partition=0)
        assert bodies(client.take()) == ["later"]
        assert (queue.view.gone, queue.message_count) == (2, 0)
