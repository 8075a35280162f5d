"""Topics that are compacted: while the broker runs, over restarts, and with settings that change."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles, OsFiles
from core_log.record_batch import iterate_records
from routing.config import BrokerConfig
from routing.topics.compaction import Compaction
from routing.topics.topic_partition import TopicPartition
from tests.core_log.compaction.helpers import keyed
from tests.routing.harness import engine

CONFIG = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.1"}


def values(partition: TopicPartition) -> dict[bytes | None, bytes | None]:
    log, offset = partition.log, partition.log.log_start_offset
    found: dict[bytes | None, bytes | None] = {}
    while batches := log.read_blocking(offset, 1 << 20):
        for batch in batches:
            for record in iterate_records(batch):
                found[record.key] = record.value
                offset = record.offset + 1
    return found


async def fill(partition: TopicPartition, rounds: int) -> None:
    for n in range(rounds):
        partition.append(keyed([(b"k%d" % k, b"%d" % n * 20) for k in range(5)]))
    await partition.log.wait_committed(partition.log.log_end_offset)


@pytest.mark.parametrize("real", [False, True])
async def test_a_topic_is_compacted_while_it_is_written_to(real: bool, tmp_path: Path) -> None:
    files = OsFiles(tmp_path) if real else MemoryFiles()
    async with engine(files, compaction_check_interval_ms=1, compaction_cpu_percent=100) as running:
        topic = await running.broker.create_topic("t", config=CONFIG)
        partition = topic.partitions[0]
        with trio.fail_after(20):
            for _ in range(10):
                await fill(partition, 20)
                await trio.sleep(0.01)
            while partition.log.size_bytes > 5000:
                await trio.sleep(0.01)
        assert values(partition) == {b"k%d" % k: b"19" * 20 for k in range(5)}
        assert partition.log.log_start_offset == 0
        before, end = values(partition), partition.log.log_end_offset
    async with engine(files) as running:
        again = running.broker.topics["t"].partitions[0]
        assert (values(again), again.log.log_end_offset) == (before, end)


async def test_settings_that_change_are_obeyed() -> None:
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t", config={"segment.bytes": "2000"})
        (partition,) = topic.partitions
        await fill(partition, 50)
        compaction = Compaction(running.broker.flusher, BrokerConfig(), running.broker.topics.values)
        size = partition.log.size_bytes
        await compaction.round()
        assert partition.log.size_bytes == size
        topic.configure(msgspec.structs.replace(partition.log.config, cleanup_policy="compact"), CONFIG)
        await compaction.round()
        assert partition.log.size_bytes < size / 4
        assert len(values(partition)) == 5


async def test_damage_is_said_once_and_stops_nobody_else(caplog: object) -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        broken = (await running.broker.create_topic("broken", config=CONFIG)).partitions[0]
        whole = (await running.broker.create_topic("whole", config=CONFIG)).partitions[0]
        await fill(broken, 50)
        await fill(whole, 50)
        file = files.open(broken.log.segments[1].log_path)
        file.pwritev([b"\xff\xff"], 100)
        sizes = broken.log.size_bytes, whole.log.size_bytes
        compaction = Compaction(running.broker.flusher, BrokerConfig(), running.broker.topics.values)
        for _ in range(2):
            await compaction.round()
        assert broken.log.size_bytes == sizes[0]
        assert whole.log.size_bytes < sizes[1]
        said = [record for record in caplog.records if "cannot be compacted" in record.message]  # type: ignore[attr-defined]
        assert len(said) == 1
