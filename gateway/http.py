"""HTTP/1.1 as far as a connection has to speak it before it is answered, refused, or something else: one request.

1. `h11` reads and writes; this module has the sockets, and the limits: bytes of the head and of the body, of which
   nothing is kept beyond them, and time until each is there.
2. Whoever asks for something that is not there is told so in HTTP's own terms (`Refused`), and that nothing follows.
3. A connection has one request. This module knows nothing of what is asked for: the WebSocket doors and those for HTTP
   itself (`web_pages`) are its users.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from time import perf_counter
from typing import TypeVar

import h11
import trio

from gateway.errors import PeerGone, Refused
from gateway.sockets import see_off, send_all
from gateway.tls import TlsLayer, TlsReader
from routing.bites import BITE_S

_READ_BYTES = 1 << 10
"""A head is read in small pieces: the limit on it is looked at while it is not complete."""
_BODY_READ_BYTES = 64 << 10

_LINGER_S = 2.0
_ABSOLUTE = re.compile(r"https?://(?P<host>[^/?#]*)", re.IGNORECASE)

Headers = list[tuple[str, str]]
Page = tuple[HTTPStatus, Headers, bytes]
"""An answer: status, headers and body."""
T = TypeVar("T")


@dataclass(slots=True)
class Request:
    """A request's head; names of headers are in lower case, values without the white space around them."""

    method: str
    path: str
    """Without the query."""
    version: str
    headers: dict[str, list[str]] = field(default_factory=dict)
    query: str = ""
    """As it was sent."""

    def first(self, name: str) -> str | None:
        """The value of a header that makes sense once; None without it."""
        return self.headers.get(name, [None])[0]

    def tokens(self, name: str) -> list[str]:
        """The elements of a header that is a list, however many lines it has."""
        return [token.strip() for line in self.headers.get(name, ()) for token in line.split(",") if token.strip()]


