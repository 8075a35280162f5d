"""MQTT clients in memory: adapters on a real engine, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.memory_files import MemoryFiles
from protocols.mqtt.adapter import MqttAdapter
from protocols.mqtt.config import MqttConfig
from routing.broker import open_broker
from tests.protocols.mqtt.wire import connect, deliveries, puback, subscribe
from tests.support.memory_shell import MemoryClient, MemoryOutbox, MemoryWorld

CONNACK = b"\x20\x02\0\0"


class Client(MemoryClient):
    """One connection; `take` is what it was sent since the last time."""

    def __init__(self, world: World, peer: str, config: MqttConfig, **options: Any) -> None:
        self.world = world
        self.outbox = MemoryOutbox()
        self.adapter = MqttAdapter(
            world.broker, self.outbox, peer=peer, clock=lambda: world.now_s, config=config, **options
        )

    async def send(self, *data: bytes) -> None:
        """One read of the shell, and the end of its turn."""
        await self.adapter.handle(b"".join(data))
        self.world.broker.end_turn()
        self.adapter.next_timer_at()

    def take(self) -> bytes:
        return self.take_bytes()

    def take_deliveries(self) -> list[tuple[str, int, int | None, bytes]]:
        return deliveries(self.take())

    async def subscribe(self, *requests: tuple[str, int]) -> bytes:
        """The return codes."""
        await self.send(subscribe(1, *requests))
        answer = self.take()
        assert answer[:1] == b"\x90"
        assert answer[2:4] == b"\0\1"
        return answer[4:]

    async def acknowledge(self, *packet_ids: int) -> None:
        await self.send(puback(*packet_ids))

    async def expect(self, data: bytes) -> None:
        """Wait until exactly `data` was sent, through turns that others end."""
        got = b""
        with trio.fail_after(5):
            while True:
                got += self.take()
                if len(got) >= len(data):
                    break
                await self.world.next_turn()
        assert got == data


class World(MemoryWorld):
    """An engine in memory and a clock."""

    def open(self, *, peer: str = "127.0.0.1:5000", config: MqttConfig | None = None, **options: Any) -> Client:
        """A transport without a CONNECT yet."""
        return Client(self, peer, config or MqttConfig(), **options)

    async def client(self, client_id: str = "", *, config: MqttConfig | None = None, **fields: Any) -> Client:
        """A connected client."""
        client = self.open(config=config)
        await client.send(connect(client_id, **fields))
        assert client.take() == CONNACK
        return client


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_broker(MemoryFiles(), users={"guest": "guest", "me": "right"}) as broker:
        yield World(broker)


async def later(clock: MockClock, seconds: float) -> None:
    """Time passes, in which what has become due goes its way."""
    clock.jump(seconds - 0.02)
    for _ in range(20):
        clock.jump(0.001)
        await wait_all_tasks_blocked(0.001)
