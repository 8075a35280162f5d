"""Shared subscriptions (MQTT 5, 4.8.2) for clients of both versions, at the adapter."""

from __future__ import annotations

import errno

import pytest
import trio

from core_log.memory_files import FaultyFiles, MemoryFiles
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.topics import AutoSubscription
from routing.access.grants import TopicPermission
from routing.broker import Broker, open_broker
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import connect, packets, puback, publish, unsubscribe

QUEUE = "$share/g/a/+"


async def send(world: World, *messages: tuple[str, bytes], qos: int = 1, client_id: str = "publisher") -> None:
    """Publish one by one, in turns of their own."""
    publisher = await world.client(client_id)
    for number, (topic, payload) in enumerate(messages, 1):
        await publisher.send(publish(topic, payload, qos=qos, packet_id=number))
    publisher.lose()


async def numbered(world: World, count: int, topic: str = "a/b", qos: int = 1, start: int = 0) -> None:
    await send(world, *((topic, b"%d" % number) for number in range(start, start + count)), qos=qos)


async def member(world: World, client_id: str, qos: int = 1, config: MqttConfig | None = None) -> Client:
    client = await world.client(client_id, config=config)
    answer = await client.subscribe((QUEUE, qos))
    assert answer[:1] == bytes((qos,))
    client.outbox.write(answer[1:])  # what had waited came behind it
    return client


def payloads(client: Client) -> list[bytes]:
    return [payload for _, _, _, payload in client.take_deliveries()]


def queue_settings(broker: Broker, name: str = QUEUE) -> dict[str, object]:
    return dict(broker.topology.queues[name].arguments)


@pytest.mark.parametrize("qos", [0, 1])
async def test_mqtt_4_8_2_each_message_goes_to_one_member(world: World, qos: int) -> None:
    members = [await member(world, f"m{number}", qos) for number in range(3)]
    await numbered(world, 9, qos=qos)
    got = [payloads(one) for one in members]
    assert sorted(payload for one in got for payload in one) == [b"%d" % number for number in range(9)]
    assert all(len(one) == 3 for one in got), "each in turn"


async def test_a_group_gets_what_others_get_too_and_each_group_all(world: World) -> None:
    first, other, alone = await member(world, "m"), await world.client("o"), await world.client("n")
    assert await other.subscribe(("$share/other/a/+", 1), ("a/b", 0)) == b"\1\0"
    assert await alone.subscribe(("a/#", 1)) == b"\1"
    await numbered(world, 2)
    assert payloads(first) == payloads(alone) == [b"0", b"1"]
    assert sorted(other.take_deliveries()) == [
        ("a/b", 0, None, b"0"), ("a/b", 0, None, b"1"), ("a/b", 1, 1, b"0"), ("a/b", 1, 2, b"1"),
    ]  # fmt: skip


@pytest.mark.parametrize("config", [None, MqttConfig(auto_subscriptions=[AutoSubscription("$queue/a/+", qos=1)])])
async def test_queue_is_an_older_word_for_a_group(world: World, config: MqttConfig | None) -> None:
    members = [await world.client(name, config=config) for name in ("m", "n")]
    if config is None:
        assert [await one.subscribe(("$queue/a/+", 1)) for one in members] == [b"\1", b"\1"]
    await numbered(world, 4)
    assert [len(payloads(one)) for one in members] == [2, 2]
    await members[0].send(unsubscribe(2, "$queue/a/+"))
    members[0].take()
    await numbered(world, 2)
    assert [len(payloads(one)) for one in members] == [0, 2]


async def test_mqtt_4_8_2_3_each_member_gets_messages_at_its_own_qos(world: World) -> None:
    at_0, at_1 = await member(world, "m0", 0), await member(world, "m1", 1)
    await numbered(world, 4)
    assert [qos for _, qos, _, _ in at_0.take_deliveries()] == [0, 0]
    assert [qos for _, qos, _, _ in at_1.take_deliveries()] == [1, 1]
    at_2 = await world.client("m2")
    assert await at_2.subscribe((QUEUE, 2)) == b"\1", "at most QoS 1 is granted to members"


