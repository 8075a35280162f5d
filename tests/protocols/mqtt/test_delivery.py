"""Messages through the adapter: QoS, packet identifiers, limits, encodings made once, and other protocols' messages."""

from __future__ import annotations

import pytest
import trio

from protocols.mqtt.config import MqttConfig
from routing.errors import BrokerError, LimitExceeded
from routing.message import Properties, Slab
from routing.session import Consumer
from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.wire import connect, puback, publish, subscribe


class Sink:
    """Another protocol's client: keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, bool, bytes]] = []

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        neutral = slab.properties.neutral
        self.got += [
            (slab.routing_key, slab.properties.protocol, neutral.persistent, body) for body in slab.bodies[start:stop]
        ]

    def confirm(self, up_to: int) -> None: ...

    def refuse(self, first: int, last: int, error: BrokerError) -> None: ...

    def returned(self, slab: Slab, reason: str) -> None: ...

    def cancelled(self, consumer: Consumer) -> None: ...

    def writable(self) -> bool:
        return True


def numbered(qos: int, first: int, count: int, topic: str = "t") -> bytes:
    """Publishes whose payload is their number."""
    return b"".join(publish(topic, b"%05d" % i, qos=qos, packet_id=i % 65_535 + 1) for i in range(first, first + count))


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("published", [0, 1])
async def test_mqtt_3_8_4_6_qos_is_the_smaller_of_published_and_granted(
    world: World, published: int, granted: int
) -> None:
    publisher, subscriber = await world.client("p"), await world.client("s")
    await subscriber.subscribe(("t", granted))
    await publisher.send(publish("t", b"x", qos=published, packet_id=7))
    assert publisher.take() == (puback(7) if published else b"")
    qos = min(published, granted)
    assert subscriber.take_deliveries() == [("t", qos, 1 if qos else None, b"x")]


async def test_mqtt_3_3_5_1_overlapping_filters_deliver_once_at_the_highest_qos(world: World) -> None:
    subscriber = await world.client("s")
    await subscriber.subscribe(("a/#", 0), ("a/+", 1), ("a/b/c", 0), ("x/+", 0))
    publisher = await world.client("p")
    topics = ["a/b", "a/b/c", "x/y", "a", "a/c"]
    await publisher.send(*[publish(topic, b"m", qos=1, packet_id=i + 1) for i, topic in enumerate(topics)])
    assert [(topic, qos) for topic, qos, *_ in subscriber.take_deliveries()] == [
        ("a/b", 1), ("a/b/c", 0), ("x/y", 0), ("a", 0), ("a/c", 1),
    ]  # fmt: skip


async def test_mqtt_3_3_1_9_retain_is_0_in_live_deliveries(world: World) -> None:
    subscriber = await world.client("s")
    await subscriber.subscribe(("t", 0))
    await (await world.client("p")).send(publish("t", b"x", retain=True) * 3)
    assert subscriber.take() == publish("t", b"x") * 3


async def test_a_fan_out_at_qos_0_shares_the_publishers_own_bytes(world: World) -> None:
    subscribers = [await world.client(f"s{i}") for i in range(3)]
    for subscriber in subscribers:
        await subscriber.subscribe(("t", 0))
    data = numbered(0, 0, 500)
    await (await world.client("p")).send(data)
    for subscriber in subscribers:
        assert len(subscriber.outbox.pieces) == 1
        assert subscriber.outbox.pieces[0] is data


async def test_a_fan_out_of_another_protocol_is_encoded_once(world: World) -> None:
    subscribers = [await world.client(f"s{i}") for i in range(2)]
    for subscriber in subscribers:
        await subscriber.subscribe(("a/b", 0))
    session = world.broker.session(Sink(), protocol="amqp", owner=object())
    session.publish(Slab("amq.topic", "a.b", Properties("amqp", b"", persistent=True), [b"1", b"22", b"1"]))
    world.broker.end_turn()
    assert subscribers[0].outbox.pieces[0] is subscribers[1].outbox.pieces[0]
    assert subscribers[0].take() == publish("a/b", b"1") + publish("a/b", b"22") + publish("a/b", b"1")


async def test_mqtt_4_6_0_2_pubacks_come_in_the_order_of_the_publishes(world: World) -> None:
    client = await world.client()
    ids = [5, 6, 7, 300, 2, 65_535]
    await client.send(*[publish("t", b"x" * (i % 3), qos=1, packet_id=packet_id) for i, packet_id in enumerate(ids)])
    assert client.take() == puback(*ids)


async def test_confirms_in_parts_acknowledge_just_those(world: World) -> None:
    client = await world.client()
    await client.adapter.handle(numbered(1, 0, 10) + numbered(1, 10, 3, "u"))
    for up_to, ids in ((0, []), (4, [1, 2, 3, 4]), (4, []), (9, [5, 6, 7, 8, 9]), (12, [10, 11, 12]), (13, [13])):
        client.adapter.confirm(up_to)
        assert client.take() == puback(*ids)


async def test_mqtt_4_3_2_2_a_puback_waits_for_the_disk(world: World) -> None:
    await world.broker.declare_queue("kept", durable=True)
    await world.broker.bind("queue", "kept", "amq.topic", "sensor.#")
    client = await world.client()
    await client.send(publish("sensor/7", b"21", qos=1, packet_id=77))
    assert client.take() == b"", "acknowledged before the flusher could have run"
    await client.expect(puback(77))
    sink = Sink()
    await world.broker.session(sink, protocol="amqp", owner=object()).consume("kept", tag="", no_ack=True)
    world.broker.end_turn()
    assert sink.got == [("sensor.7", "mqtt", True, b"21")]


async def test_a_publish_that_cannot_be_stored_closes_without_a_puback(world: World) -> None:
    client = await world.client()
    await client.adapter.handle(numbered(1, 0, 3))
    client.adapter.refuse(1, 3, LimitExceeded("no room"))
    assert client.closed
    client.adapter.confirm(3)
    client.lose()
    assert client.take() == b""


async def test_inflight_limit_and_acknowledgements_in_any_order(world: World) -> None:
    subscriber = await world.client("s", config=MqttConfig(inflight_messages_max=10))
    await subscriber.subscribe(("t", 1))
    await (await world.client("p")).send(numbered(1, 0, 40))
    assert [packet_id for _, _, packet_id, _ in subscriber.take_deliveries()] == list(range(1, 11))
    await subscriber.acknowledge(3, 2, 9)
    assert [packet_id for _, _, packet_id, _ in subscriber.take_deliveries()] == [11, 12, 13]
    await subscriber.acknowledge(3, 500)
    assert subscriber.take() == b""
    await subscriber.acknowledge(1, *range(4, 9), *range(10, 14))
    assert [packet_id for _, _, packet_id, _ in subscriber.take_deliveries()] == list(range(14, 24))


async def test_a_bridge_is_sent_no_more_than_it_takes(world: World) -> None:
    """Mosquitto's close the connection over more than their `max_inflight_messages`, 20 by default, each time again."""
    bridge = await world.client("bridge", level=0x84)
    await bridge.subscribe(("t", 1))
    await (await world.client("p")).send(numbered(1, 0, 40))
    assert [packet_id for _, _, packet_id, _ in bridge.take_deliveries()] == list(range(1, 21))
    await bridge.acknowledge(1, 2)
    assert [packet_id for _, _, packet_id, _ in bridge.take_deliveries()] == [21, 22]


