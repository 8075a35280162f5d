"""What an operator asks of queues, and what of that streams can do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.files import MemoryFiles
from routing.administration import administer
from routing.errors import InvalidArgument, NotFound, NotImplementedYet, PreconditionFailed
from tests.routing.harness import Client, Engine, engine, passing

STREAM = {"x-queue-type": "stream"}


async def ask(running: Engine, operation: str, **arguments: Any) -> Any:
    return await administer(running.broker, "guest", operation, arguments)


async def test_names_that_no_amqp_client_could_be_told_are_refused() -> None:
    async with engine(MemoryFiles()) as running:
        for operation in ("queues.add", "exchanges.add"):
            await ask(running, operation, name="n" * 255)
            with pytest.raises(InvalidArgument, match="has at most 255 bytes"):
                await ask(running, operation, name="ü" * 128)


async def test_a_stream_is_bound_like_a_queue() -> None:
    async with engine(MemoryFiles()) as running:
        bound = {"name": "log", "exchange": "amq.fanout"}
        for operation in ("queues.bind", "queues.unbind"):
            with pytest.raises(NotFound, match=r"^no queue 'log' in vhost '/'$"):
                await ask(running, operation, **bound)
        await ask(running, "queues.add", name="log", arguments=STREAM)
        await ask(running, "queues.bind", **bound)
        assert [row[2] for row in (await ask(running, "bindings.list"))["rows"]] == ["log"]
        await ask(running, "queues.unbind", **bound)
        assert (await ask(running, "bindings.list"))["rows"] == []


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("queues.purge", {"name": "log"}),
        ("queues.alter", {"name": "log", "arguments": {}}),
        ("queues.rewind", {"name": "log", "since_ms": 0}),
        ("queues.move", {"source": "log", "destination": "queue"}),
        ("queues.move", {"source": "queue", "destination": "log"}),
        ("delayed.list", {"queue": "log"}),
        ("delayed.cancel", {"queue": "log", "id": 1}),
    ],
)
async def test_what_no_stream_can_do_is_called_by_its_name(operation: str, arguments: dict[str, Any]) -> None:
    async with engine(MemoryFiles()) as running:
        await ask(running, "queues.add", name="log", arguments=STREAM)
        await ask(running, "queues.add", name="queue")
        text = f"^{operation} not supported by stream queues queue 'log' in vhost '/'$"
        with pytest.raises(NotImplementedYet, match=text):
            await ask(running, operation, **arguments)


async def test_a_queue_does_not_become_a_stream() -> None:
    async with engine(MemoryFiles()) as running:
        await ask(running, "queues.add", name="queue")
        with pytest.raises(NotImplementedYet, match=r"^queue 'queue' in vhost '/' cannot become a stream$"):
            await ask(running, "queues.alter", name="queue", arguments=STREAM)


SINGLE_ACTIVE = {"x-single-active-consumer": True}
BY_ROUTING_KEY = {"x-group-by": "routing-key"}


@asynccontextmanager
async def held_queue(arguments: dict[str, Any], count: int) -> AsyncIterator[tuple[Engine, Client]]:
    """A queue `q` with so many messages, of which a consumer has got the first, and a queue `d`."""
    async with engine(MemoryFiles()) as running:
        await ask(running, "queues.add", name="q", arguments=arguments)
        await ask(running, "queues.add", name="d")
        client = running.client()
        await client.publish_safely("q", *range(count))
        await client.consume("q", prefetch=1)
        running.turn()
        await running.until(lambda: len(client.deliveries) == 1)
        yield running, client


async def test_messages_are_moved_from_a_queue_with_a_single_active_consumer_once_that_holds_nothing() -> None:
    async with held_queue(SINGLE_ACTIVE, 5) as (running, client):
        done: list[dict[str, int]] = []

        async def move() -> None:
            done.append(await ask(running, "queues.move", source="q", destination="d", limit=3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            await running.until(lambda: len(running.broker.topology.queues["q"].consumers) == 2)
            client.ack(1)
            running.turn()
        assert done == [{"moved": 3, "left": 0}]
        await running.until(lambda: len(client.deliveries) == 2)
        assert [one.body for one in client.deliveries] == ["0", "4"]


@pytest.mark.parametrize("arguments", [SINGLE_ACTIVE, BY_ROUTING_KEY])
async def test_who_cannot_move_anything_is_told_that_consumers_hold_messages(
    arguments: dict[str, Any], clock: MockClock
) -> None:
    async with held_queue(arguments, 5) as (running, client):
        refused: list[PreconditionFailed] = []

        async def move() -> None:
            with pytest.raises(PreconditionFailed, match="could be moved: its consumers hold") as told:
                await ask(running, "queues.move", source="q", destination="d")
            refused.append(told.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            await running.until(lambda: len(running.broker.topology.queues["q"].consumers) == 2)
            await passing(clock, 19)
            assert not refused
            await passing(clock, 1.1)
        client.ack(1)
        running.turn()
        await running.until(lambda: len(client.deliveries) == 2)


async def test_a_move_ends_when_others_have_had_what_still_waited(clock: MockClock) -> None:
    async with held_queue(BY_ROUTING_KEY, 2) as (running, _), trio.open_nursery() as nursery:
        nursery.start_soon(partial(ask, running, "queues.move", source="q", destination="d"))
        await running.until(lambda: len(running.broker.topology.queues["q"].consumers) == 2)
        running.broker.topology.queues["q"].purge()
        await passing(clock, 1)
