"""Hand-overs that happen once: publishes that are said again, and messages that are received in two steps."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from core_log.files import FaultyFiles, MemoryFiles
from routing.message import Numbered, Slab
from routing.queues.homes.receipts import begin, complete, release
from routing.session import Outcome
from tests.routing.harness import PERSISTENT, TRANSIENT, Client, Engine, engine, killed

QUEUES = ("q", "r")


async def declare(running: Engine) -> int:
    """Two queues in different homes, and a publisher: its number."""
    for name in QUEUES:
        await running.queue(name)
        await running.bind("amq.fanout", name)
    await running.queue("publisher")
    assert running.home("q") is not running.home("r")
    return running.broker.topology.queues["publisher"].id


def publish(client: Client, publisher: int, *numbers: int, epoch: int = 0) -> None:
    slab = Slab("amq.fanout", "", PERSISTENT, [str(number).encode() for number in numbers])
    slab.once = Numbered(publisher, array("H", numbers), epoch)
    client.session.publish(slab, confirm=True)


async def confirmed(running: Engine, client: Client) -> None:
    running.turn()
    await running.until(lambda: client.confirmed == client.session.confirms.published)


async def bodies(running: Engine, queue: str) -> list[str]:
    return [body for body, _ in await running.drain(queue)]


async def released(running: Engine, client: Client, publisher: int, *numbers: int) -> None:
    homes = [home for home in running.broker.topology.led if release(home, publisher, numbers)]
    done: list[object] = []
    client.session.confirms.when_written(homes, done.append)
    running.turn()
    await running.until(lambda: bool(done))
    assert done == [None]


async def taken_by_the_hundred(running: Engine, *, released_to: int, shorten: bool) -> int:
    """200 numbers, the first of them released, by connections 1, 21 and so on; with `shorten` the logs begin later.
    The publisher's number.
    """
    publisher = await declare(running)
    client = running.client()
    for first in range(1, 201, 20):
        publish(client, publisher, *range(first, first + 20), epoch=first)
        await confirmed(running, client)
    await released(running, client, publisher, *range(1, released_to + 1))
    if shorten:
        for name in QUEUES:
            assert len(await bodies(running, name)) == 200
        await running.synced()
        for home in running.broker.topology.led:
            await running.shortened(home, 100)
    return publisher


def ended(files: MemoryFiles, how: str) -> MemoryFiles:
    """What is left of them."""
    if how == "kill":
        return killed(files)
    return files if how == "stop" else files.crash()


async def test_a_number_is_taken_once_until_it_is_released() -> None:
    async with engine(MemoryFiles()) as running:
        publisher = await declare(running)
        client = running.client()
        publish(client, publisher, 1, 2, 3)
        publish(client, publisher, 2, 3, 4)
        await confirmed(running, client)
        await released(running, client, publisher, 2)
        publish(client, publisher, 1, 2, 3, 4)
        await confirmed(running, client)
        for name in QUEUES:
            assert await bodies(running, name) == ["1", "2", "3", "4", "2"]


@pytest.mark.parametrize("how", ["stop", "kill", "power", "checkpoint"])
async def test_numbers_outlive_the_process(how: str) -> None:
    files = MemoryFiles()
    config: dict[str, Any] = {"queue_segment_bytes": 4096} if how == "checkpoint" else {}
    async with engine(files, **config) as running:
        publisher = await taken_by_the_hundred(running, released_to=100, shorten=how == "checkpoint")
        files = ended(files, how)
    async with engine(files, **config) as running:
        client = running.client()
        for name in QUEUES:
            assert await bodies(running, name) == ([] if how == "checkpoint" else [str(n) for n in range(1, 201)])
        publish(client, publisher, *range(1, 201), epoch=201)
        await confirmed(running, client)
        for name in QUEUES:
            assert await bodies(running, name) == [str(number) for number in range(1, 101)]
        await running.broker.delete_queue("publisher")
        assert not any(home.numbers for home in running.broker.topology.led)


async def test_whatever_a_crash_cuts_off_what_is_said_again_is_there_once() -> None:
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    found: list[MemoryFiles] = []
    async with engine(files) as running:
        publisher = await declare(running)
        client = running.client()
        files.hook = lambda operation, path: found.append(killed(memory))
        publish(client, publisher, 1, 2)
        running.turn()
        publish(client, publisher, 3)
        await confirmed(running, client)
        files.hook = None
    assert len(found) > 2
    for left in found:
        async with engine(left) as running:
            client = running.client()
            publish(client, publisher, 1, 2, 3)
            await confirmed(running, client)
            for name in QUEUES:
                assert sorted(await bodies(running, name)) == ["1", "2", "3"]


@pytest.mark.parametrize("how", ["stop", "kill", "power", "checkpoint"])
async def test_which_connection_is_the_latest_is_known_until_the_client_is_gone(how: str) -> None:
    files = MemoryFiles()
    config: dict[str, Any] = {"queue_segment_bytes": 4096} if how == "checkpoint" else {}
    async with engine(files, **config) as running:
        publisher = await taken_by_the_hundred(running, released_to=200, shorten=how == "checkpoint")
        files = ended(files, how)
    async with engine(files, **config) as running:
        homes = [running.home(name) for name in QUEUES]
        for home in homes:
            assert not begin(home, publisher, 180)
            assert begin(home, publisher, 181)
            assert begin(home, publisher, 182)
            assert not begin(home, publisher, 181)
        await running.broker.delete_queue("publisher")
        assert not any(home.numbers for home in running.broker.topology.led)
        await running.synced()
        files = killed(files)
    async with engine(files, **config) as running:
        assert not any(home.numbers for home in running.broker.topology.led)


@pytest.mark.parametrize("how", ["stop", "kill", "checkpoint"])
async def test_what_is_received_is_held_until_it_is_completed(how: str) -> None:
    files = MemoryFiles()
    config: dict[str, Any] = {"queue_segment_bytes": 4096} if how == "checkpoint" else {}
    async with engine(files, **config) as running:
        await running.queue("q")
        client = running.client()
        await client.publish_safely("q", *range(300))
        await client.consume("q")
        assert len(client.take()) == 300
        client.session.settle(1, 200, Outcome.RECEIVED)
        queue = running.broker.topology.queues["q"]
        assert queue.held is not None
        first = next(iter(queue.held.ranges()))[0]
        complete(queue, range(first + 50, first + 150))
        complete(queue, range(first + 100, first + 110))
        expected = [(first, 50), (first + 150, 50)]
        assert list(queue.held.ranges()) == expected
        await running.synced()
        if how == "checkpoint":
            client.ack(201, 300)
            await running.synced()
            await client.publish_safely("q", *range(300, 400))
            home = running.home("q")
            await running.shortened(home, 100)
        if how != "stop":
            files = killed(files)
    async with engine(files, **config) as running:
        queue = running.broker.topology.queues["q"]
        assert queue.held is not None
        assert list(queue.held.ranges()) == expected
        left = range(300, 400) if how == "checkpoint" else range(200, 300)
        assert await bodies(running, "q") == [str(number) for number in left]


async def test_a_queue_may_take_what_is_not_persistent_only_while_it_is_consumed() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-keep-transient": False})
        client = running.client()
        client.publish("q", "nobody", properties=TRANSIENT)
        client.publish("q", "kept")
        assert running.count("q") == 1
        await client.consume("q")
        client.publish("q", "somebody", properties=TRANSIENT)
        assert client.take_bodies() == ["kept", "somebody"]
