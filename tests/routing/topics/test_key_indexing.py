"""Topics with an index of keys while the broker runs: also where they are compacted, and over restarts."""

from __future__ import annotations

import errno

from core_log.files import MemoryFiles
from core_log.key_index import SUFFIX
from core_log.memory_files import FaultyFiles
from core_log.partition_log import PartitionLog
from routing.config import BrokerConfig
from routing.topics.compaction import Compaction
from routing.topics.key_indexing import KeyIndexing
from routing.topics.topic_config import KEY_INDEX
from tests.core_log.compaction.helpers import keyed
from tests.core_log.test_key_index import found, scanned
from tests.routing.harness import engine

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.1",
    KEY_INDEX: "true",
}
KEYS = [b"k%d" % number for number in range(7)]


async def fill(log: PartitionLog, times: int) -> None:
    for number in range(times):
        for first in (0, 3):
            log.append(keyed([(key, b"%d" % number * 20) for key in KEYS[first : first + 4]]))
    log.request_sync()
    await log.wait_committed(log.log_end_offset)


def files_of(files: MemoryFiles, name: str) -> list[str]:
    return [one for one in files.list(f"topics/{name}-0") if one.endswith(SUFFIX)]


async def test_what_compaction_leaves_is_found() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        topic = await running.broker.create_topic("t", config=COMPACTED)
        await running.broker.create_topic("plain")
        log = topic.partitions[0].log
        indexing = KeyIndexing(BrokerConfig(), running.broker.topics.values)
        compaction = Compaction(running.broker.flusher, BrokerConfig(), running.broker.topics.values)
        for _ in range(3):
            await fill(log, 15)
            await indexing.round()
            for step in (compaction.round, indexing.round, indexing.round):
                assert [found(log, key) for key in KEYS] == [scanned(log, key) for key in KEYS]
                await step()
        assert len(files_of(files, "t")) <= len(log.segments)
        assert all(segment.keys for segment in log.segments if segment.size)
        assert files_of(files, "plain") == []
        await fill(running.broker.topics["plain"].partitions[0].log, 1)
    async with engine(files) as running:
        log = running.broker.topics["t"].partitions[0].log
        assert [found(log, key) for key in KEYS] == [scanned(log, key) for key in KEYS]
        assert any(segment.keys for segment in log.segments)


async def test_a_disk_that_refuses_costs_the_index_only() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        topic = await running.broker.create_topic("t", config={KEY_INDEX: "true"})
        log = topic.partitions[0].log
        await fill(log, 5)
        indexing = KeyIndexing(BrokerConfig(), running.broker.topics.values)

        def refuse(operation: str, path: str) -> None:
            if path.endswith(SUFFIX):
                raise OSError(errno.ENOSPC, "full")

        files.hook = refuse
        await indexing.round()
        await indexing.round()
        assert not log.segments[0].keys
        assert [found(log, key) for key in KEYS] == [scanned(log, key) for key in KEYS]
