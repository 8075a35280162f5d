"""The `$SYS` tree, beside that of a real Mosquitto."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from benchmarks.peers import mosquitto, mosquitto_path
from protocols.mqtt.config import MqttConfig
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import DISCONNECT, PINGREQ, connect, packets, publish, subscribe, unsubscribe
from tests.protocols.mqtt.wire_5 import block, connect_5, publish_5, subscribe_5
from tests.support.descriptors import no_descriptors_left

CONFIG = MqttConfig(sys_interval_s=1)
RETAIN_NEVER = 0x20


@pytest.fixture
def clock() -> MockClock:
    return MockClock()


def told(client: Client) -> dict[str, tuple[str, int]]:
    """The values that a client was sent by topic, each with its RETAIN flag."""
    found = {}
    for first, body in packets(client.take()):
        if first & 0xF0 == 0x30:
            size = 2 + int.from_bytes(body[:2], "big")
            found[body[2:size].decode()] = (body[size:].decode(), first & 1)
    return found


async def test_newcomers_get_all_and_then_what_changes(world: World, clock: MockClock) -> None:
    first = await world.client("first", config=CONFIG)
    await first.send(subscribe(1, ("$SYS/#", 1)))
    values = told(first)
    assert {flag for _, flag in values.values()} == {1}
    assert re.fullmatch(r"millrace version \S+", values["$SYS/broker/version"][0])
    assert re.fullmatch(r"\d+ seconds", values["$SYS/broker/uptime"][0])
    second = await world.client("second", config=CONFIG)
    await second.send(publish("a", b"12345"), publish("a", b"6", retain=True), subscribe(1, ("$share/g/b", 1)))
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    values = told(first)
    assert {flag for _, flag in values.values()} == {0}
    assert values["$SYS/broker/clients/connected"][0] == "2"
    assert values["$SYS/broker/shared_subscriptions/count"][0] == "1"
    assert values["$SYS/broker/publish/messages/received"][0] == "2"
    assert values["$SYS/broker/publish/bytes/received"][0] == "6"
    assert values["$SYS/broker/retained messages/count"][0] == "1"
    assert re.fullmatch(r"\d+\.\d\d", values["$SYS/broker/load/publish/received/1min"][0])
    assert "$SYS/broker/version" not in values
    await first.send(unsubscribe(2, "$SYS/#"))
    first.take()
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    assert told(first) == {}


async def test_subscriptions_of_clients_that_are_away_are_counted(world: World, clock: MockClock) -> None:
    for number in range(3):
        device = await world.client(f"device-{number}", config=CONFIG, clean=False)
        await device.subscribe(("a/+", 1), ("$share/g/b", 1), ("c", 0))
        if number:
            device.lose()
    watcher = await world.client("watcher", config=CONFIG)
    await watcher.send(subscribe(1, ("$SYS/#", 0)))
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    values = told(watcher)
    counted = ("subscriptions", "shared_subscriptions")
    assert [values[f"$SYS/broker/{one}/count"][0] for one in counted] == ["7", "3"]
    assert values["$SYS/broker/clients/disconnected"][0] == "2"


async def test_as_many_packets_are_counted_as_were_sent(world: World, clock: MockClock) -> None:
    watcher = await world.client("watcher", config=CONFIG)
    await watcher.send(subscribe(1, ("$SYS/broker/messages/+", 0)))
    sent = 1 + len(list(packets(watcher.take())))  # CONNACK
    for last in (DISCONNECT, subscribe(0, ("a", 0))):  # one goes, the other is sent away
        client = world.open(config=CONFIG)
        await client.send(connect_5("c"), publish_5("a", b"1", qos=1), PINGREQ, subscribe_5(1, ("b", 1)))
        await wait_all_tasks_blocked(0.001)
        await client.send(last)
        sent += len(list(packets(client.take())))
        assert client.adapter.closed
        client.lose()
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    values = told(watcher)
    assert values["$SYS/broker/messages/sent"][0] == str(sent)


async def test_as_many_bytes_are_counted_as_were_sent(world: World, clock: MockClock) -> None:
    watcher = await world.client("watcher", config=CONFIG)
    reader = await world.client("reader", config=CONFIG)
    await reader.subscribe(("a", 0))
    gone = await world.client("gone", config=CONFIG)
    await gone.subscribe(("b", 0))
    await gone.send(publish("b", b"1" * 500), DISCONNECT)
    await watcher.send(publish("a", b"1" * 1000))
    await wait_all_tasks_blocked(0.001)
    clock.jump(1.1)
    sent = sum(client.outbox.written_bytes for client in (watcher, reader, gone))
    assert sent > 1500
    await wait_all_tasks_blocked(0.001)
    await watcher.send(subscribe(1, ("$SYS/broker/bytes/+", 0)))
    assert told(watcher)["$SYS/broker/bytes/sent"][0] == str(sent)


async def test_only_filters_that_begin_with_it_match(world: World, clock: MockClock) -> None:
    client = await world.client("c", config=CONFIG)
    await client.send(subscribe(1, ("#", 0), ("+/broker/version", 0), ("$SYS/broker/clients/+", 0)))
    assert {name.rpartition("/")[0] for name in told(client)} == {"$SYS/broker/clients"}
    await world.broker.declare_queue("q", durable=True)
    await world.broker.bind("queue", "q", "amq.topic", "#", {})
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    assert world.broker.topology.queues["q"].message_count == 0


async def test_what_is_too_large_for_a_client_is_counted(world: World, clock: MockClock) -> None:
    watcher = await world.client("watcher", config=CONFIG)
    await watcher.send(subscribe(1, ("$SYS/broker/publish/messages/dropped", 0)))
    watcher.take()
    small = world.open(config=CONFIG)
    await small.send(connect_5("small", block(packet_bytes_max=40)), subscribe_5(1, ("a", 1)))
    await watcher.send(publish("a", bytes(100), qos=1, packet_id=1), publish("a", bytes(100)), publish("a", b"small"))
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    assert told(watcher) == {"$SYS/broker/publish/messages/dropped": ("2", 0)}


async def test_what_a_session_has_no_room_for_is_counted_logged_and_kept_elsewhere_if_asked(
    world: World, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    config = MqttConfig(sys_interval_s=1, queued_messages_max=3)
    watcher = await world.client("watcher", config=config)
    await watcher.send(subscribe(1, ("$SYS/broker/publish/messages/dropped", 0)))
    assert told(watcher) == {"$SYS/broker/publish/messages/dropped": ("0", 1)}
    await world.broker.declare_exchange("dead", "fanout", durable=True)
    await world.broker.declare_queue("dead", durable=True)
    await world.broker.bind("queue", "dead", "dead", "")
    await world.broker.set_policy("away", r"^mqtt\.", {"dead-letter-exchange": "dead"}, apply_to="queues")
    device = await world.client("device", config=config, clean=False)
    await device.subscribe(("a", 1))
    device.lose()
    sender = await world.client("sender", config=config)
    await sender.send(*(publish("a", b"%d" % number, qos=1, packet_id=number) for number in range(1, 8)))
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    assert told(watcher) == {"$SYS/broker/publish/messages/dropped": ("4", 0)}
    assert "queue 'mqtt.device' in vhost '/' is full: 4 of its messages have given way (drop-head)" in caplog.text
    assert world.broker.topology.queues["dead"].message_count == 4
    again = world.open(config=MqttConfig())
    await again.send(connect("device", clean=False))
    assert [body[-1:] for first, body in packets(again.take()) if first & 0xF0 == 0x30] == [b"5", b"6", b"7"]
    assert "x-max-length" not in world.broker.topology.queues["mqtt.device"].arguments, "as it is configured now"


async def test_0_is_off(world: World) -> None:
    client = await world.client("c", config=MqttConfig(sys_interval_s=0))
    await client.send(subscribe(1, ("$SYS/#", 0)))
    assert told(client) == {}


@pytest.fixture(scope="module")
def theirs() -> set[str]:
    """The topics of Mosquitto's tree."""
    if mosquitto_path() is None or shutil.which("mosquitto_sub") is None:
        pytest.skip("Mosquitto is not installed")
    with mosquitto("sys_interval 1") as (port, _):
        command = ["mosquitto_sub", "-p", str(port), "-t", "$SYS/#", "-F", "%t", "-W", "3"]
        return set(subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines())


