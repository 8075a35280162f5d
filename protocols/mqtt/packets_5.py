"""Control packets as MQTT 5 writes them: those of `packets` with properties, options and reasons, and AUTH.

    CONNECT      as before, with properties before the client id, and the will's before its topic
    SUBSCRIBE    82 len | packet id(2) properties               | (filter, options)...
    UNSUBSCRIBE  a2 len | packet id(2) properties               | filter...
    DISCONNECT   e0 len | reason, properties                    (both may be absent, or the properties)
    AUTH         f0 len | reason, properties

Functions of bytes, no state. A violation raises `MqttProtocolError` with the clause and the reason code; what is
checked for both versions in one place raises the clause of 3.1.1, and `clause_in_5` says what MQTT 5 calls that.
"""

from __future__ import annotations

from typing import Any

from protocols.mqtt.events import Authenticate, Connect, Disconnect, Subscribe, SubscriptionRequest, Unsubscribe, Will
from protocols.mqtt.packets import (
    check_connect_flags,
    check_topic_filter,
    check_topic_name,
    protocol_level,
    read_credentials,
    read_packet_id,
)
from protocols.mqtt.properties import (
    IN_AUTH,
    IN_CONNECT,
    IN_DISCONNECT,
    IN_SUBSCRIBE,
    IN_UNSUBSCRIBE,
    IN_WILL,
    Property,
    check_response_topic,
    encode_properties,
    read_field,
    read_properties,
    read_text,
)
from protocols.mqtt.reasons import AUTH_REASONS, CLIENT_DISCONNECT_REASONS, MqttProtocolError, ReasonCode

SHARE = "$share/"
_PROTOCOL_ERROR = ReasonCode.PROTOCOL_ERROR

_CLAUSES = {
    "MQTT-1.5.3-1": "MQTT-1.5.4-1",
    "MQTT-1.5.3-2": "MQTT-1.5.4-2",
    "MQTT-1.5.3": "MQTT-1.5.4",
    "MQTT-2.2.3": "MQTT-1.5.5",
    "MQTT-2.3.1-1": "MQTT-2.2.1-3",
    "MQTT-2.3.1-6": "MQTT-2.2.1-5",
    "MQTT-4.7.1-2": "MQTT-4.7.1-1",
    "MQTT-4.7.1-3": "MQTT-4.7.1-2",
}
"""Rules of 3.1.1 that have another number in MQTT 5, and whose check is the same for both."""


def clause_in_5(clause: str) -> str:
    """What MQTT 5 calls a rule of 3.1.1."""
    return _CLAUSES.get(clause, clause)


def parse_connect_5(body: bytes) -> Connect:
    """Read a CONNECT (section 3.1)."""
    level, position = protocol_level(body)
    flags = body[position]
    check_connect_flags(flags, ("MQTT-3.1.2-12", "MQTT-3.1.2-11", "MQTT-3.1.2-13"))  # a password needs no user name
    connect = Connect(level, "", bool(flags & 0x02), int.from_bytes(body[position + 1 : position + 3], "big"))
    found, position = read_properties(body, position + 3, IN_CONNECT, "CONNECT")
    _take_connect_properties(connect, found)
    connect.client_id, position = read_text(body, position, "client identifier")
    if flags & 0x04:
        found, position = read_properties(body, position, IN_WILL, "the will")
        topic, position = read_text(body, position, "will topic")
        check_topic_name(topic)
        payload, position = read_field(body, position, "will payload")
        connect.will = _will(topic, payload, flags, found)
    read_credentials(connect, flags, body, position)
    return connect


def _take_connect_properties(connect: Connect, found: dict[int, Any]) -> None:
    connect.session_expiry_s = found.get(Property.SESSION_EXPIRY, 0)
    connect.receive_maximum = found.get(Property.RECEIVE_MAXIMUM, connect.receive_maximum)
    connect.packet_bytes_max = found.get(Property.PACKET_BYTES_MAX)
    connect.topic_alias_max = found.get(Property.TOPIC_ALIAS_MAX, 0)
    connect.authentication_method = found.get(Property.AUTHENTICATION_METHOD)
    if Property.AUTHENTICATION_DATA in found:
        if connect.authentication_method is None:
            raise MqttProtocolError("authentication data without a method", "", _PROTOCOL_ERROR)
        connect.authentication_data = found[Property.AUTHENTICATION_DATA]


def _will(topic: str, payload: bytes, flags: int, found: dict[int, Any]) -> Will:
    check_response_topic(found.get(Property.RESPONSE_TOPIC))
    delay_s, expiry_s = found.pop(Property.WILL_DELAY, 0), found.pop(Property.MESSAGE_EXPIRY, None)
    pairs = found.pop(Property.USER_PROPERTY, ())
    block = encode_properties([*found.items(), *((Property.USER_PROPERTY, pair) for pair in pairs)])
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), block, delay_s, expiry_s)


