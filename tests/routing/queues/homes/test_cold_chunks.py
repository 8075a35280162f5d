"""What is read back of a home's log while that goes on."""

from __future__ import annotations

import gc

import pytest
from trio.testing import MockClock

from core_log.files import MemoryFiles
from routing.queues.homes import scattered
from routing.queues.homes.cold_chunks import ColdChunks
from routing.queues.homes.reclaim import give_back
from routing.queues.slab_cache import CachedSlab
from tests.routing.harness import engine, passing


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


LARGE_BYTES = 100_000


def large_ones() -> int:
    """How many large messages are in memory."""
    return sum(isinstance(one, CachedSlab) and one.bytes > LARGE_BYTES for one in gc.get_objects())


async def test_large_messages_that_were_read_back_leave_memory(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they were read with what comes after them, or by themselves."""
    monkeypatch.setattr(scattered, "_KEPT_BYTES_MAX", 1000)
    others = large_ones()  # of tests before this one, as when one of them failed
    async with engine(MemoryFiles(), stripes=1, stripe_cache_bytes=0, cold_read_bytes=1000) as running:
        await running.queue("q")
        client = running.client()
        bodies = [str(number) * LARGE_BYTES for number in range(9)]
        for body in bodies:
            await client.publish_safely("q", body)
        client.session.set_prefetch(1, per_session=False)
        await client.consume("q")
        running.turn()
        for body in bodies:
            await running.until(lambda: bool(client.deliveries))
            (delivery,) = client.take()
            assert delivery.body == body
            client.ack(delivery.id)
            running.turn()
        await running.synced()
        await passing(mock_clock, 1.1)
        assert large_ones() <= others