async def test_mosquitto_has_no_more_topics(world: World, clock: MockClock, theirs: set[str]) -> None:
    client = await world.client("c", config=CONFIG)
    await client.send(publish("a", b"x"), subscribe(1, ("$SYS/#", 0)))
    ours = set(told(client))
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    ours |= set(told(client))
    assert len(theirs) > 30
    assert theirs - ours == set()


async def test_values_go_on_when_there_are_no_descriptors_left(world: World, clock: MockClock) -> None:
    first = await world.client("first", config=CONFIG)
    await first.send(subscribe(1, ("$SYS/broker/#", 0)))
    assert int(told(first)["$SYS/broker/heap/current"][0]) > 1 << 20
    with no_descriptors_left():
        clock.jump(1.1)
        await wait_all_tasks_blocked(0.001)
    assert "$SYS/broker/load/connections/1min" in told(first)


async def test_who_wants_nothing_retained_is_told_what_changes(world: World, clock: MockClock) -> None:
    watcher = world.open(config=CONFIG)
    await watcher.send(connect_5("watcher"), subscribe_5(1, ("$SYS/#", RETAIN_NEVER)))
    assert told(watcher) == {}
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    assert "$SYS/broker/load/sockets/1min" in told(watcher)


async def test_who_comes_back_to_its_session_is_told_what_changes(world: World, clock: MockClock) -> None:
    watcher = await world.client("watcher", config=CONFIG, clean=False)
    await watcher.subscribe(("$SYS/#", 0))
    watcher.lose()
    again = world.open(config=CONFIG)
    await again.send(connect("watcher", clean=False))
    assert told(again) == {}
    clock.jump(1.1)
    await wait_all_tasks_blocked(0.001)
    assert "$SYS/broker/load/sockets/1min" in told(again)
