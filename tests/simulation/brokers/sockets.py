"""A network: sockets as the gateway uses them, plain and non-blocking, whose bytes arrive late, in order, or never.

1. What is sent in one direction of a connection arrives in order; two connections overtake each other.
2. Where a direction between two machines is cut, bytes wait, and arrive when it is healed: TCP sends them again. Who
   gives up before sees an end of its own making.
3. A process that is killed resets its connections; a machine without power says nothing.
4. A socket takes `WINDOW_BYTES` that the peer has not read.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import outcome
import trio

from core_log.files import BytesLike
from gateway.connection import Connection, MakeAdapter, Shell
from tests.simulation.brokers.virtual import CURRENT, Agenda

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Process

WINDOW_BYTES = 256 << 10
PORT = 9095


class SimSocket:
    """One end of a connection; as far as the gateway asks, a `socket.socket`."""

    other: SimSocket

    def __init__(self, network: Network, process: Process, peer: int) -> None:
        self.network, self.process, self.peer = network, process, peer
        self.number = next(network.numbers)
        self.closed = False
        self.failed: int | None = None
        """The errno that whoever uses it gets."""
        self.ended = False
        """The peer sends no more."""
        self.incoming = bytearray()
        self.unread_there = 0
        self.arrives_s = 0.0
        self.held: list[bytes | None] = []
        self.waiting: dict[str, Any] = {}
        process.sockets[self] = None

    # ---- what the gateway calls

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def getpeername(self) -> tuple[str, int]:
        return f"10.0.0.{self.peer}", PORT

    def _check(self) -> None:
        code = errno.EBADF if self.closed else self.failed
        if code is not None:
            raise OSError(code, os.strerror(code))

    def send(self, data: BytesLike) -> int:
        self._check()
        room = WINDOW_BYTES - self.unread_there
        if room <= 0:
            raise BlockingIOError
        piece = bytes(data[:room])
        self.unread_there += len(piece)
        self.network.carry(self, piece)
        return len(piece)

    def sendmsg(self, buffers: Sequence[BytesLike]) -> int:
        return self.send(b"".join(buffers))

    def recv(self, size: int) -> bytes:
        self._check()
        if self.incoming:
            data = bytes(self.incoming[:size])
            del self.incoming[:size]
            self.other.unread_there -= len(data)
            self.other.wake("write")
            return data
        if self.ended:
            return b""
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        self._check()
        self.network.carry(self, None)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.process.sockets.pop(self, None)
            self.network.carry(self, None)

    # ---- waiting

    def wake(self, what: str, error: BaseException | None = None) -> None:
        """Have whoever waits look again."""
        task = self.waiting.pop(what, None)
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Value(None) if error is None else outcome.Error(error))

    async def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Until it is ready, or closed."""
        if self.closed:
            raise trio.ClosedResourceError("it is closed")
        if ready() or self.failed is not None:
            await trio.lowlevel.checkpoint()
            return

        def abort(_: object) -> trio.lowlevel.Abort:
            self.waiting.pop(what, None)
            return trio.lowlevel.Abort.SUCCEEDED

        self.waiting[what] = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    # ---- what befalls it

    def fail(self, code: int = errno.ECONNRESET) -> None:
        """From now on it is broken."""
        if self.failed is None:
            self.failed = code
            self.incoming.clear()
            self.wake("read")
            self.wake("write")

    def arrive(self, piece: bytes | None) -> None:
        """Bytes, or the end of them, from the other side."""
        if self.closed or self.failed is not None:
            if piece is not None:
                self.network.agenda.after(0.0005, self.other.fail)
            return
        if piece is None:
            self.ended = True
        else:
            self.incoming += piece
        self.wake("read")


