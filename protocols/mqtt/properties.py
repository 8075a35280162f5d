"""The properties of MQTT 5 (section 2.2.2): what there is, which packet may have which, and how a value is written.

A *block* is a sequence of properties, each an identifier of one byte and a value; in a packet a variable byte integer
in front of it tells its length. Functions of bytes, no state; `adapter_properties` knows what the engine makes of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import Enum, IntEnum
from typing import Any

from protocols.mqtt.reasons import MqttProtocolError, ReasonCode


class Property(IntEnum):
    """Identifiers of properties."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAX = 0x22
    TOPIC_ALIAS = 0x23
    QOS_MAX = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    PACKET_BYTES_MAX = 0x27
    WILDCARD_AVAILABLE = 0x28
    SUBSCRIPTION_IDS_AVAILABLE = 0x29
    SHARED_AVAILABLE = 0x2A


class ValueType(Enum):
    """How a value is written (section 1.5); the numbers are bytes."""

    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 4
    VARIABLE = "variable byte integer"
    TEXT = "text"
    BINARY = "binary data"
    PAIR = "two texts"


_P, _V = Property, ValueType
VALUE_TYPES: dict[int, ValueType] = {
    _P.PAYLOAD_FORMAT: _V.BYTE,
    _P.MESSAGE_EXPIRY: _V.FOUR_BYTES,
    _P.CONTENT_TYPE: _V.TEXT,
    _P.RESPONSE_TOPIC: _V.TEXT,
    _P.CORRELATION_DATA: _V.BINARY,
    _P.SUBSCRIPTION_ID: _V.VARIABLE,
    _P.SESSION_EXPIRY: _V.FOUR_BYTES,
    _P.ASSIGNED_CLIENT_ID: _V.TEXT,
    _P.SERVER_KEEP_ALIVE: _V.TWO_BYTES,
    _P.AUTHENTICATION_METHOD: _V.TEXT,
    _P.AUTHENTICATION_DATA: _V.BINARY,
    _P.REQUEST_PROBLEM_INFORMATION: _V.BYTE,
    _P.WILL_DELAY: _V.FOUR_BYTES,
    _P.REQUEST_RESPONSE_INFORMATION: _V.BYTE,
    _P.RESPONSE_INFORMATION: _V.TEXT,
    _P.SERVER_REFERENCE: _V.TEXT,
    _P.REASON_STRING: _V.TEXT,
    _P.RECEIVE_MAXIMUM: _V.TWO_BYTES,
    _P.TOPIC_ALIAS_MAX: _V.TWO_BYTES,
    _P.TOPIC_ALIAS: _V.TWO_BYTES,
    _P.QOS_MAX: _V.BYTE,
    _P.RETAIN_AVAILABLE: _V.BYTE,
    _P.USER_PROPERTY: _V.PAIR,
    _P.PACKET_BYTES_MAX: _V.FOUR_BYTES,
    _P.WILDCARD_AVAILABLE: _V.BYTE,
    _P.SUBSCRIPTION_IDS_AVAILABLE: _V.BYTE,
    _P.SHARED_AVAILABLE: _V.BYTE,
}


def encode_variable(number: int) -> bytes:
    """A variable byte integer (section 1.5.5), as which lengths are written, too."""
    if number < 128:
        return bytes((number,))
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def encode_text(text: str) -> bytes:
    """UTF-8 with its length in front. Raises UnicodeEncodeError for a surrogate, OverflowError beyond 65,535 bytes."""
    return encode_binary(text.encode())


def encode_binary(data: bytes) -> bytes:
    """Binary data with its length in front. Raises OverflowError beyond 65,535 bytes."""
    return len(data).to_bytes(2, "big") + data


def encode_property(identifier: int, value: Any) -> bytes:
    """One property of a block; a pair is a tuple of two texts. Raises OverflowError for a value out of range."""
    kind, start = VALUE_TYPES[identifier], bytes((identifier,))
    if kind is ValueType.TEXT:
        return start + encode_text(value)
    if kind is ValueType.PAIR:
        return start + encode_text(value[0]) + encode_text(value[1])
    if kind is ValueType.BINARY:
        return start + encode_binary(value)
    if kind is ValueType.VARIABLE:
        return start + encode_variable(value)
    return start + int(value).to_bytes(kind.value, "big")


