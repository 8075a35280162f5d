"""The native protocol over a plain blocking socket: for scripts, tools and Spark workers. No trio, no threads.

1. One request is under way at a time; a client belongs to one thread.
2. The connection is made on first use and made again after it was lost. A request that changes nothing is repeated once
   on a fresh connection; `produce` is not, as nobody knows whether the lost one was stored.
3. Records arrive as views of the reply: whole batches, never copied, valid as long as somebody holds them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from msgspec import Struct

from protocols.buffers import BytesLike, join_small
from protocols.native import wire
from protocols.native.connection import split_address
from protocols.native.errors import ConnectionLost, ProtocolError, RequestTimedOut, WireError, error_from_wire
from protocols.native.records import split_batches
from protocols.native.wire import Reply, Request

Which = Literal["earliest", "latest"] | int
ReplyType = TypeVar("ReplyType", bound=Reply)

REPLY_BYTES_MAX = 256 << 20
"""Largest reply a client accepts; a broker never sends more than its `fetch_bytes_max` or one batch."""


class FetchResult(Struct):
    """What `BlockingClient.fetch` got: whole batches, the first of which may begin before the offset asked for."""

    batches: list[memoryview]
    high_watermark: int
    log_start_offset: int


class TopicDescription(Struct):
    """A topic's own configuration and its partitions."""

    name: str
    config: dict[str, str]
    partitions: list[wire.PartitionDescription]


def which_offset(which: Which) -> int:
    """`which` as `ListOffsets` wants it. Raises ValueError."""
    if isinstance(which, int):
        if which < 0:
            raise ValueError(f"a timestamp is not negative: {which}")
        return which
    if which not in ("earliest", "latest"):
        raise ValueError(f"{which!r} is not earliest, latest or a timestamp in ms")
    return wire.EARLIEST if which == "earliest" else wire.LATEST