async def test_what_a_dead_member_leaves_goes_to_the_others_in_order(world: World) -> None:
    dying = await member(world, "m1")
    await numbered(world, 6)
    assert payloads(dying) == [b"%d" % number for number in range(6)]
    await dying.send(puback(1, 2))
    heir = await member(world, "m2")
    dying.lose()
    found = heir.take_deliveries()
    assert [payload for *_, payload in found] == [b"2", b"3", b"4", b"5"]
    assert {qos for _, qos, _, _ in found} == {1}


async def test_messages_wait_while_the_whole_group_is_away_for_whoever_comes(world: World) -> None:
    for client_id in ("m1", "m2"):
        (await member(world, client_id)).lose()
    await numbered(world, 50)
    await numbered(world, 50, qos=0, start=50)
    newcomer = await member(world, "another-name-at-random")
    assert payloads(newcomer) == [b"%d" % number for number in range(100)]


async def test_a_group_may_keep_so_many_messages(world: World) -> None:
    config = MqttConfig(share_messages_max=10, share_expiry_s=60)
    (await member(world, "m1", config=config)).lose()
    assert queue_settings(world.broker) == {"x-max-length": 10, "x-expires": 60_000}
    await numbered(world, 25)
    assert payloads(await member(world, "m2", config=config)) == [b"%d" % number for number in range(15, 25)]


async def test_a_group_stays_until_it_expires_unless_it_is_told_to_go_with_its_last_member(world: World) -> None:
    for config, stays in ((MqttConfig(), True), (MqttConfig(share_remove_unsubscribed=True), False)):
        both = [await member(world, client_id, config=config) for client_id in ("m1", "m2")]
        for client in both:
            client.take()
            await client.send(unsubscribe(7, QUEUE, "$share/other/x"))
            assert client.take() == b"\xb0\x02\0\x07"
            assert (QUEUE in world.broker.topology.queues) == (stays or client is both[0])
        await numbered(world, 1)
        assert not payloads(both[0])


async def test_to_be_a_member_again_on_other_terms_is_no_second_membership(world: World) -> None:
    client = await member(world, "m1", 0)
    assert await client.subscribe((QUEUE, 1)) == b"\1"
    assert len(world.broker.topology.queues[QUEUE].consumers) == 1
    await numbered(world, 2)
    assert client.take_deliveries() == [("a/b", 1, 1, b"0"), ("a/b", 1, 2, b"1")]


@pytest.mark.parametrize(
    "bad",
    [
        "$share/",
        "$share/g",
        "$share//a",
        "$share/g/",
        "$share/+/a",
        "$share/g/$exclusive/a",
        "$share/g/$replay/-1h/a",
        "$share/g/$share/h/a",
        "$share/g/$queue/a",
    ],
)
async def test_mqtt_4_8_2_1_and_2_malformed_names_are_refused(world: World, bad: str) -> None:
    client = await world.client()
    assert await client.subscribe((bad, 1)) == b"\x80"
    assert not [name for name in world.broker.topology.queues if name.startswith("$share")]


async def test_rights_are_those_of_the_filter_inside(world: World) -> None:
    await world.broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission(write=".*", read="^a\\."))
    client = await world.client()
    assert await client.subscribe(("$share/a/b/+", 1), (QUEUE, 1)) == b"\x80\1"
    assert "$share/a/b/+" not in world.broker.topology.queues


