"""Partitions that there is more of than a fetch may bring take turns."""

from __future__ import annotations

from millrace import BlockingConsumer, Consumer, ConsumerRecord
from tests.protocols.native.broker import native_broker
from tests.protocols.native.clients.test_blocking import in_thread
from tests.protocols.native.clients.test_consumer import fill

PARTITIONS = 4
BACKLOG = [bytes(100)] * 400
SOME_BYTES = 1000
"""What a fetch brings: a tenth of what a partition holds."""


def each_had_a_turn(records: list[ConsumerRecord]) -> bool:
    return {record.partition for record in records} == set(range(PARTITIONS))


async def test_of_a_consumer() -> None:
    async with native_broker() as running:
        await fill(running, "t", *BACKLOG, partitions=PARTITIONS)
        async with Consumer(running.server, auto_offset_reset="earliest", fetch_max_bytes=SOME_BYTES) as consumer:
            await consumer.assign("t")
            assert each_had_a_turn([await anext(consumer) for _ in range(len(BACKLOG) // 4)])


async def test_of_a_blocking_consumer() -> None:
    def work(server: str) -> None:
        with BlockingConsumer(server, auto_offset_reset="earliest", fetch_max_bytes=SOME_BYTES) as consumer:
            consumer.assign("t")
            first = [record for _ in range(PARTITIONS) for record in consumer.fetch()]
            assert each_had_a_turn(first)
            rest: list[ConsumerRecord] = []
            while len(first) + len(rest) < len(BACKLOG):
                rest += consumer.fetch(timeout_ms=0)  # nothing, where the broker's thread has not had its turn
            for partition in range(PARTITIONS):
                offsets = [record.offset for record in rest if record.partition == partition]
                assert offsets == list(range(offsets[0], len(BACKLOG) // PARTITIONS))

    async with native_broker() as running:
        await fill(running, "t", *BACKLOG, partitions=PARTITIONS)
        await in_thread(work, running.server)
