"""On which terms messages reach a client: options of subscriptions, several that match, expiries."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from trio.testing import MockClock

from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, Subscriptions
from routing.facts import pack
from routing.message import Properties, Slab
from tests.protocols.mqtt.conftest import Client, World, later
from tests.protocols.mqtt.wire import packets, publish
from tests.protocols.mqtt.wire_5 import block, connect_5, publish_5, subscribe_5, unsubscribe_5

NO_LOCAL, AS_PUBLISHED = 4, 8


class Delivery(NamedTuple):
    """A PUBLISH of version 5."""

    topic: str
    qos: int
    retain: bool
    block: bytes
    payload: bytes


async def client_5(world: World, client_id: str, properties: bytes = b"") -> Client:
    client = world.open()
    await client.send(connect_5(client_id, properties))
    assert client.take()[:1] == b"\x20"
    return client


async def subscribe(client: Client, *requests: tuple[str, int], subscription_id: int = 0) -> bytes:
    """The reason codes."""
    properties = block(subscription_id=subscription_id) if subscription_id else b""
    await client.send(subscribe_5(1, *requests, properties=properties))
    ((first, body),) = packets(client.take())
    assert (first, body[:3]) == (0x90, b"\0\1\0")
    return body[3:]


def deliveries_5(client: Client) -> list[Delivery]:
    found = []
    for first, body in packets(client.take()):
        if first & 0xF0 != 0x30:
            continue
        at = 2 + int.from_bytes(body[:2], "big")
        topic, qos = body[2:at].decode(), first >> 1 & 3
        at += 2 if qos else 0
        length = body[at]
        assert length < 128
        found.append(Delivery(topic, qos, bool(first & 1), body[at + 1 : at + 1 + length], body[at + 1 + length :]))
    return found


def ids(*numbers: int) -> bytes:
    return b"".join(block(subscription_id=number) for number in numbers)


async def test_mqtt_3_3_4_overlapping_subscriptions_are_one_message_with_all_their_ids(world: World) -> None:
    client, publisher = await client_5(world, "c"), await world.client("p")
    for topic_filter, qos, number in (("a/#", 0, 1), ("a/+", 1, 300), ("+/b", 0, 1), ("a/b", 0, 0), ("c", 1, 9)):
        assert await subscribe(client, (topic_filter, qos), subscription_id=number) == bytes((qos,))
    await publisher.send(publish("a/b", b"1", qos=1), publish("a/b/c", b"2"), publish("c", b"3", qos=1, packet_id=2))
    found = deliveries_5(client)
    assert [(one.topic, one.qos, one.payload) for one in found] == [
        ("a/b", 1, b"1"),
        ("a/b/c", 0, b"2"),
        ("c", 1, b"3"),
    ]
    assert sorted(found[0].block) == sorted(ids(1, 300, 1)), "MQTT-3.3.4-4"
    assert [one.block for one in found[1:]] == [ids(1), ids(9)]
    await client.send(unsubscribe_5(2, "a/#", "no such"))
    assert client.take() == b"\xb0\x05\0\2\0\0\x11", "MQTT-3.11.3-1"
    await publisher.send(publish("a/b/c", b"4"), publish("a/b", b"5"))
    assert [(one.payload, len(one.block)) for one in deliveries_5(client)] == [(b"5", len(ids(1, 300)))]


async def test_properties_come_with_the_ids(world: World) -> None:
    client, publisher = await client_5(world, "c"), await client_5(world, "p")
    await subscribe(client, ("a/#", 1), subscription_id=7)
    mine = block(("name", "value"), content_type="text")
    await publisher.send(
        publish_5("a/1", b"1", mine), publish_5("a/2", b"2"), publish_5("a/3", b"3", mine, qos=1, packet_id=1)
    )
    assert [one.block for one in deliveries_5(client)] == [mine + ids(7), ids(7), mine + ids(7)]


@pytest.mark.parametrize("qos", [0, 1])
async def test_mqtt_3_8_3_3_no_local(world: World, qos: int) -> None:
    both = [await client_5(world, name) for name in ("one", "other")]
    for client in both:
        assert await subscribe(client, ("a/#", qos | NO_LOCAL)) == bytes((qos,))
    for number, client in enumerate(both):
        await client.send(publish_5("a/b", b"%d" % number, qos=qos), publish_5("a/c", b"%d" % number, qos=qos))
    assert [[one.payload for one in deliveries_5(client)] for client in both] == [[b"1", b"1"], [b"0", b"0"]]
    # A filter that is for all messages wins, on its own terms.
    await subscribe(both[0], ("a/b", 0), subscription_id=5)
    await both[0].send(publish_5("a/b", b"own", qos=qos), publish_5("a/c", b"own", qos=qos))
    assert deliveries_5(both[0]) == [Delivery("a/b", 0, False, ids(5), b"own")]
    await both[1].send(publish_5("a/b", b"foreign", qos=qos))
    assert deliveries_5(both[0]) == [Delivery("a/b", qos, False, ids(5), b"foreign")]
    assert both[0].adapter.session is not None
    assert not both[0].adapter.session.unsettled or qos


async def test_no_local_means_the_same_for_every_connection_of_a_client(world: World) -> None:
    question = block(response_topic="a", correlation_data=b"334")
    for _ in range(3):
        first, second = [await client_5(world, name) for name in ("one", "other")]
        for client in (first, second):
            await subscribe(client, ("a", 2 | NO_LOCAL))
        for publisher, reader in ((first, second), (second, first)):
            await publisher.send(publish_5("a", b"x", question, qos=1))
            assert [one.block for one in deliveries_5(reader)] == [question]
            assert deliveries_5(publisher) == []
        first.lose()
        second.lose()


async def test_only_who_has_a_no_local_subscription_names_itself(world: World) -> None:
    client = await client_5(world, "c")
    await subscribe(client, ("a", 0))
    publishing = client.adapter.publishing
    assert publishing._mark == b""
    await subscribe(client, ("b", NO_LOCAL))
    assert publishing._mark
    await client.send(unsubscribe_5(2, "b"))
    assert publishing._mark == b""


async def test_mqtt_3_3_1_12_and_13_retain_as_published(world: World) -> None:
    as_published, plain = await client_5(world, "c"), await client_5(world, "d")
    assert await subscribe(as_published, ("a", 1 | AS_PUBLISHED)) == b"\1"
    assert await subscribe(plain, ("a", 1)) == b"\1"
    publisher = await client_5(world, "p")
    await publisher.send(
        publish_5("a", b"1", retain=True), publish_5("a", b"2"), publish_5("a", b"3", qos=1, retain=True)
    )
    assert [one.retain for one in deliveries_5(as_published)] == [True, False, True]
    assert [one.retain for one in deliveries_5(plain)] == [False, False, False]


async def test_no_local_of_a_shared_subscription_is_a_protocol_error(world: World) -> None:
    client = await client_5(world, "c")
    await client.send(subscribe_5(1, ("$share/g/a", NO_LOCAL)))
    ((first, body),) = packets(client.take())
    assert (first, body[0]) == (0xE0, 0x82)
    assert client.closed, "MQTT-3.8.3-4"


@pytest.mark.parametrize("topic_filter", ["a/#", "$share/g/a/#"])
@pytest.mark.parametrize("qos", [0, 1])
async def test_mqtt_3_3_2_6_what_is_left_of_an_expiry_is_told(
    mock_clock: MockClock, world: World, qos: int, topic_filter: str
) -> None:
    client, publisher = await client_5(world, "c"), await client_5(world, "p")
    assert await subscribe(client, (topic_filter, qos)) == bytes((qos,))
    client.outbox.writable = False
    expiry = block(message_expiry=10)
    await publisher.send(
        publish_5("a/1", b"1", expiry, qos=1),
        publish_5("a/2", b"2", qos=1, packet_id=2),
        publish_5("a/3", b"3", expiry),
    )
    mock_clock.jump(3.5)
    client.outbox.writable = True
    assert client.adapter.session is not None
    client.adapter.session.resume()
    world.broker.end_turn()
    left = block(message_expiry=7)
    assert [(one.payload, one.block) for one in deliveries_5(client)] == [(b"1", left), (b"2", b""), (b"3", left)]


@pytest.mark.parametrize("qos", [0, 1])
async def test_expiries_stay_with_their_messages_behind_one_that_is_too_large(world: World, qos: int) -> None:
    client, publisher = await client_5(world, "c", block(packet_bytes_max=60)), await client_5(world, "p")
    assert await subscribe(client, ("a", qos)) == bytes((qos,))
    client.outbox.writable = False
    sent = [(b"1" * 100, 1000), (b"2", 2000), (b"3" * 100, 3000), (b"4", 4000), (b"5", 5000)]
    await publisher.send(*(publish_5("a", payload, block(message_expiry=expiry_s)) for payload, expiry_s in sent))
    client.outbox.writable = True
    assert client.adapter.session is not None
    client.adapter.session.resume()
    world.broker.end_turn()
    expected = [(payload, block(message_expiry=expiry_s)) for payload, expiry_s in sent if len(payload) == 1]
    assert [(one.payload, one.block) for one in deliveries_5(client)] == expected


async def test_expiries_stay_with_their_messages_that_come_in_another_order(
    mock_clock: MockClock, world: World
) -> None:
    client = await client_5(world, "c")
    assert await subscribe(client, ("a", 1)) == b"\1"
    arguments = {"x-delayed-type": "fanout"}
    await world.broker.declare_exchange("late", "x-delayed-message", arguments=arguments)
    await world.broker.bind("exchange", "amq.topic", "late", "")
    session = world.broker.session(client.adapter, protocol="x", owner=object())
    client.outbox.writable = False
    asked = [(b"1", 3000, 100_000), (b"2", 1000, 200_000), (b"3", 2000, 300_000)]
    facts = [pack(True, ttl_ms=ttl_ms, delay_ms=delay_ms) for _, delay_ms, ttl_ms in asked]
    bodies = [body for body, _, _ in asked]
    common = Properties("mqtt", b"\1", persistent=True)
    session.publish(Slab("late", "a", common, bodies, raws=[b"\1"] * 3, facts=facts))
    world.broker.end_turn()
    for _ in asked:
        await later(mock_clock, 1.0)
    client.outbox.writable = True
    assert client.adapter.session is not None
    client.adapter.session.resume()
    world.broker.end_turn()
    lives_s = [(one.payload, int.from_bytes(one.block[1:], "big")) for one in deliveries_5(client)]
    assert [(payload, round(life_s, -2)) for payload, life_s in lives_s] == [(b"2", 200), (b"3", 300), (b"1", 100)]


async def test_what_is_handed_on_at_once_has_all_of_its_expiry(world: World) -> None:
    client, publisher = await client_5(world, "c"), await client_5(world, "p")
    assert await subscribe(client, ("a/#", 0), subscription_id=1) == b"\0"
    await publisher.send(publish_5("a/1", b"1", block(message_expiry=10)), publish_5("a/1", b"2"))
    assert [one.block for one in deliveries_5(client)] == [ids(1) + block(message_expiry=10), ids(1)]


async def test_messages_of_other_protocols_come_on_the_same_terms(world: World) -> None:
    client = await client_5(world, "c")
    await subscribe(client, ("a/#", 1), subscription_id=1)
    await subscribe(client, ("a/b", NO_LOCAL))
    session = world.broker.session(client.adapter, protocol="x", owner=object())
    session.publish(Slab("amq.topic", "a.b", Properties("mqtt", b"", persistent=False), [b"1"]))
    session.publish(Slab("amq.topic", "a.+", Properties("mqtt", b"", persistent=False), [b"no topic"]))
    session.publish(Slab("amq.topic", "a.c", Properties("mqtt", b"\1", persistent=True), [b"2"]))
    world.broker.end_turn()
    assert deliveries_5(client) == [
        Delivery("a/b", 0, False, ids(1), b"1"), Delivery("a/c", 1, False, ids(1), b"2")
    ]  # fmt: skip


def test_terms_follow_the_filters() -> None:
    subscriptions = Subscriptions()
    subscriptions.grant("a.#", SubscriptionOptions(1))
    subscriptions.grant("+.b", SubscriptionOptions(1))
    assert subscriptions.are_plain
    assert subscriptions._trie is None, "looked for only where options differ"
    assert subscriptions.terms_for("a.b") == (1, False, b"")
    subscriptions.grant("+.b", SubscriptionOptions(2, retain_as_published=True, subscription_id=3))
    assert not subscriptions.are_plain
    assert subscriptions.terms_for("a.b") == (2, True, ids(3))
    assert subscriptions.terms_for("a.c") == (1, False, b"")
    assert (subscriptions.qos_max, len(subscriptions.granted)) == (2, 2)
    subscriptions.grant("a.#", SubscriptionOptions(0, no_local=True))
    assert subscriptions.are_for_others
    assert subscriptions.terms_for_own("a.c") is None
    assert subscriptions.terms_for_own("a.b") == (2, True, ids(3))
    for topic_filter in ("a.#", "+.b", "+.b"):
        subscriptions.remove(topic_filter)
    assert not subscriptions.granted
    assert not subscriptions.are_for_others
    assert subscriptions.terms_for("a.b") == (2, False, b""), "what was sent before is completed"


@pytest.mark.parametrize(("name", "level"), [("MQIsdp", 0x83), ("MQTT", 0x84)])
async def test_a_bridge_gets_nothing_back_and_what_is_retained_as_published(
    world: World, name: str, level: int
) -> None:
    """Mosquitto says so by its protocol level, in versions whose subscriptions cannot."""
    bridge = await world.client("bridge", name=name, level=level)
    assert await bridge.subscribe(("a/#", 1), ("$share/g/b", 1)) == b"\1\1"
    other = await world.client("other")
    await bridge.send(publish("a/own", b"1"), publish("b", b"2"))
    await other.send(publish("a/live", b"3"), publish("a/kept", b"4", retain=True))
    found = publish("b", b"2") + publish("a/live", b"3") + publish("a/kept", b"4", retain=True)
    assert sorted(packets(bridge.take())) == sorted(packets(found)), "no-local of a group would lose messages"