class Exchange:
    """One client that sends a request, over TCP or TLS."""

    def __init__(
        self, sock: socket.socket, tls: TlsLayer | None, *, head_bytes_max: int, always: Headers | None = None
    ) -> None:
        """`always` are headers of every answer."""
        self._always = always or []
        self._socket = sock
        self._tls = tls
        self._receive = sock.recv if tls is None else TlsReader(sock, tls).recv
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=head_bytes_max)
        self._without_body = False
        self._announced_bytes = 0

    async def take(
        self, answer: Callable[[Request], Awaitable[T]], timeout_ms: int, answer_timeout_ms: float = math.inf
    ) -> T:
        """What `answer` makes of the request, whose head has to come within a time, and to be answered within another.
        What it raises as Refused is told to the client, and TooSlowError as well. Raises Refused, PeerGone.
        """
        refused = Refused(HTTPStatus.REQUEST_TIMEOUT, f"no request within {timeout_ms} ms")
        try:
            with trio.fail_after(timeout_ms / 1000):
                request = await self.request()
            refused = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "no answer in time")
            with trio.fail_after(answer_timeout_ms / 1000):
                return await answer(request)
        except trio.TooSlowError:
            pass
        except Refused as error:
            refused = error
        await self.turn_away(refused)
        raise refused

    async def turn_away(self, refused: Refused) -> None:
        """Answer with what was raised, and give the client time to take it and to close first. Raises PeerGone."""
        with trio.move_on_after(_LINGER_S):
            await self.refuse(refused)
            await self._see_off()

    async def finish(self) -> None:
        """Give the client time to take the answer and to close first."""
        with trio.move_on_after(_LINGER_S):
            await self._see_off()

    async def _see_off(self) -> None:
        """Say that nothing follows, in TLS as well: else it may have been cut off (RFC 9112 section 9.8)."""
        if self._tls is not None:
            await send_all(self._socket, self._tls.goodbye())
        await see_off(self._socket, False)

    async def request(self) -> Request:
        """The head of the request. Raises Refused, PeerGone."""
        connection = self._connection
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await self._read(_READ_BYTES))
        except h11.RemoteProtocolError as error:
            # Whoever is at the beginning of TLS is no HTTP client that understands an answer, but nobody minds it.
            raise Refused(HTTPStatus(error.error_status_hint), str(error)) from None
        if not isinstance(event, h11.Request):
            raise PeerGone
        self._without_body = event.method == b"HEAD"
        headers: dict[str, list[str]] = {}
        for name, value in event.headers:
            headers.setdefault(name.decode("ascii"), []).append(value.decode("latin-1"))
        self._announced_bytes = int(headers.get("content-length", ["0"])[0])
        target = event.target.decode("latin-1")
        absolute = _ABSOLUTE.match(target)
        if absolute is not None:  # as to a proxy; it says which host is meant (RFC 9112 section 3.2.2)
            headers["host"], target = [absolute["host"]], "/" + target[absolute.end() :].removeprefix("/")
        path, _, query = target.partition("?")
        return Request(event.method.decode("ascii"), path, event.http_version.decode("ascii"), headers, query)

    def has_body(self) -> bool:
        """Whether anything but its end follows the head of the request."""
        try:
            return not isinstance(self._connection.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError:
            return True

    async def body(self, bytes_max: int, timeout_ms: int) -> bytes:
        """What follows the head of the request. Raises Refused, PeerGone."""
        try:
            with trio.fail_after(timeout_ms / 1000):
                return await self._whole_body(bytes_max)
        except trio.TooSlowError:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, f"no complete request within {timeout_ms} ms") from None
        except h11.RemoteProtocolError as error:
            raise Refused(HTTPStatus(error.error_status_hint), str(error)) from None

    async def _whole_body(self, bytes_max: int) -> bytes:
        """Raises Refused, PeerGone, RemoteProtocolError."""
        connection = self._connection
        too_long = Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {bytes_max} bytes")
        if self._announced_bytes > bytes_max:
            raise too_long
        if connection.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            await self._send(connection.send(go_on) or b"")
        body = bytearray()
        until_s = perf_counter() + BITE_S
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if perf_counter() > until_s:  # there may be as many chunks as bytes
                await trio.lowlevel.checkpoint()
                until_s = perf_counter() + BITE_S
            if event is h11.NEED_DATA:
                connection.receive_data(await self._read(_BODY_READ_BYTES))
            elif isinstance(event, h11.Data):
                if len(body) + len(event.data) > bytes_max:
                    raise too_long
                body += event.data
            else:
                raise PeerGone
        return bytes(body)

    async def switch(self, headers: Headers) -> bytes:
        """Answer 101: the connection speaks something else now. What of that came already. Raises PeerGone."""
        answer = self._connection.send(
            h11.InformationalResponse(status_code=101, headers=_encoded(headers), reason=b"Switching Protocols")
        )
        await self._send(answer or b"")
        return self._connection.trailing_data[0]

    async def refuse(self, refused: Refused) -> None:
        """Answer with what was raised; the connection is to be closed then. Raises PeerGone."""
        if self._connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return  # the peer did not take the answer in time
        text = ("Content-Type", "text/plain; charset=utf-8")
        await self.answer(refused.status, [*refused.headers, text], f"{refused.reason}\n".encode())

    async def answer(self, status: HTTPStatus, headers: Headers, body: bytes) -> None:
        """Answer, and say that nothing follows. Raises PeerGone."""
        closing = "Upgrade, close" if ("Upgrade", "websocket") in headers else "close"
        told = [*self._always, *headers, ("Connection", closing)]
        if status != HTTPStatus.NOT_MODIFIED:
            told.append(("Content-Length", str(len(body))))
        response = h11.Response(status_code=status, headers=_encoded(told), reason=status.phrase.encode("ascii"))
        connection = self._connection
        answer = connection.send(response) or b""
        if not self._without_body:
            answer += connection.send(h11.Data(data=body)) or b""
        await self._send(answer + (connection.send(h11.EndOfMessage()) or b""))

    async def _read(self, size: int) -> bytes:
        while True:
            try:
                return self._receive(size)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except OSError:
                raise PeerGone from None

    async def _send(self, data: bytes) -> None:
        if not await send_all(self._socket, data if self._tls is None else self._tls.encrypt([data])):
            raise PeerGone


def is_listed(origin: str, origins: str) -> bool:
    """Whether the page that a browser names as its `origin` is from one of `origins`, as settings list them."""
    return origin.lower() in (one.strip().rstrip("/").lower() for one in origins.split(","))


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]
