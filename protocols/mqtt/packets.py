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

from protocols.mqtt.events import NEVER_S, Connect, Subscribe, SubscriptionRequest, Unsubscribe, Will
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode
from protocols.mqtt.wire import PACKET_ID_BYTES, WIRE_3

CONNECT, PUBLISH, PUBACK, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT = 0x10, 0x30, 0x40, 0x82, 0xA2, 0xC0, 0xE0
_PROTOCOL_LEVELS = {"MQTT": 4, "MQIsdp": 3}


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
        code = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
        text = f"protocol level {level} is not supported"
        raise MqttProtocolError(text, "MQTT-3.1.2-2", code, answer=WIRE_3.connack(code))
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