async def test_mqtt_2_3_1_4_identifiers_wrap_round_one_that_is_never_acknowledged(world: World) -> None:
    subscriber = await world.client("s", config=MqttConfig(inflight_messages_max=60_000))
    publisher = await world.client("p")
    await subscriber.subscribe(("t", 1))
    seen: list[int] = []
    for first in range(0, 150_000, 50_000):
        await publisher.send(numbered(1, first, 50_000))
        got = [(packet_id or 0, payload) for _, _, packet_id, payload in subscriber.take_deliveries()]
        assert [payload for _, payload in got] == [b"%05d" % i for i in range(first, first + 50_000)]
        seen += [packet_id for packet_id, _ in got]
        await subscriber.acknowledge(*[packet_id for packet_id, _ in got if packet_id != 17])
    assert seen.count(17) == 1
    assert 0 not in seen
    assert seen[:65_535] == list(range(1, 65_536))
    assert seen[65_535:65_553] == [*range(1, 17), 18, 19]


async def test_qos_0_deliveries_do_not_count_against_the_inflight_limit(world: World) -> None:
    subscriber = await world.client("s", config=MqttConfig(inflight_messages_max=4))
    await subscriber.subscribe(("one", 1), ("zero", 0))
    publisher = await world.client("p")
    await publisher.send(numbered(1, 0, 50, "zero"), numbered(0, 50, 50, "one"), numbered(1, 100, 6, "one"))
    got = subscriber.take_deliveries()
    assert [qos for _, qos, *_ in got] == [0] * 100 + [1] * 4
    await subscriber.acknowledge(1, 2, 3, 4)
    assert [(packet_id, payload) for _, _, packet_id, payload in subscriber.take_deliveries()] == [
        (5, b"00104"), (6, b"00105"),
    ]  # fmt: skip


