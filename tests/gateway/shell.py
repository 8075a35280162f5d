"""The shell without an engine: real sockets on one side, an adapter of the test's own on the other."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from delay.timer_service import TimerService
from gateway.config import Limits, WebSocketConfig
from gateway.connection import Shell
from gateway.listener import Listener, open_listener
from gateway.outbox import Outboxes
from gateway.proxy_header import Proxies
from gateway.tls import Certificates
from protocols.sansio import Outbox, Rest


class EchoAdapter:
    """Sends back what it gets. Tests change what they need."""

    def __init__(self, outbox: Outbox, peer: str) -> None:
        self.outbox = outbox
        self.peer = peer
        self.closed = False
        self.reads: list[bytes] = []
        self.lost = 0
        self.deadline_s = math.inf
        self.timer_calls: list[float] = []
        self.published = self.held = False
        self.left: Rest | None = None
        self.resumed = 0
        outbox.on_writable = self.on_writable

    def on_writable(self) -> None:
        self.resumed += 1

    async def handle(self, data: bytes) -> None:
        self.reads.append(data)
        if data:
            self.outbox.write(data)

    def next_timer_at(self) -> float:
        return self.deadline_s

    def handle_timer(self, now: float) -> None:
        self.timer_calls.append(now)
        self.deadline_s = math.inf

    def connection_lost(self) -> None:
        self.lost += 1

    def shut_down(self, reason: str) -> None:
        self.outbox.write(reason.encode())
        self.closed = True


class Room:
    """What waits for a disk, of which a test says how much it is."""

    def __init__(self) -> None:
        self.unflushed_bytes = 0
        self.appended_bytes = 0
        """By each turn."""
        self.free, self.free_for_little = trio.Event(), trio.Event()
        self.free.set()
        self.free_for_little.set()

    async def wait_for_room(self, *, little: bool = False) -> None:
        free = self.free_for_little if little else self.free
        if not free.is_set():  # else nobody is to have a turn between
            await free.wait()


class Door:
    """An open door with nothing but the shell behind it."""

    def __init__(self, listener: Listener, shell: Shell, room: Room) -> None:
        self.listener = listener
        self.port = listener.port
        self.shell = shell
        self.adapters: list[EchoAdapter] = []
        self.names: list[str | None] = []
        """What the certificate of each client calls it."""
        self.turns = 0
        self.room = room

    async def connect(self, *, receive_bytes: int | None = None) -> trio.SocketStream:
        """A client; with `receive_bytes` its kernel buffer is that small."""
        sock = trio.socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await sock.connect(("127.0.0.1", self.port))
        return trio.SocketStream(sock)

    async def adapter(self, index: int = -1, *, count: int = 1) -> EchoAdapter:
        """The adapter of a client that has just connected, once there are `count`."""
        await until(lambda: len(self.adapters) >= count)
        return self.adapters[index]


@asynccontextmanager
async def open_door(
    adapter_class: type[EchoAdapter] = EchoAdapter,
    limits: Limits | None = None,
    certificates: Certificates | None = None,
    proxies: Proxies | None = None,
    web: WebSocketConfig | None = None,
) -> AsyncIterator[Door]:
    """Serve `adapter_class` on a free port, with TLS if there are `certificates`, behind `proxies` if there are any, in
    a WebSocket if `web` says on what terms.
    """
    limits = limits or Limits(close_linger_ms=500)
    async with trio.open_nursery() as nursery:
        outboxes = Outboxes(limits, nursery.start_soon)

        def end_turn() -> None:
            door.turns += 1
            room.unflushed_bytes += room.appended_bytes
            outboxes.flush()

        def make(outbox: Outbox, peer: str, certificate_name: str | None = None) -> EchoAdapter:
            door.names.append(certificate_name)
            door.adapters.append(adapter_class(outbox, peer))
            return door.adapters[-1]

        timers, room = TimerService(), Room()
        timers.after_turn = end_turn
        shell = Shell(limits, outboxes, timers, end_turn, room)
        listener = open_listener("test", "127.0.0.1", 0, certificates, web, proxies)
        listener.listen()
        door = Door(listener, shell, room)
        nursery.start_soon(timers.run)
        nursery.start_soon(outboxes.run, end_turn)
        nursery.start_soon(listener.run, shell, make, nursery.start_soon)
        try:
            yield door
        finally:
            listener.close()
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object], timeout_s: float = 10) -> None:
    """Let the others run until `condition` holds."""
    with trio.fail_after(timeout_s):
        while not condition():
            await trio.lowlevel.checkpoint()


async def receive_exactly(stream: trio.abc.ReceiveStream, size: int, timeout_s: float = 10) -> bytes:
    """That many bytes. Raises EOFError when the peer closes before."""
    received = bytearray()
    with trio.fail_after(timeout_s):
        while len(received) < size:
            data = await stream.receive_some(size - len(received))
            if not data:
                raise EOFError(f"the connection ended after {len(received)} of {size} bytes")
            received += data
    return bytes(received)


async def receive_all(stream: trio.SocketStream, timeout_s: float = 10) -> bytes:
    """Everything up to the end of the stream."""
    received = bytearray()
    with trio.fail_after(timeout_s):
        while data := await stream.receive_some(65536):
            received += data
    return bytes(received)
