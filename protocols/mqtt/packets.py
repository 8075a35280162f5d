"""MQTT control packets of 3.1 and 3.1.1: what is in them; and what all versions have in common.

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

Rules of this module. 1. Functions of bytes, no state: publishes are `publish_runs`', acknowledgements
`acknowledgement_runs`'. 2. A violation raises `MqttProtocolError` naming the clause of the OASIS standard.
3. `packets_5` has the packets that MQTT 5 writes differently; what is sent is `wire`'s.
"""

from __future__ import annotations

from protocols.buffers import BytesLike
from protocols.mqtt.events import NEVER_S, Connect, Subscribe, SubscriptionRequest, Unsubscribe, Will
from protocols.mqtt.properties import read_field, read_text
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode
from protocols.mqtt.wire import PACKET_ID_BYTES, WIRE_3

CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH = 0x10, 0x30, 0x82, 0xA2, 0xC0, 0xE0, 0xF0
_BRIDGE = 0x80
_PROTOCOL_LEVELS = {"MQTT": (4, 5, 4 | _BRIDGE), "MQIsdp": (3, 3 | _BRIDGE)}
"""With the bit by which Mosquitto's bridges say that they are such; in MQTT 5 subscriptions can say what it means."""


def frame(data: BytesLike, position: int, end: int, packet_bytes_max: int) -> tuple[int, int]:
    """Where the body of the packet at `position` begins and where it stops; beyond `end` means that bytes are missing.

    Raises MqttProtocolError for a length that is malformed, or larger than the limit.
    """
    if end - position > 2:
        low, high = data[position + 1], data[position + 2]
        if low < 128:
            return position + 2, position + 2 + low
        size = 3 + (low & 127 | high << 7)
        if high < 128 and size <= packet_bytes_max:
            return position + 3, position + size
    body, size, shift = position + 1, 0, 0
    while True:
        if body == end:
            return body, end + 1
        digit = data[body]
        body += 1
        size |= (digit & 127) << shift
        if digit < 128:
            break
        shift += 7
        if shift > 21:
            raise MqttProtocolError("remaining length of more than four bytes", "MQTT-2.2.3")
    stop = body + size
    if stop - position > packet_bytes_max:
        text = f"packet of {stop - position} bytes, at most {packet_bytes_max} are allowed"
        raise MqttProtocolError(text, "", ReasonCode.PACKET_TOO_LARGE)
    return body, stop


# Parsing: each function takes what follows the fixed header.


def protocol_level(body: bytes) -> tuple[int, int]:
    """The level that a CONNECT asks for, and where its flags stand. One we do not speak is answered with CONNACK 1."""
    name, position = read_text(body, 0, "protocol name")
    if name not in _PROTOCOL_LEVELS:
        raise MqttProtocolError("unknown protocol name", "MQTT-3.1.2-1", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    if len(body) < position + 4:
        raise MqttProtocolError("truncated CONNECT", "MQTT-3.1")
    level = body[position]
    if level not in _PROTOCOL_LEVELS[name]:
        code = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
        text = f"protocol level {level} is not supported"
        raise MqttProtocolError(text, "MQTT-3.1.2-2", code, answer=WIRE_3.connack(code))
    return level & ~_BRIDGE, position + 1


def parse_connect(body: bytes) -> Connect:
    """Read a CONNECT (section 3.1)."""
    level, position = protocol_level(body)
    flags = body[position]
    check_connect_flags(flags, ("MQTT-3.1.2-14", "MQTT-3.1.2-13", "MQTT-3.1.2-15"))
    if flags & 0x40 and not flags & 0x80:
        raise MqttProtocolError("password without a user name", "MQTT-3.1.2-22")
    connect = Connect(level, "", bool(flags & 0x02), int.from_bytes(body[position + 1 : position + 3], "big"))
    connect.session_expiry_s = 0 if connect.clean_start else NEVER_S
    connect.is_bridge = body[position - 1] & _BRIDGE > 0
    connect.client_id, position = read_text(body, position + 3, "client identifier")
    if flags & 0x04:
        topic, position = read_text(body, position, "will topic")
        check_topic_name(topic)
        payload, position = read_field(body, position, "will message")
        connect.will = Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20))
    read_credentials(connect, flags, body, position)
    return connect


