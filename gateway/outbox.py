"""What is still to be sent: an outbox for each connection, flushed once a turn.

1. Writing never waits and never sends: it makes the outbox *dirty*. At the end of the turn every dirty outbox is sent
   with one non-blocking call, small pieces joined into one buffer; those of `LARGE_BYTES` and more are not copied.
2. Only when the kernel takes no more does a task wait for the socket, one for that outbox; it ends when all is sent.
3. Above `outbox_bytes_high` the outbox is not `writable`; it is again, and says so, when less than half of that is
   left. What that makes possible happens in a turn of its own, so that one fast reader does not hold up all others.
4. A peer is given up only when more than `outbox_bytes_max` wait for it *and* the kernel took nothing for
   `outbox_stalled_ms`. A broken outbox swallows what is written.
5. With TLS what is about to be sent is encrypted as a whole, and sent with one call all the same; in a WebSocket
   each packet is a frame.
6. Without either a piece may be a range of a file (`sendfile`), which has calls of its own; after a mebibyte of them
   others have a turn.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import trio

from core_log.file_range import FileRange
from gateway.config import Limits
from gateway.sockets import do_not_pace
from gateway.tls import TlsLayer
from protocols.buffers import LARGE_BYTES, Piece, join_small

if TYPE_CHECKING:
    from gateway.websocket import ControlFrame, WebSocket

_SEND_BYTES = 1 << 20
"""At once: 0.1 to 0.4 ms. Then others have a turn, though a peer that reads meanwhile makes room for ever more."""
_SEND_BUFFERS = 1024  # IOV_MAX of Linux

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


class Owner(Protocol):
    """The connection an outbox belongs to."""

    def flushed(self) -> None:
        """The turn is over and what could be sent was sent."""

    def failed(self, error: Exception) -> None:
        """The adapter's `on_writable` raised."""

    def give_up(self, reason: str) -> None:
        """The peer does not read."""


class _Nobody:
    def flushed(self) -> None:
        pass

    def failed(self, error: Exception) -> None:
        pass

    def give_up(self, reason: str) -> None:
        pass


_NOBODY = _Nobody()


class Outboxes:
    """The outboxes of a process. `spawn` starts the tasks that wait for full sockets."""

    def __init__(self, limits: Limits, spawn: Spawn) -> None:
        self.limits = limits
        self.spawn = spawn
        self.dirty: list[SocketOutbox] = []
        self._turn_wanted = trio.Event()

    def flush(self) -> None:
        """Send what the turn that ends now has written."""
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for outbox in dirty:
                if outbox.dirty:  # it may have been flushed out of turn
                    outbox.flush()

    def want_turn(self) -> None:
        """Have a turn soon, after the tasks that are ready have run."""
        self._turn_wanted.set()

    async def run(self, end_turn: Callable[[], None]) -> None:
        """The task that ends the turns asked for by `want_turn`."""
        while True:
            await self._turn_wanted.wait()
            self._turn_wanted = trio.Event()
            end_turn()


