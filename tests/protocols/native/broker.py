"""A broker in this process, in memory, with nothing but the native door on a free loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from core_log.files import Files
from core_log.memory_files import MemoryFiles
from gateway.authentication import Authenticate
from gateway.config import Limits
from gateway.connection import Shell
from gateway.listener import open_listener
from gateway.outbox import Outboxes
from protocols.native.adapter import NativeAdapter
from protocols.native.config import NativeConfig
from protocols.sansio import Outbox
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig


@dataclass
class Running:
    """What `native_broker` gives: the engine, and where to connect."""

    broker: Broker
    shell: Shell
    server: str

    def drop_connections(self) -> None:
        """Cut all clients off, as a network would."""
        for connection in list(self.shell.connections):
            connection.failed(ConnectionResetError("cut by the test"))


@asynccontextmanager
async def native_broker(
    files: Files | None = None,
    *,
    port: int = 0,
    engine: BrokerConfig | None = None,
    config: NativeConfig | None = None,
    authenticate: Authenticate | None = None,
) -> AsyncIterator[Running]:
    """Run a broker until the block ends."""
    limits = Limits()
    native = config or NativeConfig()
    listener = open_listener("native", "127.0.0.1", port)
    engine = engine or BrokerConfig(stripes=1)
    async with open_broker(files or MemoryFiles(), engine) as broker, trio.open_nursery() as nursery:
        outboxes = Outboxes(limits, nursery.start_soon)
        broker.after_turn = outboxes.flush
        shell = Shell(limits, outboxes, broker.timers, broker.end_turn, broker.flusher.wait_for_room)
        nursery.start_soon(outboxes.run, broker.end_turn)

        def make_adapter(outbox: Outbox, peer: str) -> NativeAdapter:
            return NativeAdapter(
                broker, outbox, peer=peer, clock=trio.current_time, config=native, authenticate=authenticate
            )

        listener.listen()
        nursery.start_soon(listener.run, shell, make_adapter, nursery.start_soon)
        try:
            yield Running(broker, shell, f"127.0.0.1:{listener.port}")
        finally:
            with trio.CancelScope(shield=True):
                listener.close()
                for connection in list(shell.connections):
                    connection.shut_down("the test is over")
                shell.end_turn()
                with trio.move_on_after(1):
                    await shell.all_gone()
            nursery.cancel_scope.cancel()
