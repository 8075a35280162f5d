"""What a fetch reads of the disk, and what it sends of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from core_log.files import OsFiles
from core_log.partition_log import PartitionLog
from tests.protocols.kafka.door import Peer, batch_of, kafka_broker, records_of
from tests.protocols.kafka.test_fetch import Consumer, append, asking

PARTITIONS = 20


async def test_what_does_not_fit_any_more_is_not_read_for_nothing(tmp_path: Path) -> None:
    reads: list[PartitionLog] = []
    async with kafka_broker(OsFiles(tmp_path)) as broker:
        topic = await broker.create_topic("t", partitions=PARTITIONS)
        for partition in topic.partitions:
            log = partition.log
            partition.append(batch_of([b"v" * 900]))
            await append(broker, topic, partition.index)
            log._tail.drop_before(2)  # as when more has come
            read_cold = log.read_cold

            async def noted(*args: Any, log: PartitionLog = log, read: Any = read_cold, **how: Any) -> Any:
                reads.append(log)
                return await read(*args, **how)

            log.read_cold = noted  # type: ignore[method-assign]
        consumer = Consumer(Peer(broker))
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        left = set(offsets)
        asked = asking(topic, offsets)
        while left:
            del reads[:]
            found = await consumer.fetch(asked, max_bytes=1500)
            assert len(reads) <= 3, "one that fits, and one that does not"
            got = {index: records_of(one)[-1].offset + 1 for index, one in found.items() if one.records}
            assert got
            left -= {index for index, offset in got.items() if offset == 2}
            asked = asking(topic, got)


async def test_partitions_of_a_session_have_their_turns_where_a_reply_has_room_for_one() -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t", partitions=3)
        for partition in topic.partitions:
            for _ in range(4):
                partition.append(batch_of([b"v" * 900]))
            await append(broker, topic, partition.index)
        consumer = Consumer(Peer(broker))
        asked, order = asking(topic, dict.fromkeys(range(3), 0), max_bytes=1000), list[int]()
        for _ in range(9):
            found = await consumer.fetch(asked, max_bytes=1000)
            ((index, one),) = [(index, one) for index, one in found.items() if one.records]
            order.append(index)
            asked = asking(topic, {index: records_of(one)[-1].offset + 1}, max_bytes=1000)
        assert order == [0, 1, 2] * 3


async def test_a_partition_at_its_end_is_synced_for_who_gets_records_of_another() -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t", partitions=2)
        await append(broker, topic, 0)
        quiet = topic.partitions[1]
        quiet.append(batch_of([b"v"]))  # as with acks=1: nobody waits for the sync
        broker.end_turn()
        await quiet.log.wait_written(1)
        assert quiet.log.high_watermark == 0
        peer = Peer(broker)

        async def read() -> dict[int, bool]:
            consumer = Consumer(peer, version=12)
            consumer.epoch = -1  # without a session, as librdkafka
            found = await consumer.fetch(asking("t", {0: 0, 1: 0}))
            return {index: bool(one.records) for index, one in found.items()}

        assert await read() == {0: True, 1: False}
        with trio.fail_after(10):
            while await read() != {0: True, 1: True}:
                await trio.lowlevel.checkpoint()
