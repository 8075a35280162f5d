"""One connection of a blocking client, made on first use and again after it was lost."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ssl import SSLContext
from typing import TypeVar

from msgspec import Struct

from protocols.buffers import join_small
from protocols.native import wire
from protocols.native.errors import ConnectionLost, MillraceError, ProtocolError, RequestTimedOut, error_from_wire
from protocols.native.wire import Reply, Request

ReplyType = TypeVar("ReplyType", bound=Reply)
Address = tuple[str, int]
"""Host and port."""

REPLY_BYTES_MAX = 256 << 20
"""Largest reply a client accepts; a broker never sends more than its `fetch_bytes_max` or one batch."""


def _named(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


class BlockingTerms(Struct, frozen=True):
    """How connections are made."""

    timeout_s: float
    client_name: str
    credentials: tuple[str, str] | None
    tls: SSLContext | None


class BlockingLink:
    """See the module. `addresses` are those of a broker, or of several of which any will do."""

    def __init__(self, addresses: Sequence[Address], terms: BlockingTerms) -> None:
        self.addresses = list(addresses)
        self.terms = terms
        self.version = wire.VERSION_MIN
        self.node_id = 0
        """Of the broker that it is, or was last, connected to."""
        self.limits: dict[str, int] = {}
        self.rounds: dict[tuple[str, int], int] = {}
        """Of this connection, where it is not 0: one request is under way at a time, so a refusal ends the round."""
        self._timeout_s = terms.timeout_s
        self._client_name = terms.client_name
        self._credentials = terms.credentials
        self._tls = terms.tls
        self._socket: socket.socket | None = None
        self._correlation_id = 0

    def close(self) -> None:
        """End the connection; a later request makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def call(self, request: Request, kind: type[ReplyType], *, repeat: bool = True, wait_s: float = 0) -> ReplyType:
        """Send a request and wait for its reply; with `repeat` it may be sent again on a fresh connection."""
        repeat = repeat and self._socket is not None  # a connection of this moment is not stale
        try:
            return self._exchange(request, kind, wait_s)
        except ConnectionLost:
            if not repeat:
                raise
        return self._exchange(request, kind, wait_s)

    def _exchange(self, request: Request, kind: type[ReplyType], wait_s: float) -> ReplyType:
        connection = self.connected()
        try:
            self.send(connection, request)
            return self._receive(connection, request.correlation_id, kind, wait_s)
        except MillraceError:
            raise  # whoever raised it knows whether the connection can be used
        except BaseException:  # what a signal's handler raised: Ctrl-C, SystemExit, a time that is up
            self.close()  # half a request, or a reply that nobody waits for, would be left in it
            raise

    def connected(self) -> socket.socket:
        """The connection, made if there is none. Raises ConnectionLost, and what the broker answers hello with."""
        if self._socket is None:
            connection = self._connect_somewhere()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection
            self.rounds.clear()
            hello = wire.Hello(0, wire.VERSION_MIN, wire.VERSION, self._client_name, self._credentials)
            self.send(connection, hello)
            reply = self._receive(connection, hello.correlation_id, wire.HelloReply, 0)
            self.limits, self.node_id, self.version = reply.limits, reply.node_id, reply.version
        return self._socket

    def _connect_somewhere(self) -> socket.socket:
        """To the first of the addresses that answers, beginning with the one that did last."""
        for left in reversed(range(len(self.addresses))):
            address = self.addresses[0]
            try:
                connection = socket.create_connection(address, self._timeout_s)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_hostname=address[0])
                return connection
            except OSError as error:
                self.addresses.append(self.addresses.pop(0))
                if not left:
                    raise ConnectionLost(f"cannot connect to {_named(address)}: {error}", retriable=True) from error
        raise AssertionError("there is an address")

    def send(self, connection: socket.socket, request: Request) -> None:
        """Send a request. Raises ConnectionLost."""
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
        return ConnectionLost(f"connection to {_named(self.addresses[0])} lost: {error}", retriable=True)