@pytest.mark.parametrize(
    ("strategy", "arguments"),
    [
        ("round-robin", {}),
        ("least-inflight", {"x-consumer-turns": "least-unsettled"}),
        ("sticky", {"x-single-active-consumer": True}),
        ("hash-topic", {"x-group-by": "routing-key"}),
        ("hash-client", {"x-group-by": "x-mqtt-publisher"}),
    ],
)
async def test_strategies_by_configuration_and_by_policy(
    world: World, strategy: str, arguments: dict[str, object]
) -> None:
    config = MqttConfig(share_strategy=strategy, share_expiry_s=0)  # type: ignore[arg-type]
    await member(world, "m1", config=config)
    assert queue_settings(world.broker) == arguments
    definition = {"group-by": "routing-key"}
    await world.broker.set_policy("p", "^\\$share/named/", definition, priority=0, apply_to="queues", operator=False)
    client = await world.client("m2", config=config)
    assert await client.subscribe(("$share/named/a", 1)) == b"\1"
    assert queue_settings(world.broker, "$share/named/a") == {}
    assert world.broker.topology.queues["$share/named/a"].settings.group_by == "routing-key"


async def test_sticky_gives_all_to_one_until_it_goes(world: World) -> None:
    config = MqttConfig(share_strategy="sticky")
    one, other = [await member(world, name, config=config) for name in ("m1", "m2")]
    await numbered(world, 5)
    assert len(payloads(one)) == 5
    one.lose()
    assert payloads(other) == [b"%d" % number for number in range(5)]


async def test_least_inflight_spares_who_does_not_acknowledge(world: World) -> None:
    config = MqttConfig(share_strategy="least-inflight")
    slow, quick = [await member(world, name, config=config) for name in ("m1", "m2")]
    got = []
    for number in range(10):
        await numbered(world, 1, start=number)
        for _, _, packet_id, payload in quick.take_deliveries():
            got.append(payload)
            assert packet_id is not None
            await quick.acknowledge(packet_id)
    assert len(payloads(slow)) == 1
    assert len(got) == 9


@pytest.mark.parametrize("strategy", ["hash-topic", "hash-client"])
async def test_hashes_keep_the_order_of_a_device(world: World, strategy: str) -> None:
    config = MqttConfig(share_strategy=strategy)  # type: ignore[arg-type]
    members = [await member(world, f"m{number}", config=config) for number in range(3)]
    for turn in range(4):
        for device in range(6):
            topic = f"a/{device}" if strategy == "hash-topic" else "a/all"
            await send(world, (topic, b"%d.%d" % (device, turn)), client_id=f"device {device}")
    owners: dict[bytes, set[int]] = {}
    for number, one in enumerate(members):
        seen: dict[bytes, list[bytes]] = {}
        for payload in payloads(one):
            device_name, _, turn_name = payload.partition(b".")
            owners.setdefault(device_name, set()).add(number)
            seen.setdefault(device_name, []).append(turn_name)
        assert all(turns == sorted(turns) for turns in seen.values())
    assert len(owners) == 6
    assert all(len(one) == 1 for one in owners.values()), (
        "while one has unacknowledged messages of a device, it gets all"
    )
    assert len({next(iter(one)) for one in owners.values()}) == 3, "all members have work"


async def test_publishes_name_their_publishers_only_while_a_group_asks(world: World) -> None:
    watcher = await world.client("w")
    session = watcher.adapter.session
    assert session is not None
    raws = []

    def watch(self: object, consumer: object, first_id: int, slab: object, *rest: object) -> None:
        raws.append(slab.properties.raw)  # type: ignore[attr-defined]

    assert await watcher.subscribe(("a/#", 1)) == b"\1"
    watcher.adapter.deliver = watch.__get__(watcher.adapter)  # type: ignore[method-assign]
    await numbered(world, 1)
    leaving = await member(world, "m", config=MqttConfig(share_strategy="hash-client"))
    await numbered(world, 1)
    await world.broker.delete_queue(QUEUE)
    assert leaving.closed, "who loses its queue is told by the end of the connection"
    client = await world.client("n")
    assert await client.subscribe(("$share/h/a", 0)) == b"\0"
    await numbered(world, 1)
    assert [len(raw) for raw in raws] == [1, 9, 1]


