"""What the server sends, read by paho's own property reader and by a plain reader of the standard."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from protocols.mqtt.events import AcknowledgementKind
from protocols.mqtt.properties import encode_text, with_length
from protocols.mqtt.reasons import (
    ACKNOWLEDGEMENT_REASONS,
    AUTH_REASONS,
    CONNACK_REASONS,
    SERVER_DISCONNECT_REASONS,
    SUBACK_REASONS,
    ReasonCode,
    permitted,
)
from protocols.mqtt.wire import (
    WIRE_3,
    WIRE_5,
    WIRE_31,
    ConnackProperties,
    encode_publishes,
    encode_publishes_with_ids,
    publish_heads,
    varied_heads,
)
from tests.protocols.mqtt.wire import packets
from tests.protocols.mqtt.wire_5 import block, publish_5

KINDS = list(AcknowledgementKind)


def paho_properties(kind: int, data: bytes) -> tuple[dict[str, Any], bytes]:
    """The properties that `data` begins with, as paho reads them, and the rest."""
    found = Properties(kind)
    _, size = found.unpack(data)
    values = {name: value for name, value in found.json().items() if name != "UserProperty"}
    return values | {"UserProperty": getattr(found, "UserProperty", [])}, data[size:]


def test_connack_with_everything() -> None:
    told = ConnackProperties(
        session_expiry_s=0xFFFFFFFF, receive_maximum=9, qos_max=1, retain_available=False, packet_bytes_max=1 << 20,
        assigned_client_id="auto", topic_alias_max=10, reason_string="why", user_properties=[("a", "1"), ("a", "2")],
        wildcard_available=True, subscription_ids_available=True, shared_available=False, server_keep_alive_s=60,
        response_information="r/1", server_reference="other:1883", authentication_method="M", authentication_data=b"\0",
    )  # fmt: skip
    ((first, body),) = packets(WIRE_5.connack(ReasonCode.SUCCESS, session_present=True, properties=told))
    assert (first, body[:2]) == (0x20, b"\1\0")
    values, rest = paho_properties(PacketTypes.CONNACK, body[2:])
    assert rest == b""
    assert values == {
        "SessionExpiryInterval": 0xFFFFFFFF, "ReceiveMaximum": 9, "MaximumQoS": 1, "RetainAvailable": 0,
        "MaximumPacketSize": 1 << 20, "AssignedClientIdentifier": "auto", "TopicAliasMaximum": 10,
        "ReasonString": "why", "UserProperty": [("a", "1"), ("a", "2")], "WildcardSubscriptionAvailable": 1,
        "SubscriptionIdentifierAvailable": 1, "SharedSubscriptionAvailable": 0, "ServerKeepAlive": 60,
        "ResponseInformation": "r/1", "ServerReference": "other:1883", "AuthenticationMethod": "M",
        "AuthenticationData": b"\0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (ReasonCode.SUCCESS, 0), (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 1),
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 2), (ReasonCode.SERVER_UNAVAILABLE, 3), (ReasonCode.SERVER_BUSY, 3),
        (ReasonCode.QUOTA_EXCEEDED, 3), (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4), (ReasonCode.NOT_AUTHORIZED, 5),
    ],
)  # fmt: skip
def test_connack_of_all_versions(reason: ReasonCode, code: int) -> None:
    present = not reason
    assert WIRE_3.connack(reason, session_present=True) == bytes((0x20, 2, present, code))
    assert WIRE_31.connack(reason, session_present=True) == bytes((0x20, 2, 0, code))
    assert WIRE_5.connack(reason, session_present=True) == bytes((0x20, 3, present, reason, 0))


def test_answers_to_subscriptions() -> None:
    reasons = [ReasonCode.GRANTED_QOS_2, ReasonCode.QUOTA_EXCEEDED, ReasonCode.GRANTED_QOS_0]
    assert WIRE_3.suback(258, reasons) == b"\x90\x05\1\2\x02\x80\x00"
    assert WIRE_5.suback(258, reasons) == b"\x90\x06\1\2\0\x02\x97\x00"
    assert WIRE_3.unsuback(258, [ReasonCode.SUCCESS]) == b"\xb0\x02\1\2"
    assert WIRE_5.unsuback(258, [ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED]) == b"\xb0\x05\1\2\0\x00\x11"


@given(st.lists(st.tuples(st.integers(1, 65_535), st.sampled_from([0, 0, 0, 0x10, 0x80])), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_acknowledgements_one_by_one(acknowledged: list[tuple[int, int]]) -> None:
    ids = b"".join(packet_id.to_bytes(2, "big") for packet_id, _ in acknowledged)
    reasons = bytes(reason for _, reason in acknowledged)
    for kind in KINDS:
        found = [(first, body) for first, body in packets(WIRE_5.acknowledgements(kind, ids, reasons))]
        assert [first for first, _ in found] == [kind] * len(acknowledged)
        assert [(int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0) for _, body in found] == acknowledged
        plain = [body for _, body in packets(WIRE_3.acknowledgements(kind, ids, reasons))]
        assert plain == [ids[i : i + 2] for i in range(0, len(ids), 2)]
        assert WIRE_5.acknowledgements(kind, ids) == WIRE_3.acknowledgements(kind, ids)


def test_disconnect_and_auth() -> None:
    ((first, body),) = packets(WIRE_5.disconnect(ReasonCode.USE_ANOTHER_SERVER, "moved", server_reference="other:1883"))
    assert (first, body[0]) == (0xE0, 0x9C)
    values, rest = paho_properties(PacketTypes.DISCONNECT, body[1:])
    assert (values, rest) == ({"ReasonString": "moved", "ServerReference": "other:1883", "UserProperty": []}, b"")
    ((first, body),) = packets(WIRE_5.auth(ReasonCode.CONTINUE_AUTHENTICATION, "M", b"\1\2"))
    assert (first, body[0]) == (0xF0, 0x18)
    values, rest = paho_properties(PacketTypes.AUTH, body[1:])
    assert values == {"AuthenticationMethod": "M", "AuthenticationData": b"\1\2", "UserProperty": []}
    assert WIRE_3.disconnect(ReasonCode.SERVER_BUSY) == WIRE_3.auth(ReasonCode.SUCCESS, "M") == b""


def test_mqtt_3_14_2_3_the_text_is_left_out_where_the_client_takes_no_more() -> None:
    whole = WIRE_5.disconnect(ReasonCode.SERVER_BUSY, "a long explanation")
    assert WIRE_5.disconnect(ReasonCode.SERVER_BUSY, "a long explanation", packet_bytes_max=len(whole)) == whole
    assert WIRE_5.disconnect(ReasonCode.SERVER_BUSY, "a long explanation", packet_bytes_max=4) == b"\xe0\x02\x89\0"
    assert WIRE_5.disconnect(ReasonCode.SERVER_BUSY, packet_bytes_max=3) == b""


payload_lists = st.lists(st.binary(max_size=300), min_size=1, max_size=12)
blocks = st.lists(st.sampled_from([b"", block(("a", "b")), block(content_type="t" * 140)]), min_size=12, max_size=12)


@given(payload_lists, blocks, st.sampled_from([0, 1, 2]), st.booleans(), st.booleans(), st.integers(1, 65_000))
@settings(max_examples=150, deadline=None)
def test_publishes(
    payloads: list[bytes], properties: list[bytes], qos: int, retain: bool, varied: bool, first_id: int
) -> None:
    count = len(payloads)
    if not varied:
        properties = properties[:1] * count
    expected = b"".join(
        publish_5("a/b", payload, properties[i], qos=qos, packet_id=first_id + i, retain=retain)
        for i, payload in enumerate(payloads)
    )
    each = [with_length(one) for one in properties[:count]]
    topic = encode_text("a/b")
    if varied and not qos:
        heads: Any = varied_heads([topic + one for one in each], payloads, 0, flags=retain)
        assert encode_publishes(heads, payloads) == expected
    elif varied:
        heads = varied_heads([topic] * count, payloads, qos, flags=retain, blocks=each)
        assert encode_publishes_with_ids(heads, payloads, first_id, each) == expected
    elif qos:
        heads = publish_heads(topic, payloads, qos, flags=retain, block=each[0])
        assert encode_publishes_with_ids(heads, payloads, first_id, each[0]) == expected
    else:
        heads = publish_heads(topic + each[0], payloads, 0, flags=retain)
        assert encode_publishes(heads, payloads) == expected


def test_reasons_are_those_of_paho() -> None:
    from paho.mqtt.reasoncodes import ReasonCode as PahoReason

    names = PahoReason(PacketTypes.CONNACK).names
    theirs: dict[int, set[int]] = {}
    for value, kinds in names.items():
        for some in kinds.values():
            for kind in some:
                theirs.setdefault(kind, set()).add(value)
    # A will's payload may be invalid, too (3.2.2.2); paho does not have it.
    assert {int(reason) for reason in CONNACK_REASONS} == theirs[PacketTypes.CONNACK] | {0x99}
    assert {int(reason) for reason in SUBACK_REASONS} == theirs[PacketTypes.SUBACK]
    assert {int(reason) for reason in AUTH_REASONS} == theirs[PacketTypes.AUTH]
    assert {int(reason) for reason in SERVER_DISCONNECT_REASONS} <= theirs[PacketTypes.DISCONNECT]
    for kind in KINDS:
        assert {int(reason) for reason in ACKNOWLEDGEMENT_REASONS[kind]} == theirs[kind >> 4]


def test_a_reason_that_a_packet_may_not_have_becomes_an_unspecified_error() -> None:
    assert permitted(ReasonCode.SERVER_UNAVAILABLE, SUBACK_REASONS) == ReasonCode.UNSPECIFIED_ERROR
    assert permitted(ReasonCode.SERVER_UNAVAILABLE, CONNACK_REASONS) == ReasonCode.SERVER_UNAVAILABLE
