"""The client's side of MQTT 5, written plainly from the standard: packets as in `wire`, with properties."""

from __future__ import annotations

from typing import Any

from tests.protocols.mqtt.wire import packet, text


def variable(number: int) -> bytes:
    """A variable byte integer."""
    digits = bytearray()
    while True:
        number, digit = number >> 7, number & 127
        digits.append(digit | 128 if number else digit)
        if not number:
            return bytes(digits)


NAMES = {
    "payload_format": (0x01, 1), "message_expiry": (0x02, 4), "content_type": (0x03, text),
    "response_topic": (0x08, text), "correlation_data": (0x09, text), "subscription_id": (0x0B, variable),
    "session_expiry": (0x11, 4),
    "assigned_client_id": (0x12, text), "server_keep_alive": (0x13, 2), "authentication_method": (0x15, text),
    "authentication_data": (0x16, text), "request_problem_information": (0x17, 1), "will_delay": (0x18, 4),
    "request_response_information": (0x19, 1), "server_reference": (0x1C, text), "reason_string": (0x1F, text),
    "receive_maximum": (0x21, 2), "topic_alias_max": (0x22, 2), "topic_alias": (0x23, 2), "packet_bytes_max": (0x27, 4),
}  # fmt: skip


def block(*user_properties: tuple[str, str], **properties: Any) -> bytes:
    """Properties, without the length in front; user properties come first."""
    parts = [b"\x26" + text(name) + text(value) for name, value in user_properties]
    for name, value in properties.items():
        identifier, kind = NAMES[name]
        parts.append(bytes((identifier,)) + (value.to_bytes(kind, "big") if isinstance(kind, int) else kind(value)))
    return b"".join(parts)


def sized(properties: bytes) -> bytes:
    """A block with its length in front."""
    return variable(len(properties)) + properties


def connect_5(
    client_id: str = "c1",
    properties: bytes = b"",
    *,
    flags: int = 2,
    keep_alive_s: int = 0,
    rest: bytes = b"",
) -> bytes:
    """CONNECT; `rest` is what follows the client identifier."""
    head = text("MQTT") + bytes((5, flags)) + keep_alive_s.to_bytes(2, "big")
    return packet(0x10, head + sized(properties) + text(client_id) + rest)


def publish_5(
    topic: str,
    payload: bytes = b"",
    properties: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 1,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """PUBLISH."""
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | dup << 3 | qos << 1 | retain, text(topic) + identifier + sized(properties) + payload)


def acknowledge_5(first: int, packet_id: int, reason: int, properties: bytes | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP with a reason, and with properties unless they are None."""
    rest = b"" if properties is None else sized(properties)
    return packet(first, packet_id.to_bytes(2, "big") + bytes((reason,)) + rest)


def subscribe_5(packet_id: int, *requests: tuple[str, int], properties: bytes = b"") -> bytes:
    """SUBSCRIBE; a request is a filter and its options."""
    filters = b"".join(text(name) + bytes((options,)) for name, options in requests)
    return packet(0x82, packet_id.to_bytes(2, "big") + sized(properties) + filters)


def unsubscribe_5(packet_id: int, *filters: str, properties: bytes = b"") -> bytes:
    """UNSUBSCRIBE."""
    return packet(0xA2, packet_id.to_bytes(2, "big") + sized(properties) + b"".join(map(text, filters)))


def disconnect_5(reason: int, properties: bytes | None = None) -> bytes:
    """DISCONNECT."""
    return packet(0xE0, bytes((reason,)) + (b"" if properties is None else sized(properties)))


def auth_5(reason: int, properties: bytes = b"") -> bytes:
    """AUTH."""
    return packet(0xF0, bytes((reason,)) + sized(properties))
