"""What the server sends, as bytes: a `Wire` for each version of the protocol, chosen at CONNECT.

1. Callers speak MQTT 5: reasons are `ReasonCode`s, and all that a version cannot say is left out by its `Wire`.
2. Acknowledgements are runs: a thousand that succeeded are four strided copies.
3. A PUBLISH is *head* (fixed header and topic), packet id, *block* (its properties, length included; nothing before
   version 5) and payload. What is the same for a run is encoded once. At QoS 0 nothing stands between topic and block,
   so the block counts as part of the topic there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from operator import add

from protocols.mqtt.events import AcknowledgementKind
from protocols.mqtt.properties import Property, encode_properties, encode_variable, with_length
from protocols.mqtt.reasons import ReasonCode

PACKET_ID_MAX = 65_535
PINGRESP = b"\xd0\x00"

PACKET_ID_BYTES = struct.pack(f">{PACKET_ID_MAX + 1}H", *range(PACKET_ID_MAX + 1))
"""Every packet id in order: the ids `first..last` are the slice `2 * first : 2 * last + 2`."""

_LENGTHS = [bytes((size,)) for size in range(1 << 7)]
_LENGTHS += [bytes((0x80 | size & 0x7F, size >> 7)) for size in range(1 << 7, 1 << 14)]
"""Remaining lengths of one and two bytes."""

_FAILURE = 0x80
_RETURN_CODES = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.BAD_AUTHENTICATION_METHOD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
}
"""Return codes of 3.1 and 3.1.1 (section 3.2.2.3); all other reasons are 3, the server is not available."""


@dataclass(slots=True, kw_only=True)
class ConnackProperties:
    """What CONNACK tells besides the reason (MQTT 5, 3.2.2.3). None, and what is empty, is not told."""

    session_expiry_s: int | None = None
    receive_maximum: int | None = None
    qos_max: int | None = None
    retain_available: bool | None = None
    packet_bytes_max: int | None = None
    assigned_client_id: str | None = None
    topic_alias_max: int | None = None
    reason_string: str | None = None
    user_properties: Sequence[tuple[str, str]] = field(default=())
    wildcard_available: bool | None = None
    subscription_ids_available: bool | None = None
    shared_available: bool | None = None
    server_keep_alive_s: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None

    def block(self) -> bytes:
        """The property block, without the length in front."""
        return encode_properties([
            (Property.SESSION_EXPIRY, self.session_expiry_s),
            (Property.RECEIVE_MAXIMUM, self.receive_maximum),
            (Property.QOS_MAX, self.qos_max),
            (Property.RETAIN_AVAILABLE, self.retain_available),
            (Property.PACKET_BYTES_MAX, self.packet_bytes_max),
            (Property.ASSIGNED_CLIENT_ID, self.assigned_client_id),
            (Property.TOPIC_ALIAS_MAX, self.topic_alias_max),
            (Property.REASON_STRING, self.reason_string),
            *((Property.USER_PROPERTY, pair) for pair in self.user_properties),
            (Property.WILDCARD_AVAILABLE, self.wildcard_available),
            (Property.SUBSCRIPTION_IDS_AVAILABLE, self.subscription_ids_available),
            (Property.SHARED_AVAILABLE, self.shared_available),
            (Property.SERVER_KEEP_ALIVE, self.server_keep_alive_s),
            (Property.RESPONSE_INFORMATION, self.response_information),
            (Property.SERVER_REFERENCE, self.server_reference),
            (Property.AUTHENTICATION_METHOD, self.authentication_method),
            (Property.AUTHENTICATION_DATA, self.authentication_data),
        ])  # fmt: skip


NO_PROPERTIES = ConnackProperties()


class Wire:
    """What a client of 3.1 or 3.1.1 can be told."""

    level = 4
    """The protocol level of CONNECT."""
    has_properties = False
    """Publishes have property blocks; answers have reasons, so that a publish can be refused."""
    tells_session_present = True

    def connack(
        self, reason: ReasonCode, *, session_present: bool = False, properties: ConnackProperties = NO_PROPERTIES
    ) -> bytes:
        """CONNACK (section 3.2); with a failure no session is present (MQTT-3.2.2-4)."""
        present = session_present and self.tells_session_present and not reason
        return bytes((0x20, 2, present, _RETURN_CODES.get(reason, 3)))

    def suback(self, packet_id: int, reasons: Sequence[int]) -> bytes:
        """SUBACK: a granted QoS or a failure for each requested filter, in order (MQTT-3.8.4-5)."""
        codes = bytes(reason if reason < _FAILURE else _FAILURE for reason in reasons)
        return b"\x90" + remaining_length(2 + len(codes)) + _id(packet_id) + codes

    def unsuback(self, packet_id: int, reasons: Sequence[int]) -> bytes:
        """UNSUBACK (section 3.11), with a reason for each filter in version 5."""
        return b"\xb0\x02" + _id(packet_id)

    def acknowledgements(self, kind: AcknowledgementKind, packet_ids: bytes, reasons: bytes | None = None) -> bytes:
        """Acknowledgements of one kind for ids of two bytes each, in their order (MQTT-4.6.0-2).

        `reasons` has a byte for each; None means that all succeeded. Versions before 5 cannot say anything else.
        """
        if len(packet_ids) == 2:
            return bytes((kind, 2)) + packet_ids
        packets = bytearray(bytes((kind, 2, 0, 0))) * (len(packet_ids) // 2)
        packets[2::4] = packet_ids[::2]
        packets[3::4] = packet_ids[1::2]
        return bytes(packets)

    def disconnect(
        self,
        reason: ReasonCode,
        text: str = "",
        *,
        server_reference: str | None = None,
        packet_bytes_max: int | None = None,
    ) -> bytes:
        """DISCONNECT (MQTT 5, 3.14); before version 5 there is none from a server, and this is b"".

        The text is left out where the packet would be larger than the client takes (MQTT-3.14.2-3).
        """
        return b""

    def auth(self, reason: ReasonCode, method: str, data: bytes | None = None) -> bytes:
        """AUTH (MQTT 5, 3.15); b"" before version 5."""
        return b""


class Wire31(Wire):
    """What a client of 3.1 can be told: the byte for "session present" is reserved there."""

    level = 3
    tells_session_present = False


class Wire5(Wire):
    """What a client of MQTT 5 is told."""

    level = 5
    has_properties = True

    def connack(
        self, reason: ReasonCode, *, session_present: bool = False, properties: ConnackProperties = NO_PROPERTIES
    ) -> bytes:
        """See `Wire`; with a failure no session is present (MQTT-3.2.2-6)."""
        block = with_length(properties.block())
        return packet(0x20, bytes((session_present and not reason, reason)) + block)

    def suback(self, packet_id: int, reasons: Sequence[int]) -> bytes:
        """See `Wire`."""
        return packet(0x90, _id(packet_id) + b"\0" + bytes(reasons))

    def unsuback(self, packet_id: int, reasons: Sequence[int]) -> bytes:
        """See `Wire` (MQTT-3.11.3-1)."""
        return packet(0xB0, _id(packet_id) + b"\0" + bytes(reasons))

    def acknowledgements(self, kind: AcknowledgementKind, packet_ids: bytes, reasons: bytes | None = None) -> bytes:
        """See `Wire`. A reason of 0 is left out, with the properties."""
        count = len(packet_ids) // 2
        if reasons is None or reasons.count(0) == count:
            return super().acknowledgements(kind, packet_ids)
        if not reasons.count(0):
            packets = bytearray(bytes((kind, 3, 0, 0, 0))) * count
            packets[2::5] = packet_ids[::2]
            packets[3::5] = packet_ids[1::2]
            packets[4::5] = reasons
            return bytes(packets)
        parts, start = [], 0
        for at in range(1, count + 1):
            if at == count or bool(reasons[at]) != bool(reasons[start]):
                parts.append(self.acknowledgements(kind, packet_ids[2 * start : 2 * at], reasons[start:at]))
                start = at
        return b"".join(parts)

    def disconnect(
        self,
        reason: ReasonCode,
        text: str = "",
        *,
        server_reference: str | None = None,
        packet_bytes_max: int | None = None,
    ) -> bytes:
        """See `Wire`."""
        reference = (Property.SERVER_REFERENCE, server_reference)
        start = bytes((reason,))
        block = encode_properties([(Property.REASON_STRING, text or None), reference])
        found = packet(0xE0, start + with_length(block))
        if packet_bytes_max is not None and len(found) > packet_bytes_max:
            found = packet(0xE0, start + with_length(encode_properties([reference])))
            if len(found) > packet_bytes_max:
                return b""
        return found

    def auth(self, reason: ReasonCode, method: str, data: bytes | None = None) -> bytes:
        """See `Wire`."""
        block = encode_properties([(Property.AUTHENTICATION_METHOD, method), (Property.AUTHENTICATION_DATA, data)])
        return packet(0xF0, bytes((reason,)) + with_length(block))


WIRE_31, WIRE_3, WIRE_5 = Wire31(), Wire(), Wire5()
WIRES: dict[int, Wire] = {wire.level: wire for wire in (WIRE_31, WIRE_3, WIRE_5)}
"""By the protocol level of CONNECT."""


def packet(first: int, body: bytes) -> bytes:
    """A control packet from its first byte and all after the fixed header."""
    return bytes((first,)) + remaining_length(len(body)) + body


# Publishes.

PublishHeads = bytes | list[bytes]
"""What comes before packet id, block and payload: one for all messages of a run, or one for each."""

Blocks = bytes | Sequence[bytes]
"""Property blocks with their length in front: one for all messages of a run, or one for each."""

RETAIN, DUP = 0x01, 0x08
"""Flags of a PUBLISH."""


def publish_heads(
    topic: bytes, payloads: Sequence[bytes], qos: int, *, flags: int = 0, block: bytes = b""
) -> PublishHeads:
    """Fixed header and topic (as `properties.encode_text` makes it) for each payload; once for each length that occurs.

    `block` is what `encode_publishes_with_ids` will be given; for QoS 0 it is part of `topic` instead.
    """
    starts, extra = _STARTS[0x30 | qos << 1 | flags], len(topic) + len(block)
    if len(payloads) == 1:
        size = extra + len(payloads[0])
        return (starts.get(size) or starts[size]) + topic
    sizes = list(map(len, payloads))
    heads = {size: starts[extra + size] + topic for size in set(sizes)}
    if len(heads) == 1:
        return heads[sizes[0]]
    return [heads[size] for size in sizes]


def varied_heads(
    topics: Sequence[bytes], payloads: Sequence[bytes], qos: int, *, flags: int = 0, blocks: Blocks = b""
) -> list[bytes]:
    """As `publish_heads`, for payloads with a topic each."""
    sizes = map(add, map(len, topics), map(len, payloads))
    if blocks:
        lengths = [len(blocks)] * len(payloads) if isinstance(blocks, bytes) else map(len, blocks)
        sizes = map(add, sizes, lengths)
    return list(map(add, map(_STARTS[0x30 | qos << 1 | flags].__getitem__, sizes), topics))


def encode_publishes(heads: PublishHeads, payloads: Sequence[bytes]) -> bytes:
    """PUBLISH packets at QoS 0 for one or more payloads."""
    if isinstance(heads, bytes):
        return heads + payloads[0] if len(payloads) == 1 else heads.join([b"", *payloads])
    return interleaved(heads, payloads)


def interleaved(*columns: Sequence[bytes]) -> bytes:
    """The first of all columns, then the second of all, and so on."""
    width = len(columns)
    parts = [b""] * (width * len(columns[0]))
    for at, column in enumerate(columns):
        parts[at::width] = column
    return b"".join(parts)


def encode_publishes_with_ids(
    heads: PublishHeads, payloads: Sequence[bytes], first_packet_id: int, blocks: Blocks = b""
) -> bytes:
    """PUBLISH packets at QoS 1 or 2 with consecutive packet ids; `blocks` as they were counted in the heads."""
    count = len(payloads)
    if blocks:
        if count == 1:
            head, block = (one if isinstance(one, bytes) else one[0] for one in (heads, blocks))
            return head + _id(first_packet_id) + block + payloads[0]
        parts = [blocks] * (4 * count) if isinstance(blocks, bytes) else [b""] * (4 * count)
        parts[::4] = [heads] * count if isinstance(heads, bytes) else heads
        parts[1::4] = _packet_ids()[first_packet_id : first_packet_id + count]
        if not isinstance(blocks, bytes):
            parts[2::4] = blocks
        parts[3::4] = payloads
        return b"".join(parts)
    if isinstance(heads, bytes):
        if count == 1:
            at = first_packet_id + first_packet_id
            return heads + PACKET_ID_BYTES[at : at + 2] + payloads[0]
        parts = [heads] * (3 * count)
    else:
        parts = [b""] * (3 * count)
        parts[::3] = heads
    parts[1::3] = _packet_ids()[first_packet_id : first_packet_id + count]
    parts[2::3] = payloads
    return b"".join(parts)


def encode_varied(
    topics: Sequence[bytes],
    payloads: Sequence[bytes],
    qos: int,
    *,
    flags: int = 0,
    blocks: Blocks = b"",
    first_packet_id: int = 0,
) -> bytes:
    """PUBLISH packets with a topic each; at QoS 1 and 2 with consecutive packet ids."""
    count = len(payloads)
    sizes = map(add, map(len, topics), map(len, payloads))
    columns: list[Sequence[bytes]] = [topics]
    if qos:
        columns.append(_packet_ids()[first_packet_id : first_packet_id + count])
    if blocks:
        lengths = repeat(len(blocks)) if isinstance(blocks, bytes) else map(len, blocks)
        sizes = map(add, sizes, lengths)
        columns.append([blocks] * count if isinstance(blocks, bytes) else blocks)
    return interleaved(list(map(_STARTS[0x30 | qos << 1 | flags].__getitem__, sizes)), *columns, payloads)


class _Starts(dict[int, bytes]):
    """The fixed header of PUBLISH by the length of topic, block and payload; those of common lengths are kept."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = bytes((first,))
        self._id_bytes = 2 if first & 6 else 0

    def __missing__(self, size: int) -> bytes:
        start = self._first + remaining_length(size + self._id_bytes)
        if size < len(_LENGTHS):
            self[size] = start
        return start


_STARTS = {first: _Starts(first) for first in range(0x30, 0x40)}


def starts_at_qos_0(sizes: Sequence[int]) -> list[bytes]:
    """The fixed headers of publishes at QoS 0, by the lengths of topic, block and payload."""
    return list(map(_STARTS[0x30].__getitem__, sizes))


def _id(packet_id: int) -> bytes:
    return PACKET_ID_BYTES[packet_id + packet_id : packet_id + packet_id + 2]


@cache
def _packet_ids() -> list[bytes]:
    """All of them, one by one: 3 MiB, for who sends at QoS 1 or 2."""
    return [PACKET_ID_BYTES[at : at + 2] for at in range(0, len(PACKET_ID_BYTES), 2)]


def remaining_length(size: int) -> bytes:
    """A variable byte integer, looked up where it is a common one."""
    return _LENGTHS[size] if size < len(_LENGTHS) else encode_variable(size)
