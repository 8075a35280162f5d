"""One connection of a client that heals itself.

1. A `Link` has one connection at a time. Requests are pipelined: `post` puts one in the line and returns; the writer
   task sends what is in line, joined; the reader task hands each reply to whoever waits for its correlation id.
2. Cancelling somebody who waits for a reply never cuts a frame short: only the writer writes.
3. When the connection ends, everybody who waits gets `ConnectionLost`, and the link connects again, ever more slowly,
   until it is closed. Who asked decides whether to ask again; `call` does for requests that may be repeated.
4. A request that has no reply for `request_timeout_ms` (plus what it said it would wait) ends the connection.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from ssl import SSLContext
from typing import TypeVar

import msgspec
import trio

from protocols.buffers import join_small
from protocols.native import wire
from protocols.native.clients.blocking_link import REPLY_BYTES_MAX, Address, named
from protocols.native.clients.silence import end_when_silent
from protocols.native.connection import FrameReader, addresses_of
from protocols.native.errors import ConnectionLost, MillraceError, ProtocolError, RequestTimedOut, error_from_wire
from protocols.native.wire import Reply, Request

_READ_BYTES = 256 << 10
ReplyType = TypeVar("ReplyType", bound=Reply)
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
Dial = Callable[[], Awaitable[trio.SocketStream]]
"""Makes a connection to a broker that is not found by an address."""
OnSent = Callable[[MillraceError | None], None]
OnReply = Callable[[Reply | MillraceError], None]

logger = logging.getLogger(__name__)


def _why(error: Exception) -> str:
    """Why a connection was not made: if no address could be reached, what the first one said; of TLS what it found."""
    if isinstance(error.__cause__, BaseExceptionGroup) and isinstance(error.__cause__.exceptions[0], OSError):
        return os.strerror(error.__cause__.exceptions[0].errno or 0)
    return str(error) or str(error.__cause__ or "") or repr(error)


class LinkConfig(msgspec.Struct, kw_only=True, frozen=True):
    """How a client keeps its connection."""

    client_name: str = ""
    credentials: tuple[str, str] | None = None
    tls: SSLContext | None = None
    """Speak TLS on these terms; see `tls_context`."""
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    """For a reply, on top of the wait the request itself asks for; then the connection is given up."""
    metadata_max_age_ms: int = 10_000
    """How long it may take at most until partitions that a topic got are known; in a cluster 2 s."""
    reconnect_backoff_ms: int = 50
    reconnect_backoff_ms_max: int = 5_000


class Link:
    """See the module. `connect`, then run `run` in a nursery."""

    def __init__(self, where: str | Sequence[Address], config: LinkConfig, dial: Dial | None = None) -> None:
        """`where` are the addresses of a broker, or of several of which any will do; with `dial` it makes all
        connections, and they are a name of the broker.
        """
        if isinstance(where, str):
            where = addresses_of(where)
        self._dial = dial
        self._given = list(where)
        self._addresses = list(self._given)
        self.config = config
        self.limits: dict[str, int] = {}
        self.version = wire.VERSION_MIN
        self.node_id = 0
        """Of the broker that it is, or was last, connected to."""
        self.closing = ConnectionLost("the client was closed")
        """What whoever waits is told when `run` is cancelled."""
        self._ends: trio.CancelScope | None = None
        self.failure: MillraceError | None = None
        """Set when connecting again makes no sense, as after a wrong password."""
        self.lost: MillraceError | None = None
        """Why there is no connection now, as far as is known."""
        self._stream: Stream | None = None
        self._state_changed = trio.Event()
        self._correlation_id = 0
        self._waiting: dict[int, tuple[OnReply, float]] = {}
        self.on_change: Callable[[], None] | None = None
        """Called when the link was connected, lost or given up."""
        self._line: list[tuple[wire.Pieces, OnSent | None]] = []
        self._sending: list[tuple[wire.Pieces, OnSent | None]] = []
        self._line_filled = trio.Event()

    @property
    def address(self) -> Address:
        """Where it is connected, or tries to be."""
        return self._addresses[0]

    def also_at(self, addresses: Sequence[Address]) -> None:
        """Try these, too, when the connection is lost."""
        if self._dial is None:
            self._addresses = list(dict.fromkeys([self.address, *self._given, *addresses]))

    @property
    def connected(self) -> bool:
        """Requests can be posted."""
        return self._stream is not None

    @property
    def requests_in_flight(self) -> int:
        """Requests that wait for their reply."""
        return len(self._waiting)

    async def connect(self) -> None:
        """Make the connection and say hello. Raises ConnectionLost, or what the broker said."""
        stream: Stream | None = None
        host, port = self.address
        try:
            with trio.fail_after(self.config.connect_timeout_ms / 1000):
                stream = await self._dial() if self._dial is not None else await self._dialled(host, port)
                if self.config.tls is not None and self._dial is None:
                    stream = trio.SSLStream(stream, self.config.tls, server_hostname=host, https_compatible=True)
                await self._hello(stream)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            await self._abandon(stream)
            self._try_others_first()
            slow = isinstance(error, trio.TooSlowError)
            why = f"no answer within {self.config.connect_timeout_ms} ms" if slow else _why(error)
            raise ConnectionLost(f"cannot connect to {named((host, port))}: {why}", retriable=True) from error
        except BaseException as error:
            await self._abandon(stream)
            if isinstance(error, MillraceError) and error.retriable:
                self._try_others_first()
            raise
        self._stream, self.lost = stream, None
        self._note_change()

    async def _dialled(self, host: str, port: int) -> trio.SocketStream:
        stream = await trio.open_tcp_stream(host, port)
        end_when_silent(stream.socket, self.config.request_timeout_ms / 1000)
        return stream

    async def connect_somewhere(self) -> None:
        """`connect` to the first of the addresses that answers. Raises as that, when none does."""
        for left in reversed(range(len(self._addresses))):
            try:
                await self.connect()
                return
            except ConnectionLost:
                if not left:
                    raise

    @staticmethod
    async def _abandon(stream: Stream | None) -> None:
        if stream is not None:
            await trio.aclose_forcefully(stream)

    async def _hello(self, stream: Stream) -> None:
        hello = wire.Hello(0, wire.VERSION_MIN, wire.VERSION, self.config.client_name, self.config.credentials)
        await stream.send_all(b"".join(wire.encode(hello)))
        frames = FrameReader(REPLY_BYTES_MAX)
        while True:
            data = await stream.receive_some(_READ_BYTES)
            if not data:
                raise trio.BrokenResourceError("closed by the broker")
            for frame in frames.feed(data):
                reply = wire.decode_reply(frame)
                if isinstance(reply, wire.ErrorReply):
                    raise error_from_wire(reply.error)
                if not isinstance(reply, wire.HelloReply):
                    raise ProtocolError(f"the broker answered hello with {reply!r}")
                self.limits, self.node_id, self.version = reply.limits, reply.node_id, reply.version
                return
            if frames.failure is not None:
                begin = data[:4]
                raise ProtocolError(f"{named(self.address)} is no native door: what it says begins with {begin!r}")

    async def run(self) -> None:
        """Serve the connection and make it again, until cancelled or `failure` is set."""
        try:
            while True:
                if self._stream is None and not await self._reconnect():
                    return
                await self._serve()
                await self._pause(self.config.reconnect_backoff_ms / 1000)
        finally:
            if self._stream is not None:
                with trio.CancelScope(shield=True):
                    await self._drop(self.closing)

    async def _reconnect(self) -> bool:
        backoff_s = self.config.reconnect_backoff_ms / 1000
        tries = 0
        told: set[str] = set()
        while True:
            tries += 1
            try:
                await self.connect()
                return True
            except MillraceError as error:
                if not error.retriable:
                    self.fail(error)
                    return False
                self.lost = error
                if str(error) not in told:
                    told.add(str(error))
                    logger.warning("%s; it is tried again", error)
            if tries % len(self._addresses):
                continue  # there are others
            await self._pause(backoff_s)
            backoff_s = min(2 * backoff_s, self.config.reconnect_backoff_ms_max / 1000)

    def fail(self, error: MillraceError) -> None:
        """Connect no more, and have whoever waits for a connection know why."""
        self.failure = error
        self._note_change()

    def give_up(self) -> None:
        """End the connection, whose other side does not answer, and try elsewhere first."""
        if self._stream is not None and self._ends is not None:
            self._try_others_first()
            self._ends.cancel()

    def _try_others_first(self) -> None:
        self._addresses.append(self._addresses.pop(0))

    @staticmethod
    async def _pause(seconds: float) -> None:
        """Wait, not all clients for the same time."""
        await trio.sleep(seconds * random.uniform(0.8, 1.2))

    async def _serve(self) -> None:
        """Read, write and watch the clock until the connection ends."""
        stream = self._stream
        assert stream is not None
        reason: MillraceError = ConnectionLost("the broker closed the connection", retriable=True)
        async with trio.open_nursery() as nursery:
            ends = self._ends = nursery.cancel_scope

            async def until_lost(work: Callable[[Stream], object]) -> None:
                nonlocal reason
                try:
                    await work(stream)  # type: ignore[misc]
                except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
                    reason = ConnectionLost(f"connection lost: {error!r}", retriable=True)
                except MillraceError as error:
                    # What the broker refused for good will not be taken next time either.
                    final = error.code and not error.retriable
                    reason = error if final else ConnectionLost(str(error), retriable=True)
                    if error.retriable:  # it stops, or is cut off from its cluster
                        self._try_others_first()
                ends.cancel()

            nursery.start_soon(until_lost, self._read)
            nursery.start_soon(until_lost, self._write)
            nursery.start_soon(until_lost, self._watch)
        await self._drop(reason)

    async def _drop(self, reason: MillraceError) -> None:
        stream, self._stream, self.lost = self._stream, None, reason
        if stream is not None:
            await trio.aclose_forcefully(stream)
        waiting, self._waiting = self._waiting, {}
        unsent = [*self._sending, *self._line]
        self._sending, self._line = [], []
        self._note_change()
        for on_reply, _ in waiting.values():
            on_reply(reason)
        for _, on_sent in unsent:
            if on_sent is not None:
                on_sent(reason)

    def _note_change(self) -> None:
        self._state_changed.set()
        self._state_changed = trio.Event()
        if self.on_change is not None:
            self.on_change()

    async def _read(self, stream: Stream) -> None:
        frames = FrameReader(REPLY_BYTES_MAX)
        while data := await stream.receive_some(_READ_BYTES):
            for frame in frames.feed(data):
                reply = wire.decode_reply(frame)
                if reply.correlation_id is None:
                    raise (
                        error_from_wire(reply.error)
                        if isinstance(reply, wire.ErrorReply)
                        else ProtocolError(f"the broker sent {type(reply).__name__} to nobody")
                    )
                on_reply, _ = self._waiting.pop(reply.correlation_id, (None, 0.0))
                if on_reply is not None:
                    on_reply(error_from_wire(reply.error) if isinstance(reply, wire.ErrorReply) else reply)
            if frames.failure is not None:
                raise ProtocolError(f"the broker's reply cannot be read: {frames.failure}")

    async def _write(self, stream: Stream) -> None:
        while True:
            if not self._line:
                self._line_filled = trio.Event()
                await self._line_filled.wait()
            self._sending, self._line = self._line, []
            for piece in join_small(piece for frame, _ in self._sending for piece in frame):
                await stream.send_all(piece)
            sent, self._sending = self._sending, []
            for _, on_sent in sent:
                if on_sent is not None:
                    on_sent(None)

    async def _watch(self, stream: Stream) -> None:
        interval_s = self.config.request_timeout_ms / 4000
        while True:
            await trio.sleep(interval_s)
            now = trio.current_time()
            if any(deadline < now for _, deadline in self._waiting.values()):
                raise RequestTimedOut(f"no reply within {self.config.request_timeout_ms} ms", retriable=True)

    def post(
        self,
        request: Request,
        on_reply: OnReply | None,
        *,
        wait_ms: int = 0,
        on_sent: OnSent | None = None,
    ) -> None:
        """Send `request`; `on_reply` gets the reply or an error, once, from the reader task, and must not raise.

        `wait_ms` is how long the request lets the broker wait. `on_reply` None: there will be no reply; `on_sent` is
        called when the kernel has the bytes, or with the error that prevented it. Raises ConnectionLost when there is
        no connection.
        """
        if self._stream is None:
            raise self.failure or ConnectionLost(f"not connected: {self.lost or 'not yet'}", retriable=True)
        self._correlation_id = self._correlation_id + 1 & 0xFFFF_FFFF
        request.correlation_id = self._correlation_id
        if on_reply is not None:
            deadline = trio.current_time() + (self.config.request_timeout_ms + wait_ms) / 1000
            self._waiting[self._correlation_id] = (on_reply, deadline)
        self._line.append((wire.encode(request), on_sent))
        self._line_filled.set()

    async def request(self, request: Request, kind: type[ReplyType], *, wait_ms: int = 0) -> ReplyType:
        """Send `request` and wait for its reply, once. Raises ConnectionLost, or what the broker answered."""
        outcome: list[Reply | MillraceError] = []
        answered = trio.Event()

        def on_reply(reply: Reply | MillraceError) -> None:
            outcome.append(reply)
            answered.set()

        self.post(request, on_reply, wait_ms=wait_ms)
        await answered.wait()
        (reply,) = outcome
        if isinstance(reply, MillraceError):
            raise reply
        if not isinstance(reply, kind):
            raise ProtocolError(f"the broker answered {type(reply).__name__} instead of {kind.__name__}")
        return reply

    async def request_once(self, request: Request, kind: type[ReplyType]) -> ReplyType:
        """`request`, once there is a connection: that is waited for as long as a request may take."""
        with trio.move_on_after(self.config.request_timeout_ms / 1000):
            await self.wait_connected()
        return await self.request(request, kind)

    async def call(self, request: Request, kind: type[ReplyType], *, timeout_ms: int | None = None) -> ReplyType:
        """Like `request`, repeated over lost connections and retriable errors.

        Raises RequestTimedOut after `timeout_ms` (default: `request_timeout_ms`), or what the broker answered.
        """
        timeout_ms = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        last: MillraceError | None = None
        with trio.move_on_after(timeout_ms / 1000):
            while True:
                try:
                    await self.wait_connected()
                    return await self.request(request, kind)
                except MillraceError as error:
                    if not error.retriable:
                        raise
                    last = error
                await trio.sleep(self.config.reconnect_backoff_ms / 1000)
        why = self.lost or last or "the broker does not answer"
        raise RequestTimedOut(f"no success within {timeout_ms} ms: {why}", retriable=True)

    async def wait_connected(self) -> None:
        """Wait for a connection. Raises `failure` when there will be none."""
        while self._stream is None:
            if self.failure is not None:
                raise self.failure
            await self._state_changed.wait()
