"""A topic of a cluster that is compacted: by each replica for itself, and through a change of leader."""

from __future__ import annotations

from pathlib import Path

import trio

from core_log.record_batch import iterate_records
from core_log.replica_log import ReplicaLog
from gateway.etcd_process import EtcdProcess
from protocols.native.clients.client import Client
from routing.topics.compaction import Compaction
from routing.topics.topic_partition import TopicPartition
from tests.core_log.compaction.helpers import keyed
from tests.gateway.test_member import Running, three, until

SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}


def partition_of(broker: Running) -> TopicPartition:
    return broker.server.broker.topics["t"].partitions[0]


def may_serve(broker: Running) -> bool:
    leadership = partition_of(broker).leadership
    assert leadership is not None
    return leadership.refusal() is None


def values(log: ReplicaLog) -> dict[bytes | None, bytes | None]:
    found: dict[bytes | None, bytes | None] = {}
    offset = log.log_start_offset
    while batches := log.read_blocking(offset, 1 << 20):
        for batch in batches:
            for record in iterate_records(batch):
                found[record.key] = record.value
                offset = record.offset + 1
    return found


async def compact(broker: Running) -> None:
    engine = broker.server.broker
    await Compaction(engine.flusher, engine.config, engine.topics.values).round()


async def test_replicas_compact_each_for_itself(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "compaction") as (_, brokers):
        async with Client(f"127.0.0.1:{brokers[1].server.ports['native']}") as client:
            await client.create_topic("t", config=SETTINGS)
        await until(lambda: all("t" in one.server.broker.topics for one in brokers.values()))
        logs = {number: partition_of(broker).log for number, broker in brokers.items()}
        assert all(isinstance(log, ReplicaLog) for log in logs.values())
        expected: dict[bytes | None, bytes | None] = {}

        async def write(rounds: int) -> int:
            """By whoever leads."""
            leads = [number for number, one in brokers.items() if may_serve(one)]
            (number,) = leads
            partition = partition_of(brokers[number])
            for turn in range(rounds):
                rows: list[tuple[bytes | None, bytes | None]] = [
                    (b"k%d" % key, b"%d-%d" % (partition.log.log_end_offset, turn) * 10) for key in range(5)
                ]
                expected.update(rows)
                partition.append(keyed(rows))
            await partition.log.wait_committed(partition.log.log_end_offset)
            end = partition.log.log_end_offset
            await until(lambda: all(log.high_watermark == end for log in logs.values()))
            return number

        await until(lambda: any(map(may_serve, brokers.values())))
        leader = await write(50)
        size = logs[leader].size_bytes
        # Two of three are compacted; then the leadership goes to one, and more is written.
        for number in (leader, leader % 3 + 1):
            await compact(brokers[number])
            assert logs[number].size_bytes < size / 4
        assert logs[(leader + 1) % 3 + 1].size_bytes == size
        with trio.fail_after(30):
            brokers[leader].scope.set()
            await brokers[leader].over.wait()
        del brokers[leader], logs[leader]
        await until(lambda: any(map(may_serve, brokers.values())))
        await write(30)
        for broker in brokers.values():
            await compact(broker)
        for log in logs.values():
            assert values(log) == expected  # type: ignore[arg-type]
            assert log.size_bytes < size / 4
            assert log.verify() == []