async def test_a_first_filter_at_qos_1_changes_the_consumer_without_loss(world: World) -> None:
    subscriber, publisher = await world.client("s"), await world.client("p")
    await subscriber.subscribe(("a", 0))
    await publisher.adapter.handle(numbered(1, 0, 5, "a"))
    await subscriber.adapter.handle(subscribe(2, ("b", 1)))
    await publisher.send(numbered(1, 5, 5, "b"))
    data, suback = subscriber.take(), b"\x90\x03\0\x02\x01"
    assert suback in data
    subscriber.outbox.write(data.replace(suback, b""))
    assert [(topic, qos, payload) for topic, qos, _, payload in subscriber.take_deliveries()] == [
        *[("a", 0, b"%05d" % i) for i in range(5)],
        *[("b", 1, b"%05d" % i) for i in range(5, 10)],
    ]


async def test_a_full_outbox_holds_deliveries_back(world: World) -> None:
    subscriber, publisher = await world.client("s"), await world.client("p")
    await subscriber.subscribe(("t", 0))
    subscriber.outbox.writable = False
    await publisher.send(numbered(0, 0, 10))
    assert subscriber.take() == b""
    subscriber.outbox.writable = True
    assert subscriber.outbox.on_writable is not None
    subscriber.outbox.on_writable()
    world.broker.end_turn()
    assert subscriber.take() == numbered(0, 0, 10)


async def test_routing_keys_that_mqtt_cannot_express_are_dropped_and_settled(world: World) -> None:
    subscriber = await world.client("s", config=MqttConfig(inflight_messages_max=2))
    await subscriber.subscribe(("#", 1))
    session = world.broker.session(Sink(), protocol="amqp", owner=object())
    properties = Properties("amqp", b"", persistent=True)
    for routing_key in ("", "a.#", "+", "nul\0", "not-utf8-\udcff", "x/y"):
        session.publish(Slab("amq.topic", routing_key, properties, [b"m"]))
    world.broker.end_turn()
    assert subscriber.take_deliveries() == [("x.y", 1, 1, b"m")]


@pytest.mark.parametrize("qos", [0, 1])
async def test_payloads_of_all_sizes_arrive_as_they_were(world: World, qos: int) -> None:
    subscriber, publisher = await world.client("s"), await world.client("p")
    await subscriber.subscribe(("t", qos))
    payloads = [bytes([size % 251]) * size for size in (0, 1, 100, 120, 121, 125, 130, 16_000, 16_400, 100_000)]
    data = b"".join(publish("t", payload, qos=qos, packet_id=i + 1) for i, payload in enumerate(payloads))
    for position in range(0, len(data), 9999):
        await publisher.send(data[position : position + 9999])
    assert [payload for *_, payload in subscriber.take_deliveries()] == payloads


async def test_settled_by_the_subscriber_means_gone_from_the_queue(world: World) -> None:
    subscriber, publisher = await world.client("s"), await world.client("p")
    await subscriber.subscribe(("t", 1))
    await publisher.send(numbered(1, 0, 100))
    queue = world.broker.topology.queues["mqtt.s"]
    assert queue.outstanding == 100
    await subscriber.acknowledge(*range(1, 61))
    assert queue.outstanding == 40


async def test_who_could_not_be_delivered_to_is_disconnected_and_gets_it_when_he_is_back(world: World) -> None:
    client = await world.client("c", clean=False)
    await client.subscribe(("t", 1))

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    client.adapter.deliver = fail  # type: ignore[method-assign]
    other = await world.client("other")
    await other.send(publish("t", b"1", qos=1, packet_id=7))
    with trio.fail_after(5):
        while not client.closed:
            await world.next_turn()
    client.lose()
    again = world.open()
    await again.send(connect("c", clean=False))
    got = again.take()
    assert got == b"\x20\x02\x01\0" + publish("t", b"1", qos=1, packet_id=got[-2], dup=True)
