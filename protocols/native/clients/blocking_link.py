"""One connection of a blocking client, made on first use and again after it was lost.

While no broker is reached it is tried again for `patience_s`; not one whose certificate is not trusted, which does not
become another by waiting. One of several is not waited for: others may do.

A broker that stands still is told from one that takes its time by what others know: while a reply is awaited they are
asked every `_LOOK_S`, where there are any, and a broker that they do not know any more is waited for no longer. Who was
asked is asked again by the same connection.

A link belongs to one thread. Who asks while another thread does is refused, and disturbs nobody.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from errno import ETIMEDOUT
from ssl import SSLCertVerificationError, SSLContext
from threading import get_ident
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from protocols.buffers import join_small
from protocols.native import wire
from protocols.native.clients.forks import tell_when_forked
from protocols.native.clients.silence import end_when_silent
from protocols.native.errors import ConnectionLost, MillraceError, ProtocolError, RequestTimedOut, error_from_wire
from protocols.native.wire import Reply, Request

_LOOK_S = 2.0
"""How long a broker may take before others are asked about it, or tried, where there are any."""
_TRY_AGAIN_S = 0.2
_DIAL_S_MAX = 10.0
"""For one try to be connected: the kernel calls ever more seldom, and would hardly notice that the network is back."""
_NOT_ALONE = "a blocking client belongs to one thread, and is in the middle of a request"
ReplyType = TypeVar("ReplyType", bound=Reply)
Address = tuple[str, int]
"""Host and port."""

logger = logging.getLogger(__name__)

REPLY_BYTES_MAX = 256 << 20
"""Largest reply a client accepts; a broker never sends more than its `fetch_bytes_max` or one batch."""


def _is_final(error: ConnectionLost, until: float) -> bool:
    """Whether it is of no use to try again, or too late."""
    return time.monotonic() >= until or isinstance(error.__cause__, SSLCertVerificationError)


def named(address: Address) -> str:
    """As "host:port" or "[host]:port"."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Gone(ConnectionResetError):
    """The broker is none of the cluster's any more, for all that the others know."""


class BlockingTerms(Struct, frozen=True):
    """How connections are made."""

    timeout_s: float
    client_name: str
    credentials: tuple[str, str] | None
    tls: SSLContext | None
    patience_s: float


