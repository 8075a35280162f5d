"""Clients that are used outside of their block, or by tasks that go on when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from millrace import Client, ConnectionLost, Consumer, Producer
from tests.protocols.native.broker import native_broker

TIMEOUT_S = 5

Calls = list[Callable[[], Awaitable[Any]]]


def calls_of(client: Client, producer: Producer, consumer: Consumer) -> Calls:
    return [
        client.list_topics,
        lambda: client.create_topic("u"),
        lambda: producer.send("unknown", b""),
        consumer.fetch,
        consumer.__anext__,
        lambda: consumer.assign("t"),
        lambda: consumer.commit({("t", 0): 1}),
    ]


async def test_who_waits_beside_the_block_is_told_when_it_ends() -> None:
    told: list[str] = []

    async def wait(consumer: Consumer) -> None:
        with pytest.raises(ConnectionLost) as raised:
            await consumer.fetch()
        told.append(str(raised.value))

    async with native_broker() as running:
        await running.broker.create_topic("t")
        with trio.fail_after(TIMEOUT_S):
            async with trio.open_nursery() as beside, Consumer(running.server) as consumer:
                await consumer.assign("t")
                beside.start_soon(wait, consumer)
                await trio.testing.wait_all_tasks_blocked()
    assert told == ["the client was closed"]


async def test_calls_behind_the_block_say_so_at_once() -> None:
    async with native_broker() as running:
        await running.broker.create_topic("t")
        client, producer, consumer = Client(running.server), Producer(running.server), Consumer(running.server, "g")
        async with client, producer, consumer:
            await consumer.assign("t")
        for call in calls_of(client, producer, consumer):
            with trio.fail_after(TIMEOUT_S), pytest.raises(ConnectionLost, match="the client was closed"):
                await call()
        async with client:
            assert await client.list_topics() == {"t": 1}


async def test_calls_before_the_block_say_so_at_once() -> None:
    for call in calls_of(Client("localhost:1"), Producer("localhost:1"), Consumer("localhost:1", "g")):
        with trio.fail_after(TIMEOUT_S), pytest.raises(ConnectionLost, match="not open"):
            await call()


def test_calls_before_the_block_say_so_at_once_in_asyncio() -> None:
    async def main() -> None:
        for call in calls_of(Client("localhost:1"), Producer("localhost:1"), Consumer("localhost:1", "g")):
            with pytest.raises(RuntimeError, match="not open"):
                await call()

    asyncio.run(main())