def read_credentials(connect: Connect, flags: int, body: bytes, position: int) -> None:
    """What a CONNECT ends with: user name and password."""
    if flags & 0x80:
        connect.user_name, position = read_text(body, position, "user name")
    if flags & 0x40:
        connect.password, position = read_field(body, position, "password")
    if position != len(body):
        raise MqttProtocolError("bytes after the last field of CONNECT", "MQTT-3.1.3-1")


def check_connect_flags(flags: int, clauses: tuple[str, str, str]) -> None:
    """What versions agree about; `clauses` are those about a will's QoS 3, and QoS and RETAIN without a will.

    Raises MqttProtocolError.
    """
    if flags & 0x01:
        raise MqttProtocolError("reserved flag set in CONNECT", "MQTT-3.1.2-3")
    if flags & 0x18 == 0x18:
        raise MqttProtocolError("will QoS 3", clauses[0])
    if not flags & 0x04 and flags & 0x18:
        raise MqttProtocolError("will QoS without a will", clauses[1])
    if not flags & 0x04 and flags & 0x20:
        raise MqttProtocolError("will retain without a will", clauses[2])


def parse_subscribe(body: bytes) -> Subscribe:
    """Read a SUBSCRIBE (section 3.8)."""
    subscribe = Subscribe(read_packet_id(body), [])
    position = 2
    while position < len(body):
        topic_filter, position = read_text(body, position, "topic filter")
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
    unsubscribe = Unsubscribe(read_packet_id(body), [])
    position = 2
    while position < len(body):
        topic_filter, position = read_text(body, position, "topic filter")
        check_topic_filter(topic_filter)
        unsubscribe.filters.append(topic_filter)
    if not unsubscribe.filters:
        raise MqttProtocolError("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2")
    return unsubscribe


def check_topic_name(topic: str) -> None:
    """Raise MqttProtocolError unless `topic` can be published to (section 4.7.3)."""
    if not topic:
        raise MqttProtocolError("empty topic name", "MQTT-4.7.3-1", ReasonCode.TOPIC_NAME_INVALID)
    if "+" in topic or "#" in topic:
        raise MqttProtocolError("wildcard in a topic name", "MQTT-3.3.2-2", ReasonCode.TOPIC_NAME_INVALID)
    if "\0" in topic:
        raise MqttProtocolError("U+0000 in a topic name", "MQTT-4.7.3-2")


def check_topic_filter(topic_filter: str) -> None:
    """Raise MqttProtocolError unless the wildcards stand where section 4.7.1 allows them."""
    if not topic_filter:
        raise MqttProtocolError("empty topic filter", "MQTT-4.7.3-1", ReasonCode.TOPIC_FILTER_INVALID)
    if "#" in topic_filter[:-1] or (topic_filter[-1] == "#" and topic_filter[-2:] not in ("#", "/#")):
        raise MqttProtocolError("misplaced # in a topic filter", "MQTT-4.7.1-2", ReasonCode.TOPIC_FILTER_INVALID)
    if "+" in topic_filter and any("+" in level and level != "+" for level in topic_filter.split("/")):
        raise MqttProtocolError("misplaced + in a topic filter", "MQTT-4.7.1-3", ReasonCode.TOPIC_FILTER_INVALID)


def packet_id_ranges(packet_ids: bytes | bytearray) -> list[tuple[int, int]]:
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


def read_packet_id(body: bytes) -> int:
    """The packet identifier that a body begins with. Raises MqttProtocolError."""
    packet_id = int.from_bytes(body[:2], "big")
    if len(body) < 2 or not packet_id:
        raise MqttProtocolError("missing packet identifier", "MQTT-2.3.1-1", ReasonCode.PROTOCOL_ERROR)
    return packet_id
