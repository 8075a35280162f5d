"""Connecting, subscribing and ending, on a real engine. The names cite the clauses of the standard."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocols.mqtt.config import MqttConfig
from tests.protocols.mqtt.conftest import CONNACK, Client, World
from tests.protocols.mqtt.wire import DISCONNECT, PINGREQ, connect, packet, publish, subscribe, unsubscribe

SMALL = MqttConfig(subscriptions_max=3, topic_levels_max=4, topic_bytes_max=10, client_id_bytes_max=30)


# Connecting.


async def test_mqtt_3_1_4_5_packets_may_follow_connect_at_once(world: World) -> None:
    client = world.open()
    await client.send(connect(), subscribe(9, ("a", 0)), publish("a", b"x"), PINGREQ)
    assert client.take() == CONNACK + b"\x90\x03\0\x09\0" + publish("a", b"x") + b"\xd0\0"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (connect("", clean=False), 2),
        (connect("", name="MQIsdp", level=3), 2),
        (connect("x" * 31), 2),
        (connect(level=6), 1),
    ],
    ids=["MQTT-3.1.3-8 no id and no clean session", "MQTT 3.1 without id", "id too long", "MQTT-3.1.2-2 MQTT 6"],
)
async def test_refused_connects_are_answered_and_closed(world: World, data: bytes, code: int) -> None:
    client = world.open(config=SMALL)
    watcher = await world.client("watcher")
    await watcher.subscribe(("#", 0))
    await client.send(data, publish("a", b"never"))
    assert client.take() == bytes((0x20, 2, 0, code))
    assert client.closed
    assert watcher.take() == b""


@pytest.mark.parametrize(
    ("anonymous", "peer", "user", "password", "code"),
    [
        ("loopback", "127.0.0.1:5000", None, None, 0),
        ("loopback", "127.9.9.9:1", None, None, 0),
        ("loopback", "[::1]:5000", None, None, 0),
        ("loopback", "[::ffff:127.0.0.1]:5000", None, None, 0),
        ("loopback", "10.0.0.1:5000", None, None, 5),
        ("loopback", "[2001:db8::1]:5000", None, None, 5),
        ("loopback", "somewhere:1", None, None, 5),
        ("always", "10.0.0.1:5000", None, None, 0),
        ("never", "127.0.0.1:5000", None, None, 5),
        ("never", "10.0.0.1:5000", "me", b"right", 0),
        ("always", "10.0.0.1:5000", "me", b"wrong", 4),
        ("always", "10.0.0.1:5000", "me", None, 4),
    ],
)
async def test_mqtt_3_2_2_5_who_may_connect(
    world: World, anonymous: str, peer: str, user: str | None, password: bytes | None, code: int
) -> None:
    asked = []

    def authenticate(name: str, secret: bytes, where: str) -> bool:
        asked.append((name, secret, where))
        return (name, secret) == ("me", b"right")

    config = MqttConfig(anonymous=anonymous)  # type: ignore[arg-type]
    client = world.open(peer=peer, config=config, authenticate=authenticate)
    await client.send(connect(user=user, password=password))
    assert client.take() == bytes((0x20, 2, 0, code))
    assert client.closed is (code != 0)
    assert asked == ([(user, password or b"", peer)] if user else [])


async def test_a_user_name_without_an_authenticator_is_refused(world: World) -> None:
    client = world.open()
    await client.send(connect(user="me", password=b"x"))
    assert client.take() == b"\x20\x02\0\x04"


async def test_mqtt_3_1_3_6_empty_client_ids_get_one_each(world: World) -> None:
    first, second = await world.client(""), await world.client("")
    assert await first.subscribe(("a", 0)) == await second.subscribe(("a", 0)) == b"\0"
    assert not first.closed


async def test_mqtt_3_1_4_2_a_second_connection_takes_the_client_id_over(world: World) -> None:
    first = await world.client("me", will=("gone", b"first", 0, False))
    await first.subscribe(("#", 1))
    second = await world.client("me")
    assert first.closed
    assert not second.closed
    assert await second.subscribe(("#", 0)) == b"\0"
    await second.send(publish("a", b"x"))
    assert second.take() == publish("a", b"x")
    first.lose()
    assert await second.subscribe(("b", 1)) == b"\1"
    third = await world.client("me")
    assert second.closed
    assert not third.closed


async def test_who_is_taken_over_while_it_subscribes_leaves_no_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster a queue may wait until another broker is known to have none of its name."""
    declare, may_declare = world.broker.declare_queue, trio.Event()

    async def declare_later(*arguments: Any, **options: Any) -> Any:
        await may_declare.wait()
        return await declare(*arguments, **options)

    monkeypatch.setattr(world.broker, "declare_queue", declare_later)
    first, second = await world.client("me"), world.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.send, subscribe(1, ("a", 1)))
        await wait_all_tasks_blocked()
        nursery.start_soon(second.send, connect("me"))
        await wait_all_tasks_blocked()
        assert first.closed
        first.lose()
        may_declare.set()
    assert second.take() == CONNACK
    assert await second.subscribe(("b", 1)) == b"\1"
    second.lose()
    assert not world.broker.topology.vhost("/").queues
    assert not world.broker.topology.owned


