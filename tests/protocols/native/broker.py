"""A broker in this process, in memory, with nothing but the native door on a free loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import trio

from core_log.files import Files
from core_log.memory_files import MemoryFiles
from core_log.record_batch import BatchBuilder, iterate_records
from core_log.wall_clock import wall_clock_ms
from gateway.config import Limits
from gateway.connection import Shell
from gateway.listener import open_listener
from gateway.outbox import Outboxes
from protocols.native import wire
from protocols.native.adapter import NativeAdapter
from protocols.native.config import NativeConfig
from protocols.native.connection import FrameReader
from protocols.peers import Authenticate
from protocols.sansio import Outbox
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig

NOW_MS = wall_clock_ms()
"""What is older than retention allows would be gone with the first look at it."""
USERS = {"guest": "guest", "u": "p"}


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
    """Run a broker until the block ends. It does not look for records that are over: tests date theirs 1970."""
    limits = Limits()
    native = config or NativeConfig()
    listener = open_listener("native", "127.0.0.1", port)
    engine = msgspec.structs.replace(engine or BrokerConfig(stripes=1), housekeeping_interval_ms=3_600_000)
    async with open_broker(files or MemoryFiles(), engine, USERS) as broker, trio.open_nursery() as nursery:
        outboxes = Outboxes(limits, nursery.start_soon)
        broker.after_turn = outboxes.flush
        shell = Shell(limits, outboxes, broker.timers, broker.end_turn, broker.flusher)
        nursery.start_soon(outboxes.run, broker.end_turn)

        def make_adapter(outbox: Outbox, peer: str, certificate_name: str | None = None) -> NativeAdapter:
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
                    while shell.connections:
                        await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


class Restartable:
    """A broker that may be stopped and started again on the same files and port, while clients live on."""

    def __init__(self, nursery: trio.Nursery, files: Files) -> None:
        self._nursery = nursery
        self._files = files
        self._port = 0
        self._stop = trio.Event()
        self._stopped = trio.Event()

    def use(self, files: Files) -> None:
        """The next start finds these: what a crash has left."""
        self._files = files

    async def start(self) -> Running:
        """Start it; on the port it had before, if it ran before."""
        self._stop, self._stopped = trio.Event(), trio.Event()
        running: Running = await self._nursery.start(self._run)
        self._port = int(running.server.rpartition(":")[2])
        return running

    async def stop(self) -> None:
        """Stop it in order."""
        self._stop.set()
        await self._stopped.wait()

    async def _run(self, task_status: trio.TaskStatus[Running]) -> None:
        async with native_broker(self._files, port=self._port) as running:
            task_status.started(running)
            await self._stop.wait()
        self._stopped.set()


class Peer:
    """A client that says exactly what it is told to, and hears everything."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._frames = FrameReader(1 << 30)
        self._heard: list[wire.AnyReply] = []
        self._id = 100

    async def say(self, request: wire.Request) -> int:
        """Send a request with a new correlation id, which is returned."""
        self._id += 1
        request.correlation_id = self._id
        await self.stream.send_all(b"".join(wire.encode(request)))
        return self._id

    async def hear(self) -> wire.AnyReply:
        """The next reply. Raises EOFError."""
        while not self._heard:
            try:
                data = await self.stream.receive_some(1 << 18)
            except trio.BrokenResourceError:
                data = b""
            if not data:
                raise EOFError
            self._heard += [wire.decode_reply(frame) for frame in self._frames.feed(data)]
        return self._heard.pop(0)

    async def ask(self, request: wire.Request) -> wire.AnyReply:
        """Send a request and hear the next reply, which must be to it."""
        correlation_id = await self.say(request)
        reply = await self.hear()
        assert reply.correlation_id == correlation_id
        return reply

    async def ended(self) -> bool:
        """Wait for the end of the connection; whether nothing was said before."""
        try:
            await self.hear()
        except EOFError:
            return True
        return False


@asynccontextmanager
async def connected(running: Running, *, hello: bool = True) -> AsyncIterator[Peer]:
    """A `Peer` of the broker, greeted or not."""
    host, _, port = running.server.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        peer = Peer(stream)
        if hello:
            assert isinstance(await peer.ask(wire.Hello(0, 1, 1, "test", None)), wire.HelloReply)
        yield peer


def batch_of(*values: bytes, timestamp_ms: int = NOW_MS, control: bool = False) -> bytes:
    """A record batch."""
    builder = BatchBuilder(0, -1, timestamp_ms, control=control)
    builder.add_run(0, None, values)
    return builder.build()


def values_of(records: Sequence[bytes] | bytes | memoryview) -> list[bytes | None]:
    """The values of whole batches, back to back."""
    data = bytes(records) if isinstance(records, bytes | memoryview) else b"".join(records)
    values = []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        values += [record.value for record in iterate_records(data[:size])]
        data = data[size:]
    return values