class BlockingLink:
    """See the module. `addresses` are those of a broker, or of several of which any will do; `among` is a link that
    knows where others are.
    """

    def __init__(self, addresses: Sequence[Address], terms: BlockingTerms, among: BlockingLink | None = None) -> None:
        self.addresses = list(addresses)
        self._among = among or self
        self.terms = terms
        self.version = wire.VERSION_MIN
        self.node_id = -1
        """Of the broker that it is, or was last, connected to; -1 before the first."""
        self.limits: dict[str, int] = {}
        self.rounds: dict[tuple[str, int], int] = {}
        """Of this connection, where it is not 0: one request is under way at a time, so a refusal ends the round."""
        self._timeout_s = terms.timeout_s
        self._patience_s = terms.patience_s if among is None else 0.0
        self._client_name = terms.client_name
        self._credentials = terms.credentials
        self._tls = terms.tls
        self._socket: socket.socket | None = None
        self._correlation_id = 0
        self._busy = self._connecting = 0
        """Which thread is in the middle of a request, or makes the connection; 0: none."""
        self.unanswered = False
        """A request may have been heard, and was not answered; whoever looks sets it back."""
        self._asked: dict[Address, BlockingLink] = {}
        """Other brokers, for who waits for one of `addresses`."""
        tell_when_forked(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_socket": None, "_asked": {}, "_busy": 0, "_connecting": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        tell_when_forked(self)

    def forked(self) -> None:
        """See `forks.py`. The parent's connection stays as it is, and so do its requests, of whichever thread."""
        self._busy = self._connecting = 0
        self.close()

    def close(self) -> None:
        """End the connection; a later request makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for link in self._asked.values():
            link.close()

    def call(self, request: Request, kind: type[ReplyType], *, repeat: bool = True, wait_s: float = 0) -> ReplyType:
        """Send a request and wait for its reply; with `repeat` it may be sent again on a fresh connection."""
        until = time.monotonic() + self._patience_s
        while True:
            fresh = self._socket is None  # a connection of this moment is not stale
            try:
                return self._exchange(request, kind, wait_s)
            except ConnectionLost as error:
                self.unanswered = True
                if not repeat or (fresh and _is_final(error, until)):
                    raise
            if fresh:
                time.sleep(_TRY_AGAIN_S)

    def _exchange(self, request: Request, kind: type[ReplyType], wait_s: float) -> ReplyType:
        here = get_ident()
        if self._busy not in (0, here):
            raise RuntimeError(_NOT_ALONE)
        self._busy = here
        try:
            connection = self.connected()
            self.send(connection, request)
            return self._receive(connection, request.correlation_id, kind, self._timeout_s + wait_s)
        except MillraceError:
            raise  # whoever raised it knows whether the connection can be used
        except BaseException:  # what a signal's handler raised: Ctrl-C, SystemExit, a time that is up
            self.close()  # half a request, or a reply that nobody waits for, would be left in it
            raise
        finally:
            self._busy = 0

    def connected(self) -> socket.socket:
        """The connection, made if there is none. Raises ConnectionLost, and what the broker answers hello with."""
        here = get_ident()
        if self._connecting not in (0, here):
            raise RuntimeError(_NOT_ALONE)
        if self._socket is not None:
            return self._socket
        self._connecting = here
        try:
            return self._meet_patiently()
        except BaseException:
            self.close()  # where a signal came the answer to hello may still be on its way
            raise
        finally:
            self._connecting = 0

    def _meet_patiently(self) -> socket.socket:
        until = time.monotonic() + self._patience_s
        told = False
        while True:
            try:
                return self._meet_someone()
            except ConnectionLost as error:
                if _is_final(error, until):
                    raise
                if not told:
                    logger.warning("%s; it is tried again for %g s", error, self._patience_s)
                    told = True
            time.sleep(_TRY_AGAIN_S)

    def _meet_someone(self) -> socket.socket:
        until = time.monotonic() + self._timeout_s
        for _ in range(len(self.addresses) if len(self.addresses) > 1 else 0):
            try:
                return self._meet(min(_LOOK_S, self._timeout_s))
            except RequestTimedOut:
                self._leave()
        return self._meet(max(until - time.monotonic(), min(_LOOK_S, self._timeout_s)))

    def _meet(self, limit_s: float) -> socket.socket:
        connection = self._connect_somewhere(limit_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self.rounds.clear()
        hello = wire.Hello(0, wire.VERSION_MIN, wire.VERSION, self._client_name, self._credentials)
        self.send(connection, hello)
        reply = self._receive(connection, hello.correlation_id, wire.HelloReply, limit_s)
        self.limits, self.node_id, self.version = reply.limits, reply.node_id, reply.version
        return connection

    def _leave(self) -> None:
        """Try other addresses first."""
        self.addresses.append(self.addresses.pop(0))

    def _connect_somewhere(self, limit_s: float) -> socket.socket:
        """To the first of the addresses that answers, beginning with the one that did last."""
        for left in reversed(range(len(self.addresses))):
            address = self.addresses[0]
            try:
                connection = socket.create_connection(address, min(limit_s, _DIAL_S_MAX))
                end_when_silent(connection, self._timeout_s)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_hostname=address[0])
                return connection
            except OSError as error:
                self._leave()
                if not left:
                    raise ConnectionLost(f"cannot connect to {named(address)}: {error}", retriable=True) from error
        raise AssertionError("there is an address")

    def send(self, connection: socket.socket, request: Request) -> None:
        """Send a request. Raises ConnectionLost."""
        self._correlation_id = self._correlation_id + 1 & 0xFFFF_FFFF
        request.correlation_id = self._correlation_id
        try:
            connection.settimeout(self._timeout_s)
            for piece in join_small(wire.encode(request)):
                connection.sendall(piece)
        except OSError as error:
            raise self._lost(error) from error

    def _receive(
        self, connection: socket.socket, correlation_id: int, kind: type[ReplyType], limit_s: float
    ) -> ReplyType:
        until = time.monotonic() + limit_s
        try:
            size = int.from_bytes(self._read(connection, wire.LENGTH_BYTES, until), "big")
            if not 0 < size <= REPLY_BYTES_MAX:
                raise ProtocolError(self._announced(size, kind))
            reply = wire.decode_reply(self._read(connection, size, until))
        except TimeoutError as timeout:
            self.close()
            raise RequestTimedOut(f"no reply within {limit_s:g} s", retriable=True) from timeout
        except OSError as problem:
            lost = self._lost(problem)
            if isinstance(problem, _Gone):
                self._leave()
            raise lost from problem
        except BaseException:
            self.close()
            raise
        if isinstance(reply, wire.ErrorReply):
            error = error_from_wire(reply.error)
            if reply.correlation_id is None or kind is wire.HelloReply:
                self.close()
                if error.retriable:  # the broker stops, or is cut off from its cluster
                    self._leave()
                    raise ConnectionLost(str(error), retriable=True)
            raise error
        if reply.correlation_id != correlation_id or not isinstance(reply, kind):
            self.close()
            raise ProtocolError(f"the broker answered {reply!r} instead of {kind.__name__} {correlation_id}")
        return reply

    def _announced(self, size: int, kind: type[Reply]) -> str:
        if kind is wire.HelloReply:
            begin = size.to_bytes(wire.LENGTH_BYTES, "big")
            return f"{named(self.addresses[0])} is no native door: what it says begins with {begin!r}"
        return f"the broker announced a reply of {size} bytes"

    def _read(self, connection: socket.socket, size: int, until: float) -> memoryview:
        view = memoryview(bytearray(size))
        filled = 0
        while filled < size:
            left_s = until - time.monotonic()
            connection.settimeout(max(min(left_s, _LOOK_S), 0.001))
            try:
                count = connection.recv_into(view[filled:])
            except TimeoutError as error:
                if error.errno == ETIMEDOUT:  # the kernel says it, once, and then that the connection has ended
                    raise ConnectionResetError("nothing was heard of the broker") from None
                if left_s <= _LOOK_S:
                    raise
                if self._is_gone():
                    raise _Gone("it does not answer, and others say that it is gone") from None
                continue
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            filled += count
        return view

    def _is_gone(self) -> bool:
        """Whether another broker says that this one is none of them any more."""
        here, asked = self.addresses[0], self._among._asked
        for address in self._among.addresses:
            if address == here:
                continue
            other = asked.get(address)
            if other is None:
                terms = msgspec.structs.replace(self.terms, timeout_s=_LOOK_S, patience_s=0)
                other = asked[address] = BlockingLink([address], terms)
            try:
                reply = other.call(wire.Metadata(0, [], False), wire.MetadataReply)
            except MillraceError:
                continue
            if other.node_id != self.node_id:
                there = {node: (host, port) for node, host, port in reply.nodes if host}
                return self.node_id not in there if self.node_id >= 0 else here not in there.values()
        return False

    def _lost(self, error: OSError) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"connection to {named(self.addresses[0])} lost: {error}", retriable=True)
