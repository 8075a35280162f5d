"""The properties of MQTT 5 (section 2.2.2): what there is, which packet may have which, and how a value is written.

A *block* is a sequence of properties, each an identifier of one byte and a value; in a packet a variable byte integer
in front of it tells its length. Functions of bytes, no state; `adapter_properties` knows what the engine makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Any


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
