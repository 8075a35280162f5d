"""Sessions of MQTT 5 by the clock, how the server ends connections, and wills with a delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.memory_files import MemoryFiles
from protocols.mqtt.adapter_sessions import EXPIRY_S_MAX, sessions_of
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import NEVER_S
from protocols.mqtt.reasons import ReasonCode
from routing.broker import open_broker
from routing.config import BrokerConfig
from routing.errors import StorageUnavailable
from routing.kept.wills import Will
from routing.session import Consumer, Session
from tests.protocols.mqtt.conftest import Client, World, later
from tests.protocols.mqtt.test_clauses_5 import CONNACK, DISCONNECT, SUBACK, delivery, opened, told
from tests.protocols.mqtt.wire import PINGREQ, acknowledge, packets, text
from tests.protocols.mqtt.wire_5 import block, connect_5, disconnect_5, publish_5, sized, subscribe_5

RESUME, WILL = 0, 4


@pytest.fixture
def clock() -> MockClock:
    return MockClock()


async def is_present(world: World, expiry_s: int, client_id: str = "s") -> tuple[Client, bool]:
    """Connect to what there is of a session."""
    client, body = await opened(world, client_id, block(session_expiry=expiry_s), flags=RESUME)
    return client, bool(body[0])


def will(*properties: tuple[str, str], delay_s: int = 0, **more: int | str | bytes) -> bytes:
    """What follows the client identifier in CONNECT."""
    told_of = block(will_delay=delay_s) if delay_s else b""
    return sized(told_of + block(*properties, **more)) + text("will") + text(b"gone")


async def watch(world: World, *filters: tuple[str, int]) -> Client:
    watcher, _ = await opened(world, "watcher")
    await watcher.send(subscribe_5(1, *(filters or (("will", 1),))))
    assert [kind for kind, _ in await told(watcher)] == [SUBACK]
    return watcher


def ended_with(client: Client) -> int:
    """The reason in the DISCONNECT that is the last the client was sent."""
    assert client.closed
    *_, (kind, body) = packets(client.take())
    assert kind == DISCONNECT
    return body[0]


# --- how long sessions last ----------------------------------------------------------------


async def test_mqtt_3_1_2_23_a_session_lasts_for_its_expiry_and_not_longer(world: World, clock: MockClock) -> None:
    client, there = await is_present(world, 100)
    assert not there
    client.lose()
    await later(clock, 90)
    client, there = await is_present(world, 100)
    assert there
    await later(clock, 200)  # while the client is connected nothing expires
    client.lose()
    await later(clock, 90)
    client, there = await is_present(world, 100)
    assert there
    client.lose()
    await later(clock, 102)
    assert "mqtt.s" not in world.broker.topology.queues
    client, there = await is_present(world, 100)
    assert not there


async def test_what_was_taken_of_sessions_is_forgotten_some_time_after_these(
    world: World, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocols.mqtt.adapter_sessions._TAKEN_MIN", 4)
    for number in range(20):
        client, _ = await is_present(world, 10, f"s{number}")
        await client.send(publish_5("t", b"x", qos=2, packet_id=1))
        client.lose()
        await later(clock, 5)
    lasting = [f"s{number}" for number in range(20) if f"mqtt.s{number}" in world.broker.topology.queues]
    assert 0 < len(lasting) < 4
    assert set(lasting) <= sessions_of(world.broker).taken.keys()
    assert len(sessions_of(world.broker).taken) <= 2 * 4


async def test_the_expiry_is_that_of_the_last_connect_or_disconnect(world: World, clock: MockClock) -> None:
    client, _ = await is_present(world, 1000)
    client.lose()
    client, there = await is_present(world, 10)
    assert there
    client.lose()
    await later(clock, 12)
    client, there = await is_present(world, 10)
    assert not there
    await client.send(disconnect_5(0, block(session_expiry=1000)))
    assert client.take() == b""
    client.lose()
    await later(clock, 900)
    client, there = await is_present(world, 1000)
    assert there
    await client.send(disconnect_5(0, block(session_expiry=NEVER_S)))
    client.lose()
    await later(clock, 5000)
    client, there = await is_present(world, 0)
    assert there
    client.lose()  # the last CONNECT said that it ends with its connection
    await later(clock, 1)
    _, there = await is_present(world, 0)
    assert not there


@pytest.mark.parametrize("count", [1, 5000])
async def test_mqtt_3_3_2_5_what_expired_while_the_broker_was_down_is_not_sent(count: int, clock: MockClock) -> None:
    """However much that is, and however soon the client is back."""
    files, now_ms = MemoryFiles(), 1_700_000_000_000
    async with open_broker(files, wall_clock_ms=lambda: now_ms) as broker:
        world = World(broker)
        client, _ = await is_present(world, 600)
        await client.send(subscribe_5(1, ("t", 1)))
        client.lose()
        publisher, _ = await opened(world, "p")
        lives = [60] * count + [6000]
        bodies = [(b"%d" % life_s, block(message_expiry=life_s)) for life_s in lives]
        await publisher.send(
            *(publish_5("t", body, rest, qos=1, packet_id=n) for n, (body, rest) in enumerate(bodies, 1))
        )
        await told(publisher, len(lives))
        left = files.crash()
    async with open_broker(left, wall_clock_ms=lambda: now_ms + 600_000) as broker:
        client = World(broker).open()
        await client.send(connect_5("s", block(session_expiry=600), flags=RESUME))
        await later(clock, 0.1)
        _, *got = await told(client, 2)
        assert [delivery(one)[3] for one in got] == [b"6000"]


@pytest.mark.parametrize("expiry_s", [0, 5])
async def test_the_expiry_of_a_disconnect_that_is_not_durable_yet_is_known_to_the_next_connection(
    world: World, clock: MockClock, expiry_s: int
) -> None:
    client, _ = await is_present(world, 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, disconnect_5(0, block(session_expiry=expiry_s)))
        while sessions_of(world.broker).clients["s"].connect.session_expiry_s != expiry_s:
            await trio.lowlevel.checkpoint()
        assert not client.closed
        client, there = await is_present(world, 100)
    assert there == bool(expiry_s)
    client.lose()
    await later(clock, 50)
    _, there = await is_present(world, 100)
    assert there, "it lasts as long as the last CONNECT said"


async def test_who_is_taken_over_before_it_consumes_has_no_say_in_the_expiry(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster another broker may lead the session's queue, and takes a while to answer."""
    consume, may_consume, waiting = Session.consume, trio.Event(), [True]

    async def consume_later(session: Session, name: str, **options: Any) -> Consumer:
        consumer = await consume(session, name, **options)
        if waiting and waiting.pop():
            await may_consume.wait()
        return consumer

    client, _ = await is_present(world, 1000)
    client.lose()
    monkeypatch.setattr(Session, "consume", consume_later)
    async with trio.open_nursery() as nursery:
        slow = world.open()
        nursery.start_soon(slow.send, connect_5("s", block(session_expiry=10), flags=RESUME))
        await wait_all_tasks_blocked(0.01)
        _, there = await is_present(world, 1000)
        assert there
        assert slow.closed
        may_consume.set()
    assert world.broker.topology.vhost("/").queues["mqtt.s"].arguments["x-expires"] == 1000 * 1000


