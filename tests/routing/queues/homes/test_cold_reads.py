"""Reads that consumers wait for, and who leaves them the time."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.memory_files import MemoryFiles
from routing.queues.homes.cold_reads import ColdReads
from tests.routing.harness import Client, Engine, engine

LARGE = 256 << 10
SMALL = {"stripes": 1, "stripe_cache_bytes": 2000, "cold_read_bytes": 1000}


async def test_a_publisher_waits_for_the_read_that_is_under_way_and_not_without_one(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        turns: list[float] = []
        reads = ColdReads(nursery.start_soon, lambda: turns.append(trio.current_time()), 50)

        async def read(seconds: float) -> None:
            await trio.sleep(seconds)

        began = trio.current_time()
        await reads.wait(LARGE)
        assert trio.current_time() == began, "nothing is read"
        reads.start(read, 0.02)
        await reads.wait(LARGE)
        assert trio.current_time() - began == 0.02
        await wait_all_tasks_blocked()
        assert turns == [trio.current_time()], "what was read is given out"
        reads.start(read, 10)
        await reads.wait(LARGE)
        assert trio.current_time() - began == 0.02 + 0.05, "a disk that is slow holds nobody up for long"
        nursery.cancel_scope.cancel()


async def test_of_many_publishers_one_goes_on_for_each_read_and_all_when_none_is_needed(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        wanted, gone_on = 5, list[int]()

        def turn() -> None:
            nonlocal wanted
            if wanted:
                wanted -= 1
                reads.start(trio.sleep, 0.02)

        reads = ColdReads(nursery.start_soon, turn, 50)

        async def publish(number: int) -> None:
            await trio.sleep(number / 1000)
            await reads.wait(LARGE)
            gone_on.append(number)

        turn()
        for number in range(10):
            nursery.start_soon(publish, number)
        await trio.sleep(0.01)
        for count in range(5):
            assert gone_on == list(range(count)), "though each waits longer than a read may take"
            await trio.sleep(0.02)
        assert sorted(gone_on) == list(range(10))


async def test_who_publishes_little_waits_for_one_read_however_many_there_are(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        reads = ColdReads(nursery.start_soon, lambda: reads.start(trio.sleep, 0.02), 50)
        began, waited = trio.current_time(), list[float]()

        async def publish() -> None:
            await reads.wait(200)
            waited.append(trio.current_time() - began)

        reads.start(trio.sleep, 0.02)
        for number in range(2000):
            if number % 2:
                nursery.start_soon(publish)
            else:
                nursery.start_soon(reads.wait, LARGE)
        await trio.sleep(0.03)
        assert waited == [0.02] * 1000
        nursery.cancel_scope.cancel()


async def test_nobody_stands_in_line_for_ever(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        reads = ColdReads(nursery.start_soon, lambda: reads.start(trio.sleep, 0.04), 50)
        began, waited = trio.current_time(), list[float]()

        async def publish() -> None:
            await reads.wait(LARGE)
            waited.append(trio.current_time() - began)

        reads.start(trio.sleep, 0.04)
        for _ in range(1000):
            nursery.start_soon(publish)
        await trio.sleep(2)
        assert len(waited) == 1000
        assert max(waited) < 1.1
        nursery.cancel_scope.cancel()


async def behind(running: Engine, prefetch: int) -> Client:
    """Who consumes a queue "q" of which most messages are on disk; another, "idle", is empty."""
    for name in ("q", "idle"):
        await running.queue(name)
    client = running.client()
    await client.publish_safely("q", *range(1000))
    client.session.set_prefetch(prefetch, per_session=False)
    await client.consume("q")
    running.turn()
    return client


def wanted_after(running: Engine, key: str) -> bool:
    """Whether who publishes now has to leave time."""
    running.broker.cold_reads.wanted = False
    running.client().publish(key, "new")
    running.turn()
    return running.broker.cold_reads.wanted


async def test_who_publishes_to_a_queue_whose_consumer_waits_for_the_disk_has_to_wait_and_nobody_else() -> None:
    async with engine(MemoryFiles(), **SMALL) as running:
        await behind(running, prefetch=0)
        assert not wanted_after(running, "idle")
        assert wanted_after(running, "q")
        assert wanted_after(running, "q")


async def test_a_consumer_that_takes_no_more_holds_no_publisher_up() -> None:
    async with engine(MemoryFiles(), **SMALL) as running:
        client = await behind(running, prefetch=1)
        await running.until(lambda: bool(client.deliveries))
        assert not wanted_after(running, "q")