async def test_mqtt_3_1_0_1_protocol_errors_close_without_an_answer(world: World) -> None:
    client = world.open()
    await client.send(publish("a"))
    assert client.closed
    assert client.take() == b""


async def test_mqtt_4_8_0_1_a_violation_closes_after_what_came_before_it(world: World) -> None:
    watcher = await world.client()
    await watcher.subscribe(("#", 0))
    client = await world.client()
    await client.send(publish("a", b"1"), publish("a/#", b"2"), publish("a", b"3"))
    assert client.closed
    assert watcher.take() == publish("a", b"1")


# Subscribing.


async def test_mqtt_3_8_4_5_suback_says_what_was_granted_for_each_filter(world: World) -> None:
    client = await world.client(config=SMALL)
    assert await client.subscribe(("a", 0), ("b", 2), ("a/b/c/d/e", 0)) == bytes([0, 2, 0x80])
    assert await client.subscribe(("c", 1), ("d", 0), ("a", 1)) == bytes([1, 0x80, 1])
    assert await client.subscribe(("a", 0), ("x" * 11, 0), ("a", 0), ("a", 1)) == bytes([0, 0x80, 0, 0x80])
    await client.send(unsubscribe(2, "a"))
    assert client.take() == b"\xb0\x02\0\x02"
    assert await client.subscribe(("d", 0)) == b"\0"


async def test_mqtt_3_8_4_3_subscribing_again_replaces_the_qos(world: World) -> None:
    client = await world.client()
    for qos in (0, 1, 0):
        assert await client.subscribe(("a", qos)) == bytes([qos])
        await client.send(publish("a", b"x", qos=1, packet_id=5))
        answers = client.take()
        assert (publish("a", b"x") in answers) is (qos == 0)
        assert client.take() == b""


async def test_mqtt_3_10_4_unsubscribe_stops_delivery_and_is_always_answered(world: World) -> None:
    client = await world.client()
    await client.subscribe(("a/+", 0), ("a/b", 0))
    await client.send(unsubscribe(3, "a/+", "never/there"))
    assert client.take() == b"\xb0\x02\0\x03"
    await client.send(publish("a/b", b"1"), publish("a/c", b"2"))
    assert client.take() == publish("a/b", b"1")
    await client.send(unsubscribe(4, "a/b"), publish("a/b", b"3"))
    assert client.take() == b"\xb0\x02\0\x04"
    assert await client.subscribe(("a/b", 1)) == b"\1"


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("#", ["a", "a/b", "/", "a.b"], ["$own/a"]),
        ("+", ["a", "a.b", "*"], ["a/b", "/a", "$own"]),
        ("+/+", ["a/b", "/", "/a"], ["a", "a/b/c", "$own/a"]),
        ("a/#", ["a", "a/", "a/b/c"], ["b", "A", "aa"]),
        ("a/+/c", ["a/b/c", "a//c", "a/*/c"], ["a/b", "a/b/c/d"]),
        ("$own/#", ["$own", "$own/a"], ["a", "SYS/a"]),
        ("*/#", ["*", "*/a"], ["a", "a/b"]),
        ("v1.2/+", ["v1.2/a"], ["v1/2/a", "v1.2"]),
    ],
)
async def test_mqtt_4_7_wildcards(world: World, topic_filter: str, matching: list[str], others: list[str]) -> None:
    client = await world.client()
    await client.subscribe((topic_filter, 0))
    await client.send(*[publish(topic, b"x") for topic in matching + others])
    assert [topic for topic, *_ in client.take_deliveries()] == matching


async def test_the_queue_of_another_connection_makes_suback_fail(world: World) -> None:
    await world.broker.declare_queue("mqtt.me", durable=False, exclusive=True, auto_delete=False, owner=object())
    client = await world.client("me")
    assert await client.subscribe(("a", 0), ("b", 1)) == b"\x80\x80"
    assert not client.closed


# Keep-alive and ending.


async def test_mqtt_3_12_4_1_ping(world: World) -> None:
    client = await world.client()
    await client.send(PINGREQ * 2)
    assert client.take() == b"\xd0\0" * 2


async def test_mqtt_3_1_2_24_silence_of_one_and_a_half_keep_alives_closes(world: World) -> None:
    client = await world.client(keep_alive_s=10)
    client.tick(14)
    await client.send(PINGREQ)
    client.tick(14)
    assert not client.closed
    await client.send(publish("a", b"x")[:3])
    client.tick(1)
    assert client.closed


