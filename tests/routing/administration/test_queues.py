"""What an operator asks of queues, and what of that streams can do."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.files import MemoryFiles
from routing.administration import administer
from routing.errors import InvalidArgument, NotFound, NotImplementedYet
from tests.routing.harness import Engine, engine

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
