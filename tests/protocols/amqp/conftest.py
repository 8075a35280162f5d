"""AMQP clients in memory: adapters on a real engine, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from core_log.memory_files import FaultyFiles, MemoryFiles
from protocols.amqp import methods
from protocols.amqp.adapter import AmqpAdapter
from protocols.amqp.config import AmqpConfig
from protocols.amqp.connection import PROTOCOL_HEADER
from protocols.amqp.methods import Method
from routing.broker import Broker, open_broker
from tests.protocols.amqp.wire import CAPABILITIES, OPEN, call, contents
from tests.support.memory_shell import MemoryClient, MemoryOutbox, MemoryWorld


class Client(MemoryClient):
    """One connection; `take` is what it was sent since the last time."""

    def __init__(self, world: World, config: AmqpConfig, **options: Any) -> None:
        self.world = world
        self.outbox = MemoryOutbox()
        options.setdefault("authenticate", lambda user, password, peer: (user, password) == ("guest", b"guest"))
        self.adapter = AmqpAdapter(
            world.broker, self.outbox, peer="127.0.0.1:5000", clock=lambda: world.now_s, config=config, **options
        )

    async def send(self, *data: bytes) -> None:
        """One read of the shell, and the end of its turn."""
        await self.adapter.handle(b"".join(data))
        self.world.broker.end_turn()

    async def calls(self, *calls: Method, channel: int = 1) -> list[Method]:
        """Send methods; the methods sent back."""
        await self.send(call(channel, *calls))
        return self.methods()

    def take(self) -> list[tuple[int, Any, bytes, bytes]]:
        """(channel, method, property bytes, body)."""
        return contents(self.take_bytes())

    def methods(self) -> list[Method]:
        return [method for _, method, _, _ in self.take()]

    def bodies(self) -> list[bytes]:
        return [body for _, method, _, body in self.take() if isinstance(method, methods.BasicDeliver)]

    async def expect(self, *expected: Method) -> None:
        """Wait until exactly these methods were sent, through turns that others end."""
        got: list[Method] = []
        with trio.fail_after(5):
            while True:
                got += self.methods()
                if len(got) >= len(expected):
                    break
                await self.world.next_turn()
        assert got == list(expected)

    async def log_in(
        self,
        *,
        capabilities: dict[str, Any] = CAPABILITIES,
        response: bytes = b"\0guest\0guest",
        heartbeat_s: int = 60,
        frame_bytes_max: int = 131072,
        channels: int = 1,
    ) -> None:
        """The handshake, and some channels."""
        start_ok = methods.ConnectionStartOk({"capabilities": capabilities}, "PLAIN", response, "en_US")
        await self.send(PROTOCOL_HEADER)
        await self.send(call(0, start_ok))
        await self.send(call(0, methods.ConnectionTuneOk(2047, frame_bytes_max, heartbeat_s), OPEN))
        for channel in range(1, channels + 1):
            await self.send(call(channel, methods.ChannelOpen()))


class World(MemoryWorld):
    """An engine in memory and a clock."""

    def __init__(self, broker: Broker, files: FaultyFiles) -> None:
        super().__init__(broker)
        self.files = files

    def connect(self, config: AmqpConfig | None = None, **options: Any) -> Client:
        """A transport on which nothing was said."""
        return Client(self, config or AmqpConfig(), **options)

    async def client(self, config: AmqpConfig | None = None, **options: Any) -> Client:
        """Logged in, with channel 1 open and nothing left to read."""
        client = self.connect(config)
        await client.log_in(**options)
        client.take()
        return client


@pytest.fixture
async def world() -> AsyncIterator[World]:
    files = FaultyFiles(MemoryFiles())
    async with open_broker(files) as broker:
        yield World(broker, files)
        files.failing.clear()
