"""Queues that get other arguments while they are used: nothing is lost, and old declarations still mean them."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.files import MemoryFiles
from routing.errors import InvalidArgument, NotFound, NotImplementedYet, PreconditionFailed
from routing.facts import pack
from routing.message import Slab
from tests.routing.harness import PERSISTENT, Client, Engine, body_of, engine, killed


def publish(client: Client, *priorities: int, first: int = 0) -> None:
    """Messages named by their number and priority."""
    bodies = [f"{number}:{priority}".encode() for number, priority in enumerate(priorities, first)]
    facts = [pack(True, priority) for priority in priorities]
    client.session.publish(Slab("", "q", PERSISTENT, bodies, facts=facts))


async def bodies_in(running: Engine) -> list[str]:
    return [body for body, _ in await running.drain("q")]


async def declared(running: Engine, **arguments: Any) -> int:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return (await running.broker.declare_queue("q", durable=True, arguments=given)).message_count


@pytest.mark.parametrize("crash", [False, True])
async def test_priorities_come_and_go_with_messages_waiting(crash: bool) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await declared(running)
        broker = running.broker
        client = running.client()
        publish(client, 0, 3)
        running.turn()
        await broker.alter_queue("q", {"x-max-priority": 5, "x-queue-type": "quorum"})
        publish(client, 9, 1, 0, 9, first=2)
        running.turn()
        got = await client.session.get("q", no_ack=False)
        assert got is not None
        assert body_of(got) == "2:9"
        await broker.alter_queue("q", {"x-max-priority": None})
        client.requeue(got.delivery_id)
        await broker.alter_queue("q", {"x-max-priority": 2})
        assert await declared(running) == await declared(running, x_max_priority=2, x_queue_type="quorum") == 6
        assert await declared(running, x_max_priority=5, x_queue_type="quorum") == 6
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-max-priority'"):
            await declared(running, x_max_priority=7)
        await running.synced()
        if crash:
            files = killed(files)
    async with engine(files) as running:
        assert await declared(running) == await declared(running, x_max_priority=2, x_queue_type="quorum") == 6
        assert await bodies_in(running) == ["2:9", "5:9", "3:1", "0:0", "1:3", "4:0"]


@pytest.mark.parametrize("first", [{}, {"x-queue-type": "classic"}])
async def test_what_was_the_same_before_still_is(first: dict[str, str]) -> None:
    """Programs that declared the queue in another way than the first one did, and might."""
    ways: list[dict[str, str]] = [{}, {"x-queue-type": "classic"}, {"x-queue-leader-locator": "client-local"}]
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.declare_queue("q", durable=True, arguments=first)
        for way in ways:
            await broker.declare_queue("q", durable=True, arguments=way)
        await broker.alter_queue("q", {"x-queue-type": "quorum"})
        for way in (*ways, {"x-queue-type": "quorum"}):
            await broker.declare_queue("q", durable=True, arguments=way)
        with pytest.raises(PreconditionFailed, match="'x-queue-leader-locator'"):
            await broker.declare_queue("q", durable=True, arguments={"x-queue-type": "quorum", **ways[2]})


async def test_consumers_stay_and_messages_live_by_the_new_rules() -> None:
    async with engine(MemoryFiles()) as running:
        await declared(running, x_max_priority=5)
        client, worker = running.client(), running.client()
        worker.session.set_prefetch(1, per_session=False)
        await worker.consume("q")
        publish(client, 1, 2, 3, 2)
        assert worker.take_bodies() == ["0:1"]
        await running.broker.alter_queue("q", {"x-max-priority": None, "x-max-length": 2})
        running.turn()
        worker.ack(1)
        assert worker.take_bodies() == ["2:3"]
        worker.ack(2)
        assert worker.take_bodies() == ["3:2"]


async def test_transient_queues_as_well() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", durable=False)
        client = running.client()
        publish(client, 0, 1)
        await running.broker.alter_queue("q", {"x-max-priority": 1})
        publish(client, 0, 1, first=2)
        running.turn()
        assert await bodies_in(running) == ["3:1", "0:0", "1:1", "2:0"]


async def test_what_cannot_be() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await declared(running)
        await broker.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        with pytest.raises(NotFound):
            await broker.alter_queue("none", {})
        with pytest.raises(InvalidArgument, match="x-max-priority"):
            await broker.alter_queue("q", {"x-max-priority": 300})
        for name, kind in (("q", "stream"), ("s", "classic")):
            with pytest.raises(NotImplementedYet):
                await broker.alter_queue(name, {"x-queue-type": kind})
        assert await declared(running) == 0
