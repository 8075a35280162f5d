"""The shell around a protocol: reads a socket when it is ready, hands the bytes to the adapter, and ends the turn.

    turn: read -> adapter.handle -> end_turn (deliver, write, confirm, send every dirty outbox) -> wait for room

1. The socket is plain and non-blocking, and `Readers` calls `turn` when there is something to read. `fair_reads` says
   how much is read, and who goes first.
   While the broker is short of disk or memory, whoever publishes is not read from until it is over, or until the peer
   has closed and would be overdue: else those who come and go take all the connections there may be.
2. Back-pressure comes after a read was handled, never within: the turn waits while too much waits for the disk, or
   too much for its own peer, and as much of answers to what he sends: deliveries have stopped by themselves, and there
   are clients that read nothing until all they publish is taken. Deliveries go on meanwhile. Who adds little to what
   waits for the disk, or nothing, may go on for longer: with one who floods a slow disk all others would stand still.
   It never depends on the length of queues: a reader stopped by long queues could not read the acks that shorten them.
3. Timers are armed lazily. Moving a deadline later costs nothing: a timer that fires too early looks and is set again.
   One that fires late, because this process stood still, lets the socket be read first: what the peer said in time may
   wait there. So it may where so many speak at once that their turns take longer than a deadline. One turn is waited
   for, no more: of a peer that sends faster than we read there is always something to read. Who is not read from as too
   much waits for him is not silent as long as he takes something of that, however slowly, or more comes from him.
4. Whatever an adapter raises unexpectedly ends its connection and is logged once; the others live on.
5. A connection ends in this order: what is written is sent, `connection_lost` (exactly once) gives everything back to
   the engine, then the peer gets `close_linger_ms` to take the last bytes and close. Of thousands that end at once
   `_ENDS_AT_ONCE` do so in a round of the event loop, and others have their turns in between.
6. With TLS a read is decrypted as a whole before the adapter gets it, and a WebSocket's frames are taken off it; the
   handshakes of both were done before (`gateway.tls`, `gateway.websocket`).
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from delay.timer_service import Timer, TimerService
from gateway.config import Limits
from gateway.fair_reads import FairReads, Neighbours
from gateway.outbox import Outboxes, SocketOutbox
from gateway.readers import Readers
from gateway.sockets import has_hung_up, see_off, send_all, unread_bytes
from gateway.tls import TlsLayer, TlsReader
from protocols.sansio import Adapter

if TYPE_CHECKING:
    from gateway.websocket import WebSocket
    from routing.queues.homes.cold_reads import ColdReads

log = structlog.get_logger(__name__)

_LATE_S = 0.25
_READ_FIRST_S = 0.1
_LOOK_AGAIN_S = 1.0
_ENDS_AT_ONCE = 16
"""Each takes a tenth of a millisecond or two, with what the engine is given back."""
_LITTLE_BYTES = 4096
"""Appended in a turn; see rule 2."""

MakeAdapter = Callable[[SocketOutbox, str, str | None], Adapter]
"""Makes the adapter of a new connection from its outbox, the address of the peer, and what its certificate calls it."""


class Room(Protocol):
    """Where what is appended waits for the disk; see `LogFlusher`."""

    unflushed_bytes: int

    async def wait_for_room(self, *, little: bool = False) -> None:
        """Return when there is room for more."""


class Shell:
    """What the connections of a process share. `end_turn` also flushes `outboxes`."""

    def __init__(
        self,
        limits: Limits,
        outboxes: Outboxes,
        timers: TimerService,
        end_turn: Callable[[], None],
        room: Room,
        readers: Readers | None = None,
        *,
        little_first: bool = True,
    ) -> None:
        self.limits = limits
        self.outboxes = outboxes
        self.timers = timers
        self.end_turn = end_turn
        self.room = room
        self.readers = readers or Readers(outboxes.spawn)
        self.neighbours = self.readers.neighbours if little_first else Neighbours()
        self.connections: set[Connection] = set()
        self.handshakes: set[trio.CancelScope] = set()
        """Clients that are no connections yet: TLS is being agreed on."""
        self.ends = trio.Semaphore(_ENDS_AT_ONCE)
        """For whoever ends."""
        self.little_first = little_first
        """Who needs little of the broker's time reads before the others."""
        self.blocked = False
        self.cold_reads: ColdReads | None = None
        """What publishers may have to leave time for."""
        self.wait_to_publish: Callable[[], Awaitable[None]] | None = None
        """What publishers have to wait for besides."""

    def publishers_blocked(self, reason: str | None) -> None:
        """The broker runs short of something (why), or has enough again (None)."""
        self.blocked = reason is not None
        if not self.blocked:
            for connection in self.connections:
                connection.go_on()