class SocketOutbox:
    """Implements `protocols.sansio.Outbox` on a non-blocking socket; see the module's rules."""

    __slots__ = (
        "_backlog", "_dialled", "_drained", "_group", "_large", "_owner", "_pieces", "_plain", "_sent_files",
        "_socket", "_tls", "_web", "broken", "dirty", "full_at", "moved", "on_writable", "pending_bytes", "sends_files",
        "writable", "written_bytes",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        group: Outboxes,
        owner: Owner,
        tls: TlsLayer | None = None,
        web: WebSocket | None = None,
        dialled: tuple[str, int] | None = None,
    ) -> None:
        self.pending_bytes = self.written_bytes = 0
        self.writable = True
        self.on_writable: Callable[[], None] | None = None
        self._socket = sock
        self._tls = tls
        self._web = web
        self._dialled = dialled
        self._plain = tls is None and web is None
        self.sends_files = self._plain and hasattr(os, "sendfile")
        self._group = group
        self._owner = owner
        self._pieces: list[Piece] = []
        self._backlog: deque[Piece] | None = None  # there while a task waits for the socket
        self._large = False
        self.dirty = False
        self.moved = False
        """The peer took some of what waits, since whoever looks has set it to False."""
        self.broken = False
        """Nothing can be sent any more."""
        self.full_at: int | None = None
        """`written_bytes` at the end of the turn in which there was no room left for deliveries; None: there is."""
        self._sent_files = False
        self._drained: trio.Event | None = None

    @property
    def local_address(self) -> tuple[str, int]:
        """Where the peer has found this process, or a proxy in front of it."""
        if self._dialled is not None:
            return self._dialled
        host, port = self._socket.getsockname()[:2]
        return host, port

    def write(self, data: Piece) -> None:
        """Append `data`, which must not change afterwards. Nothing at all (b"") makes the shell look at the adapter.
        Ranges of files only if it `sends_files`.
        """
        if not self.dirty:
            self.dirty = True
            self._group.dirty.append(self)
        size = len(data)
        if size and not self.broken:
            self._pieces.append(data)
            self.pending_bytes += size
            self.written_bytes += size
            if size >= LARGE_BYTES:  # as ranges of files are
                self._large = True
            if self.pending_bytes > self._group.limits.outbox_bytes_high:
                self.writable = False

    def send_control(self, frames: Sequence[ControlFrame]) -> None:
        """Send what a WebSocket has to say for itself, behind all that was written."""
        for frame in frames:
            self.write(frame)
        self.flush()

    def send_records(self, records: bytes) -> None:
        """Send what TLS has to say for itself, behind all that is encrypted."""
        if self.broken:
            return
        self.pending_bytes += len(records)
        if self._backlog is not None:
            self._backlog.append(records)
        else:
            self._send_first([records])

    def flush(self) -> None:
        """End of the turn: one send, unless a task is waiting for the socket already."""
        self.dirty = False
        if not self.writable and self.full_at is None:
            self.full_at = self.written_bytes
        if self._pieces and self._backlog is None:
            if len(self._pieces) == 1 and self._plain:
                buffers, self._pieces, self._large = self._pieces, [], False
            else:
                buffers = self._take_pieces()
            if not self.broken:
                self._send_first(buffers)
        self._owner.flushed()

    def _send_first(self, buffers: list[Piece]) -> None:
        """Send what nothing waits before; a task waits for the socket with what is left."""
        if not self._send(buffers):
            if self.broken:
                return
            self._backlog = deque(buffers)
            self._group.spawn(self._drain)
        self._progressed()

    async def drained(self) -> None:
        """Wait until no more than half of the high mark is left, the outbox is broken, or `wake_waiting`."""
        if self.pending_bytes > self._low_bytes and not self.broken:
            await self.woken()

    async def emptied(self) -> None:
        """Wait until everything was taken by the kernel, or the outbox is broken."""
        while self.pending_bytes and not self.broken:
            await self.woken()

    async def woken(self) -> None:
        """Wait until `wake_waiting`, whatever for."""
        if self._drained is None:
            self._drained = trio.Event()
        await self._drained.wait()

    def discard(self) -> None:
        """Nothing can be sent any more: drop what is there and what comes."""
        self.broken = True
        self._pieces.clear()
        if self._backlog is not None:
            self._backlog.clear()
        self.pending_bytes = 0
        self.wake_waiting()

    def let_go(self) -> None:
        """The owner is over, and told nothing any more: the two do not keep each other."""
        self._owner = _NOBODY

    def wake_waiting(self) -> None:
        """Make those who wait here look again."""
        if self._drained is not None:
            self._drained.set()
            self._drained = None

    @property
    def _low_bytes(self) -> int:
        return self._group.limits.outbox_bytes_high // 2

    def _take_pieces(self) -> list[Piece]:
        """The pieces as few buffers."""
        if self._web is not None:
            self._frame(self._web)
        pieces: list[Any] = self._pieces
        if self._tls is not None:
            buffers: list[Piece] = self._encrypted(self._tls)
        elif self._large:
            buffers = join_small(pieces)
        else:
            buffers = [b"".join(pieces)]
        pieces.clear()
        self._large = False
        return buffers

    def _frame(self, web: WebSocket) -> None:
        size = sum(map(len, self._pieces))
        pieces: list[Any] = self._pieces
        self._pieces = [*web.frame(pieces)]
        self.pending_bytes += sum(map(len, self._pieces)) - size

    def _encrypted(self, tls: TlsLayer) -> list[Piece]:
        """The pieces as one buffer of records; none when TLS has failed, and with it the outbox."""
        pieces: list[Any] = self._pieces
        try:
            records = tls.encrypt(pieces)
        except ssl.SSLError:
            self.discard()
            return []
        self.pending_bytes += len(records) - sum(map(len, self._pieces))
        return [records]

    def _send(self, buffers: list[Piece]) -> bool:
        """Send as much as the kernel takes; what is left stays in `buffers`. True when nothing is left."""
        some: list[Any] = buffers
        try:
            if len(some) == 1 and type(some[0]) is not FileRange:
                sent = self._socket.send(some[0])
            elif FileRange in map(type, some):
                if not self._sent_files:
                    self._sent_files = True
                    do_not_pace(self._socket)
                sent = send_with_files(self._socket, some)
            else:
                sent = self._socket.sendmsg(some[:_SEND_BUFFERS])
        except BlockingIOError:
            return False
        except OSError:
            # The reader finds out by itself why.
            self.discard()
            return False
        self.pending_bytes -= sent
        if self.pending_bytes:
            remove_sent(buffers, sent)
            return not buffers
        buffers.clear()
        return True

    async def _drain(self) -> None:
        """Wait for the socket until all is sent, or that has become pointless."""
        limits = self._group.limits
        while not self.broken:
            with trio.CancelScope() as stalled:
                await self._send_backlog(stalled, limits.outbox_stalled_ms / 1000)
                break
            if self.pending_bytes > limits.outbox_bytes_max:
                pending_bytes = self.pending_bytes
                self.discard()
                self._owner.give_up(
                    f"took nothing for {limits.outbox_stalled_ms} ms with {pending_bytes} bytes waiting"
                )
        self._backlog = None

    async def _send_backlog(self, stalled: trio.CancelScope, patience_s: float) -> None:
        """The same, until the kernel takes nothing for so long. One scope for all of it: a new one for each wait costs
        more than the wait.
        """
        backlog = self._backlog
        assert backlog is not None
        while not self.broken:
            stalled.deadline = trio.current_time() + patience_s
            try:
                await trio.lowlevel.wait_writable(self._socket)
            except trio.ClosedResourceError:
                continue  # the connection wakes its tasks this way, see Connection._wake_reader
            if self._pieces:
                backlog.extend(self._take_pieces())
            while backlog:
                buffers = next_buffers(backlog)
                before = self.pending_bytes
                complete = self._send(buffers)
                backlog.extendleft(reversed(buffers))
                if self.pending_bytes < before:
                    self.moved = True
                    self._progressed()
                if not complete:
                    break
            if not backlog and not self._pieces:
                return

    def _progressed(self) -> None:
        """Tell those who wait for room, if there is some."""
        if self._drained is not None and self.pending_bytes <= self._low_bytes:
            self.wake_waiting()
        if not self.writable and self.pending_bytes <= self._low_bytes:
            self.writable, self.full_at = True, None
            if self.on_writable is not None:
                try:
                    self.on_writable()
                except Exception as error:
                    self._owner.failed(error)
            self._group.want_turn()


