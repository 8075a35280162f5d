"""MQTT 3.1.1 control packets: what is in them, and their bytes.

A control packet is a *fixed header* (type and flags in one byte, then the remaining length in 1 to 4 bytes of 7 bits,
lowest first, the top bit meaning "more"), a *variable header* and a *payload*:

    CONNECT      10 len | 0004 "MQTT" level flags keep-alive(2) | client id, will topic, will message, user, password
    CONNACK      20 02  | session-present return-code
    PUBLISH      3f len | topic, packet id(2) if QoS > 0        | the message, to the end of the packet
    PUBACK       40 02  | packet id(2)
    SUBSCRIBE    82 len | packet id(2)                          | (filter, QoS)...
    SUBACK       90 len | packet id(2)                          | granted QoS or 80 ...
    UNSUBSCRIBE  a2 len | packet id(2)                          | filter...
    UNSUBACK     b0 02  | packet id(2)
    PINGREQ c0 00 · PINGRESP d0 00 · DISCONNECT e0 00           (f = dup(1) qos(2) retain(1); text = length(2) + UTF-8)

Rules of this module. 1. Functions of bytes, no state: framing and runs are `connection`'s. 2. A violation raises
`MqttProtocolError` naming the clause of the OASIS standard. 3. Events carry runs: consecutive publishes of one QoS, and
consecutive acknowledgements, are one event each; long stretches of one topic are events of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from protocols.mqtt.events import NEVER_S, Connect, Event, Subscribe, SubscriptionRequest, Unsubscribe, Will
from protocols.sansio import RemoteProtocolError

ACCEPTED, UNACCEPTABLE_PROTOCOL_VERSION, IDENTIFIER_REJECTED, SERVER_UNAVAILABLE, BAD_CREDENTIALS, NOT_AUTHORIZED = (
    range(6)
)
SUBSCRIBE_FAILURE = 0x80
PACKET_ID_MAX = 65_535

CONNECT, PUBLISH, PUBACK, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT = 0x10, 0x30, 0x40, 0x82, 0xA2, 0xC0, 0xE0
PINGRESP = b"\xd0\x00"

PACKET_ID_BYTES = b"".join(i.to_bytes(2, "big") for i in range(PACKET_ID_MAX + 1))
"""Every packet id in order: the ids `first..last` are the slice `2 * first : 2 * last + 2`."""

_PACKET_IDS = [PACKET_ID_BYTES[i : i + 2] for i in range(0, len(PACKET_ID_BYTES), 2)]
_LENGTHS = [bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7)) for size in range(1 << 14)]
"""Remaining lengths of one and two bytes."""

_PROTOCOL_LEVELS = {"MQTT": 4, "MQIsdp": 3}


class MqttProtocolError(RemoteProtocolError):
    """The client broke the protocol or a limit: send `answer`, then close.

    `events` are those of the packets before the bad one; they count. `clause` is an identifier of the standard, or "".
    """

    def __init__(self, reason: str, clause: str = "", *, answer: bytes = b"") -> None:
        super().__init__(f"{reason} [{clause}]" if clause else reason)
        self.clause = clause
        self.answer = answer
        self.events: list[Event] = []


# Parsing: each function takes what follows the fixed header.


def parse_connect(body: bytes) -> Connect:
    """Read a CONNECT (section 3.1). A protocol level we do not speak raises with CONNACK 0x01 as the answer."""
    name, position = _text(body, 0, "protocol name")
    if name not in _PROTOCOL_LEVELS:
        raise MqttProtocolError("unknown protocol name", "MQTT-3.1.2-1")
    if len(body) < position + 4:
        raise MqttProtocolError("truncated CONNECT", "MQTT-3.1")
    level, flags = body[position], body[position + 1]
    if level != _PROTOCOL_LEVELS[name]:
        refusal = encode_connack(UNACCEPTABLE_PROTOCOL_VERSION)
        raise MqttProtocolError(f"protocol level {level} is not supported", "MQTT-3.1.2-2", answer=refusal)
    _check_connect_flags(flags)
    connect = Connect(level, "", bool(flags & 0x02), int.from_bytes(body[position + 2 : position + 4], "big"))
    connect.session_expiry_s = 0 if connect.clean_start else NEVER_S
    connect.client_id, position = _text(body, position + 4, "client identifier")
    if flags & 0x04:
        topic, position = _text(body, position, "will topic")
        check_topic_name(topic)
        payload, position = _field(body, position, "will message")
        connect.will = Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20))
    if flags & 0x80:
        connect.user_name, position = _text(body, position, "user name")
    if flags & 0x40:
        connect.password, position = _field(body, position, "password")
    if position != len(body):
        raise MqttProtocolError("bytes after the last field of CONNECT", "MQTT-3.1.3-1")
    return connect


def _check_connect_flags(flags: int) -> None:
    if flags & 0x01:
        raise MqttProtocolError("reserved flag set in CONNECT", "MQTT-3.1.2-3")
    if flags & 0x18 == 0x18:
        raise MqttProtocolError("will QoS 3", "MQTT-3.1.2-14")
    if not flags & 0x04 and flags & 0x18:
        raise MqttProtocolError("will QoS without a will", "MQTT-3.1.2-13")
    if not flags & 0x04 and flags & 0x20:
        raise MqttProtocolError("will retain without a will", "MQTT-3.1.2-15")
    if flags & 0x40 and not flags & 0x80:
        raise MqttProtocolError("password without a user name", "MQTT-3.1.2-22")


def parse_subscribe(body: bytes) -> Subscribe:
    """Read a SUBSCRIBE (section 3.8)."""
    subscribe = Subscribe(_packet_id(body), [])
    position = 2
    while position < len(body):
        topic_filter, position = _text(body, position, "topic filter")
        check_topic_filter(topic_filter)
        if position == len(body):
            raise MqttProtocolError("topic filter without a QoS", "MQTT-3.8.3-3")
        if body[position] > 2:
            raise MqttProtocolError("malformed requested QoS", "MQTT-3.8.3-4")
        subscribe.requests.append(SubscriptionRequest(topic_filter, body[position]))
        position += 1
    if not subscribe.requests:
        raise MqttProtocolError("SUBSCRIBE without a topic filter", "MQTT-3.8.3-3")
    return subscribe


def parse_unsubscribe(body: bytes) -> Unsubscribe:
    """Read an UNSUBSCRIBE (section 3.10)."""
    unsubscribe = Unsubscribe(_packet_id(body), [])
    position = 2
    while position < len(body):
        topic_filter, position = _text(body, position, "topic filter")
        check_topic_filter(topic_filter)
        unsubscribe.filters.append(topic_filter)
    if not unsubscribe.filters:
        raise MqttProtocolError("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    return unsubscribe


def decode_text(raw: bytes, what: str) -> str:
    """Strict UTF-8 without U+0000 (section 1.5.3); a byte order mark is kept."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise MqttProtocolError(f"{what} is not UTF-8", "MQTT-1.5.3-1") from None
    if "\0" in text:
        raise MqttProtocolError(f"{what} contains U+0000", "MQTT-1.5.3-2")
    return text


