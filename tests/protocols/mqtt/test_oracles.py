"""Our codec against the independent ones of amqtt and paho: what they write we read, what we write they read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from amqtt.adapters import BufferReader
from amqtt.mqtt import packet_class
from amqtt.mqtt.connect import ConnectPacket, ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.pingreq import PingReqPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from protocols.convert import topic_to_routing_key
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.connection import ServerConnection
from protocols.mqtt.events import (
    AcknowledgementKind,
    Acknowledgements,
    Connect,
    Disconnect,
    Event,
    PingRequest,
    PublishRun,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import encode_text
from protocols.mqtt.reasons import ReasonCode
from protocols.mqtt.wire import PINGRESP, WIRE_3, encode_publishes, encode_publishes_with_ids, publish_heads
from routing.key_patterns import matches, parse_pattern
from tests.protocols.mqtt.test_codec import connected

payload_lists = st.lists(st.binary(max_size=300), min_size=1, max_size=20)
topic_names = st.text(st.characters(exclude_characters="\0+#", exclude_categories=("Cs",)), min_size=1, max_size=60)


async def _decode(data: bytes) -> list[Any]:
    reader, found = BufferReader(data), []
    while (header := await MQTTFixedHeader.from_stream(reader)) is not None:
        found.append(await packet_class(header).from_stream(reader, fixed_header=header))
    return found


def amqtt_decode(data: bytes) -> list[Any]:
    """All packets in `data`, as amqtt reads them."""
    return asyncio.run(_decode(data))


def amqtt_connect() -> bytes:
    """A CONNECT with everything in it."""
    header, payload = ConnectVariableHeader(keep_alive=300), ConnectPayload("a client", "w/t", b"gone", "me", "secret")
    header.clean_session_flag = header.will_flag = header.username_flag = header.password_flag = True
    header.will_retain_flag, header.will_qos = True, 1
    return bytes(ConnectPacket(variable_header=header, payload=payload).to_bytes())


def test_connect_written_by_amqtt() -> None:
    expected = Connect(4, "a client", True, 300, Will("w/t", b"gone", 1, True), "me", b"secret")
    assert ServerConnection(MqttConfig()).receive_data(amqtt_connect()) == [expected]


@pytest.mark.parametrize(
    ("packet", "event"),
    [
        (PubackPacket.build(515), Acknowledgements([(515, 515)])),
        (
            SubscribePacket.build([("a/+", 2), ("#", 0)], 7),
            Subscribe(7, [SubscriptionRequest("a/+", 2), SubscriptionRequest("#", 0)]),
        ),
        (UnsubscribePacket.build(["a/+", "#"], 8), Unsubscribe(8, ["a/+", "#"])),
        (PingReqPacket(), PingRequest()),
        (DisconnectPacket(), Disconnect()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_packets_written_by_amqtt(packet: Any, event: Event) -> None:
    assert connected().receive_data(bytes(packet.to_bytes())) == [event]


@given(topic_names, payload_lists, st.sampled_from([0, 1]), st.integers(1, 65_500))
@settings(max_examples=60, deadline=None)
def test_publishes_both_ways(topic: str, payloads: list[bytes], qos: int, first_id: int) -> None:
    written = b"".join(
        PublishPacket.build(topic, payload, first_id + i if qos else None, False, qos, False).to_bytes()
        for i, payload in enumerate(payloads)
    )
    (run,) = connected(MqttConfig(topic_levels_max=128)).receive_data(written)
    assert isinstance(run, PublishRun)
    assert (run.topic, run.qos, run.payloads) == (topic, qos, payloads)
    heads = publish_heads(encode_text(topic), payloads, qos)
    ours = encode_publishes_with_ids(heads, payloads, first_id) if qos else encode_publishes(heads, payloads)
    assert ours == written
    read = amqtt_decode(ours)
    assert [(packet.topic_name, packet.data, packet.qos) for packet in read] == [
        (topic, body, qos) for body in payloads
    ]
    assert not qos or [packet.packet_id for packet in read] == list(range(first_id, first_id + len(payloads)))


@pytest.mark.parametrize("size", [0, 122, 123, 124, 16_378, 16_379, 16_380, 2_097_146, 2_097_147])
def test_remaining_lengths_at_their_edges(size: int) -> None:
    body = bytes(size)
    data = encode_publishes(publish_heads(b"\0\3t/t", [body], 0), [body])
    assert data == PublishPacket.build("t/t", body, None, False, 0, False).to_bytes()


def test_answers_read_by_amqtt() -> None:
    answers = WIRE_3.connack(ReasonCode.NOT_AUTHORIZED) + WIRE_3.suback(3, [0, 1, ReasonCode.QUOTA_EXCEEDED])
    answers += WIRE_3.unsuback(258, [0]) + PINGRESP
    answers += WIRE_3.acknowledgements(AcknowledgementKind.PUBACK, b"\0\1\1\2\xff\xff")
    connack, suback, unsuback, pingresp, *pubacks = amqtt_decode(answers)
    assert (connack.return_code, connack.session_parent) == (5, 0)
    assert (suback.variable_header.packet_id, list(suback.payload.return_codes)) == (3, [0, 1, 0x80])
    assert unsuback.variable_header.packet_id == 258
    assert type(pingresp).__name__ == "PingRespPacket"
    assert [packet.packet_id for packet in pubacks] == [1, 258, 65_535]


levels = st.sampled_from(["", "a", "b", "a.b", "*", "$own", "+", "#"])


@given(st.lists(levels, min_size=1, max_size=4), st.lists(levels, min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_mqtt_4_7_filters_match_as_paho_says(filter_levels: list[str], topic_levels: list[str]) -> None:
    if "#" in filter_levels:
        filter_levels = [*filter_levels[: filter_levels.index("#")], "#"]
    topic_filter = "/".join(filter_levels)
    topic = "/".join(level for level in topic_levels if level not in ("+", "#"))
    if not topic or not topic_filter:
        return
    tokens = parse_pattern(topic_to_routing_key(topic_filter), "mqtt")
    assert matches(tokens, topic_to_routing_key(topic)) == topic_matches_sub(topic_filter, topic)
