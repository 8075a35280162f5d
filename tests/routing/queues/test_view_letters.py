"""Dead letters of views whose records are read again for them."""

from __future__ import annotations

from typing import Any

from core_log.memory_files import MemoryFiles
from routing.session import Outcome
from routing.topics.partition_reader import PartitionReader
from tests.routing.harness import Engine, engine
from tests.routing.queues.test_views import append, topic, view, worker


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