async def test_no_retained_flags_or_dup_for_members(world: World) -> None:
    dying = await member(world, "m1")
    await numbered(world, 1)
    dying.take()
    heir = await member(world, "m2")
    dying.lose()
    assert [first for first, _ in packets(heir.take())] == [0x32]


async def connected_again(world: World, client_id: str) -> Client:
    """A client whose session lasts for ever, connected."""
    client = world.open()
    await client.send(connect(client_id, clean=False))
    assert client.outbox.pieces[0][:2] == b"\x20\x02"
    del client.outbox.pieces[0]
    return client


async def test_a_session_that_lasts_is_a_member_again_when_it_comes_back(world: World) -> None:
    config = MqttConfig(share_expiry_s=60)
    (await member(world, "m", config=config)).lose()
    assert queue_settings(world.broker) == {"x-expires": 60_000}
    lasting = await connected_again(world, "lasting")
    assert await lasting.subscribe((QUEUE, 1), ("b", 1)) == b"\1\1"
    assert queue_settings(world.broker) == {}, "it is kept for as long as the session"
    lasting.lose()
    await numbered(world, 3)
    again = await connected_again(world, "lasting")
    found = again.take_deliveries()
    assert [payload for *_, payload in found] == [b"0", b"1", b"2"]
    await again.acknowledge(*(packet_id for _, _, packet_id, _ in found if packet_id))
    await numbered(world, 1, "b", start=3)
    assert payloads(again) == [b"3"]
    assert len(world.broker.topology.queues[QUEUE].consumers) == 1
    await again.send(unsubscribe(8, QUEUE))
    again.lose()
    await connected_again(world, "lasting")
    assert not world.broker.topology.queues[QUEUE].consumers


async def test_a_member_that_is_away_is_one_all_the_same(world: World) -> None:
    config = MqttConfig(share_remove_unsubscribed=True)
    lasting = await connected_again(world, "lasting")
    assert await lasting.subscribe((QUEUE, 1)) == b"\1"
    lasting.lose()
    other = await member(world, "m", config=config)
    await other.send(unsubscribe(8, QUEUE))
    assert QUEUE in world.broker.topology.queues


async def test_who_cannot_be_a_member_again_is_not_left_without_a_word() -> None:
    """Its session was there, and nothing of the group came to it."""
    files = FaultyFiles(MemoryFiles())
    async with open_broker(files, users={"guest": "guest"}) as broker:
        world = World(broker)
        lasting = await connected_again(world, "lasting")
        assert await lasting.subscribe((QUEUE, 1)) == b"\1"
        lasting.lose()
        await broker.delete_queue(QUEUE)

        def refuse(operation: str, path: str) -> None:
            if operation in ("write", "sync") and path.startswith("catalog"):
                raise OSError(errno.EIO, "bad", path)

        files.hook = refuse
        refused = await connected_again(world, "lasting")
        assert refused.closed
        refused.lose()
        files.hook = None
        with trio.fail_after(5):
            while not (back := await connected_again(world, "lasting")).adapter.subscribing.shares.granted:
                assert back.closed
                back.lose()
                await trio.sleep(0.01)
        await numbered(world, 1)
        assert payloads(back) == [b"0"]


async def test_who_was_refused_as_a_member_gets_nothing_of_the_group() -> None:
    files = FaultyFiles(MemoryFiles())
    async with open_broker(files, users={"guest": "guest"}) as broker:
        world = World(broker)
        first, second = [await connected_again(world, name) for name in ("first", "second")]
        assert await first.subscribe((QUEUE, 1)) == b"\1"

        def refuse(operation: str, path: str) -> None:
            if operation in ("write", "sync") and path.startswith("catalog"):
                raise OSError(errno.EIO, "bad", path)

        files.hook = refuse
        assert await second.subscribe((QUEUE, 1)) == b"\x80"
        await numbered(world, 2)
        assert (payloads(first), payloads(second)) == ([b"0", b"1"], [])
        files.hook = None