class BlockingClient:
    """Every request of the protocol as a method. See the module's rules.

    With `tls` the connection speaks TLS on these terms; see `protocols.native.client_tls.tls_context`.
    `timeout_s` bounds connecting and each reply (on top of the wait a request itself asks for). All methods raise
    `ConnectionLost`, `RequestTimedOut` or the `MillraceError` the broker answered.
    """

    def __init__(
        self,
        server: str,
        *,
        timeout_s: float = 30,
        client_name: str = "",
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._address = split_address(server)
        self._timeout_s = timeout_s
        self._client_name = client_name
        self._credentials = credentials
        self._tls = tls
        self._socket: socket.socket | None = None
        self._correlation_id = 0
        self._rounds: dict[tuple[str, int], int] = {}
        """Of this connection, where it is not 0: one request is under way at a time, so a refusal ends the round."""
        self.limits: dict[str, int] = {}
        """What the broker announced, by name; empty before the first request."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; a later request makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # Topics

    def metadata(self, topics: Sequence[str] | None = None, *, create_missing: bool = False) -> dict[str, list[int]]:
        """Partition numbers by topic; None asks for all topics. Raises UnknownTopic."""
        request = wire.Metadata(0, None if topics is None else list(topics), create_missing)
        found = {}
        for name, error, partitions in self._call(request, wire.MetadataReply).topics:
            if error is not None:
                raise error_from_wire(error)
            found[name] = [one.partition for one in partitions]
        return found

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create it durably. Raises PreconditionFailed when it exists."""
        self._call(wire.CreateTopic(0, name, partitions, dict(config or {})), wire.CreateTopicReply, repeat=False)

    def delete_topic(self, name: str) -> None:
        """Delete it and all its records. Raises UnknownTopic."""
        self._call(wire.DeleteTopic(0, name), wire.DeleteTopicReply, repeat=False)

    def describe_topic(self, name: str) -> TopicDescription:
        """Configuration, offsets and sizes. Raises UnknownTopic."""
        reply = self._call(wire.DescribeTopic(0, name), wire.DescribeTopicReply)
        return TopicDescription(reply.name, reply.config, reply.partitions)

    def describe_broker(self) -> wire.DescribeBrokerReply:
        """What the home partitions of queues hold."""
        return self._call(wire.DescribeBroker(0), wire.DescribeBrokerReply)

    def administer(self, operation: str, /, **arguments: Any) -> Any:
        """Run an operation of administration by its name; what it answers. Raises AccessRefused, NotFound, and whatever
        the operation refuses.
        """
        return self._call(wire.Administer(0, operation, arguments), wire.AdministerReply, repeat=False).result

    def bind_topic(
        self, topic: str, exchange: str, pattern: str, arguments: Mapping[str, wire.Argument] | None = None
    ) -> None:
        """Copy what `exchange` routes by `pattern` to the topic. Raises NotFound."""
        self._call(wire.Bind(0, topic, exchange, pattern, dict(arguments or {})), wire.BindReply)

    def unbind_topic(
        self, topic: str, exchange: str, pattern: str, arguments: Mapping[str, wire.Argument] | None = None
    ) -> None:
        """The inverse of `bind_topic`."""
        self._call(wire.Unbind(0, topic, exchange, pattern, dict(arguments or {})), wire.UnbindReply)

    # Records

    def produce(
        self, topic: str, partition: int, batch: BytesLike, *, acks: int = wire.ACKS_ALL, timeout_ms: int = 30_000
    ) -> int | None:
        """Append one record batch (format 2); its base offset, None with `acks` 0. Not repeated: see rule 2."""
        offsets = self.produce_batches([(topic, partition, batch)], acks=acks, timeout_ms=timeout_ms)
        return offsets[0] if offsets else None

    def produce_batches(
        self,
        batches: Iterable[tuple[str, int, BytesLike]],
        *,
        acks: int = wire.ACKS_ALL,
        timeout_ms: int = 30_000,
    ) -> list[int]:
        """Append (topic, partition, batch) each, in one request; their base offsets, nothing with `acks` 0.

        Raises the first error among them; others may have been stored.
        """
        offsets = []
        for error, base_offset in self.try_produce(batches, acks=acks, timeout_ms=timeout_ms):
            if error is not None:
                raise error_from_wire(error)
            offsets.append(base_offset)
        return offsets

    def try_produce(
        self, batches: Iterable[tuple[str, int, BytesLike]], *, acks: int, timeout_ms: int
    ) -> list[tuple[WireError | None, int]]:
        """Like `produce_batches`, with the error and base offset of each batch; nothing with `acks` 0."""
        self._connected()
        entries = [
            wire.ProduceEntry(topic, partition, self._rounds.get((topic, partition), 0), memoryview(batch))
            for topic, partition, batch in batches
        ]
        request = wire.Produce(0, acks, timeout_ms, entries)  # type: ignore[arg-type]
        if acks == wire.ACKS_NONE:
            self._send(self._connected(), request)
            return []
        results = self._call(request, wire.ProduceReply, repeat=False, wait_s=timeout_ms / 1000).entries
        for entry, (error, _) in zip(entries, results):
            if error is not None and error[1]:
                self._rounds[entry.topic, entry.partition] = entry.round + 1
        return results

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
    ) -> FetchResult:
        """Whole batches from the one that holds `offset` on, at least one if any is there; waits for `min_bytes`.

        Raises OffsetOutOfRange, UnknownTopic, UnknownPartition.
        """
        entry = wire.FetchEntry(topic, partition, offset, max_bytes)
        (fetched,) = self.fetch_many([entry], max_bytes, max_wait_ms, min_bytes)
        if fetched.error is not None:
            raise error_from_wire(fetched.error)
        return FetchResult(split_batches(fetched.records), fetched.high_watermark, fetched.log_start_offset)

    def fetch_many(
        self, entries: list[wire.FetchEntry], max_bytes: int, max_wait_ms: int, min_bytes: int
    ) -> list[wire.FetchedPartition]:
        """Fetch several partitions in one request; each result has its own error."""
        request = wire.Fetch(0, max_wait_ms, min_bytes, max_bytes, entries)
        return self._call(request, wire.FetchReply, wait_s=max_wait_ms / 1000).entries

    def list_offsets(self, topic: str, partition: int, which: Which) -> int | None:
        """The first offset ("earliest"), the next to be readable ("latest"), or that of the first record not before a
        time in ms; None when there is no such record.
        """
        request = wire.ListOffsets(0, [(topic, partition, which_offset(which))])
        ((error, offset, _),) = self._call(request, wire.ListOffsetsReply).entries
        if error is not None:
            raise error_from_wire(error)
        return offset

    # Groups

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int], *, metadata: str = "") -> None:
        """Remember the next offset to read of each (topic, partition), durably."""
        entries = [(topic, partition, offset, metadata) for (topic, partition), offset in offsets.items()]
        if entries:
            self._call(wire.CommitOffsets(0, group, entries), wire.CommitOffsetsReply)

    def committed_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], int]:
        """What the group committed of these (topic, partition)s, or of all; what it never did is absent."""
        request = wire.FetchOffsets(0, group, None if partitions is None else list(partitions))
        entries = self._call(request, wire.FetchOffsetsReply).entries
        return {(topic, partition): offset for topic, partition, offset, _ in entries}

    # Transport

    def _call(self, request: Request, kind: type[ReplyType], *, repeat: bool = True, wait_s: float = 0) -> ReplyType:
        repeat = repeat and self._socket is not None  # a connection of this moment is not stale
        try:
            return self._exchange(request, kind, wait_s)
        except ConnectionLost:
            if not repeat:
                raise
        return self._exchange(request, kind, wait_s)

    def _exchange(self, request: Request, kind: type[ReplyType], wait_s: float) -> ReplyType:
        connection = self._connected()
        self._send(connection, request)
        return self._receive(connection, request.correlation_id, kind, wait_s)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            try:
                connection = socket.create_connection(self._address, self._timeout_s)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_hostname=self._address[0])
            except OSError as error:
                raise ConnectionLost(f"cannot connect to {self._address}: {error}", retriable=True) from error
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection
            self._rounds.clear()
            hello = wire.Hello(0, wire.VERSION, wire.VERSION, self._client_name, self._credentials)
            self._send(connection, hello)
            self.limits = self._receive(connection, hello.correlation_id, wire.HelloReply, 0).limits
        return self._socket

    def _send(self, connection: socket.socket, request: Request) -> None:
        self._correlation_id = self._correlation_id + 1 & 0xFFFF_FFFF
        request.correlation_id = self._correlation_id
        try:
            for piece in join_small(wire.encode(request)):
                connection.sendall(piece)
        except OSError as error:
            raise self._lost(error) from error

    def _receive(
        self, connection: socket.socket, correlation_id: int, kind: type[ReplyType], wait_s: float
    ) -> ReplyType:
        try:
            connection.settimeout(self._timeout_s + wait_s)
            size = int.from_bytes(self._read(connection, wire.LENGTH_BYTES), "big")
            if not 0 < size <= REPLY_BYTES_MAX:
                raise ProtocolError(f"the broker announced a reply of {size} bytes")
            reply = wire.decode_reply(self._read(connection, size))
        except TimeoutError as timeout:
            self.close()
            raise RequestTimedOut(f"no reply within {self._timeout_s + wait_s} s", retriable=True) from timeout
        except OSError as problem:
            raise self._lost(problem) from problem
        except BaseException:
            self.close()
            raise
        if isinstance(reply, wire.ErrorReply):
            error = error_from_wire(reply.error)
            if reply.correlation_id is None or kind is wire.HelloReply:
                self.close()
                if error.retriable:  # the broker is stopping
                    raise ConnectionLost(str(error), retriable=True)
            raise error
        if reply.correlation_id != correlation_id or not isinstance(reply, kind):
            self.close()
            raise ProtocolError(f"the broker answered {reply!r} instead of {kind.__name__} {correlation_id}")
        return reply

    @staticmethod
    def _read(connection: socket.socket, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        filled = 0
        while filled < size:
            count = connection.recv_into(view[filled:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            filled += count
        return view

    def _lost(self, error: OSError) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"connection to {self._address} lost: {error}", retriable=True)
