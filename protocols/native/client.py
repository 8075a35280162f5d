"""The native protocol with trio: one connection that heals itself, and the control operations on it.

1. A `Link` has one connection at a time. Requests are pipelined: `post` puts one in the line and returns; the writer
   task sends what is in line, joined; the reader task hands each reply to whoever waits for its correlation id.
2. Cancelling somebody who waits for a reply never cuts a frame short: only the writer writes.
3. When the connection ends, everybody who waits gets `ConnectionLost`, and the link connects again, ever more slowly,
   until it is closed. Who asked decides whether to ask again; `call` does for requests that may be repeated.
4. A request that has no reply for `request_timeout_ms` (plus what it said it would wait) ends the connection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import trio

from protocols.buffers import join_small
from protocols.native import wire
from protocols.native.blocking import REPLY_BYTES_MAX, TopicDescription, Which, which_offset
from protocols.native.connection import FrameReader, split_address
from protocols.native.errors import (
    ConnectionLost,
    ErrorCode,
    MillraceError,
    ProtocolError,
    RequestTimedOut,
    error_from_wire,
)
from protocols.native.wire import Reply, Request

_READ_BYTES = 256 << 10
_SEND_JOINED_BYTES = 256 << 10
ReplyType = TypeVar("ReplyType", bound=Reply)
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
OnSent = Callable[[MillraceError | None], None]
OnReply = Callable[[Reply | MillraceError], None]


class LinkConfig(msgspec.Struct, kw_only=True, frozen=True):
    """How a client keeps its connection."""

    client_name: str = ""
    credentials: tuple[str, str] | None = None
    tls: SSLContext | None = None
    """Speak TLS on these terms; see `tls_context`."""
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    """For a reply, on top of the wait the request itself asks for; then the connection is given up."""
    reconnect_backoff_ms: int = 50
    reconnect_backoff_ms_max: int = 5_000


class Link:
    """See the module. `connect`, then run `run` in a nursery."""

    def __init__(self, server: str, config: LinkConfig) -> None:
        self._address = split_address(server)
        self.config = config
        self.limits: dict[str, int] = {}
        self.failure: MillraceError | None = None
        """Set when connecting again makes no sense, as after a wrong password."""
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
        host, port = self._address
        try:
            with trio.fail_after(self.config.connect_timeout_ms / 1000):
                stream = await trio.open_tcp_stream(host, port)
                if self.config.tls is not None:
                    stream = trio.SSLStream(stream, self.config.tls, server_hostname=host, https_compatible=True)
                await self._hello(stream)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            await self._abandon(stream)
            raise ConnectionLost(f"cannot connect to {host}:{port}: {error!r}", retriable=True) from error
        except BaseException:
            await self._abandon(stream)
            raise
        self._stream = stream
        self._note_change()

    @staticmethod
    async def _abandon(stream: Stream | None) -> None:
        if stream is not None:
            await trio.aclose_forcefully(stream)

    async def _hello(self, stream: Stream) -> None:
        hello = wire.Hello(0, wire.VERSION, wire.VERSION, self.config.client_name, self.config.credentials)
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
                self.limits = reply.limits
                return
            if frames.failure is not None:
                raise ProtocolError(f"the broker's reply cannot be read: {frames.failure}")

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
                    await self._drop(ConnectionLost("the client was closed"))

    async def _reconnect(self) -> bool:
        backoff_s = self.config.reconnect_backoff_ms / 1000
        while True:
            try:
                await self.connect()
                return True
            except MillraceError as error:
                if not error.retriable:
                    self.failure = error
                    self._note_change()
                    return False
            await self._pause(backoff_s)
            backoff_s = min(2 * backoff_s, self.config.reconnect_backoff_ms_max / 1000)

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
            ends = nursery.cancel_scope

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
                ends.cancel()

            nursery.start_soon(until_lost, self._read)
            nursery.start_soon(until_lost, self._write)
            nursery.start_soon(until_lost, self._watch)
        await self._drop(reason)

    async def _drop(self, reason: MillraceError) -> None:
        stream, self._stream = self._stream, None
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
            raise self.failure or ConnectionLost("not connected", retriable=True)
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
        raise RequestTimedOut(f"no success within {timeout_ms} ms: {last or 'not connected'}", retriable=True)

    async def wait_connected(self) -> None:
        """Wait for a connection. Raises `failure` when there will be none."""
        while self._stream is None:
            if self.failure is not None:
                raise self.failure
            await self._state_changed.wait()


class Service:
    """Base of the clients: a link and the tasks beside it, between `async with` and its end.

    Errors of the body come out as they are, not in an exception group.
    """

    def __init__(self, server: str, config: LinkConfig) -> None:
        self._link = Link(server, config)

    async def __aenter__(self) -> Self:
        await self._link.connect()
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._link.run)
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._finish()
        finally:
            self._nursery.cancel_scope.cancel()
            try:
                await self._manager.__aexit__(None, None, None)
            finally:
                self._closed()

    def _start(self) -> None:
        """Start further tasks."""

    def _closed(self) -> None:
        """Everything has stopped."""

    async def _finish(self) -> None:
        """What remains to be done when the body ended well."""

    @property
    def limits(self) -> Mapping[str, int]:
        """What the broker announced, by name."""
        return self._link.limits


class Client(Service):
    """Control operations: `async with Client("host:port") as client`."""

    def __init__(
        self,
        server: str,
        *,
        client_name: str = "",
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        super().__init__(server, LinkConfig(client_name=client_name, credentials=credentials, tls=tls))

    async def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create it durably. Raises PreconditionFailed when it exists."""
        await self._link.request(wire.CreateTopic(0, name, partitions, dict(config or {})), wire.CreateTopicReply)

    async def delete_topic(self, name: str) -> None:
        """Delete it and all its records. Raises UnknownTopic."""
        await self._link.request(wire.DeleteTopic(0, name), wire.DeleteTopicReply)

    async def list_topics(self) -> dict[str, int]:
        """Number of partitions by topic."""
        reply = await self._link.call(wire.Metadata(0, None, False), wire.MetadataReply)
        return {name: len(partitions) for name, _, partitions in reply.topics}

    async def describe_topic(self, name: str) -> TopicDescription:
        """Configuration, offsets and sizes. Raises UnknownTopic."""
        reply = await self._link.call(wire.DescribeTopic(0, name), wire.DescribeTopicReply)
        return TopicDescription(reply.name, reply.config, reply.partitions)

    async def describe_broker(self) -> wire.DescribeBrokerReply:
        """What the home partitions of queues hold."""
        return await self._link.call(wire.DescribeBroker(0), wire.DescribeBrokerReply)

    async def administer(self, operation: str, /, **arguments: Any) -> Any:
        """Run an operation of administration; see `BlockingClient.administer`."""
        return (await self._link.request(wire.Administer(0, operation, arguments), wire.AdministerReply)).result

    async def bind_topic(
        self, topic: str, exchange: str, pattern: str, arguments: Mapping[str, wire.Argument] | None = None
    ) -> None:
        """Copy what `exchange` routes by `pattern` to the topic. Raises UnknownTopic, NotFound."""
        await self._link.call(wire.Bind(0, topic, exchange, pattern, dict(arguments or {})), wire.BindReply)

    async def unbind_topic(
        self, topic: str, exchange: str, pattern: str, arguments: Mapping[str, wire.Argument] | None = None
    ) -> None:
        """The inverse of `bind_topic`."""
        await self._link.call(wire.Unbind(0, topic, exchange, pattern, dict(arguments or {})), wire.UnbindReply)

    async def list_offsets(self, partitions: Sequence[tuple[str, int]], which: Which) -> list[int | None]:
        """Offsets of each (topic, partition); see `BlockingClient.list_offsets`."""
        return await list_offsets(self._link, partitions, which)


