"""Messages far apart: read on the event loop where that takes no time, else in a thread."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from core_log.files import Files, OsFiles
from core_log.memory_files import MemoryFiles
from routing.facts import pack
from routing.message import Slab
from routing.queues.homes import scattered
from routing.queues.homes.scattered import Scattered
from tests.routing.harness import PERSISTENT, engine

COUNT = 400
EXPECTED = [str(number) for number in sorted(range(COUNT), key=lambda number: (-(number * 7 % 100), number))]


async def consume_scattered(files: Files) -> list[str]:
    """Messages of a hundred priorities, from a log of many batches."""
    async with engine(files, stripes=1, stripe_cache_bytes=0) as running:
        await running.queue("q", arguments={"x-max-priority": 100})
        client = running.client()
        for start in range(0, COUNT, 20):
            names = [str(number) for number in range(start, start + 20)]
            facts = [pack(True, int(name) * 7 % 100) for name in names]
            client.session.publish(Slab("", "q", PERSISTENT, [name.encode() for name in names], facts=facts))
            await running.synced()
        client.session.set_prefetch(0, per_session=False)
        await client.consume("q", no_ack=True)
        running.turn()
        got: list[str] = client.take_bodies()
        while len(got) < COUNT:
            await running.until(lambda: bool(client.deliveries))
            got += client.take_bodies()
        return got


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each thread was asked for."""
    asked: list[int] = []
    read = Scattered.read
    monkeypatch.setattr(Scattered, "read", lambda all, offsets: asked.append(len(set(offsets))) or read(all, offsets))
    return asked


async def test_what_the_system_has_in_memory_is_read_at_once(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scattered, "_STRETCH_MAX", COUNT)
    monkeypatch.setattr(scattered, "_STRETCH_S", 100.0)
    assert await consume_scattered(OsFiles(tmp_path)) == EXPECTED
    assert not reads


async def test_there_is_an_end_to_what_the_event_loop_reads(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scattered, "_STRETCH_MAX", 100)
    monkeypatch.setattr(scattered, "_STRETCH_S", 100.0)
    assert await consume_scattered(OsFiles(tmp_path)) == EXPECTED
    assert COUNT / 2 < sum(reads) <= COUNT - 100, "some may still be in memory"


async def test_what_may_have_to_be_waited_for_is_a_threads(reads: list[int]) -> None:
    assert await consume_scattered(MemoryFiles()) == EXPECTED
    assert COUNT * 3 / 4 < sum(reads) <= COUNT


@pytest.mark.parametrize("cached", [True, False])
async def test_whether_a_disk_has_to_be_waited_for_is_tried_with_what_is_not_wanted_yet(
    tmp_path: Path, *, cached: bool
) -> None:
    files = OsFiles(tmp_path) if cached else MemoryFiles()
    async with engine(files, stripes=1, stripe_cache_bytes=0) as running:
        await running.queue("q")
        queue = running.broker.topology.queues["q"]
        client = running.client()
        client.session.publish(Slab("", "q", PERSISTENT, [b"%d" % number for number in range(100)]))
        await running.synced()
        one: Scattered = queue.store.load_ahead.__self__._scattered
        one._cold = 50
        first = queue.head()[0]
        one.load_ahead(list(range(first, first + 49)), queue)
        await running.until(lambda: one.reads_ahead(queue))
        one.load_ahead(list(range(first + 49, first + 99)), queue)
        await running.until(lambda: not one.is_reading_for(queue))
        assert one.reads_ahead(queue) is not cached
        assert all(one.find(offset) for offset in range(first, first + 99))


async def test_the_first_in_line_is_read_though_more_lies_before_it_than_is_kept(
    reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scattered, "_KEPT_BYTES_MAX", 2_000)
    monkeypatch.setattr(scattered, "_READ_BYTES_MAX", 30)
    monkeypatch.setattr(scattered, "_STRETCH_MAX", 0)
    with trio.fail_after(20):
        assert await consume_scattered(MemoryFiles()) == EXPECTED
    assert len(reads) < COUNT
