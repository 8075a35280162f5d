"""Queues whose consumers get nothing for a while: everything else goes on, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from core_log.files import MemoryFiles
from tests.routing.harness import TRANSIENT, Engine, body_of, engine, killed, passing

PAUSED = {"x-paused": True}


async def pause(running: Engine, way: str, paused: bool) -> None:
    if way == "argument":
        await running.broker.alter_queue("q", {"x-paused": True if paused else None})
    elif paused:
        await running.broker.set_policy("hold", "^q$", {"paused": True})
    else:
        await running.broker.delete_policy("hold")
    running.turn()


@pytest.mark.parametrize(
    "arguments", [{}, {"x-max-priority": 3}, {"x-group-by": "routing-key"}, {"x-queue-type": "quorum"}]
)
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("way", ["argument", "policy"])
async def test_consumers_get_nothing_until_it_goes_on(way: str, durable: bool, arguments: dict[str, Any]) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", durable=durable, arguments=arguments)
        client, worker = running.client(), running.client()
        await worker.consume("q")
        client.publish("q", 0, 1)
        assert worker.take_bodies() == ["0", "1"]
        await pause(running, way, True)
        worker.requeue(2)
        client.publish("q", 2)
        client.publish("q", 3, properties=TRANSIENT)
        running.turn()
        assert worker.take_bodies() == []
        worker.ack(1)
        assert running.count("q") == 3
        got = await client.session.get("q", no_ack=True)
        assert got is not None
        assert body_of(got) == "1"
        await pause(running, way, False)
        assert worker.take_bodies() == ["2", "3"]


async def test_it_stays_so_over_a_crash_and_messages_expire_meanwhile(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q", arguments=PAUSED | {"x-message-ttl": 60_000})
        await running.client().publish_safely("q", 0, 1)
        files = killed(files)
    async with engine(files) as running:
        worker = running.client()
        await worker.consume("q")
        running.turn()
        assert worker.take_bodies() == []
        assert running.count("q") == 2
        await passing(clock, 61)
        assert running.count("q") == 0