def parse_subscribe_5(body: bytes) -> Subscribe:
    """Read a SUBSCRIBE (section 3.8)."""
    subscribe = Subscribe(read_packet_id(body), [])
    found, position = read_properties(body, 2, IN_SUBSCRIBE, "SUBSCRIBE")
    subscribe.subscription_id = found.get(Property.SUBSCRIPTION_ID, 0)
    while position < len(body):
        topic_filter, position = read_text(body, position, "topic filter")
        shared = _check_filter(topic_filter)
        if position == len(body):
            raise MqttProtocolError("topic filter without options", "MQTT-3.8.3-2")
        options = body[position]
        if options & 0xC0:
            raise MqttProtocolError("reserved bits of subscription options", "MQTT-3.8.3-5")
        if options & 3 == 3:
            raise MqttProtocolError("subscription with QoS 3", "", _PROTOCOL_ERROR)
        if options & 0x30 == 0x30:
            raise MqttProtocolError("retain handling 3", "", _PROTOCOL_ERROR)
        no_local = bool(options & 4)
        if no_local and shared:
            raise MqttProtocolError("no-local of a shared subscription", "MQTT-3.8.3-4", _PROTOCOL_ERROR)
        request = SubscriptionRequest(topic_filter, options & 3, no_local, bool(options & 8), options >> 4)
        subscribe.requests.append(request)
        position += 1
    if not subscribe.requests:
        raise MqttProtocolError("SUBSCRIBE without a topic filter", "MQTT-3.8.3-2", _PROTOCOL_ERROR)
    return subscribe


def parse_unsubscribe_5(body: bytes) -> Unsubscribe:
    """Read an UNSUBSCRIBE (section 3.10)."""
    unsubscribe = Unsubscribe(read_packet_id(body), [])
    _, position = read_properties(body, 2, IN_UNSUBSCRIBE, "UNSUBSCRIBE")
    while position < len(body):
        topic_filter, position = read_text(body, position, "topic filter")
        _check_filter(topic_filter)
        unsubscribe.filters.append(topic_filter)
    if not unsubscribe.filters:
        raise MqttProtocolError("UNSUBSCRIBE without a topic filter", "MQTT-3.10.3-2", _PROTOCOL_ERROR)
    return unsubscribe


def _check_filter(topic_filter: str) -> bool:
    """Whether it is that of a shared subscription (section 4.8.2). Raises MqttProtocolError."""
    if not topic_filter.startswith(SHARE):
        check_topic_filter(topic_filter)
        return False
    group, slash, rest = topic_filter[len(SHARE) :].partition("/")
    invalid = ReasonCode.TOPIC_FILTER_INVALID
    if not group:
        raise MqttProtocolError("share without a name", "MQTT-4.8.2-1", invalid)
    if "+" in group or "#" in group or not slash or not rest:
        raise MqttProtocolError("malformed shared subscription", "MQTT-4.8.2-2", invalid)
    check_topic_filter(rest)
    return True


def parse_disconnect_5(body: bytes) -> Disconnect:
    """Read a DISCONNECT (section 3.14)."""
    if not body:
        return Disconnect()
    if body[0] not in CLIENT_DISCONNECT_REASONS:
        raise MqttProtocolError(f"DISCONNECT with reason {body[0]:#04x}", "MQTT-3.14.2-1", _PROTOCOL_ERROR)
    disconnect = Disconnect(body[0])
    if len(body) > 1:
        found, position = read_properties(body, 1, IN_DISCONNECT, "DISCONNECT")
        disconnect.session_expiry_s = found.get(Property.SESSION_EXPIRY)
        if position != len(body):
            raise MqttProtocolError("bytes after the properties of DISCONNECT", "MQTT-3.14.2")
    return disconnect


def parse_auth(body: bytes) -> Authenticate:
    """Read an AUTH (section 3.15)."""
    if not body:
        raise MqttProtocolError("AUTH that says success", "MQTT-3.15.2-1", _PROTOCOL_ERROR)
    if body[0] not in AUTH_REASONS or not body[0]:
        raise MqttProtocolError(f"AUTH with reason {body[0]:#04x}", "MQTT-3.15.2-1", _PROTOCOL_ERROR)
    found: dict[int, Any] = {}
    if len(body) > 1:
        found, position = read_properties(body, 1, IN_AUTH, "AUTH")
        if position != len(body):
            raise MqttProtocolError("bytes after the properties of AUTH", "MQTT-3.15.2")
    method = found.get(Property.AUTHENTICATION_METHOD)
    if method is None:
        raise MqttProtocolError("AUTH without a method", "", _PROTOCOL_ERROR)
    return Authenticate(body[0], method, found.get(Property.AUTHENTICATION_DATA, b""))
