"""What is read back of a home's log while that goes on."""

from __future__ import annotations

import pytest

from core_log.files import MemoryFiles
from routing.queues.homes.cold_chunks import ColdChunks
from routing.queues.homes.reclaim import give_back
from tests.routing.harness import engine


async def test_what_went_while_it_was_to_be_read_is_not_said_to_be_lost(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(MemoryFiles(), stripes=1) as running:
        await running.queue("q")
        home, client = running.home("q"), running.client()
        await client.publish_safely("q", "x" * 100_000)
        await running.drain("q")
        await running.synced()
        assert give_back(home)
        start, broker = home.log.log_start_offset, running.broker
        cold = ColdChunks(home.log, broker.config, broker.cold_reads, home.find, home.facts)
        chunk = await cold.read(0)
        assert (chunk.first, chunk.end, chunk.entries) == (0, start, [])
        assert "lost" not in caplog.text
        cold._chunks.append(chunk)
        queue = home.queues[next(iter(home.queues))]
        cold.load(0, queue, 0)
        assert "offset 0 of queues/0 cannot be read: message lost" in caplog.text, "whoever needs it all the same"
