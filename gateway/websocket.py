"""WebSocket (RFC 6455) between a socket, or TLS, and a protocol: frames in, their bytes out, and back.

1. The batch survives: the binary frames of one read are joined into one piece of the stream, and those of what a turn
   wrote are sent with one call. A frame is not waited for: what is there of it is handed on, so that only some bytes of
   a header are kept.
2. Frames of clients are no packets: these may straddle them, and one may hold many (MQTT 5 section 6). To a client each
   packet is a frame, as there are clients that take the first of a frame and leave the others until the next one comes
   (Paho for C).
3. What clients send all day, masked binary frames, is taken apart here; everything else (ping, pong, close, whatever
   breaks the rules) goes to `wsproto`. Of the pings of a read the last is answered. Text ends it with 1003
   (MQTT-6.0.0-1), a message over the limit with 1009, too many control frames in a read with 1008.
4. No extension is agreed to: a compressed stream is memory for each connection, and a small one may become a large one.
"""

from __future__ import annotations

import base64
import binascii
import socket
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from wsproto.connection import SERVER, Connection, ConnectionState
from wsproto.events import CloseConnection, Ping
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from gateway.errors import PeerGone, Refused
from gateway.http import Exchange, Headers, Request, is_listed
from gateway.tls import TlsLayer
from protocols.buffers import BytesLike
from protocols.mqtt.packets import frame as packet_frame

if TYPE_CHECKING:
    from gateway.config import WebSocketConfig

_PACKET_BYTES_MAX = 5 + (1 << 28) - 1
"""What MQTT has lengths for, its own fixed header included."""

FRAME_BYTES = 512 << 10
"""Most that is sent as one frame: there are clients that take no more than a megabyte."""

CONTROL_FRAMES_MAX = 64
"""Most control frames in one read."""

_SUBPROTOCOLS = ("mqtt", "mqttv3.1")
"""The name that the standards have (MQTT-6.0.0-3), and that of clients from before them."""

_FINAL, _OPCODE, _MASKED = 0x80, 0x0F, 0x80
_CONTINUATION, _TEXT, _BINARY = 0x0, 0x1, 0x2
_WHOLE_BINARY = _FINAL | _BINARY
_SMALL = _MASKED | 125


class ControlFrame(bytes):
    """A frame as it is sent, among the pieces of what an adapter wrote."""