def check_topic_name(topic: str) -> None:
    """Raise MqttProtocolError unless `topic` can be published to (section 4.7.3)."""
    if not topic:
        raise MqttProtocolError("empty topic name", "MQTT-4.7.3-1")
    if "+" in topic or "#" in topic:
        raise MqttProtocolError("wildcard in a topic name", "MQTT-3.3.2-2")
    if "\0" in topic:
        raise MqttProtocolError("U+0000 in a topic name", "MQTT-4.7.3-2")


def check_topic_filter(topic_filter: str) -> None:
    """Raise MqttProtocolError unless the wildcards stand where section 4.7.1 allows them."""
    if not topic_filter:
        raise MqttProtocolError("empty topic filter", "MQTT-4.7.3-1")
    if "#" in topic_filter[:-1] or (topic_filter[-1] == "#" and topic_filter[-2:] not in ("#", "/#")):
        raise MqttProtocolError("misplaced # in a topic filter", "MQTT-4.7.1-2")
    if "+" in topic_filter and any("+" in level and level != "+" for level in topic_filter.split("/")):
        raise MqttProtocolError("misplaced + in a topic filter", "MQTT-4.7.1-3")


def packet_id_ranges(packet_ids: bytes) -> list[tuple[int, int]]:
    """Inclusive ranges of consecutive ids (two bytes each) in their order. One comparison when all are consecutive."""
    first = packet_ids[0] << 8 | packet_ids[1]
    last = first + len(packet_ids) // 2 - 1
    if packet_ids == PACKET_ID_BYTES[2 * first : 2 * last + 2]:
        return [(first, last)]
    ranges, last = [], first
    for high, low in zip(packet_ids[2::2], packet_ids[3::2]):
        packet_id = high << 8 | low
        if packet_id != last + 1:
            ranges.append((first, last))
            first = packet_id
        last = packet_id
    ranges.append((first, last))
    return ranges


def _field(body: bytes, position: int, what: str) -> tuple[bytes, int]:
    start = position + 2
    stop = start + int.from_bytes(body[position:start], "big")
    if start > len(body) or stop > len(body):
        raise MqttProtocolError(f"truncated {what}", "MQTT-1.5.3")
    return body[start:stop], stop


