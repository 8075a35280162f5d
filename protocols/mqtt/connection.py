"""The server's side of an MQTT connection as a sans-IO machine: bytes in, events out, for 3.1, 3.1.1 and 5.

1. Nothing is parsed twice or copied twice; bytes of an incomplete packet wait in one buffer, whose size is bounded
   because the remaining length is checked before anything is kept.
2. Type, flags and order of packets are checked on the first byte, the rest when the packet is complete.
3. Publishes and acknowledgements come as runs: `publish_runs`, `acknowledgement_runs`.
4. After DISCONNECT or a violation nothing more is read (MQTT-3.14.4, MQTT-4.8.0-1).
5. CONNECT decides which version is read and written: `wire`.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.mqtt.acknowledgement_runs import take_acknowledgements, take_acknowledgements_5
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import AcknowledgementKind, Authenticate, Connect, Disconnect, Event, PingRequest
from protocols.mqtt.packets import (
    AUTH,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBLISH,
    SUBSCRIBE,
    UNSUBSCRIBE,
    frame,
    parse_connect,
    parse_subscribe,
    parse_unsubscribe,
    protocol_level,
)
from protocols.mqtt.packets_5 import (
    clause_in_5,
    parse_auth,
    parse_connect_5,
    parse_disconnect_5,
    parse_subscribe_5,
    parse_unsubscribe_5,
)
from protocols.mqtt.publish_runs import PublishRuns
from protocols.mqtt.publish_runs_5 import PublishRuns5
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode
from protocols.mqtt.wire import WIRE_3, WIRES, Wire

_SERVER_TYPES = {2: "CONNACK", 9: "SUBACK", 11: "UNSUBACK", 13: "PINGRESP"}
_MQTT_3_1 = 3
_DUP = 8
_REDELIVERED_IN_3_1 = {int(AcknowledgementKind.PUBREL) | _DUP, SUBSCRIBE | _DUP, UNSUBSCRIBE | _DUP}
"""In MQTT 3.1 these, and not only publishes, have DUP when they are sent again (section 2.1 of it)."""
_ACKNOWLEDGEMENTS = {int(kind): kind for kind in AcknowledgementKind}
_ACKNOWLEDGEMENTS[AcknowledgementKind.PUBREL | _DUP] = AcknowledgementKind.PUBREL
_OTHERS = {SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT}
_PARSERS: dict[int, Callable[[bytes], Event]] = {
    CONNECT: parse_connect,
    SUBSCRIBE: parse_subscribe,
    UNSUBSCRIBE: parse_unsubscribe,
    SUBSCRIBE | _DUP: parse_subscribe,
    UNSUBSCRIBE | _DUP: parse_unsubscribe,
}
_PARSERS_5: dict[int, Callable[[bytes], Event]] = {
    CONNECT: parse_connect_5,
    SUBSCRIBE: parse_subscribe_5,
    UNSUBSCRIBE: parse_unsubscribe_5,
    DISCONNECT: parse_disconnect_5,
    AUTH: parse_auth,
}
_FLAG_CLAUSES = {
    AcknowledgementKind.PUBREL >> 4: "MQTT-3.6.1-1",
    SUBSCRIBE >> 4: "MQTT-3.8.1-1",
    UNSUBSCRIBE >> 4: "MQTT-3.10.1-1",
    DISCONNECT >> 4: "MQTT-3.14.1-1",
}

_Violation = tuple[str, str, ReasonCode] | None
_MALFORMED, _PROTOCOL_ERROR = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR


def _violation(first: int, *, version_5: bool) -> _Violation:
    """What is wrong with a packet after CONNECT that begins with the byte `first`."""
    kind = first >> 4
    if kind == PUBLISH >> 4:
        if first >> 1 & 3 == 3:
            return "PUBLISH with QoS 3", "MQTT-3.3.1-4", _MALFORMED
        if first & 8 and not first & 6:
            return "PUBLISH with DUP and QoS 0", "MQTT-3.3.1-2", _MALFORMED
        return None
    if first == CONNECT:
        return "a second CONNECT", "MQTT-3.1.0-2", _PROTOCOL_ERROR
    if first in _OTHERS or (version_5 and first == AUTH):
        return None
    if first in _ACKNOWLEDGEMENTS and first not in _REDELIVERED_IN_3_1:
        return None
    if kind in _SERVER_TYPES:
        return f"{_SERVER_TYPES[kind]} from a client", "MQTT-2.1.2" if version_5 else "MQTT-2.2.1", _PROTOCOL_ERROR
    if kind == 0 or (kind == 15 and not version_5):
        return f"reserved packet type {kind}", "MQTT-2.1.2" if version_5 else "MQTT-2.2.1", _MALFORMED
    clause = _FLAG_CLAUSES.get(kind, "MQTT-2.1.3-1" if version_5 else "MQTT-2.2.2-2")
    if kind == AUTH >> 4:
        clause = "MQTT-3.15.1-1"
    return f"reserved flags of packet type {kind} are {first & 15:04b}", clause, _MALFORMED


_VIOLATIONS = [_violation(first, version_5=False) for first in range(256)]
_VIOLATIONS_3_1 = [None if first in _REDELIVERED_IN_3_1 else violation for first, violation in enumerate(_VIOLATIONS)]
_VIOLATIONS_5 = [_violation(first, version_5=True) for first in range(256)]
_TOO_SOON: _Violation = ("a packet other than AUTH before CONNACK", "MQTT-3.1.2-30", _PROTOCOL_ERROR)
_VIOLATIONS_BEFORE_CONNACK: list[_Violation] = [
    violation or (None if first in (AUTH, DISCONNECT) else _TOO_SOON) for first, violation in enumerate(_VIOLATIONS_5)
]
"""Of a client that authenticates by AUTH."""
_VIOLATIONS_BEFORE_CONNECT: list[_Violation] = [
    None if first == CONNECT else ("the first packet is not CONNECT", "MQTT-3.1.0-1", _PROTOCOL_ERROR)
    for first in range(256)
]


class ServerConnection:
    """Parses what one client sends. After it raised or returned a Disconnect, `closed` is true and input is ignored."""

    def __init__(self, config: MqttConfig) -> None:
        self.closed = False
        self.wire: Wire = WIRE_3
        """How to answer: that of the version in CONNECT, from there on."""
        self._config = config
        self._packet_bytes_max = min(config.connect_bytes_max, config.packet_bytes_max)
        """Less until the client is let in: anybody can send so much, from many sockets."""
        self._violations = _VIOLATIONS_BEFORE_CONNECT
        self._parsers = _PARSERS
        self._connect: Connect | None = None
        self._publishes: PublishRuns
        self._buffer = bytearray()
        self._wanted = 0

    @property
    def missing_bytes(self) -> int:
        """How much of a packet is still to come, of which something is here."""
        return max(self._wanted - len(self._buffer), 0) if self._buffer else 0

    def receive_data(self, data: bytes) -> list[Event]:
        """The events of all packets completed by `data`.

        Raises MqttProtocolError at the first violation; the events before it are in its `events`.
        """
        if self.closed:
            return []
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return []
            data = bytes(self._buffer)
        events: list[Event] = []
        position, end = 0, len(data)
        try:
            while position < end:
                first = data[position]
                violation = self._violations[first]
                if violation is not None:
                    raise MqttProtocolError(*violation)
                if end - position > 1 and data[position + 1] < 128:
                    body = position + 2
                    stop = body + data[position + 1]
                else:
                    body, stop = frame(data, position, end, self._packet_bytes_max)
                if stop > end:
                    self._wanted = stop - position
                    break
                event: Event
                if first & 0xF0 == PUBLISH:
                    event, position = self._publishes.take(data, position, body, stop)
                elif first in _ACKNOWLEDGEMENTS:
                    kind = _ACKNOWLEDGEMENTS[first]
                    if self.wire.has_properties:
                        most = self._config.packet_bytes_max
                        event, position = take_acknowledgements_5(data, position, stop, kind, most)
                    else:
                        event, position = take_acknowledgements(data, position, stop, kind)
                else:
                    event, position = self._other(first, data[body:stop]), stop
                    if self.closed:
                        events.append(event)
                        break
                events.append(event)
        except MqttProtocolError as error:
            self.closed = True
            self._buffer = bytearray()
            error.events = events
            self._answer(error)
            raise
        if position < end:
            self._buffer = bytearray(data[position:])
        elif self._buffer:
            self._buffer = bytearray()
        return events

    def _answer(self, error: MqttProtocolError) -> None:
        """In version 5 the client is told what is wrong (section 4.13)."""
        if not self.wire.has_properties:
            return
        error.clause = clause_in_5(error.clause)
        if self._connect is None or self._violations is _VIOLATIONS_BEFORE_CONNACK:
            error.answer = error.answer or self.wire.connack(error.code)
        else:
            most = self._connect.packet_bytes_max
            error.answer = self.wire.disconnect(error.code, str(error), packet_bytes_max=most)

    def _other(self, first: int, body: bytes) -> Event:
        if first == CONNECT:
            return self._open(body)
        parse = self._parsers.get(first)
        if parse is not None:
            event = parse(body)
            if self.wire.has_properties:
                self._check_5(event)
        elif body:
            raise MqttProtocolError("remaining length is not 0", "MQTT-3.12.1" if first == PINGREQ else "MQTT-3.14.1")
        else:
            event = PingRequest() if first == PINGREQ else Disconnect()
        self.closed = first == DISCONNECT
        return event

    def _open(self, body: bytes) -> Event:
        level, _ = protocol_level(body)
        self.wire = WIRES[level]
        version_5 = self.wire.has_properties
        self._parsers = _PARSERS_5 if version_5 else _PARSERS
        connect = self._parsers[CONNECT](body)
        assert isinstance(connect, Connect)
        self._connect = connect
        self._publishes = PublishRuns5(self._config) if version_5 else PublishRuns(self._config)
        self._violations = _VIOLATIONS_5 if version_5 else _VIOLATIONS if level > _MQTT_3_1 else _VIOLATIONS_3_1
        if connect.authentication_method is not None:
            self._violations = _VIOLATIONS_BEFORE_CONNACK
        else:
            self._packet_bytes_max = self._config.packet_bytes_max
        return connect

    def authenticated(self) -> None:
        """A client whose CONNECT named an authentication method is accepted: it may send other packets than AUTH."""
        self._violations = _VIOLATIONS_5
        self._packet_bytes_max = self._config.packet_bytes_max

    def _check_5(self, event: Event) -> None:
        """What a packet may say depends on CONNECT."""
        connect = self._connect
        assert connect is not None
        if isinstance(event, Authenticate):
            if connect.authentication_method is None:
                raise MqttProtocolError("AUTH without a method in CONNECT", "MQTT-4.12.0-6", _PROTOCOL_ERROR)
            if event.method != connect.authentication_method:
                raise MqttProtocolError("AUTH with another method than CONNECT", "MQTT-4.12.0-5", _PROTOCOL_ERROR)
        elif isinstance(event, Disconnect) and event.session_expiry_s and not connect.session_expiry_s:
            raise MqttProtocolError("DISCONNECT begins a session expiry", "MQTT-3.14.2.2.2", _PROTOCOL_ERROR)