class WebSocket:
    """The state of one connection behind its handshake; `data` came with that already."""

    __slots__ = ("_answers", "_head", "_mask", "_message_bytes", "_message_bytes_max", "_missing", "_open", "_protocol",
                 "_reason", "_rest", "ended", "farewell")  # fmt: skip

    def __init__(self, message_bytes_max: int, data: bytes = b"") -> None:
        self.ended = False
        """Nothing more is taken from the peer: it has closed, or must."""
        self.farewell: int = CloseReason.NORMAL_CLOSURE
        """The code to close with when the protocol has ended: only then, as no data may follow (RFC 6455 5.5.1)."""
        self._reason: str | None = None
        self._protocol = Connection(SERVER)
        self._message_bytes_max = message_bytes_max
        self._message_bytes = 0
        self._open = False  # within a message of several frames
        self._head: BytesLike = data
        self._rest = 0
        """Bytes that are missing of the frame under way."""
        self._mask = b""
        self._missing = 0
        """Bytes that are still to be written of the packet under way."""
        self._answers: list[ControlFrame] = []

    def go_away(self) -> None:
        """The broker stops: that is what the connection is to be closed with."""
        if not self.ended:
            self.farewell = CloseReason.GOING_AWAY

    def reader(
        self, receive: Callable[[int], bytes], write: Callable[[list[ControlFrame]], None]
    ) -> Callable[[int], bytes]:
        """What gives what the frames hold; see `WebReader`."""
        return WebReader(receive, self, write).recv

    def receive(self, data: bytes) -> bytes:
        """Take bytes as they came: those of all binary frames, joined."""
        found: list[bytes] = []
        if self._head:
            data, self._head = bytes(self._head) + data, b""
        position, end, controls = 0, len(data), 0
        if self._rest:
            position = self._part(data, 0, found)
        while end - position >= 2 and not self.ended:
            first, second = data[position], data[position + 1]
            if first == _WHOLE_BINARY and _MASKED <= second <= _SMALL and not self._open:
                size = second - _MASKED
                start = position + 6
                stop = start + size
                if stop > end:
                    break
                found.append(unmasked(data[start:stop], data[position + 2 : start]))
                position = stop
                continue
            extra = {126: 2, 127: 8}.get(second & 0x7F, 0)
            start = position + 2 + extra + 4
            if start > end and second & _MASKED:
                break
            size = int.from_bytes(data[position + 2 : position + 2 + extra], "big") if extra else second & 0x7F
            if second & _MASKED and first & 0x70 == 0 and first & _OPCODE in (_CONTINUATION, _TEXT, _BINARY):
                if not self._begins(first, size):
                    break
                self._mask, self._rest = data[start - 4 : start], size
                position = self._part(data, start, found)
                continue
            controls += 1
            if second & _MASKED and size <= 125 and start + size > end:
                break
            if controls > CONTROL_FRAMES_MAX:
                self._fail(CloseReason.POLICY_VIOLATION, "too many control frames")
                break
            self._control(data[position : start + size])
            position = start + size
        if not self.ended:
            self._head = data[position:]
        return found[0] if len(found) == 1 else b"".join(found)

    def answers(self) -> list[ControlFrame]:
        """What is to be sent besides what the adapter writes: pongs."""
        if not self._answers:
            return []
        answers, self._answers = self._answers, []
        return answers

    def goodbye(self) -> ControlFrame:
        """The frame that closes, after which nothing is sent; empty when it was sent."""
        if self._protocol.state not in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            return ControlFrame()
        return ControlFrame(self._protocol.send(CloseConnection(self.farewell, self._reason)))

    def frame(self, pieces: Sequence[BytesLike]) -> list[BytesLike]:
        """The pieces as frames: one for each packet, or as many as it takes for a large one."""
        framed: list[BytesLike] = []
        run: list[BytesLike] = []
        size, missing = 0, self._missing
        for piece in pieces:
            end = len(piece)
            if type(piece) is ControlFrame:
                size = _ended(framed, run, size)
                framed.append(piece)
                continue
            start, view = 0, memoryview(piece)
            while start < end:
                if not missing:
                    size = _ended(framed, run, size)
                    missing = packet_frame(piece, start, end, _PACKET_BYTES_MAX)[1] - start
                elif size == FRAME_BYTES:
                    size = _ended(framed, run, size)
                some = min(missing, end - start, FRAME_BYTES - size)
                run.append(piece if some == end else view[start : start + some])
                size += some
                missing -= some
                start += some
        _ended(framed, run, size)
        self._missing = missing
        return framed

    def _begins(self, first: int, size: int) -> bool:
        """A data frame begins: whether it may."""
        opcode = first & _OPCODE
        if opcode == _TEXT:
            self._fail(CloseReason.UNSUPPORTED_DATA, "text frames carry no MQTT")
        elif (opcode == _CONTINUATION) != self._open:
            self._fail(CloseReason.PROTOCOL_ERROR, "a message within a message, or a continuation of none")
        else:
            self._message_bytes = size + (self._message_bytes if self._open else 0)
            self._open = not first & _FINAL
            if self._message_bytes > self._message_bytes_max:
                self._fail(CloseReason.MESSAGE_TOO_BIG, f"over {self._message_bytes_max} bytes")
        return not self.ended

    def _part(self, data: bytes, start: int, found: list[bytes]) -> int:
        """Take what is there of the frame under way, from `start` on; where it stops."""
        some = data[start : start + self._rest]
        if some:
            found.append(unmasked(some, self._mask))
            self._rest -= len(some)
            turn = len(some) & 3
            self._mask = self._mask[turn:] + self._mask[:turn]
        return start + len(some)

    def _control(self, frame: bytes) -> None:
        """A whole control frame, or what no client may send."""
        self._protocol.receive_data(frame)
        known = False
        for event in self._protocol.events():
            known = True
            if isinstance(event, Ping):
                self._answers[:] = [ControlFrame(self._protocol.send(event.response()))]
            elif isinstance(event, CloseConnection):
                self._fail(event.code, event.reason)
                return
        if not known:
            self._fail(CloseReason.PROTOCOL_ERROR, "broken frame")

    def _fail(self, code: int, reason: str | None) -> None:
        """Close with a code: the peer's own, if it was the one that closed."""
        self.ended = True
        self._head = b""
        self.farewell, self._reason = code, reason


def unmasked(data: bytes, mask: bytes) -> bytes:
    """What a client has sent (RFC 6455 section 5.3), or the other way round."""
    size = len(data)
    key = mask * ((size + 3) >> 2)
    return (int.from_bytes(data, "little") ^ int.from_bytes(key[:size], "little")).to_bytes(size, "little")


