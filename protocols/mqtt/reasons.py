"""Reason codes (MQTT 5, section 2.4), which packet may carry which, and what is made of them for 3.1 and 3.1.1.

From 0x80 on a code is a failure. What a violation is called in these terms stands in `MqttProtocolError.code`, what the
engine's errors are called in `adapter_errors`.
"""

from __future__ import annotations

from enum import IntEnum

from protocols.mqtt.events import AcknowledgementKind, Event
from protocols.sansio import RemoteProtocolError


class ReasonCode(IntEnum):
    """All reason codes of MQTT 5. Some values have several names: what 0, 1 and 2 mean depends on the packet."""

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


_R = ReasonCode
_PUBLISH_REASONS = frozenset({
    _R.SUCCESS, _R.NO_MATCHING_SUBSCRIBERS, _R.UNSPECIFIED_ERROR, _R.IMPLEMENTATION_SPECIFIC_ERROR, _R.NOT_AUTHORIZED,
    _R.TOPIC_NAME_INVALID, _R.PACKET_IDENTIFIER_IN_USE, _R.QUOTA_EXCEEDED, _R.PAYLOAD_FORMAT_INVALID,
})  # fmt: skip
_RELEASE_REASONS = frozenset({_R.SUCCESS, _R.PACKET_IDENTIFIER_NOT_FOUND})
_ENDINGS_OF_BOTH = frozenset({
    _R.SUCCESS, _R.UNSPECIFIED_ERROR, _R.MALFORMED_PACKET, _R.PROTOCOL_ERROR, _R.IMPLEMENTATION_SPECIFIC_ERROR,
    _R.TOPIC_NAME_INVALID, _R.RECEIVE_MAXIMUM_EXCEEDED, _R.TOPIC_ALIAS_INVALID, _R.PACKET_TOO_LARGE,
    _R.MESSAGE_RATE_TOO_HIGH, _R.QUOTA_EXCEEDED, _R.ADMINISTRATIVE_ACTION, _R.PAYLOAD_FORMAT_INVALID,
})  # fmt: skip

ACKNOWLEDGEMENT_REASONS: dict[AcknowledgementKind, frozenset[ReasonCode]] = {
    AcknowledgementKind.PUBACK: _PUBLISH_REASONS,
    AcknowledgementKind.PUBREC: _PUBLISH_REASONS,
    AcknowledgementKind.PUBREL: _RELEASE_REASONS,
    AcknowledgementKind.PUBCOMP: _RELEASE_REASONS,
}
"""What each acknowledgement may say (3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1)."""

CLIENT_DISCONNECT_REASONS = _ENDINGS_OF_BOTH | {_R.DISCONNECT_WITH_WILL}
"""What a client's DISCONNECT may say (3.14.2.1)."""

SERVER_DISCONNECT_REASONS = _ENDINGS_OF_BOTH | {
    _R.NOT_AUTHORIZED, _R.SERVER_BUSY, _R.SERVER_SHUTTING_DOWN, _R.KEEP_ALIVE_TIMEOUT, _R.SESSION_TAKEN_OVER,
    _R.TOPIC_FILTER_INVALID, _R.RETAIN_NOT_SUPPORTED, _R.QOS_NOT_SUPPORTED, _R.USE_ANOTHER_SERVER, _R.SERVER_MOVED,
    _R.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, _R.CONNECTION_RATE_EXCEEDED, _R.MAXIMUM_CONNECT_TIME,
    _R.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, _R.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
}  # fmt: skip
"""What a server's DISCONNECT may say."""

CONNACK_REASONS = frozenset({
    _R.SUCCESS, _R.UNSPECIFIED_ERROR, _R.MALFORMED_PACKET, _R.PROTOCOL_ERROR, _R.IMPLEMENTATION_SPECIFIC_ERROR,
    _R.UNSUPPORTED_PROTOCOL_VERSION, _R.CLIENT_IDENTIFIER_NOT_VALID, _R.BAD_USER_NAME_OR_PASSWORD, _R.NOT_AUTHORIZED,
    _R.SERVER_UNAVAILABLE, _R.SERVER_BUSY, _R.BANNED, _R.BAD_AUTHENTICATION_METHOD, _R.TOPIC_NAME_INVALID,
    _R.PACKET_TOO_LARGE, _R.QUOTA_EXCEEDED, _R.PAYLOAD_FORMAT_INVALID, _R.RETAIN_NOT_SUPPORTED, _R.QOS_NOT_SUPPORTED,
    _R.USE_ANOTHER_SERVER, _R.SERVER_MOVED, _R.CONNECTION_RATE_EXCEEDED,
})  # fmt: skip
"""What CONNACK may say (3.2.2.2)."""

SUBACK_REASONS = frozenset({
    _R.GRANTED_QOS_0, _R.GRANTED_QOS_1, _R.GRANTED_QOS_2, _R.UNSPECIFIED_ERROR, _R.IMPLEMENTATION_SPECIFIC_ERROR,
    _R.NOT_AUTHORIZED, _R.TOPIC_FILTER_INVALID, _R.PACKET_IDENTIFIER_IN_USE, _R.QUOTA_EXCEEDED,
    _R.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, _R.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
    _R.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
})  # fmt: skip
"""What SUBACK may say of a filter (3.9.3)."""

AUTH_REASONS = frozenset({_R.SUCCESS, _R.CONTINUE_AUTHENTICATION, _R.REAUTHENTICATE})
"""What AUTH may say (3.15.2.1); a client does not say SUCCESS."""


def permitted(reason: ReasonCode, reasons: frozenset[ReasonCode]) -> ReasonCode:
    """The reason if a packet with these `reasons` may carry it, else that there was an error."""
    return reason if reason in reasons else ReasonCode.UNSPECIFIED_ERROR


class MqttProtocolError(RemoteProtocolError):
    """The client broke the protocol or a limit: send `answer`, then close.

    `events` are those of the packets before the bad one; they count. `clause` is an identifier of the standard (of
    3.1.1 where both versions have the rule), or "". `code` is what MQTT 5 calls it.
    """

    def __init__(
        self, reason: str, clause: str = "", code: ReasonCode = ReasonCode.MALFORMED_PACKET, *, answer: bytes = b""
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.clause = clause
        self.code = code
        self.answer = answer
        self.events: list[Event] = []

    def __str__(self) -> str:
        return f"{self.reason} [{self.clause}]" if self.clause else self.reason
