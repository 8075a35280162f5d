"""Queues that retain what they have done with, and give it out again when they are asked."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import MemoryFiles
from routing.administration import administer
from routing.errors import InvalidArgument, PreconditionFailed
from routing.queues.homes.reclaim import give_back
from routing.session import Outcome
from tests.routing.harness import Engine, engine, killed

START_MS = 1_800_000_000_000
RETAIN = {"x-retain": "1h"}


async def publish(running: Engine, *bodies: object) -> None:
    client = running.client()
    await client.publish_safely("q", *bodies)
    client.session.close()


async def rewind(running: Engine, since_s: float = 0, **given: Any) -> dict[str, int]:
    since_ms = START_MS + int(since_s * 1000)
    found: dict[str, int] = await administer(
        running.broker, "guest", "queues.rewind", {"name": "q", "since_ms": since_ms, **given}
    )
    return found


async def bodies(running: Engine) -> list[str]:
    return [body for body, _ in await running.drain("q")]


async def test_what_was_taken_comes_again_in_order_and_what_waits_does_not(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments=RETAIN)
        await publish(running, *range(5))
        assert await bodies(running) == ["0", "1", "2", "3", "4"]
        clock.jump(100)
        await publish(running, *range(5, 10))
        session = running.client().session
        got = [await session.get("q", no_ack=False) for _ in range(2)]
        assert all(got)
        session.settle(1, 1, Outcome.ACK)
        assert (await rewind(running, dry_run=True))["left"] == 6
        assert (await rewind(running, 50, dry_run=True))["left"] == 1
        done = await rewind(running)
        assert (done["replayed"], done["left"]) == (6, 0)
        assert await bodies(running) == ["7", "8", "9", "0", "1", "2", "3", "4", "5"]
        session.close()
        assert await bodies(running) == ["6"]
        assert (await rewind(running, 50))["replayed"] == 5


@pytest.mark.parametrize("crash", [False, True])
async def test_a_purge_is_undone_after_a_restart(clock: MockClock, crash: bool) -> None:
    files = MemoryFiles()
    async with engine(files, stripes=1) as running:
        await running.queue("other")
        await running.queue("q", arguments=RETAIN)
        await publish(running, *range(100))
        assert await running.broker.purge_queue("q") == 100
        await running.synced()
        if crash:
            files = killed(files)
    async with engine(files, stripes=1) as running:
        await running.queue("later")
        assert running.count("q") == 0
        assert (await rewind(running))["replayed"] == 100
        assert await bodies(running) == [str(number) for number in range(100)]
        ids = [queue.id for queue in running.broker.topology.queues.values()]
        assert max(ids) < 10


async def test_time_ends_what_is_retained_and_the_disk_gets_it_back(clock: MockClock) -> None:
    async with engine(MemoryFiles(), queue_segment_bytes=4096, stripes=1) as running:
        await running.queue("q", arguments=RETAIN)
        for _ in range(10):
            await publish(running, *("x" * 100 for _ in range(20)))
        await bodies(running)
        home = running.home("q")
        await running.synced()
        assert sum(home.live.blocks.values()) == 200
        clock.jump(3601)
        await wait_all_tasks_blocked()
        running.turn()
        assert (await rewind(running, dry_run=True))["left"] == 0
        assert sum(home.live.blocks.values()) == 0
        give_back(home)
        await running.synced()
        await running.shortened(home, 100)


async def test_a_policy_begins_and_ends_it() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        await publish(running, "unknown")
        assert await bodies(running) == ["unknown"]
        with pytest.raises(PreconditionFailed, match="retains nothing"):
            await rewind(running)
        await running.broker.set_policy("keep", "^q$", {"retain": 3_600_000})
        await publish(running, "known")
        assert await bodies(running) == ["known"]
        assert (await rewind(running))["replayed"] == 1
        assert await bodies(running) == ["known"]
        await running.broker.delete_policy("keep")
        with pytest.raises(PreconditionFailed, match="retains nothing"):
            await rewind(running)
        home = running.home("q")
        await publish(running, "more")
        assert await bodies(running) == ["more"]
        assert sum(home.live.blocks.values()) == 0
        await running.broker.delete_queue("q")
        assert not [queue for queue in home.queues.values() if queue.name == "q"]


async def test_many_are_read_back_and_come_in_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routing.administration.queues.MOVED_MAX", 300)
    async with engine(MemoryFiles(), stripe_cache_bytes=4096, cold_read_bytes=4096) as running:
        await running.queue("q", arguments=RETAIN)
        for first in range(0, 1000, 50):
            await publish(running, *range(first, first + 50))
        assert len(await bodies(running)) == 1000
        await running.synced()
        done = await rewind(running)
        steps = [done]
        while done["left"]:
            done = await rewind(running, after=done["last"], before=done["before"])
            steps.append(done)
        assert [step["replayed"] for step in steps] == [300, 300, 300, 100]
        assert await bodies(running) == [str(number) for number in range(1000)]


@pytest.mark.parametrize("value", ["1w", "11Y", -1, True, 1.5])
async def test_senseless_times_are_refused(value: Any) -> None:
    async with engine(MemoryFiles()) as running:
        with pytest.raises(InvalidArgument, match="x-retain"):
            await running.queue("q", arguments={"x-retain": value})