def encode_properties(properties: Iterable[tuple[int, Any]]) -> bytes:
    """A block; properties whose value is None are left out."""
    return b"".join([encode_property(identifier, value) for identifier, value in properties if value is not None])


def with_length(block: bytes) -> bytes:
    """A block as it stands in a packet."""
    return encode_variable(len(block)) + block


# Reading.

_MESSAGE = {_P.PAYLOAD_FORMAT, _P.MESSAGE_EXPIRY, _P.CONTENT_TYPE, _P.RESPONSE_TOPIC, _P.CORRELATION_DATA,
            _P.USER_PROPERTY}  # fmt: skip
IN_CONNECT = frozenset({
    _P.SESSION_EXPIRY, _P.AUTHENTICATION_METHOD, _P.AUTHENTICATION_DATA, _P.REQUEST_PROBLEM_INFORMATION,
    _P.REQUEST_RESPONSE_INFORMATION, _P.RECEIVE_MAXIMUM, _P.TOPIC_ALIAS_MAX, _P.USER_PROPERTY, _P.PACKET_BYTES_MAX,
})  # fmt: skip
IN_WILL = frozenset(_MESSAGE | {_P.WILL_DELAY})
IN_PUBLISH = frozenset(_MESSAGE | {_P.TOPIC_ALIAS})
"""From a client: only a server sends subscription identifiers (MQTT-3.3.4-6)."""
IN_SUBSCRIBE = frozenset({_P.SUBSCRIPTION_ID, _P.USER_PROPERTY})
IN_UNSUBSCRIBE = frozenset({_P.USER_PROPERTY})
IN_ACKNOWLEDGEMENT = frozenset({_P.REASON_STRING, _P.USER_PROPERTY})
IN_DISCONNECT = frozenset({_P.SESSION_EXPIRY, _P.REASON_STRING, _P.USER_PROPERTY})
"""From a client: only a server refers to another one (MQTT-3.14.2-2)."""
IN_AUTH = frozenset({_P.AUTHENTICATION_METHOD, _P.AUTHENTICATION_DATA, _P.REASON_STRING, _P.USER_PROPERTY})

_FLAGS = {_P.PAYLOAD_FORMAT, _P.REQUEST_PROBLEM_INFORMATION, _P.REQUEST_RESPONSE_INFORMATION}
_NOT_ZERO = {_P.SUBSCRIPTION_ID, _P.RECEIVE_MAXIMUM, _P.PACKET_BYTES_MAX}


def read_field(data: bytes, position: int, what: str) -> tuple[bytes, int]:
    """Bytes with their length in front, and where they end. Raises MqttProtocolError."""
    start = position + 2
    stop = start + int.from_bytes(data[position:start], "big")
    if start > len(data) or stop > len(data):
        raise MqttProtocolError(f"truncated {what}", "MQTT-1.5.3")
    return data[start:stop], stop