class Listener:
    """As far as `Peers` asks, a `gateway.listener.Listener`."""

    def __init__(self) -> None:
        self._backlog, self._accepted = trio.open_memory_channel[SimSocket](1000)
        self.listens = False

    def listen(self) -> None:
        self.listens = True

    def connect(self, sock: SimSocket) -> None:
        """A client is there."""
        self._backlog.send_nowait(sock)

    async def run(self, shell: Shell, make_adapter: MakeAdapter, spawn: Callable[..., Any]) -> None:
        async for sock in self._accepted:
            peer = f"10.0.0.{sock.peer}:{PORT}"
            connection = Connection(sock, peer, "peer", shell, make_adapter)  # type: ignore[arg-type]
            spawn(connection.run)

    def close(self) -> None:
        self.listens = False


class Network:
    """Between machines that are known by their numbers."""

    def __init__(self, agenda: Agenda, process_of: Callable[[int], Process | None]) -> None:
        self.numbers = itertools.count(3)
        self.agenda = agenda
        self.dice: random.Random = agenda.dice
        self.cut: dict[tuple[int, int], int] = {}
        """Directions that are cut, and how many faults keep them so."""
        self.sockets: list[SimSocket] = []
        self._process_of = process_of

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self.cut

    def _delay_s(self) -> float:
        dice = self.dice
        return dice.uniform(0.0002, 0.003) if dice.random() < 0.97 else dice.uniform(0.01, 0.15)

    def carry(self, source: SimSocket, piece: bytes | None) -> None:
        """Bytes from one end to the other."""
        target = source.other
        if source.process.is_powerless:
            return
        if self.is_cut(source.process.me, target.process.me):
            source.held.append(piece)
            return
        source.arrives_s = max(source.arrives_s, self.agenda.now_s + self._delay_s())
        self.agenda.at(source.arrives_s, lambda: target.arrive(piece))

    def reset(self, source: SimSocket) -> None:
        """One end's process is killed, and the kernel tells the other."""
        other = source.other
        if self.is_cut(source.process.me, other.process.me):
            return
        source.arrives_s = max(source.arrives_s, self.agenda.now_s + self._delay_s())
        self.agenda.at(source.arrives_s, other.fail)

    def break_links(self, one: int, other: int) -> None:
        """Connections between two machines end."""
        for sock in self.sockets:
            if {sock.process.me, sock.other.process.me} == {one, other}:
                sock.fail()

    def cut_off(self, pair: tuple[int, int]) -> None:
        self.cut[pair] = self.cut.get(pair, 0) + 1

    def heal(self, pair: tuple[int, int]) -> None:
        """What was held up comes late."""
        count = self.cut.pop(pair, 0)
        if count > 1:
            self.cut[pair] = count - 1
            return
        for sock in self.sockets:
            if (sock.process.me, sock.other.process.me) == pair:
                held, sock.held = sock.held, []
                for piece in held:
                    self.carry(sock, piece)

    async def connect(self, address: str) -> SimSocket:
        """In place of `gateway.peer_tls.connect`. Raises OSError."""
        dialer = CURRENT.get()
        assert dialer is not None
        target = int(address.rpartition(":")[0].rpartition(".")[2])
        await trio.sleep(self._delay_s() + self._delay_s())
        if self.is_cut(dialer.me, target) or self.is_cut(target, dialer.me):
            await trio.sleep_forever()
        there = self._process_of(target)
        if there is None or not there.listener.listens:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        mine, theirs = SimSocket(self, dialer, target), SimSocket(self, there, dialer.me)
        mine.other, theirs.other = theirs, mine
        self.sockets = [sock for sock in self.sockets if not (sock.closed and sock.other.closed)] + [mine, theirs]
        there.listener.connect(theirs)
        return mine


async def wait_readable(sock: SimSocket) -> None:
    """In place of trio's."""
    await sock.wait("read", lambda: bool(sock.incoming) or sock.ended)


async def wait_writable(sock: SimSocket) -> None:
    """In place of trio's."""
    await sock.wait("write", lambda: sock.unread_there < WINDOW_BYTES)


def notify_closing(sock: SimSocket) -> None:
    """In place of trio's."""
    for what in ("read", "write"):
        sock.wake(what, trio.ClosedResourceError("another task closed this"))