def _text(body: bytes, position: int, what: str) -> tuple[str, int]:
    raw, position = _field(body, position, what)
    return decode_text(raw, what), position


def _packet_id(body: bytes) -> int:
    packet_id = int.from_bytes(body[:2], "big")
    if len(body) < 2 or not packet_id:
        raise MqttProtocolError("missing packet identifier", "MQTT-2.3.1-1")
    return packet_id


# Encoding.


def encode_connack(return_code: int) -> bytes:
    """CONNACK without a stored session: "session present" is 0 (MQTT-3.2.2-1, MQTT-3.2.2-4)."""
    return bytes((0x20, 2, 0, return_code))


def encode_suback(packet_id: int, return_codes: Sequence[int]) -> bytes:
    """SUBACK: a granted QoS or SUBSCRIBE_FAILURE for each requested filter, in order (MQTT-3.8.4-5)."""
    return b"\x90" + _remaining_length(2 + len(return_codes)) + _PACKET_IDS[packet_id] + bytes(return_codes)


def encode_unsuback(packet_id: int) -> bytes:
    """UNSUBACK (section 3.11)."""
    return b"\xb0\x02" + _PACKET_IDS[packet_id]


def encode_pubacks(packet_ids: bytes) -> bytes:
    """PUBACK packets for ids of two bytes each, in their order (MQTT-4.6.0-2)."""
    packets = bytearray(b"\x40\x02\0\0") * (len(packet_ids) // 2)
    packets[2::4] = packet_ids[::2]
    packets[3::4] = packet_ids[1::2]
    return bytes(packets)


PublishHeads = bytes | list[bytes]
"""What comes before packet id and payload: one for all messages of a run, or one for each."""


def encode_text(text: str) -> bytes:
    """UTF-8 with its length in front. Raises UnicodeEncodeError for a surrogate."""
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def publish_heads(topic: bytes, payloads: Sequence[bytes], qos: int) -> PublishHeads:
    """Fixed header and topic (as `encode_text` makes it) for each payload, encoded once for each length that occurs."""
    extra = len(topic) + (2 if qos else 0)
    kind = b"\x32" if qos else b"\x30"
    if len(payloads) == 1:
        return kind + _remaining_length(extra + len(payloads[0])) + topic
    sizes = list(map(len, payloads))
    heads = {size: kind + _remaining_length(extra + size) + topic for size in set(sizes)}
    if len(heads) == 1:
        return heads[sizes[0]]
    return [heads[size] for size in sizes]


def varied_heads(topics: Sequence[bytes], payloads: Sequence[bytes], qos: int) -> list[bytes]:
    """As `publish_heads`, for payloads with a topic each."""
    sizes = map(add, map(len, topics), map(len, payloads))
    return list(map(add, map(_STARTS[qos].__getitem__, sizes), topics))


def encode_publishes(heads: PublishHeads, payloads: Sequence[bytes]) -> bytes:
    """PUBLISH packets at QoS 0 for one or more payloads."""
    if isinstance(heads, bytes):
        return heads + payloads[0] if len(payloads) == 1 else heads.join([b"", *payloads])
    parts = [b""] * (2 * len(payloads))
    parts[::2] = heads
    parts[1::2] = payloads
    return b"".join(parts)


def encode_publishes_with_ids(heads: PublishHeads, payloads: Sequence[bytes], first_packet_id: int) -> bytes:
    """PUBLISH packets at QoS 1 with consecutive packet ids."""
    count = len(payloads)
    if isinstance(heads, bytes):
        if count == 1:
            return heads + _PACKET_IDS[first_packet_id] + payloads[0]
        parts = [heads] * (3 * count)
    else:
        parts = [b""] * (3 * count)
        parts[::3] = heads
    parts[1::3] = _PACKET_IDS[first_packet_id : first_packet_id + count]
    parts[2::3] = payloads
    return b"".join(parts)


class _Starts(dict[int, bytes]):
    """The fixed header of PUBLISH by the length of topic and payload together; those of common lengths are kept."""

    def __init__(self, first: int, id_bytes: int) -> None:
        super().__init__()
        self._first = bytes((first,))
        self._id_bytes = id_bytes

    def __missing__(self, size: int) -> bytes:
        start = self._first + _remaining_length(size + self._id_bytes)
        if size < len(_LENGTHS):
            self[size] = start
        return start


_STARTS = (_Starts(PUBLISH, 0), _Starts(PUBLISH | 2, 2))


def _remaining_length(size: int) -> bytes:
    if size < len(_LENGTHS):
        return _LENGTHS[size]
    digits = bytearray()
    while size > 127:
        digits.append(size & 127 | 128)
        size >>= 7
    digits.append(size)
    return bytes(digits)