def decode_text(raw: bytes, what: str) -> str:
    """Strict UTF-8 without U+0000 (section 1.5.3); a byte order mark is kept. Raises MqttProtocolError."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise MqttProtocolError(f"{what} is not UTF-8", "MQTT-1.5.3-1") from None
    if "\0" in text:
        raise MqttProtocolError(f"{what} contains U+0000", "MQTT-1.5.3-2")
    return text


def read_text(data: bytes, position: int, what: str) -> tuple[str, int]:
    """A text with its length in front, and where it ends. Raises MqttProtocolError."""
    raw, position = read_field(data, position, what)
    return decode_text(raw, what), position


def read_variable(data: bytes, position: int, what: str) -> tuple[int, int]:
    """A variable byte integer, and where it ends. Raises MqttProtocolError."""
    number = shift = 0
    for at in range(position, min(position + 4, len(data))):
        number |= (data[at] & 127) << shift
        if data[at] < 128:
            if not data[at] and at > position:
                raise MqttProtocolError(f"{what} in more bytes than it needs", "MQTT-1.5.5-1")
            return number, at + 1
        shift += 7
    raise MqttProtocolError(f"malformed {what}", "MQTT-1.5.5")


def _read_value(identifier: int, data: bytes, position: int) -> tuple[Any, int]:
    kind, what = VALUE_TYPES[identifier], Property(identifier).name.lower().replace("_", " ")
    if kind is ValueType.PAIR:
        name, position = read_text(data, position, what)
        value, position = read_text(data, position, what)
        return (name, value), position
    if kind is ValueType.TEXT:
        return read_text(data, position, what)
    if kind is ValueType.BINARY:
        return read_field(data, position, what)
    if kind is ValueType.VARIABLE:
        number, position = read_variable(data, position, what)
    else:
        stop = position + kind.value
        if stop > len(data):
            raise MqttProtocolError(f"truncated {what}", "MQTT-2.2.2-2")
        number, position = int.from_bytes(data[position:stop], "big"), stop
    if number > 1 and identifier in _FLAGS:
        raise MqttProtocolError(f"{what} is {number}", "", ReasonCode.PROTOCOL_ERROR)
    if not number and identifier in _NOT_ZERO:
        raise MqttProtocolError(f"{what} is 0", "", ReasonCode.PROTOCOL_ERROR)
    return number, position


def read_block(block: bytes, permitted: frozenset[Property], packet: str) -> dict[int, Any]:
    """The properties of a block by identifier; user properties are a list of pairs. Raises MqttProtocolError."""
    found: dict[int, Any] = {}
    position = 0
    while position < len(block):
        identifier = block[position]
        if identifier not in permitted:
            known = identifier in VALUE_TYPES
            name = Property(identifier).name.lower().replace("_", " ") if known else f"{identifier:#04x}"
            raise MqttProtocolError(f"property {name} in {packet}", "MQTT-2.2.2-2")
        value, position = _read_value(identifier, block, position + 1)
        if identifier == Property.USER_PROPERTY:
            found.setdefault(identifier, []).append(value)
        elif identifier in found:
            what = Property(identifier).name.lower().replace("_", " ")
            raise MqttProtocolError(f"{what} twice in {packet}", "", ReasonCode.PROTOCOL_ERROR)
        else:
            found[identifier] = value
    return found


def read_properties(
    body: bytes, position: int, permitted: frozenset[Property], packet: str
) -> tuple[dict[int, Any], int]:
    """The properties of a packet whose property length stands at `position`, and where they end."""
    size, position = read_variable(body, position, "property length")
    stop = position + size
    if stop > len(body):
        raise MqttProtocolError(f"truncated properties of {packet}", "MQTT-2.2.2-1")
    return read_block(body[position:stop], permitted, packet), stop


def without(block: bytes, identifiers: Container[int]) -> bytes:
    """A block that was checked, without some properties; the others stay as they were written."""
    parts, position = [], 0
    while position < len(block):
        start = position
        position = skip(block, position)
        if block[start] not in identifiers:
            parts.append(block[start:position])
    return b"".join(parts)


def skip(block: bytes, position: int) -> int:
    """Where the property at `position` of a block that was checked ends."""
    kind = VALUE_TYPES[block[position]]
    position += 1
    if kind is ValueType.VARIABLE:
        while block[position] > 127:
            position += 1
        return position + 1
    if isinstance(kind.value, int):
        return position + kind.value
    position += 2 + (block[position] << 8 | block[position + 1])
    if kind is ValueType.PAIR:
        position += 2 + (block[position] << 8 | block[position + 1])
    return position


def check_response_topic(topic: str | None) -> None:
    """Raise MqttProtocolError for one with wildcards, or an empty one."""
    if topic is not None and (not topic or "+" in topic or "#" in topic):
        raise MqttProtocolError("response topic is no topic name", "MQTT-3.3.2-14", ReasonCode.PROTOCOL_ERROR)
