"""Streams that policies limit: at once, over restarts, and never above what an argument or an operator says."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.batch_header import parse_header
from core_log.memory_files import MemoryFiles
from routing.administration import administer
from routing.administration.measures import Measures
from routing.errors import InvalidArgument, PreconditionFailed
from tests.routing.harness import engine, with_headers
from tests.routing.topics.test_streams import declare, publish
from tests.support.metrics import series


async def test_policies_limit_streams_that_are_there() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        stream = await declare(running, **{"x-stream-max-segment-size-bytes": 4096})
        log = stream.topic.partitions[0].log
        for first in range(0, 400, 20):
            await publish(running, *(f"{number:0100}" for number in range(first, first + 20)))
        before = log.size_bytes
        assert (log.log_start_offset, log.config.retention_bytes) == (0, -1)
        broker = running.broker
        await broker.set_policy("long", "^s$", {"max-length-bytes": 20_000, "max-age": "7D"}, apply_to="streams")
        assert 20_000 <= log.size_bytes < 20_000 + 2 * 4096 < before
        assert stream.message_count == 400 - log.log_start_offset
        await broker.set_policy("short", "^s", {"max-length-bytes": 8192, "max-age": "1h"}, operator=True)
        assert 8192 <= log.size_bytes < 8192 + 2 * 4096
        assert (log.config.retention_bytes, log.config.retention_ms) == (8192, 3_600_000)
        rows = (await administer(broker, "guest", "queues.list", {}))["rows"]
        assert [row[1:3] + row[10:12] for row in rows] == [["s", "stream", "long", "short"]]
        await running.synced()
    async with engine(files) as running:
        log = running.broker.topology.topics["s"].partitions[0].log
        assert (log.config.retention_bytes, log.config.retention_ms) == (8192, 3_600_000)
        await running.broker.delete_policy("short", operator=True)
        assert (log.config.retention_bytes, log.config.retention_ms) == (20_000, 7 * 86_400_000)
        await running.broker.delete_policy("long")
        assert (log.config.retention_bytes, log.config.retention_ms) == (-1, -1)


async def test_of_an_argument_and_a_policy_the_lower_limit_counts() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        told = {"max-age": "1D", "max-length-bytes": 1 << 30, "stream-max-segment-size-bytes": 1 << 20}
        await broker.set_policy("p", "", told)
        stream = await declare(running, **{"x-max-age": "1h", "x-max-length-bytes": 1 << 31})
        config = stream.topic.partitions[0].log.config
        assert (config.retention_ms, config.retention_bytes, config.segment_bytes) == (3_600_000, 1 << 30, 1 << 20)
        await broker.declare_queue("s", durable=True, arguments=stream.arguments)


async def test_streams_drop_duplicates_where_an_argument_or_a_policy_says_so() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        stream = await declare(running, **{"x-max-age": "1h", "x-deduplication-window-ms": 60_000})
        log = stream.topic.partitions[0].log
        await broker.set_policy("p", "", {"deduplication-window-ms": 1000})
        assert log.config.deduplication_window_ms == 60_000
        await broker.bind("queue", "s", "amq.fanout", "")
        client = running.client()
        for _ in range(2):
            for name in "ab":
                headers = with_headers({"message-id": name})
                client.publish("k", name, exchange="amq.fanout", properties=headers, confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 4)
        assert sum(parse_header(one).record_count for one in log.read_blocking(0, 1 << 20)) == 2
        found = series(await Measures(broker, 100).families())
        assert found["millrace_topic_duplicates", "s", "0"] == 2
        await broker.declare_queue("s", durable=True, arguments=stream.arguments)
        with pytest.raises(PreconditionFailed, match="x-deduplication-window-ms"):
            await broker.declare_queue(
                "other", durable=True,
                arguments={"x-queue-type": "stream", "x-max-age": "59s", "x-deduplication-window-ms": 60_000},
            )  # fmt: skip
        await broker.declare_queue("plain", durable=True, arguments={"x-queue-type": "stream"})
        assert broker.topology.topics["plain"].partitions[0].log.config.deduplication_window_ms == 1000


@pytest.mark.parametrize(
    "definition", [{"max-age": "1w"}, {"max-age": 5}, {"stream-max-segment-size-bytes": 3_000_000_001}]
)
async def test_policies_that_no_stream_can_follow_are_refused(definition: dict[str, Any]) -> None:
    async with engine(MemoryFiles()) as running:
        with pytest.raises(InvalidArgument, match="no valid value"):
            await running.broker.set_policy("p", "", definition)