def header(size: int) -> bytes:
    """What is in front of a binary frame of so many bytes from the server."""
    if size < 126:
        return bytes((_WHOLE_BINARY, size))
    if size < 1 << 16:
        return bytes((_WHOLE_BINARY, 126)) + size.to_bytes(2, "big")
    return bytes((_WHOLE_BINARY, 127)) + size.to_bytes(8, "big")


def _ended(framed: list[BytesLike], run: list[BytesLike], size: int) -> int:
    """Put a frame of the run's pieces, if there are any, at the end of `framed`; the size of the next one: 0."""
    if run:
        framed.append(header(size))
        framed += run
        run.clear()
    return 0


class WebReader:
    """The reading side, as the shell wants it: `recv` gives what the frames hold."""

    __slots__ = ("_receive", "_web", "_write")

    def __init__(
        self, receive: Callable[[int], bytes], web: WebSocket, write: Callable[[list[ControlFrame]], None]
    ) -> None:
        """`write` sends control frames that nobody's turn will."""
        self._receive = receive
        self._web = web
        self._write = write

    def recv(self, size: int) -> bytes:
        """Like `socket.recv`; less than `size` means that the kernel has no more, and somewhat more may come.

        Raises BlockingIOError when there is nothing for the protocol, OSError when the connection is broken.
        """
        web = self._web
        found = [web.receive(b"")]
        missing = size
        for _ in range(2):
            if web.ended or missing <= 0:
                break
            try:
                data = self._receive(size)
            except BlockingIOError:
                break
            if not data:
                web.ended = True
                break
            some = web.receive(data)
            found.append(some)
            missing -= len(some)
            if len(data) < size:
                break
        answers = web.answers()
        if answers:
            self._write(answers)
        data = b"".join(found)
        if not data and not web.ended:
            raise BlockingIOError
        return data


async def upgrade(sock: socket.socket, tls: TlsLayer | None, config: WebSocketConfig) -> WebSocket:
    """Take the client's request for a WebSocket. Raises Refused when it has been answered otherwise, PeerGone."""
    exchange = Exchange(sock, tls, head_bytes_max=config.head_bytes_max)

    async def agree(request: Request) -> WebSocket:
        headers = accept(request, config)
        if exchange.has_body():
            raise Refused(HTTPStatus.BAD_REQUEST, "a request for a WebSocket has no body")
        return WebSocket(config.message_bytes_max, await exchange.switch(headers))

    return await exchange.take(agree, config.handshake_timeout_ms, config.handshake_timeout_ms)


def accept(request: Request, config: WebSocketConfig) -> Headers:
    """The headers of the answer that agrees to a WebSocket (RFC 6455 section 4.2). Raises Refused."""
    if request.path != config.path:
        raise Refused(HTTPStatus.NOT_FOUND, f"the WebSocket is at {config.path}")
    if request.method != "GET":
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "a WebSocket is asked for with GET", [("Allow", "GET")])
    wants = "upgrade" in map(str.lower, request.tokens("connection"))
    if not wants or "websocket" not in map(str.lower, request.tokens("upgrade")) or request.version != "1.1":
        raise Refused(HTTPStatus.UPGRADE_REQUIRED, "only a WebSocket is here", [("Upgrade", "websocket")])
    if request.first("sec-websocket-version") != "13":
        raise Refused(
            HTTPStatus.UPGRADE_REQUIRED,
            "WebSocket version 13 is spoken here",
            [("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")],
        )
    key = request.first("sec-websocket-key") or ""
    try:
        whole = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        whole = False
    if not whole:
        raise Refused(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key: 16 bytes in base64 are expected")
    origin = request.first("origin")
    if config.origins and origin is not None and not is_listed(origin, config.origins):
        raise Refused(HTTPStatus.FORBIDDEN, f"pages from {origin} may not connect")
    offered = request.tokens("sec-websocket-protocol")
    subprotocol = next((name for name in _SUBPROTOCOLS if name in offered), None)
    if subprotocol is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Protocol: mqtt is not among what is offered")
    return [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", generate_accept_token(key.encode("ascii")).decode("ascii")),
        ("Sec-WebSocket-Protocol", subprotocol),
    ]


__all__ = ["ControlFrame", "PeerGone", "Refused", "WebReader", "WebSocket", "upgrade"]
