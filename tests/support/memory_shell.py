"""What the shell does round an adapter, on a real engine, without sockets."""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocols.sansio import Adapter
from routing.broker import Broker


class MemoryOutbox:
    """Keeps what was written, as the pieces they were."""

    def __init__(self) -> None:
        self.pending_bytes = self.written_bytes = 0
        self.writable = True
        self.on_writable: Callable[[], None] | None = None
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """More of it."""
        if data:
            self.pieces.append(bytes(data))
            self.written_bytes += len(data)


class MemoryWorld:
    """An engine in memory and a clock."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.now_s = 1000.0
        self._turn = trio.Event()
        broker.after_turn = self._turn_ended

    def _turn_ended(self) -> None:
        self._turn.set()
        self._turn = trio.Event()

    async def next_turn(self) -> None:
        """Wait until somebody ends one."""
        await self._turn.wait()


class MemoryClient:
    """One connection; who derives from it has its adapter."""

    world: MemoryWorld
    outbox: MemoryOutbox
    adapter: Adapter

    @property
    def closed(self) -> bool:
        """The protocol is finished."""
        return self.adapter.closed

    def take_bytes(self) -> bytes:
        """What it was sent since the last time."""
        pieces, self.outbox.pieces = self.outbox.pieces, []
        return b"".join(pieces)

    def lose(self) -> None:
        """What the shell does when the transport is gone."""
        self.adapter.connection_lost()
        self.world.broker.end_turn()

    def tick(self, seconds: float) -> None:
        """Time passes; the shell calls when the adapter asked for it."""
        self.world.now_s += seconds
        if self.adapter.next_timer_at() <= self.world.now_s:
            self.adapter.handle_timer(self.world.now_s)