async def test_a_session_that_is_to_end_with_this_connection_does_not_end_before(
    world: World, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a while until the client is there: its will has to be durable before CONNACK."""
    client, _ = await is_present(world, 100)
    await client.send(subscribe_5(1, ("t", 1)))
    client.lose()
    sender, _ = await opened(world, "sender")
    await sender.send(publish_5("t", b"x", qos=1))
    keep = world.broker.wills.keep

    async def slowly(vhost: str, name: str, will: Will, lost: Callable[[], None]) -> None:
        await keep(vhost, name, will, lost)
        await later(clock, 1)

    monkeypatch.setattr(world.broker.wills, "keep", slowly)
    client = world.open()
    await client.send(connect_5("s", flags=RESUME | WILL, rest=will()))
    (first, body), *messages = await told(client)
    assert (first, body[0]) == (CONNACK, 1)
    assert [delivery(one)[1] for one in messages] == ["t"]
    client.lose()
    await later(clock, 1)
    _, there = await is_present(world, 0)
    assert not there


async def test_mqtt_3_14_2_an_expiry_cannot_begin_with_disconnect(world: World) -> None:
    watcher = await watch(world)
    client, _ = await opened(world, "s", flags=WILL, rest=will())
    await client.send(disconnect_5(0, block(session_expiry=1)))
    assert ended_with(client) == 0x82
    client.lose()
    assert [delivery(one)[1] for one in await told(watcher)] == ["will"], "there was no DISCONNECT"
    client, _ = await opened(world, "s", flags=WILL, rest=will())
    await client.send(disconnect_5(0, block(session_expiry=0)))
    assert client.take() == b""
    assert client.closed


async def test_an_expiry_beyond_what_the_broker_keeps_is_answered_with_what_it_does(world: World) -> None:
    _, body = await opened(world, "long", block(session_expiry=EXPIRY_S_MAX + 1))
    assert block(session_expiry=EXPIRY_S_MAX) in body
    _, body = await opened(world, "just", block(session_expiry=EXPIRY_S_MAX))
    assert body[3] != 0x11
    _, body = await opened(world, "ever", block(session_expiry=NEVER_S))
    assert body[3] != 0x11
    arguments = {name: queue.arguments for name, queue in world.broker.topology.queues.items()}
    assert arguments["mqtt.long"]["x-expires"] == EXPIRY_S_MAX * 1000
    assert "x-expires" not in arguments["mqtt.ever"]


async def test_a_client_that_is_named_keeps_its_session_without_asking_and_is_told_so(
    world: World, clock: MockClock
) -> None:
    config = MqttConfig(lasting_client_ids="bridge-.+", lasting_expiry_s=60)
    client, body = await opened(world, "bridge-1", config=config, flags=RESUME)
    assert body[0] == 0
    assert block(session_expiry=60) in body
    await client.send(subscribe_5(1, ("t", 1)))
    assert [kind for kind, _ in await told(client)] == [SUBACK]
    client.lose()
    await (await opened(world, "p"))[0].send(publish_5("t", b"kept", qos=1, packet_id=1))
    await later(clock, 50)
    client = world.open(config=config)
    await client.send(connect_5("bridge-1", flags=RESUME))
    (kind, body), waited = await told(client, 2)
    assert (kind, body[0]) == (CONNACK, 1)
    assert delivery(waited)[3] == b"kept"
    client.lose()
    await later(clock, 61)
    assert "mqtt.bridge-1" not in world.broker.topology.queues


@pytest.mark.parametrize(("client_id", "flags"), [("a-bridge-1", RESUME), ("bridge-1", 2)])
async def test_others_and_clean_starts_do_not(world: World, client_id: str, flags: int) -> None:
    config = MqttConfig(lasting_client_ids="bridge-.+")
    client, body = await opened(world, client_id, config=config, flags=flags)
    assert body[3] != 0x11
    client.lose()
    assert not world.broker.topology.queues


def test_names_of_clients_are_a_regular_expression() -> None:
    with pytest.raises(msgspec.ValidationError, match="lasting_client_ids: '\\(' is no regular expression"):
        msgspec.convert({"lasting_client_ids": "("}, MqttConfig)


async def test_what_waits_has_its_own_expiry_or_none_whatever_is_behind_it(world: World) -> None:
    client, _ = await is_present(world, 1000)
    await client.send(subscribe_5(1, ("t", 1)))
    await told(client)
    client.lose()
    publisher, _ = await opened(world, "p")
    expiring = block(message_expiry=50)
    for number in range(3):
        await publisher.send(publish_5("t", b"%d" % number, qos=1, packet_id=1))
        await told(publisher)  # what is noted of the queue has an offset in between
    last = [publish_5("t", b"3", expiring, qos=1, packet_id=2), publish_5("t", b"4", qos=1, packet_id=3)]
    await publisher.send(b"".join(last))
    await told(publisher, 2)
    client = world.open()
    await client.send(connect_5("s", block(session_expiry=1000), flags=RESUME))
    _, *deliveries = await told(client, 6)
    assert [delivery(one)[2:] for one in deliveries] == [
        (b"", b"0"), (b"", b"1"), (b"", b"2"), (expiring, b"3"), (b"", b"4"),
    ]  # fmt: skip


# --- how connections end ---------------------------------------------------------------------


async def test_mqtt_3_1_4_3_a_takeover_is_told(world: World) -> None:
    first, _ = await opened(world, "twin", block(session_expiry=10))
    second, there = await is_present(world, 10, "twin")
    assert there
    assert ended_with(first) == 0x8E
    await world.client("twin")
    assert ended_with(second) == 0x8E, "by a client of 3.1.1"


async def test_mqtt_3_2_2_22_the_servers_keep_alive_counts(world: World) -> None:
    config = MqttConfig(keep_alive_max_s=10)
    for asked_s in (0, 11, 60):
        client, body = await opened(world, keep_alive_s=asked_s, config=config)
        assert block(server_keep_alive=10) in body
        client.tick(14.9)
        assert not client.closed
        client.tick(0.2)
        assert ended_with(client) == 0x8D
        client.lose()
    client, body = await opened(world, keep_alive_s=10, config=config)
    assert b"\x13\0\x0a" not in body
    client.tick(14)
    await client.send(PINGREQ)
    client.take()
    client.tick(14)
    assert not client.closed


async def test_a_stop_an_operator_and_a_deleted_queue_are_told(world: World) -> None:
    client, _ = await opened(world, "a")
    client.adapter.shut_down("the broker stops")
    assert ended_with(client) == 0x8B
    client, _ = await opened(world, "b")
    (connected,) = [one for one in world.broker.clients if one.name == "b"]
    connected.close("an operator said so")
    assert ended_with(client) == 0x98
    client, _ = await opened(world, "c")
    await client.send(subscribe_5(1, ("a", 1)))
    await world.broker.delete_queue("mqtt.c", owner=client.adapter)
    world.broker.end_turn()
    assert ended_with(client) == 0x98


@pytest.mark.parametrize(
    ("most", "message_bytes_max", "told_bytes"),
    [
        (1 << 20, 128 << 20, 1 << 20),
        (256 << 20, 1 << 30, 268_435_455),  # a larger one is no number that clients take
        (1 << 20, 256 << 10, (256 << 10) + 4096),  # a larger message is refused
    ],
)
async def test_the_largest_packet_that_clients_are_told(most: int, message_bytes_max: int, told_bytes: int) -> None:
    async with open_broker(MemoryFiles(), BrokerConfig(message_bytes_max=message_bytes_max)) as broker:
        _, body = await opened(World(broker), config=MqttConfig(packet_bytes_max=most))
        assert block(packet_bytes_max=told_bytes) in body


@pytest.mark.parametrize("qos", [1, 2])
async def test_mqtt_3_3_4_9_more_than_the_receive_maximum(world: World, qos: int) -> None:
    await world.broker.declare_queue("kept", durable=True)
    await world.broker.bind("queue", "kept", "amq.topic", "#")
    config = MqttConfig(receive_maximum=2)
    client, body = await opened(world, config=config)
    assert block(receive_maximum=2) in body
    for _ in range(2):
        await client.send(*(publish_5("a", b"x", qos=qos, packet_id=one) for one in (1, 2)))
        assert len(await told(client, 2)) == 2
        if qos == 2:
            await client.send(acknowledge(0x62, 1, 2))
            assert len(await told(client, 2)) == 2
    await client.send(*(publish_5("a", b"x", qos=qos, packet_id=one) for one in (1, 2, 3)))
    assert ended_with(client) == 0x93


async def test_mqtt_4_9_0_1_what_an_earlier_connection_published_does_not_count(world: World) -> None:
    config = MqttConfig(receive_maximum=2)
    for first in (1, 3):
        client, _ = await opened(world, "s", block(session_expiry=10), flags=RESUME, config=config)
        await client.send(*(publish_5("a", b"x", qos=2, packet_id=first + one) for one in (0, 1)))
        assert [kind for kind, _ in await told(client, 2)] == [0x50, 0x50]
        client.lose()


# --- wills -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "comes"), [(0, False), (4, True), (0x80, True), (0x98, True)])
async def test_mqtt_3_1_2_8_only_a_normal_disconnect_voids_the_will(world: World, reason: int, comes: bool) -> None:
    watcher = await watch(world)
    client, _ = await opened(world, "mortal", flags=2 | WILL, rest=will())
    await client.send(disconnect_5(reason))
    client.lose()
    await world.broker.wills.finish()
    await watcher.send(PINGREQ)
    got = await told(watcher, 1 + comes)
    assert [delivery(one)[3] for one in got if one[0] != 0xD0] == [b"gone"] * comes


async def test_mqtt_3_1_3_9_a_will_waits_for_its_delay_unless_the_client_comes_back(
    world: World, clock: MockClock
) -> None:
    watcher = await watch(world)
    connect = {"flags": RESUME | WILL, "rest": will(delay_s=20)}
    for _ in range(2):
        client, _ = await opened(world, "mortal", block(session_expiry=1000), **connect)  # type: ignore[arg-type]
        client.lose()
        await later(clock, 15)
        assert watcher.take() == b""
    client, _ = await opened(world, "mortal", block(session_expiry=1000), flags=RESUME)
    client.lose()  # this connection has no will
    await later(clock, 100)
    assert watcher.take() == b""
    client, _ = await opened(world, "mortal", block(session_expiry=1000), **connect)  # type: ignore[arg-type]
    client.lose()
    await later(clock, 21)
    assert [delivery(one)[1] for one in await told(watcher)] == ["will"]


@pytest.mark.parametrize("how", ["expiry", "disconnect", "clean start", "no session"])
async def test_a_will_is_sent_when_the_session_ends_if_that_is_sooner(world: World, clock: MockClock, how: str) -> None:
    watcher = await watch(world)
    expiry = b"" if how == "no session" else block(session_expiry=10)
    client, _ = await opened(world, "mortal", expiry, flags=RESUME | WILL, rest=will(delay_s=1000))
    if how == "disconnect":
        await client.send(disconnect_5(4, block(session_expiry=0)))
    client.lose()
    if how == "expiry":
        await later(clock, 9)
        assert watcher.take() == b""
        await later(clock, 2)
    elif how == "clean start":
        await opened(world, "mortal")
    assert [delivery(one)[1] for one in await told(watcher)] == ["will"]


async def test_after_a_kill_a_will_waits_no_longer_than_its_session(clock: MockClock) -> None:
    files, config = MemoryFiles(), BrokerConfig(will_grace_ms=5000)
    async with open_broker(files, config) as broker:
        world = World(broker)
        await opened(world, "short", block(session_expiry=10), flags=RESUME | WILL, rest=will(delay_s=10_000))
        await opened(world, "none", flags=RESUME | WILL, rest=will(delay_s=10_000))
        left = files.crash()
    async with open_broker(left, config) as broker:
        world = World(broker)
        watcher = await watch(world)
        await later(clock, 4)
        assert watcher.take() == b""
        await later(clock, 2)
        assert len(await told(watcher)) == 1
        await later(clock, 6)
        assert len(await told(watcher)) == 1


async def test_a_will_is_its_clients_own_to_who_wants_none_of_these(world: World) -> None:
    watcher, _ = await opened(world, "watcher")
    client, _ = await opened(world, "s", block(session_expiry=100), flags=RESUME | WILL | 8, rest=will())
    for one in (watcher, client):
        await one.send(subscribe_5(1, ("will", 5), ("other", 1)))
        await told(one)
    client.lose()
    assert [delivery(one)[1] for one in await told(watcher)] == ["will"]
    await watcher.send(publish_5("other", b"x", qos=1))
    await told(watcher, 2)
    client = world.open()
    await client.send(connect_5("s", block(session_expiry=100), flags=RESUME))
    _, *messages = await told(client, 2)
    assert [delivery(one)[1] for one in messages] == ["other"]


async def test_mqtt_3_1_3_10_properties_of_a_will_arrive_in_order(world: World) -> None:
    watcher = await watch(world)
    mine = {"payload_format": 1, "content_type": "t", "response_topic": "r/x", "correlation_data": b"c"}
    users = ("k", "1"), ("j", "2"), ("k", "3")
    rest = will(*users, **mine, message_expiry=60)  # type: ignore[arg-type]
    client, _ = await opened(world, "mortal", flags=2 | WILL | 8, rest=rest)
    client.lose()
    ((flags, topic, properties, payload),) = map(delivery, await told(watcher))
    assert (flags, topic, payload) == (2, "will", b"gone")
    assert block(*users) in properties
    for name, value in {**mine, "message_expiry": 60}.items():
        assert block(**{name: value}) in properties
    assert len(properties) == len(block(*users, **mine, message_expiry=60))


async def test_a_will_topic_beyond_the_limits_is_refused(world: World) -> None:
    client = world.open(config=MqttConfig(topic_bytes_max=3))
    await client.send(connect_5(flags=2 | WILL, rest=will()))
    assert [(kind, body[:2]) for kind, body in packets(client.take())] == [(CONNACK, b"\0\x90")]
    assert client.closed


async def test_mqtt_3_2_2_7_nothing_follows_a_connack_that_refuses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise StorageUnavailable("the disk is full")

    monkeypatch.setattr(world.broker.wills, "keep", refused)
    client = world.open()
    await client.send(connect_5("s", flags=WILL, rest=will()))
    ((first, body),) = packets(client.take())
    assert (first, body[1]) == (CONNACK, ReasonCode.SERVER_UNAVAILABLE)
    assert client.closed