async def list_offsets(link: Link, partitions: Sequence[tuple[str, int]], which: Which) -> list[int | None]:
    """The offset `which` means in each (topic, partition); None where no record is that young."""
    entries = [(topic, partition, which_offset(which)) for topic, partition in partitions]
    reply = await link.call(wire.ListOffsets(0, entries), wire.ListOffsetsReply)
    for error, _, _ in reply.entries:
        if error is not None:
            raise error_from_wire(error)
    return [offset for _, offset, _ in reply.entries]


async def partitions_of(link: Link, topic: str, *, create_missing: bool, timeout_ms: int | None = None) -> list[int]:
    """Partition numbers of a topic, made if allowed. Raises UnknownTopic, RequestTimedOut."""
    deadline = trio.current_time() + (link.config.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
    while True:
        left_ms = max(0, int((deadline - trio.current_time()) * 1000))
        request = wire.Metadata(0, [topic], create_missing)
        reply = await link.call(request, wire.MetadataReply, timeout_ms=left_ms)
        ((_, error, partitions),) = reply.topics
        if error is None:
            return [found.partition for found in partitions]
        if error[0] != ErrorCode.NOT_LEADER:
            raise error_from_wire(error)
        await trio.sleep(link.config.reconnect_backoff_ms / 1000)