class Connection:
    """One client's connection; see the module's rules. `run` is its task."""

    __slots__ = (
        "_armed_at",
        "_drains",
        "_failed",
        "_had_turn",
        "_holds",
        "_in_turn",
        "_layered",
        "_over",
        "_peer_closed",
        "_put_off",
        "_reads",
        "_receive",
        "_shell",
        "_socket",
        "_timer",
        "_tls",
        "_unread_bytes",
        "_waited_for",
        "_web",
        "adapter",
        "door",
        "outbox",
        "peer",
    )

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        door: str,
        shell: Shell,
        make_adapter: MakeAdapter,
        *,
        tls: TlsLayer | None = None,
        certificate_name: str | None = None,
        web: WebSocket | None = None,
        dialled: tuple[str, int] | None = None,
    ) -> None:
        """`dialled`: where the client has found a proxy that passes it on."""
        self.peer = peer
        self.door = door
        self.outbox = SocketOutbox(sock, shell.outboxes, self, tls, web, dialled)
        self.adapter = make_adapter(self.outbox, peer, certificate_name)
        self._tls = tls
        self._web = web
        self._socket = sock
        self._shell = shell
        self._timer: Timer | None = None
        self._armed_at = math.inf
        self._put_off = math.inf
        """The deadline whose timer fired late and was set again."""
        self._waited_for = math.inf
        """The deadline that a turn was waited for last, and whether there was one since."""
        self._had_turn = False
        self._failed = self._drains = False
        self._holds = False
        self._unread_bytes = 0
        """What was there to read when it was looked at last, while nothing is."""
        self._over = trio.Event()
        self._in_turn = self._peer_closed = False
        self._layered = tls is not None or web is not None
        self._reads = FairReads(shell.limits.read_bytes_max, shell.neighbours)
        receive: Callable[[int], bytes] = sock.recv
        if tls is not None:
            receive = TlsReader(sock, tls, self.outbox.send_records).recv
        self._receive = receive if web is None else web.reader(receive, self.outbox.send_control)
        shell.connections.add(self)

    async def run(self) -> None:
        """Serve the connection until it ends, however that may be."""
        try:
            self._arm()
            if self.adapter.closed:
                self._over.set()
            more = self._layered  # what came with the end of the handshake is there already
            while more:
                more = await self.turn()
                await trio.lowlevel.checkpoint()  # the others have their turns in between
            if not self._over.is_set():
                self._shell.readers.add(self._socket, self)
                await self._over.wait()
            self._shell.readers.remove(self._socket)
            async with self._shell.ends:
                self._lose()
            if not self._failed:
                await self._linger()
        except Exception as error:
            self.failed(error)
        finally:
            self._shell.readers.remove(self._socket)
            self._lose()
            self.outbox.discard()
            self._wake()  # the task of the outbox, if it is there
            self._socket.close()
            self.outbox.let_go()

    def shut_down(self, reason: str) -> None:
        """The broker stops: let the protocol say so, and end."""
        if self._web is not None:
            self._web.go_away()
        try:
            self.adapter.shut_down(reason)
        except Exception as error:
            self.failed(error)
        self._wake()

    # For the outbox.

    def flushed(self) -> None:
        """A turn sent something: if that was the last word, the reader has to know."""
        if self.adapter.closed:
            self._wake()

    def failed(self, error: Exception) -> None:
        """The adapter raised what it should not: a bug, which ends this connection and no other."""
        if not self._failed:
            self._failed = True
            log.error("connection failed", door=self.door, peer=self.peer, exc_info=error)
        self.outbox.discard()
        self._wake()

    def give_up(self, reason: str) -> None:
        """The peer does not read."""
        self._failed = True
        log.warning("slow peer disconnected", door=self.door, peer=self.peer, reason=reason)
        self._wake()

    # The reader.

    @property
    def needs_little(self) -> bool:
        """See `Reader`."""
        return self._reads.needs_little and self._shell.little_first

    async def turn(self) -> bool:
        """See `Reader`."""
        if self._over.is_set():
            return False
        self._in_turn = True
        try:
            return await self._turn()
        except Exception as error:
            self.failed(error)
            return False
        finally:
            self._in_turn = False
            if self._peer_closed or self.adapter.closed or self._failed:
                self._shell.readers.remove(self._socket)
                self._over.set()

    async def _turn(self) -> bool:
        adapter, outbox, shell, reads = self.adapter, self.outbox, self._shell, self._reads
        room, self._had_turn = shell.room, True
        try:
            data = self._receive(reads.size)
        except BlockingIOError:
            if self._layered and outbox.pending_bytes > shell.limits.outbox_bytes_high:
                await self._drained()  # the layers' own answers
            return self._layered and self._ended
        except OSError:
            data = b""  # reset by the peer: nothing more to read, nobody to answer
            outbox.discard()
        if adapter.closed or self._failed:
            self._peer_closed = not data
            return False
        adapter.published = False
        cold_reads = shell.cold_reads
        if cold_reads is not None:
            cold_reads.wanted = False
        began, unflushed_before = perf_counter(), room.unflushed_bytes
        written_before = outbox.written_bytes
        adapter.held = True  # it may wait for other brokers, and nothing is read meanwhile
        await adapter.handle(data)
        adapter.held = False
        answered_bytes = outbox.written_bytes - written_before
        shell.end_turn()
        appended_bytes = room.unflushed_bytes - unflushed_before
        if not data:
            self._peer_closed = True
            return False
        reads.took(len(data), began, perf_counter(), outbox.written_bytes)
        if adapter.next_timer_at() < self._armed_at:
            self._arm()
        if outbox.pending_bytes > shell.limits.outbox_bytes_high and self._is_answered_much(answered_bytes):
            await self._drained()
        adapter.held = True
        await room.wait_for_room(little=appended_bytes <= _LITTLE_BYTES)
        adapter.held = False
        if adapter.published:
            await self._wait_to_publish(len(data))
        return self._layered and (reads.full or self._ended)

    @property
    def _ended(self) -> bool:
        """Whether TLS or the WebSocket has ended with what was read: the kernel may have nothing more to tell."""
        return (self._tls is not None and self._tls.ended) or (self._web is not None and self._web.ended)

    def _is_answered_much(self, answered_bytes: int) -> bool:
        """Whether much of what waits for the peer are answers, and not deliveries."""
        most, outbox = self._shell.limits.outbox_bytes_high, self.outbox
        return answered_bytes > most or (outbox.full_at is not None and outbox.written_bytes - outbox.full_at > most)

    async def _drained(self) -> None:
        """Read nothing until the peer has taken half of what may wait for it."""
        self._drains, self._unread_bytes = True, 0
        await self.outbox.drained()
        self._drains = self.adapter.held = False

    async def _wait_to_publish(self, published_bytes: int) -> None:
        """Read nothing while who publishes has to leave others time or room."""
        adapter, shell = self.adapter, self._shell
        adapter.held = True
        if shell.cold_reads is not None and shell.cold_reads.wanted:
            await shell.cold_reads.wait(published_bytes)
        if shell.wait_to_publish is not None:
            await shell.wait_to_publish()
        while (left := adapter.left) is not None:
            if not await self._hold():
                self._peer_closed = self.outbox.broken  # what follows is nothing without what was put off
                break
            adapter.left = None
            await left()
            shell.end_turn()
            if adapter.next_timer_at() < self._armed_at:
                self._arm()
        adapter.held = False

    async def _hold(self) -> bool:
        """Wait while publishers have to; the adapter's timers go on. Whether there still is anybody."""
        self._holds = True
        while (there := self._is_there) and self._shell.blocked:
            await self.outbox.woken()
        self._holds = False
        return there

    @property
    def _is_there(self) -> bool:
        return not (self.adapter.closed or self._failed or self.outbox.broken)

    def go_on(self) -> None:
        """Look again whether there is reason to hold."""
        if self._holds:
            self.outbox.wake_waiting()

    def _wake(self) -> None:
        """Make whoever waits look at `adapter.closed`: a turn, the task of the outbox, or `run`."""
        self.outbox.wake_waiting()
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
        if not self._in_turn and (self.adapter.closed or self._failed):
            self._over.set()

    def _lose(self) -> None:
        """Tell the adapter that its transport is gone, once."""
        if self not in self._shell.connections:
            return
        self._shell.connections.remove(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_at = -math.inf  # never armed again
        self.outbox.on_writable = None
        try:
            self.adapter.connection_lost()
        except Exception as error:
            self.failed(error)
        self._shell.end_turn()

    async def _linger(self) -> None:
        """Give the peer time to take what was sent, and to close first: closing a socket with unread bytes resets the
        connection, and the peer would never see our last words."""
        with trio.move_on_after(self._shell.limits.close_linger_ms / 1000):
            if self._web is not None:
                self.outbox.send_control([self._web.goodbye()])
            await self.outbox.emptied()
            if self._tls is not None:
                await send_all(self._socket, self._tls.goodbye())
            await see_off(self._socket, self._peer_closed)

    # The timer.

    def _arm(self) -> None:
        """Have a timer at the adapter's next deadline, unless an earlier one is set."""
        at = self.adapter.next_timer_at()
        if at < self._armed_at:
            if self._timer is not None:
                self._timer.cancel()
            self._arm_at(at)

    def _arm_at(self, at: float) -> None:
        self._armed_at = at
        self._timer = self._shell.timers.at(at, self._timer_fired)

    def _is_kept_waiting(self, due: float) -> bool:
        """Whether there is something to read that has not had its turn yet, as so many others have theirs."""
        if self._in_turn or self.adapter.held or (self._had_turn and due == self._waited_for):
            return False
        self._waited_for, self._had_turn = due, False
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _shows_life(self) -> bool:
        """Whether a peer that is not read from has taken something since the last look, or more has come from him: the
        kernel may have so much left to send that what it takes from us tells little."""
        unread = unread_bytes(self._socket)
        moved = self.outbox.moved or unread > self._unread_bytes
        self.outbox.moved, self._unread_bytes = False, unread
        return moved

    def _timer_fired(self) -> None:
        self._timer = None
        self._armed_at = math.inf
        adapter = self.adapter
        try:
            now = trio.current_time()
            due = adapter.next_timer_at()
            if not adapter.closed and now - due > _LATE_S and due != self._put_off:
                self._put_off = due
                self._arm_at(now + _READ_FIRST_S)
                return
            if not adapter.closed and due <= now:
                if self._is_kept_waiting(due):
                    self._arm_at(now + _LOOK_AGAIN_S)
                    return
                if self._holds and has_hung_up(self._socket):
                    self.outbox.discard()
                    self._wake()
                    return
                if self._drains:
                    adapter.held = self._shows_life()
                adapter.handle_timer(now)
            if adapter.closed:
                self._wake()
            else:
                self._arm()
        except Exception as error:
            self.failed(error)