def _in_memory(piece: Piece) -> bool:
    return type(piece) is not FileRange


def send_with_files(sock: socket.socket, buffers: Sequence[Any]) -> int:
    """Send buffers and ranges of files, of these no more than others can wait for; how many bytes the kernel took.
    Raises BlockingIOError if none, OSError.
    """
    total = at = 0
    room = _SEND_BYTES
    try:
        while at < len(buffers) and room:
            first = buffers[at]
            if type(first) is FileRange:
                wanted = len(first)
                sent = os.sendfile(sock.fileno(), first.descriptor, first.position, min(wanted, room))
                if not sent:
                    raise OSError(errno.EIO, "the file was cut")
                at += 1
                room -= sent
            else:
                run = list(takewhile(_in_memory, buffers[at : at + _SEND_BUFFERS]))
                at += len(run)
                wanted = sum(map(len, run))
                sent = sock.sendmsg(run, (), socket.MSG_MORE if at < len(buffers) else 0)
            total += sent
            if sent < wanted:
                break
    except BlockingIOError:
        if not total:
            raise
    except OSError:
        with suppress(OSError):  # if it is the file's, the reader would not find out by itself
            sock.shutdown(socket.SHUT_RDWR)
        raise
    return total


def next_buffers(backlog: deque[Piece]) -> list[Piece]:
    """Take what one call may send off the front of `backlog`."""
    buffers = [backlog.popleft()]
    size = len(buffers[0])
    while backlog and size < _SEND_BYTES and len(buffers) < _SEND_BUFFERS:
        buffers.append(backlog.popleft())
        size += len(buffers[-1])
    return buffers


def remove_sent(buffers: list[Piece], sent: int) -> None:
    """Drop the first `sent` bytes of `buffers`, in place; the rest of a buffer becomes a view."""
    done = 0
    while done < len(buffers) and sent >= len(buffers[done]):
        sent -= len(buffers[done])
        done += 1
    del buffers[:done]
    if sent:
        first = buffers[0]
        buffers[0] = first.after(sent) if isinstance(first, FileRange) else memoryview(first)[sent:]
