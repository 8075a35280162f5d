"""Stragglers: what keeps old segments on disk is written again, and nobody notices but the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.facts import pack
from routing.message import Slab
from routing.queues.homes.moves import Moves
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.homes.relocation import end_of_stragglers
from routing.unsettled import Outcome
from tests.routing.harness import PERSISTENT, Client, Engine, body_of, engine, killed

CONFIG: dict[str, Any] = {"stripes": 1, "queue_segment_bytes": 200_000, "stripe_cache_bytes": 100_000}
CROWD = 40_000
"""More than two blocks of offsets."""
FIRST_SEGMENT = "queues/0/00000000000000000000.log"
Ending = Callable[[MemoryFiles], MemoryFiles]
endings = pytest.mark.parametrize("ending", [MemoryFiles.crash, killed], ids=["power loss", "killed"])


async def crowd(running: Engine, queue: str = "crowd") -> None:
    """Many messages come and are acknowledged."""
    await running.queue(queue)
    client = running.client()
    for first in range(0, CROWD, 2_000):
        await client.publish_safely(queue, *range(first, first + 2_000))
    await running.broker.purge_queue(queue)
    await running.synced()


async def keep_house(running: Engine, home: QueuePartition, *, delete: bool = True) -> None:
    """Until nothing is left to be written again, and, if told so, until the old segments are gone."""
    with trio.fail_after(30):
        while True:
            running.broker.checkpoints.take(home)
            while home in running.broker.checkpoints._under_way:
                await trio.sleep(0.001)
            await running.synced()
            if not end_of_stragglers(home):
                break
            if home.moves and not delete:
                return
            home.delete_dead_prefix()
        for _ in range(3):
            home.delete_dead_prefix()
            await running.synced()
            running.broker.checkpoints.take(home)
            while home in running.broker.checkpoints._under_way:
                await trio.sleep(0.001)


async def held(running: Engine, *bodies: object, queue: str = "q") -> Client:
    """A client that was delivered these and has not said what becomes of them."""
    await running.queue(queue)
    await running.client().publish_safely(queue, *bodies)
    client = running.client()
    await client.consume(queue)
    assert client.take_bodies() == [str(body) for body in bodies]
    return client


async def test_a_delivered_message_does_not_keep_what_was_acknowledged_behind_it() -> None:
    files = MemoryFiles()
    async with engine(files, **CONFIG) as running:
        client = await held(running, "first", "second", "third")
        home = running.home("q")
        await crowd(running)
        assert home.log.size_bytes > 1_000_000
        await keep_house(running, home)
        assert home.log.size_bytes < 400_000
        assert home.log.log_start_offset > CROWD // 2
        assert home.moves
        client.ack(2)
        client.requeue(1)
        assert [(d.body, d.redelivered) for d in client.take()] == [("first", True)]
        client.ack(3, 4)
        await running.synced()
        assert not home.moves
        assert not home.live.blocks
        assert running.count("q") == 0
    async with engine(files, **CONFIG) as running:
        assert await running.drain("q") == []


async def test_one_segment_is_enough() -> None:
    async with engine(MemoryFiles(), **CONFIG) as running:
        client = await held(running, "first")
        home = running.home("q")
        await running.queue("crowd")
        while len(home.log.segments) < 2:
            await running.client().publish_safely("crowd", *range(1_000))
        await running.broker.purge_queue("crowd")
        await running.synced()
        await keep_house(running, home)
        assert len(home.log.segments) == 1
        client.requeue(1)
        assert client.take_bodies() == ["first"]


@pytest.mark.parametrize("sealed", [False, True], ids=["not written yet", "written"])
async def test_what_is_received_meanwhile_is_not_written_again(sealed: bool) -> None:
    async with engine(MemoryFiles(), **CONFIG) as running:
        client = await held(running, "first", "second")
        home = running.home("q")
        await crowd(running)
        assert end_of_stragglers(home)
        running.broker.checkpoints.take(home)  # it looks for them in a thread, and writes them again behind that
        client.session.settle(1, 1, Outcome.RECEIVED)
        if sealed:
            home.seal_all()
        while home in running.broker.checkpoints._under_way:
            await trio.sleep(0.001)
        await running.synced()
        assert [count for _, count, _ in home.moves.all()] == [1]
        assert [count for count in home.live.blocks.values() if count] == [1]
        client.ack(2)
        await running.synced()
        assert not home.live.blocks
        assert not home.moves


@endings
@pytest.mark.parametrize("delete", [False, True], ids=["old part there", "old part gone"])
async def test_stragglers_are_found_once_and_in_order_after_a_crash(ending: Ending, delete: bool) -> None:
    files = MemoryFiles()
    async with engine(files, **CONFIG) as running:
        await running.queue("q")
        client = running.client()
        for first in range(0, 50, 5):
            await client.publish_safely("q", *range(first, first + 5))
            await client.publish_safely("q", f"settled {first}")
        for body in [got for _ in range(60) if (got := await client.session.get("q", no_ack=False))]:
            if body_of(body).startswith("settled"):
                client.ack(body.delivery_id)
        home = running.home("q")
        await crowd(running)
        await client.publish_safely("q", "late")
        await keep_house(running, home, delete=delete)
        assert home.moves
        with trio.fail_after(10):
            while delete and files.exists(FIRST_SEGMENT):
                await trio.sleep(0.001)
        found = ending(files)
    async with engine(found, **CONFIG) as running:
        assert bool(running.home("q").moves)
        assert (running.home("q").log.log_start_offset > 0) == delete
        expected = [*map(str, range(50)), "late"]
        assert await running.drain("q") == [(body, True) for body in expected]
        await running.synced()
        again = ending(found)
    async with engine(again, **CONFIG) as running:
        assert await running.drain("q") == []


async def test_a_straggler_is_moved_again_and_again_and_keeps_its_place() -> None:
    files = MemoryFiles()
    async with engine(files, **CONFIG) as running:
        await running.queue("q")
        await running.client().publish_safely("q", "old")
        home = running.home("q")
        locations = []
        for _ in range(3):
            await crowd(running)
            await keep_house(running, home)
            locations.append(next(home.moves.all())[2])
        assert locations == sorted(set(locations))
        assert home.log.size_bytes < 500_000
        await running.client().publish_safely("q", "new")
        found = killed(files)
        assert [body for body, _ in await running.drain("q")] == ["old", "new"]
    async with engine(found, **CONFIG) as running:
        assert [body for body, _ in await running.drain("q")] == ["old", "new"]


async def test_each_queue_keeps_what_it_has_not_settled() -> None:
    """A message for three queues is written again for those that still want it."""
    files = MemoryFiles()
    names = ["a", "b", "c"]
    async with engine(files, **CONFIG) as running:
        for name in names:
            await running.queue(name)
            await running.bind("amq.fanout", name)
        await running.client().publish_safely("", *range(6), exchange="amq.fanout")
        for name, count in zip(names, (0, 2, 4), strict=True):
            for _ in range(count):
                await running.client().session.get(name, no_ack=True)
        home = running.home("a")
        await crowd(running)
        await keep_house(running, home)
        assert home.log.log_start_offset > 6
        found = killed(files)
        left = {"a": list(range(6)), "b": [2, 3, 4, 5], "c": [4, 5]}
        for name, numbers in left.items():
            assert [int(body) for body, _ in await running.drain(name)] == numbers
        assert not home.live.blocks
    async with engine(found, **CONFIG) as running:
        for name, numbers in left.items():
            assert [int(body) for body, _ in await running.drain(name)] == numbers


@endings
async def test_what_messages_ask_for_goes_with_them(ending: Ending) -> None:
    files = MemoryFiles()
    priorities = [3, 9, 0, 9, 1, 0, 5]
    async with engine(files, **CONFIG) as running:
        await running.queue("q", arguments={"x-max-priority": 9})
        client = running.client()
        facts = [pack(True, priority) for priority in priorities]
        bodies = [f"{priority}:{at}".encode() for at, priority in enumerate(priorities)]
        client.session.publish(Slab("", "q", PERSISTENT, bodies, facts=facts), confirm=True)
        running.turn()
        home = running.home("q")
        await crowd(running)
        await keep_house(running, home)
        assert home.log.log_start_offset > CROWD // 2
        found = ending(files)
        expected = sorted((body.decode() for body in bodies), key=lambda body: (-int(body[0]), body[2:]))
        assert [body for body, _ in await running.drain("q")] == expected
    async with engine(found, **CONFIG) as running:
        assert [body for body, _ in await running.drain("q")] == expected


async def test_a_backlog_that_is_the_partition_stays_where_it_is() -> None:
    async with engine(MemoryFiles(), **CONFIG) as running:
        await running.queue("q")
        client = running.client()
        for first in range(0, CROWD, 2_000):
            await client.publish_safely("q", *range(first, first + 2_000))
        for _ in range(CROWD // 2):
            await client.session.get("q", no_ack=True)
        home = running.home("q")
        end = home.log.log_end_offset
        running.turn()
        await keep_house(running, home)
        assert not home.moves
        assert home.log.log_end_offset - end < 30


async def test_a_deleted_queue_with_deliveries_out_holds_everything_up_until_they_are_settled() -> None:
    async with engine(MemoryFiles(), **CONFIG) as running:
        client = await held(running, "one", "two")
        await running.queue("other")
        await running.client().publish_safely("other", "stays")
        home = running.home("q")
        await crowd(running)
        await running.broker.delete_queue("q")
        assert end_of_stragglers(home) == 0
        client.ack(1, 2)
        assert end_of_stragglers(home) > 0
        await keep_house(running, home)
        assert home.log.log_start_offset > CROWD // 2
        assert await running.drain("other") == [("stays", False)]
        assert not home.live.blocks


async def test_a_disk_that_refuses_changes_nothing() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files, **CONFIG) as running:
        client = await held(running, "first")
        home = running.home("q")
        await crowd(running)
        files.failing["write"] = 28
        client.publish("q", "refused", confirm=True)
        running.turn()
        await running.until(lambda: home.log.error is not None)
        running.broker.checkpoints.take(home)
        home.delete_dead_prefix()
        assert not home.moves
        files.failing.clear()
        await running.until(lambda: home.log.error is None)
        await keep_house(running, home)
        assert isinstance(home.moves, Moves)
        assert home.log.size_bytes < 400_000
        client.requeue(1)
        assert "first" in client.take_bodies()
