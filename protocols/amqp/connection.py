"""The server's side of one AMQP 0-9-1 connection, without sockets, clock or engine: bytes in, events out.

1. `receive_data` returns one event per operation: `PublishRun`, `AckRange`, `AckUpTo`, or `MethodReceived` for every
   other method. It never raises for a peer's fault: the `AmqpError` to answer with is the last event of the list, so
   that what was read before it is not lost.
2. States go header -> starting -> tuning -> opening -> open -> closing. They advance as methods are *parsed*; whoever
   handles the events decides what happens, and calls `close_connection` or `close_channel` when it goes wrong.
3. After `close_channel` everything on that channel is ignored until the peer's `channel.close-ok` (section 1.4.2.5 of
   the specification); after `close_connection` everything but `connection.close` and `close-ok`.
4. An incomplete frame is kept as a list of the pieces read and joined once it is complete, so the cost is linear in the
   bytes, however they arrive; `contents` does the same for bodies of many frames.
5. Sizes are checked before anything is kept: a frame against the negotiated size, a body against the message limit.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocols.amqp import methods
from protocols.amqp.config import AmqpConfig
from protocols.amqp.contents import BODY_FRAME, HEADER_FRAME, PUBLISH, Contents
from protocols.amqp.deliveries import method_frame
from protocols.amqp.errors import AmqpError, MalformedText, SyntaxFault, erlang_binary, payload_snippet
from protocols.amqp.methods import Method, decode_method
from protocols.amqp.mixed_runs import Facts, MixedRuns, RuledFacts
from protocols.amqp.publish_run import (
    AckRange,
    AckUpTo,
    PropertiesMemo,
    PublishRun,
    Route,
    take_acks,
    take_publishes,
)

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_HEADERS = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")
"""How a client may begin: also as 0-9 did, which differs in nothing else that is used, and which some clients that
speak 0-9-1 have kept (aioamqp, txAMQP, Perl's Net::AMQP). RabbitMQ takes both."""
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
FRAME_BYTES_MIN = 4096

_FRAME_HEAD = struct.Struct(">BHI")
_TAG = struct.Struct(">Q")
_END = 0xCE
_PUBLISH = b"\x00\x3c\x00\x28"
_ACK = b"\x00\x3c\x00\x50"
_METHOD, _HEARTBEAT = 1, 8


class State(enum.Enum):
    """How far the connection has come; the values are RabbitMQ's words, they appear in explanations."""

    HEADER = "handshake"
    STARTING = "starting"
    TUNING = "tuning"
    OPENING = "opening"
    OPEN = "running"
    CLOSING = "closing"
    CLOSED = "closed"


# The one method each state of the handshake waits for, and the state after it.
_HANDSHAKE: dict[State, tuple[type[Method], State]] = {
    State.STARTING: (methods.ConnectionStartOk, State.TUNING),
    State.TUNING: (methods.ConnectionTuneOk, State.OPENING),
    State.OPENING: (methods.ConnectionOpen, State.OPEN),
}


@dataclass(slots=True)
class MethodReceived:
    """Any method but publish and ack."""

    channel: int
    method: Method


Event = PublishRun | AckRange | AckUpTo | MethodReceived | AmqpError


@dataclass(slots=True)
class _Channel:
    closing: bool = False
    """What comes on it is ignored."""
    close_sent: bool = False


class AmqpConnection:
    """See the module. `intern` turns property bytes into what publishes carry as `properties`.

    `facts_of` and `ruled_facts` say what decides which publishes go together, see `mixed_runs`; without them only equal
    ones do.
    """

    def __init__(
        self,
        config: AmqpConfig,
        write: Callable[[bytes], None],
        intern: Callable[[bytes], Any],
        *,
        server_properties: dict[str, Any],
        mechanisms: bytes,
        facts_of: Facts = lambda raw: None,
        ruled_facts: RuledFacts = lambda facts, priorities, expirations, delays: [],
    ) -> None:
        self.state = State.HEADER
        self.frame_bytes_max = config.frame_bytes_max
        self.channel_max = config.channel_max
        self.heartbeat_s = 0
        self._config = config
        self._write = write
        self._server_properties = server_properties
        self._mechanisms = mechanisms
        self._frame_limit = config.handshake_frame_bytes_max
        self._body_bytes_max = 0
        self._properties = PropertiesMemo(intern, config.parsed_memo_entries_max)
        self._routes: dict[bytes, Route] = {}
        self._mixed = MixedRuns(self._routes, facts_of, ruled_facts)
        self._channels: dict[int, _Channel] = {}
        self._contents = Contents(config, self._properties)
        self._in_step = True
        self._resume_at = 0
        self._pieces: list[bytes] = []
        self._buffered = 0
        self._needed = 0

    @property
    def closed(self) -> bool:
        """Nothing more is read or written."""
        return self.state is State.CLOSED

    # ---------------------------------------------------------------- what we send

    def send(self, channel: int, method: Method) -> None:
        """Write a method frame."""
        self._write(method_frame(channel, method.encode()))

    def close_channel(self, error: AmqpError) -> None:
        """Send `channel.close` and ignore the channel until the peer has answered. One that is not there was closed by
        the peer as well, in what was read with the fault: that close is still to be handled.
        """
        if self.state is not State.OPEN:
            return
        channel = self._channels.setdefault(error.channel, _Channel())
        if channel.close_sent:
            return
        channel.closing = channel.close_sent = True
        self._contents.drop(error.channel)
        self._routes.clear()
        self.send(error.channel, methods.ChannelClose(error.code, error.reply_text, error.class_id, error.method_id))

    def close_connection(self, error: AmqpError) -> None:
        """Send `connection.close` and ignore everything but the answer to it."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        if self.state is State.HEADER:
            self.state = State.CLOSED
            return
        self.state = State.CLOSING
        self._in_step = self._in_step and error.in_step
        self._frame_limit = max(self._frame_limit, self.frame_bytes_max)
        self._channels.clear()
        self._routes.clear()
        self._contents.clear()
        self.send(0, methods.ConnectionClose(error.code, error.reply_text, error.class_id, error.method_id))

    def abandon(self) -> None:
        """Close without a word."""
        self.state = State.CLOSED

    def tune(self) -> None:
        """The peer has logged in: offer the connection's terms."""
        config = self._config
        self.send(0, methods.ConnectionTune(config.channel_max, config.frame_bytes_max, config.heartbeat_s))

    # ---------------------------------------------------------------- what we read

    def receive_data(self, data: bytes) -> list[Event]:
        """Take bytes from the peer; returns the operations completed by them."""
        if self.closed or not self._in_step:
            return []
        if self._pieces:
            self._pieces.append(data)
            self._buffered += len(data)
            if self._buffered < self._needed:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        events: list[Event] = []
        try:
            pos = self._parse(data, events)
        except AmqpError as error:
            # Whoever handles the events will close; what follows the faulty frame is looked at after that.
            self._in_step = self._in_step and error.in_step
            events.append(error)
            pos = self._resume_at
        if pos < len(data) and self._in_step and not self.closed:
            self._keep(data[pos:] if pos else data)
        return events

    def _keep(self, rest: bytes) -> None:
        self._pieces = [rest]
        self._buffered = len(rest)
        if self.state is State.HEADER:
            self._needed = 8
        else:
            self._needed = 7 if len(rest) < 7 else 8 + _FRAME_HEAD.unpack_from(rest)[2]

    def _parse(self, data: bytes, events: list[Event]) -> int:
        pos = 0
        end = len(data)
        if self.state is State.HEADER:
            if not self._accept_header(data):
                return 0 if self.state is State.HEADER else end
            pos = 8
        unpack = _FRAME_HEAD.unpack_from
        routes = self._routes
        unfinished = self._contents.unfinished
        while end - pos >= 7:
            kind, channel, size = unpack(data, pos)
            # Eight bytes of grace, as RabbitMQ gives them: some clients forget the head and the end of a frame.
            if size > self._frame_limit:
                explanation = f"{{frame_too_large,{size},{self._frame_limit - 8}}}"
                raise _frame_error(kind, b"", explanation, channel)
            stop = pos + size + 8
            if stop > end:
                break
            self._resume_at = stop
            if kind == _METHOD and not unfinished:
                frame = data[pos:stop]
                route = routes.get(frame)
                if route is None and frame[7:11] == _PUBLISH:
                    route = self._learn(channel, frame)
                if route is not None:
                    reached, run = self._take(data, pos, end, route)
                    if run is not None:
                        pos = self._go_on(data, reached, end, run, events)
                        continue
                elif size == 13 and frame[7:11] == _ACK and frame[20] == _END and self._is_open(channel):
                    pos = self._take_acks(data, pos, end, channel, frame[19], events)
                    continue
            if data[stop - 1] != _END:
                explanation = f"{{invalid_frame_end_marker,{data[stop - 1]}}}"
                raise _frame_error(kind, data[pos + 7 : stop - 1], explanation, channel)
            self._take_frame(kind, channel, data[pos + 7 : stop - 1], events)
            pos = stop
            if self.closed:
                return end
        return pos

    def _accept_header(self, data: bytes) -> bool:
        if not any(header.startswith(data[:8]) for header in _HEADERS):
            # Section 4.2.2: answer with the version we speak, then close.
            self._write(PROTOCOL_HEADER)
            self.state = State.CLOSED
            return False
        if len(data) < 8:
            return False
        self.state = State.STARTING
        start = methods.ConnectionStart(0, 9, self._server_properties, self._mechanisms, b"en_US")
        self.send(0, start)
        return True

    def _is_open(self, channel_id: int) -> bool:
        channel = self._channels.get(channel_id)
        return channel is not None and not channel.closing

    def _learn(self, channel_id: int, frame: bytes) -> Route | None:
        """Parse and remember a frame `basic.publish`; None while its channel is not open."""
        if frame[-1] != _END or not self._is_open(channel_id):
            return None
        route = self._route(channel_id, frame)
        if len(self._routes) >= self._config.parsed_memo_entries_max:
            self._routes.clear()
        self._routes[frame] = route
        return route

    def _route(self, channel_id: int, frame: bytes) -> Route:
        try:
            publish: methods.BasicPublish = methods.BasicPublish.decode_arguments(frame[:-1], 11)
        except SyntaxFault:
            raise _cannot_decode(frame[7:-1], channel_id) from None
        if publish.immediate:
            raise AmqpError("NOT_IMPLEMENTED", "immediate=true", channel=channel_id, method_id=PUBLISH)
        return Route(channel_id, publish.exchange, publish.routing_key, publish.mandatory, frame)

    def _take(self, data: bytes, pos: int, end: int, route: Route) -> tuple[int, PublishRun | None]:
        try:
            return take_publishes(data, pos, end, route, self._properties.get, self._body_bytes_max)
        except SyntaxFault as fault:
            raise AmqpError("SYNTAX_ERROR", str(fault), channel=route.channel, method_id=PUBLISH) from None

    def _go_on(self, data: bytes, pos: int, end: int, run: PublishRun, events: list[Event]) -> int:
        """Put a run to the events, with whatever belongs to it before and after; returns where that ends."""
        last = events[-1] if events else None
        if type(last) is PublishRun and self._mixed.join(last, run):
            run = last
        else:
            events.append(run)
        if end - pos < 40 or data[pos] != _METHOD:
            return pos
        return self._mixed.extend(data, pos, end, run, self._body_bytes_max)

    def _take_acks(self, data: bytes, pos: int, end: int, channel: int, multiple: int, events: list[Event]) -> int:
        (tag,) = _TAG.unpack_from(data, pos + 11)
        if multiple & 1:
            events.append(AckUpTo(channel, tag))
            return pos + 21
        pos, last = take_acks(data, pos, end)
        events.append(AckRange(channel, tag, last))
        return pos

    # ---------------------------------------------------------------- frame by frame

    def _take_frame(self, kind: int, channel_id: int, payload: bytes, events: list[Event]) -> None:
        if self.state is State.CLOSING:
            if kind == _METHOD and channel_id == 0:
                self._while_closing(payload, events)
        elif kind == _HEARTBEAT and not payload:
            if channel_id:
                raise _unexpected_frame(kind, payload)
        elif kind not in (_METHOD, HEADER_FRAME, BODY_FRAME):
            raise _frame_error(kind, payload, "unknown_frame", channel_id, in_step=True)
        elif channel_id == 0:
            if kind != _METHOD:
                raise _unexpected_frame(kind, payload)
            self._on_connection(self._decode(0, payload), events)
        elif self.state is not State.OPEN:
            raise _unexpected_frame(kind, payload)
        else:
            self._on_channel(kind, channel_id, payload, events)

    def _while_closing(self, payload: bytes, events: list[Event]) -> None:
        ident = payload[:4]
        if ident == methods.ConnectionClose.IDENT.to_bytes(4, "big"):
            self.send(0, methods.ConnectionCloseOk())
        elif ident == methods.ConnectionCloseOk.IDENT.to_bytes(4, "big"):
            self.state = State.CLOSED
            events.append(MethodReceived(0, methods.ConnectionCloseOk()))

    def _decode(self, channel: int, payload: bytes) -> Method:
        if len(payload) < 4:
            raise _frame_error(_METHOD, payload, "unknown_frame", channel, in_step=True)
        ident = int.from_bytes(payload[:4], "big")
        try:
            method = decode_method(payload)
        except MalformedText as fault:
            raise AmqpError("FRAME_ERROR", str(fault), channel=channel) from None
        except SyntaxFault:
            raise _cannot_decode(payload, channel) from None
        if method is None:
            explanation = f"no method {ident & 0xFFFF} in class {ident >> 16}"
            raise AmqpError("NOT_IMPLEMENTED", explanation, channel=channel)
        return method

    def _on_connection(self, method: Method, events: list[Event]) -> None:
        state = self.state
        if isinstance(method, methods.ConnectionClose):
            self.state = State.CLOSED
            self._channels.clear()
        elif state in _HANDSHAKE and type(method) is _HANDSHAKE[state][0]:
            if isinstance(method, methods.ConnectionTuneOk):
                self._negotiate(method)
            self.state = _HANDSHAKE[state][1]
        elif state is not State.OPEN or not isinstance(method, methods.ConnectionUpdateSecret):
            explanation = f"unexpected method in connection state {state.value}"
            raise AmqpError("CHANNEL_ERROR", explanation, method_id=method.IDENT)
        events.append(MethodReceived(0, method))

    def forget_properties(self) -> None:
        """`intern` may make something else of the same bytes now."""
        self._properties.forget()
        for route in self._routes.values():
            route.layout = None

    def _negotiate(self, answer: methods.ConnectionTuneOk) -> None:
        """Take the peer's terms; 0 means "as offered". Raises AmqpError when it wants more than there is."""
        terms = (
            ("frame_max", answer.frame_max, FRAME_BYTES_MIN, self._config.frame_bytes_max),
            ("channel_max", answer.channel_max, 1, self._config.channel_max),
        )
        for name, value, least, most in terms:
            if value and not least <= value <= most:
                side, limit = ("lower", f"minimum allowed value ({least})")
                if value > most:
                    side, limit = ("higher", f"maximum allowed value ({most})")
                explanation = f"negotiated {name} = {value} is {side} than the {limit}"
                raise AmqpError("NOT_ALLOWED", explanation, method_id=answer.IDENT)
        self.frame_bytes_max = self._frame_limit = answer.frame_max or self._config.frame_bytes_max
        self.channel_max = answer.channel_max or self._config.channel_max
        self.heartbeat_s = answer.heartbeat
        self._body_bytes_max = min(self._config.message_bytes_max, self.frame_bytes_max)

    def _on_channel(self, kind: int, channel_id: int, payload: bytes, events: list[Event]) -> None:
        channel = self._channels.get(channel_id)
        if channel is None:
            if kind != _METHOD:
                raise _not_a_method(channel_id)
            self._open_channel(channel_id, self._decode(channel_id, payload), events)
        elif channel.closing:
            self._while_channel_closing(channel_id, kind, payload)
        elif channel_id in self._contents.unfinished:
            self._on_content(channel_id, channel, kind, payload, events)
        elif kind != _METHOD:
            raise _not_a_method(channel_id)
        elif payload[:4] == _PUBLISH:
            frame = method_frame(channel_id, payload)
            self._contents.begin(self._routes.get(frame) or self._route(channel_id, frame))
        else:
            self._on_method(channel_id, self._decode(channel_id, payload), events)

    def _open_channel(self, channel_id: int, method: Method, events: list[Event]) -> None:
        if not isinstance(method, methods.ChannelOpen):
            raise AmqpError("CHANNEL_ERROR", "expected 'channel.open'", channel=channel_id, method_id=method.IDENT)
        if len(self._channels) >= self.channel_max:
            # How many counts, not which: ids may be higher, as in RabbitMQ.
            explanation = (
                f"number of channels opened ({len(self._channels)}) has reached the negotiated channel_max "
                f"({self.channel_max})"
            )
            raise AmqpError("NOT_ALLOWED", explanation, channel=channel_id)
        self._channels[channel_id] = _Channel()
        events.append(MethodReceived(channel_id, method))

    def _while_channel_closing(self, channel_id: int, kind: int, payload: bytes) -> None:
        if kind != _METHOD:
            return
        ident = int.from_bytes(payload[:4], "big")
        if ident == methods.ChannelClose.IDENT:
            # Both sides close at once: the peer still has our close to answer.
            self.send(channel_id, methods.ChannelCloseOk())
        elif ident == methods.ChannelCloseOk.IDENT:
            del self._channels[channel_id]

    def _on_method(self, channel_id: int, method: Method, events: list[Event]) -> None:
        if method.IDENT >> 16 == 10 or type(method) in methods.NOT_FOR_CHANNELS:
            raise AmqpError("COMMAND_INVALID", "unimplemented method", channel=channel_id, method_id=method.IDENT)
        if isinstance(method, methods.ChannelOpen):
            raise AmqpError("CHANNEL_ERROR", "second 'channel.open' seen", channel=channel_id, method_id=method.IDENT)
        if isinstance(method, methods.ChannelClose):
            del self._channels[channel_id]
            self._routes.clear()
        if isinstance(method, methods.BasicAck):
            tag = method.delivery_tag
            events.append(AckUpTo(channel_id, tag) if method.multiple else AckRange(channel_id, tag, tag))
            return
        events.append(MethodReceived(channel_id, method))

    def _on_content(self, channel_id: int, channel: _Channel, kind: int, payload: bytes, events: list[Event]) -> None:
        try:
            run = self._contents.take(channel_id, kind, payload)
        except AmqpError as error:
            if error.closes_connection:
                raise
            # From here on the channel ignores what comes, the body first of all; the answer is the handler's.
            channel.closing = True
            self._routes.clear()
            events.append(error)
            return
        if run is not None:
            events.append(run)


def _frame_error(kind: int, payload: bytes, reason: str, channel: int, *, in_step: bool = False) -> AmqpError:
    explanation = f"type {kind}, {payload_snippet(payload)}: {reason}"
    return AmqpError("FRAME_ERROR", explanation, channel=channel, in_step=in_step)


def _cannot_decode(payload: bytes, channel: int) -> AmqpError:
    """A method whose arguments are not what they should be; RabbitMQ says it in these words."""
    explanation = f"cannot decode {erlang_binary(payload[4:260])}"
    return AmqpError("FRAME_ERROR", explanation, channel=channel, method_id=int.from_bytes(payload[:4], "big"))


def _unexpected_frame(kind: int, payload: bytes) -> AmqpError:
    return AmqpError("UNEXPECTED_FRAME", f"type {kind}, {payload_snippet(payload)}")


def _not_a_method(channel: int) -> AmqpError:
    explanation = "expected method frame, got non method frame instead"
    return AmqpError("UNEXPECTED_FRAME", explanation, channel=channel)
