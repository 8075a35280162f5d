"""Property blocks to the neutral form and back, and on their way through the engine to clients of all versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.record_batch import decode_header_block
from core_log.varint import varint
from protocols.mqtt.adapter_properties import (
    PAYLOAD_FORMAT_HEADER,
    block_for,
    from_neutral,
    record_entries,
    to_neutral,
    with_more,
)
from protocols.mqtt.properties import with_length
from routing.message import NeutralProperties, Properties, Slab
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import connect, packets, publish, subscribe
from tests.protocols.mqtt.wire_5 import block, connect_5, publish_5, subscribe_5

RICH = block(("a", "1"), ("b", "ü"), ("a", "2"), content_type="text/plain", response_topic="r/1",
             correlation_data=b"\0\xff", payload_format=1)  # fmt: skip
NEUTRAL = NeutralProperties(
    content_type="text/plain", headers={"a": ["1", "2"], "b": "ü", PAYLOAD_FORMAT_HEADER: 1}, persistent=True,
    correlation_id=b"\0\xff", reply_to="r.1",
)  # fmt: skip


def test_a_block_to_the_neutral_form_and_back() -> None:
    assert to_neutral(b"\1" + RICH) == NEUTRAL
    assert to_neutral(b"\2" + from_neutral(NEUTRAL)) == NEUTRAL
    assert to_neutral(b"") == NeutralProperties()
    assert to_neutral(b"\1") == NeutralProperties(persistent=True)
    assert from_neutral(NeutralProperties()) == b""


def test_what_mqtt_has_no_property_for_comes_back() -> None:
    neutral = NeutralProperties(
        content_encoding="gzip", headers={"n": 5, "none": None, "list": [1, 2]}, priority=7, reply_to="a.#",
        message_id="m", timestamp_s=12, type="t", user_id="u", app_id="x",
    )  # fmt: skip
    expected = NeutralProperties(
        content_encoding="gzip", priority=7, reply_to="a.#", message_id="m", timestamp_s=12, type="t", app_id="x",
        headers={"n": "5", "none": "", "list": "[1, 2]", "millrace.user-id": "u"},
    )  # fmt: skip
    assert to_neutral(b"\0" + from_neutral(neutral)) == expected


def test_what_cannot_be_written_is_left_out() -> None:
    neutral = NeutralProperties(
        content_type="a\0", headers={"a\0": "x", "b": "\0", "c": b"\xff", "d" * 70_000: "x"}, reply_to="",
        correlation_id=bytes(70_000),
    )  # fmt: skip
    assert to_neutral(b"\0" + from_neutral(neutral)) == NeutralProperties(headers={"c": "\ufffd"}, reply_to="")


def test_a_time_to_live_is_seen_by_other_protocols() -> None:
    from routing.facts import pack

    assert Properties("mqtt", b"\1", persistent=True, facts=pack(True, ttl_ms=9000)).neutral.expiration_ms == 9000


def test_headers_of_records_keep_order_and_repeats() -> None:
    count, entries = record_entries(b"\1" + RICH)
    assert decode_header_block(varint(count) + entries) == [
        ("a", b"1"), ("b", "ü".encode()), ("a", b"2"), (PAYLOAD_FORMAT_HEADER, b"1"),
        ("millrace.content-type", b"text/plain"), ("millrace.correlation-id", b"\0\xff"), ("millrace.reply-to", b"r.1"),
    ]  # fmt: skip
    assert record_entries(b"") == record_entries(b"\2") == (0, b"")


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)


@given(
    st.builds(
        NeutralProperties,
        content_type=st.none() | texts,
        headers=st.dictionaries(texts, texts | st.integers() | st.booleans() | st.none(), max_size=4),
        correlation_id=st.none() | st.binary(max_size=20),
        reply_to=st.none() | st.text(max_size=10),
        message_id=st.none() | st.text(max_size=10),
        priority=st.none() | st.integers(0, 255),
    )
)
@settings(max_examples=150, deadline=None)
def test_any_properties_make_a_block_that_can_be_read(neutral: NeutralProperties) -> None:
    found = to_neutral(b"\0" + from_neutral(neutral))
    assert found.content_type == neutral.content_type
    assert found.correlation_id == neutral.correlation_id
    assert found.priority == neutral.priority


def test_further_properties_behind_a_block() -> None:
    one, long = with_length(block(("a", "b"))), with_length(block(("a", "b" * 200)))
    more = block(subscription_id=300)
    assert with_more(one, 2) == one
    assert with_more(one, 2, more) == with_length(block(("a", "b")) + more)
    assert with_more([one, long], 2, more) == [
        with_length(block(("a", "b")) + more), with_length(block(("a", "b" * 200)) + more),
    ]  # fmt: skip
    assert with_more(one, 2, b"", [None, 5]) == [one, with_length(block(("a", "b"), message_expiry=5))]


def test_blocks_of_other_protocols_are_made_once() -> None:
    properties = Properties("neutral", b"", persistent=False)
    assert block_for(properties) == b"\0"
    assert block_for(properties) is block_for(properties)


# On the way through the engine.


async def client_5(world: World, client_id: str, properties: bytes = b"") -> Client:
    """A connected client of MQTT 5."""
    client = world.open()
    await client.send(connect_5(client_id, properties))
    ((first, body),) = packets(client.take())
    assert (first, body[:2]) == (0x20, b"\0\0")
    return client


async def subscribed_5(world: World, client_id: str, qos: int, properties: bytes = b"") -> Client:
    client = await client_5(world, client_id, properties)
    await client.send(subscribe_5(1, ("#", qos)))
    assert client.take() == bytes((0x90, 4, 0, 1, 0, qos))
    return client


async def subscribed_3(world: World, client_id: str, qos: int) -> Client:
    client = world.open()
    await client.send(connect(client_id), subscribe(1, ("#", qos)))
    client.take()
    return client


@pytest.mark.parametrize("qos", [0, 1])
async def test_properties_arrive_as_they_were_sent(world: World, qos: int) -> None:
    new, old = await subscribed_5(world, "new", qos), await subscribed_3(world, "old", qos)
    publisher = await client_5(world, "publisher")
    topics = ["t/1", "t/1", "t/2", "t/2"] * 20
    blocks = [RICH, b"", block(("i", "1")), RICH] * 20
    data = b"".join(publish_5(topic, b"%d" % i, blocks[i], qos=qos, packet_id=i + 1) for i, topic in enumerate(topics))
    await publisher.send(data)
    assert new.take() == data
    assert old.take() == b"".join(publish(topic, b"%d" % i, qos=qos, packet_id=i + 1) for i, topic in enumerate(topics))
    # And one block for all.
    same = b"".join(publish_5("t", b"x" * (i % 7), RICH, qos=qos, packet_id=i + 1) for i in range(50))
    other_ids = b"".join(publish_5("t", b"x" * (i % 7), RICH, qos=qos, packet_id=i + 81) for i in range(50))
    await publisher.send(same)
    assert new.take() == (other_ids if qos else same)


async def test_an_alias_is_the_connections_own(world: World) -> None:
    new = await subscribed_5(world, "new", 0)
    publisher = await client_5(world, "publisher")
    alias = block(topic_alias=1)
    await publisher.send(publish_5("t", b"1", RICH + alias) + publish_5("", b"2", RICH + alias) * 30)
    assert new.take() == publish_5("t", b"1", RICH) + publish_5("t", b"2", RICH) * 30


@pytest.mark.parametrize("aliased_from", [0, 1, 3, 40])
async def test_topics_with_and_without_alias_take_turns(world: World, aliased_from: int) -> None:
    new = await subscribed_5(world, "new", 0)
    publisher = await client_5(world, "publisher")
    sizes, names = [10, 110, 3000, 2030, 20_000, 0], ["t/1", "topic/2", "t/3"]
    sent = [(names[i % 3], bytes([i]) * sizes[i % 6], block(("i", str(i % 4)))) for i in range(80)]
    data = []
    for i, (name, body, properties) in enumerate(sent):
        aliased = i >= aliased_from and i % 3 != 1
        alias = block(topic_alias=i % 3 + 1) if aliased else b""
        data.append(publish_5("" if aliased and i >= aliased_from + 9 else name, body, properties + alias))
    await publisher.send(b"".join(data))
    assert new.take() == b"".join(publish_5(*one) for one in sent)


async def test_3_1_1_publishes_reach_mqtt_5(world: World) -> None:
    new = await subscribed_5(world, "new", 1)
    old = world.open()
    await old.send(connect("old"), publish("t", b"x") * 3 + publish("t", b"y", qos=1, packet_id=7))
    assert new.take() == publish_5("t", b"x") * 3 + publish_5("t", b"y", qos=1)


async def test_mqtt_3_1_2_25_messages_that_are_too_large_are_dropped(world: World) -> None:
    small = await subscribed_5(world, "small", 1, block(packet_bytes_max=40))
    large = await subscribed_5(world, "large", 1)
    publisher = await client_5(world, "publisher")
    sizes = [10, 100, 20, 20, 200, 5]
    # Fixed header 2, topic 3, packet id 2, block 1: 32 bytes of payload are 40.
    await publisher.send(b"".join(publish_5("t", bytes(size), qos=1, packet_id=i + 1) for i, size in enumerate(sizes)))
    assert small.take() == b"".join(
        publish_5("t", bytes(size), qos=1, packet_id=i + 1) for i, size in enumerate([10, 20, 20, 5])
    )
    assert len(list(packets(large.take()))) == len(sizes)
    assert small.adapter.delivering.too_large == 2
    await publisher.send(publish_5("t", bytes(32), qos=1, packet_id=9) + publish_5("t", bytes(33), qos=1, packet_id=10))
    assert small.take() == publish_5("t", bytes(32), qos=1, packet_id=5)
    await publisher.send(publish_5("t", bytes(9), block(("n", "v" * 30))))
    assert small.take() == b""
    assert small.adapter.delivering.too_large == 4


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("ids", [[], [200], [200, 1 << 27]])
@pytest.mark.parametrize("asked", [b"", block(message_expiry=9)])
async def test_mqtt_3_1_2_24_what_subscriptions_add_counts(
    world: World, qos: int, ids: list[int], asked: bytes
) -> None:
    """What is as large as the client takes is sent, and nothing larger is."""
    small = await client_5(world, "small", block(packet_bytes_max=150))
    await small.send(subscribe_5(1, ("t", 1)))
    for identifier, topic_filter in zip(ids, ("t", "+"), strict=False):
        await small.send(subscribe_5(1, (topic_filter, 1), properties=block(subscription_id=identifier)))
    small.take()
    publisher = await client_5(world, "publisher")
    sizes = []
    for size in range(100, 150):
        await publisher.send(publish_5("t", bytes(size), asked, qos=qos, packet_id=1))
        sent = small.take()
        sizes.append(len(sent))
        if sent and qos:
            await small.acknowledge(len(sizes))
    assert max(sizes) == 150
    assert sizes == sorted(filter(None, sizes)) + [0] * sizes.count(0)


async def test_what_came_by_another_protocol_has_a_block(world: World) -> None:
    new = await subscribed_5(world, "new", 0)
    headers: dict[str, Any] = {"h": "1"}
    from routing.property_editors import NEUTRAL as NEUTRAL_PROTOCOL
    from routing.property_editors import to_neutral_raw

    raw = to_neutral_raw(NeutralProperties(content_type="text/plain", headers=headers, correlation_id=b"c"))
    session = world.broker.session(new.adapter, protocol="mqtt", owner=None, vhost="/")
    session.publish(Slab("amq.topic", "t", Properties(NEUTRAL_PROTOCOL, raw, persistent=False), [b"x"]))
    world.broker.end_turn()
    assert new.take() == publish_5(
        "t", b"x", block(content_type="text/plain", correlation_data=b"c") + block(("h", "1"))
    )
    session.close()
