"""Publishes whose topic changes from message to message: one slab inside, the same packets outside."""

from __future__ import annotations

import random

import pytest

from protocols.convert import topic_to_routing_key
from protocols.mqtt.config import MqttConfig
from routing.message import Properties, Slab
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import publish

TOPICS = [f"plant/{line}/{sensor}" for line in range(5) for sensor in ("temp", "load")] + ["alarm"]
FILTERS: dict[str, list[tuple[str, int]]] = {
    "all at 0": [("#", 0)],
    "all at 1": [("#", 1)],
    "temp at 1, others at 0": [("plant/#", 0), ("+/+/temp", 1)],
    "one line at 1": [("plant/3/+", 1)],
}


def granted(topic: str, filters: list[tuple[str, int]]) -> int | None:
    """The highest QoS of the filters above that match."""
    words = topic.split("/")
    found = []
    for name, qos in filters:
        levels = name.split("/")
        if name == "plant/#":
            matches = words[0] == "plant"
        else:
            pairs = zip(levels, words, strict=False)
            matches = name == "#" or (len(levels) == len(words) and all(a in ("+", b) for a, b in pairs))
        if matches:
            found.append(qos)
    return max(found, default=None)


async def check(client: Client, sent: list[tuple[str, int, bytes]], filters: list[tuple[str, int]]) -> None:
    wanted = [
        (topic, min(qos, at), payload) for topic, qos, payload in sent if (at := granted(topic, filters)) is not None
    ]
    got: list[tuple[str, int, bytes]] = []
    while new := client.take_deliveries():
        ids = [packet_id for _, qos, packet_id, _ in new if qos]
        got += [(topic, qos, payload) for topic, qos, _, payload in new]
        assert None not in ids
        assert len(set(ids)) == len(ids)
        await client.acknowledge(*[packet_id for packet_id in ids if packet_id is not None])
    assert got == wanted


@pytest.mark.parametrize("seed", range(10))
async def test_every_subscriber_gets_what_its_filters_say(world: World, seed: int) -> None:
    dice = random.Random(seed)
    subscribers = {}
    for name, filters in FILTERS.items():
        subscribers[name] = await world.client(name, config=MqttConfig(inflight_messages_max=50))
        await subscribers[name].subscribe(*filters)
    publisher = await world.client("publisher")
    sent: list[tuple[str, int, bytes]] = []
    packet_id = 0
    for _ in range(5):
        packets = []
        for _ in range(dice.choice((1, 3, 60))):
            topic, qos, payload = dice.choice(TOPICS), dice.choice((0, 0, 1, 1)), b"%d" % len(sent) * dice.randrange(4)
            for _ in range(dice.choice((1, 1, 1, 2, 30))):
                packet_id += 1
                packets.append(publish(topic, payload, qos=qos, packet_id=packet_id if qos else None))
                sent.append((topic, qos, payload))
        await publisher.send(*packets)
    acknowledged = publisher.take()
    assert acknowledged == b"".join(
        b"\x40\x02" + number.to_bytes(2, "big") for number, (_, qos, _) in enumerate(sent, 1) if qos
    )
    for name, filters in FILTERS.items():
        await check(subscribers[name], sent, filters)


@pytest.mark.parametrize("persistent", [True, False])
async def test_messages_of_another_protocol_with_many_keys(world: World, persistent: bool) -> None:
    at_0, at_1 = await world.client("zero"), await world.client("one")
    await at_0.subscribe(("#", 0))
    await at_1.subscribe(("#", 1))
    keys = [topic_to_routing_key(topic) for topic in TOPICS]
    keys[3] = "plant.\0.no topic"
    session = world.broker.session(at_0.adapter, protocol="test", owner=object())
    bodies = [b"%d" % i for i in range(len(keys))]
    common = Properties("mqtt", b"", persistent=persistent)
    session.publish(
        Slab("amq.topic", keys[0], common, bodies, keys=keys, raws=[bytes((1 + i % 2,)) for i in range(len(keys))])
    )
    world.broker.end_turn()
    wanted = [(topic, b"%d" % i) for i, topic in enumerate(TOPICS) if i != 3]
    assert [(topic, payload) for topic, _, _, payload in at_0.take_deliveries()] == wanted
    got = at_1.take_deliveries()
    assert [(topic, payload) for topic, _, _, payload in got] == wanted
    assert {qos for _, qos, _, _ in got} == {int(persistent)}


async def test_of_what_waits_nothing_is_kept_but_the_messages(world: World) -> None:
    broker = world.broker
    await broker.declare_queue("waits")
    await broker.bind("queue", "waits", "amq.topic", "#")
    client, publisher = await world.client("c"), await world.client("p")
    assert await client.subscribe(("#", 0)) == b"\0"
    data = b"".join(publish("a/" + "long" * 50, b"%d" % number) for number in range(50))
    await publisher.send(data)
    assert client.take() == data
    queue = broker.topology.queues["waits"]
    assert queue.message_count == 50
    found = [queue.store.find(queue.head()[0])]
    assert [entry.slab.wire for entry in found if entry is not None] == [None]