async def test_a_packet_may_take_longer_than_the_keep_alive_to_arrive(world: World) -> None:
    client = await world.client(keep_alive_s=10)
    await client.subscribe(("a", 0))
    image = publish("a", bytes(200_000))
    for start in range(0, len(image), 60_000):
        client.tick(14)
        assert not client.closed
        await client.send(image[start : start + 60_000])
    assert [len(payload) for *_, payload in client.take_deliveries()] == [200_000]
    await client.send(image[:-1000])
    client.tick(14)
    await client.send(image[-1000:-1])
    client.tick(1.1)
    assert client.closed


async def test_half_a_connect_does_not_put_its_deadline_off(world: World) -> None:
    client = world.open(config=MqttConfig(connect_timeout_s=10))
    for one in connect("c")[:3]:
        await client.send(bytes((one,)))
        client.tick(4)
    assert client.closed


async def test_no_keep_alive_means_no_deadline(world: World) -> None:
    client = await world.client(keep_alive_s=0)
    assert client.adapter.next_timer_at() == math.inf


async def test_a_connect_must_come_in_time(world: World) -> None:
    client = world.open(config=MqttConfig(connect_timeout_s=3))
    await client.send(connect()[:5])
    client.tick(2)
    assert not client.closed
    client.tick(1)
    assert client.closed
    client.lose()


async def end_by_eof(client: Client) -> None:
    await client.send(b"")


async def end_by_silence(client: Client) -> None:
    client.tick(100)


async def end_by_violation(client: Client) -> None:
    await client.send(packet(0xF0, b""))


async def end_by_takeover(client: Client) -> None:
    await client.world.client("mortal")


async def end_by_reset(client: Client) -> None:
    client.lose()


@pytest.mark.parametrize("end", [end_by_eof, end_by_silence, end_by_violation, end_by_takeover, end_by_reset])
@pytest.mark.parametrize(("will_qos", "qos"), [(0, 0), (1, 1), (2, 1)])
async def test_mqtt_3_1_2_8_the_will_is_published_at_any_other_end(
    world: World, end: Callable[[Client], Awaitable[None]], will_qos: int, qos: int
) -> None:
    watcher = await world.client("watcher")
    await watcher.subscribe(("will/#", 1))
    mortal = await world.client("mortal", keep_alive_s=60, will=("will/of/mine", b"\0gone", will_qos, True))
    await end(mortal)
    assert mortal.closed
    if end is not end_by_reset:
        mortal.lose()
    await watcher.expect(publish("will/of/mine", b"\0gone", qos=qos))


async def test_mqtt_3_14_4_3_disconnect_discards_the_will(world: World) -> None:
    watcher = await world.client("watcher")
    await watcher.subscribe(("#", 1))
    mortal = await world.client("mortal", will=("w", b"gone", 0, False))
    await mortal.send(publish("a", b"last"), DISCONNECT, publish("a", b"too late"))
    assert mortal.closed
    mortal.lose()
    assert watcher.take() == publish("a", b"last")


async def test_a_will_topic_beyond_the_limits_is_not_accepted(world: World) -> None:
    client = world.open(config=SMALL)
    await client.send(connect(will=("x" * 11, b"", 0, False)))
    assert client.closed
    assert client.take() == b""


async def test_nothing_is_left_of_a_lost_connection(world: World) -> None:
    client = await world.client("me")
    await client.subscribe(("#", 1))
    await client.send(publish("a", b"x", qos=1))
    client.lose()
    assert not world.broker.sessions
    assert not world.broker.topology.queues


async def test_shut_down_closes(world: World) -> None:
    client = await world.client()
    client.adapter.shut_down("the broker stops")
    assert client.closed
    await client.send(publish("a"))
    client.lose()


async def test_a_deleted_queue_ends_the_connection(world: World) -> None:
    client = await world.client("me")
    await client.subscribe(("a", 0))
    await world.broker.delete_queue("mqtt.me", owner=client.adapter)
    world.broker.end_turn()
    assert client.closed


async def test_the_virtual_host_of_the_door(world: World) -> None:
    config = MqttConfig(virtual_host="v")
    refused = world.open(config=config)
    await refused.send(connect("c"))
    assert refused.take() == b"\x20\x02\0\x03", "server unavailable: there is no such virtual host"
    assert refused.closed
    await world.broker.set_vhost("v")
    inside, outside = await world.client("inside", config=config), await world.client("outside")
    for client in (inside, outside):
        await client.subscribe(("#", 0))
    await inside.send(publish("a", b"1"))
    assert (inside.take_deliveries(), outside.take_deliveries()) == ([("a", 0, None, b"1")], [])
    await world.broker.delete_vhost("v")
    assert (inside.closed, outside.closed) == (True, False)
    inside.lose()
