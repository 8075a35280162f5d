"""`$delayed/SECONDS/TOPIC`, as EMQX has it, and what else begins with `$`."""

from __future__ import annotations

import logging
import time

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.memory_files import MemoryFiles
from protocols.mqtt.adapter_dollar import SECONDS_MAX, to_later
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.reasons import ReasonCode
from protocols.mqtt.topics import TopicRewrite
from routing.administration import administer
from routing.broker import Broker, open_broker
from routing.facts import delay_ms_of
from routing.message import Properties, Slab
from tests.protocols.mqtt.conftest import Client, World, later
from tests.protocols.mqtt.wire import acknowledge, connect, deliveries, packets, puback, publish, subscribe, text
from tests.protocols.mqtt.wire_5 import connect_5, sized

PUBREC = 0x50
NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> MockClock:
    return MockClock()


async def arrived(clock: MockClock, client: Client, data: bytes) -> None:
    """What a client is sent sooner or later."""
    got = b""
    for _ in range(1000):
        got += client.take()
        if got:
            break
        clock.jump(0.001)
        await wait_all_tasks_blocked(0.001)
    assert got == data


async def sent(client: Client, *data: bytes, count: int) -> None:
    """Publish at QoS 1, packet ids from 1 on, and wait for the PUBACKs."""
    await client.send(*data)
    await client.expect(puback(*range(1, count + 1)))


async def waiting(broker: Broker) -> int:
    table = await administer(broker, "guest", "delayed.count", {})
    return sum(row[2] for row in table["rows"])


async def test_a_message_comes_when_it_is_due_and_to_those_who_are_there_then(world: World, clock: MockClock) -> None:
    publisher = await world.client("p")
    await sent(
        publisher,
        publish("$delayed/5/a/b", b"five", qos=1, packet_id=1),
        publish("a/b", b"now", qos=1, packet_id=2),
        publish("$delayed/0/a/b", b"at once", qos=1, packet_id=3),
        count=3,
    )
    await publisher.send(publish("$delayed/2/x", b"two"))
    assert await waiting(world.broker) == 2
    await later(clock, 0.1)
    watcher = await world.client("w")
    await watcher.send(subscribe(1, ("#", 1)))
    watcher.take()
    await later(clock, 1.8)
    assert watcher.take() == b""
    await later(clock, 0.2)
    await arrived(clock, watcher, publish("x", b"two"))
    await later(clock, 3)
    await arrived(clock, watcher, publish("a/b", b"five", qos=1, packet_id=1))
    await later(clock, 0.1)
    assert await waiting(world.broker) == 0


@pytest.mark.parametrize("gone", ["exchange", "binding", "queue"])
async def test_what_is_needed_is_made_anew_when_somebody_has_deleted_it(world: World, gone: str) -> None:
    publisher, broker = await world.client("p"), world.broker
    await sent(publisher, publish("$delayed/5/a", b"1", qos=1, packet_id=1), count=1)
    if gone == "exchange":
        await broker.delete_exchange("millrace.later")
    elif gone == "binding":
        await broker.unbind("queue", "millrace.later", "millrace.later", "")
    else:
        await broker.delete_queue("millrace.later")
    before = await waiting(broker)
    await sent(publisher, publish("$delayed/5/a", b"2", qos=1, packet_id=1), count=1)
    assert await waiting(broker) == before + 1


async def test_one_that_is_to_be_retained_is_then(world: World, clock: MockClock) -> None:
    publisher = await world.client("p")
    await sent(publisher, publish("$delayed/5/a", b"x", qos=1, packet_id=1, retain=True), count=1)
    assert world.broker.retained.count == 0
    await later(clock, 5.1)
    watcher = await world.client("w")
    await later(clock, 0.1)
    assert world.broker.retained.count == 1
    await watcher.send(subscribe(1, ("#", 1)))
    assert [first for first, _ in packets(watcher.take())] == [0x90, 0x33]


async def test_a_time_is_one_of_the_wall_clock_as_it_is_now(clock: MockClock) -> None:
    began_s, set_to_s = 600, [600]
    async with open_broker(MemoryFiles(), wall_clock_ms=lambda: set_to_s[0] * 1000) as broker:
        publisher = await World(broker).client("p")
        set_to_s[0] = NOW_MS // 1000
        await sent(publisher, publish(f"$delayed/{NOW_MS // 1000 + 60}/a", b"x", qos=1, packet_id=1), count=1)
        listed = await administer(broker, "guest", "delayed.list", {"queue": "millrace.later"})
        assert [row[1] for row in listed["rows"]] == [pytest.approx((began_s + 60) * 1000, abs=500)]


async def test_mqtt_4_3_3_10_what_is_repeated_after_a_kill_waits_once() -> None:
    files, messages = MemoryFiles(), [(f"$delayed/{n}00/t", b"%d" % n) for n in (1, 2, 3)]
    messages.insert(1, ("$delayed/never/t", b""))
    sent = [publish(topic, body, qos=2, packet_id=n, dup=True) for n, (topic, body) in enumerate(messages, 1)]
    answers = acknowledge(PUBREC, *range(1, len(sent) + 1))
    for _ in range(2):
        async with open_broker(files) as broker:
            client = World(broker).open()
            await client.send(connect("p", clean=False))
            client.take()
            await client.send(*sent)
            await client.expect(answers)
            listed = await administer(broker, "guest", "delayed.list", {"queue": "millrace.later"})
            assert len(listed["rows"]) == 3
            files = files.crash()


async def test_it_waits_through_a_kill_and_can_be_cancelled(clock: MockClock) -> None:
    files = MemoryFiles()
    wall_clock_ms = lambda: NOW_MS + int(trio.current_time() * 1000)  # noqa: E731
    async with open_broker(files, wall_clock_ms=wall_clock_ms) as broker:
        publisher = await World(broker).client("p")
        await sent(
            publisher,
            *(publish(f"$delayed/{n}0/t/{n}", b"x", qos=1, packet_id=n, retain=n == 2) for n in (1, 2, 3)),
            count=3,
        )
        left = files.crash()
    async with open_broker(left, wall_clock_ms=wall_clock_ms) as broker:
        world = World(broker)
        watcher = await world.client("w")
        await watcher.subscribe(("#", 0))
        listed = await administer(broker, "guest", "delayed.list", {"queue": "millrace.later"})
        assert [row[1] - NOW_MS for row in listed["rows"]] == [pytest.approx(n * 10_000, abs=500) for n in (1, 2, 3)]
        await administer(broker, "guest", "delayed.cancel", {"queue": "millrace.later", "id": listed["rows"][0][0]})
        got: list[bytes] = []
        for _ in range(4):
            await later(clock, 10)
            got += [payload for *_, payload in deliveries(watcher.take())]
        for _ in range(100):  # threads may take a while
            if len(got) >= 2:
                break
            await later(clock, 0.1)
            got += [payload for *_, payload in deliveries(watcher.take())]
        await later(clock, 1)
        got += [payload for *_, payload in deliveries(watcher.take())]
        assert len(got) == 2
        assert broker.retained.matching("/", "#", "mqtt") == ["t.2"]


@pytest.mark.parametrize(
    ("key", "delay_ms", "left"),
    [
        ("$delayed.1.a", 1000, "a"),
        ("$delayed.0.a.b", 0, "a.b"),
        (f"$delayed.{SECONDS_MAX}.a", SECONDS_MAX * 1000, "a"),
        (f"$delayed.{NOW_MS // 1000 + 60}.a", 60_000, "a"),
        ("$delayed.1600000000.a", 0, "a"),
        ("$delayed.1.$SYSTEM", 1000, "$SYSTEM"),
    ],
)
def test_when_and_where(key: str, delay_ms: int, left: str) -> None:
    slab = Slab("amq.topic", key, Properties("mqtt", b"\1", persistent=True), [b"x"])
    found, refused = to_later(slab, NOW_MS)
    assert found is not None
    assert refused is None
    assert found.facts is not None
    assert (found.key_of(0), delay_ms_of(found.facts[0])) == (left, delay_ms)


BAD = ["$delayed/", "$delayed/5", "$delayed/5/", "$delayed/x/a", "$delayed/-1/a", "$delayed/1.5/a", "$delayed/²/a",
       f"$delayed/{NOW_MS // 1000 + SECONDS_MAX + 9}/a", "$delayed/9999999999999/a", "$delayed//a", "$delayed/1/$SYS/a",
       "$delayed/1/$delayed/1/a"]  # fmt: skip


async def test_what_says_neither_is_dropped_and_acknowledged(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = await world.client("p")
    bad = [topic for topic in BAD if str(NOW_MS // 1000 + SECONDS_MAX + 9) not in topic]
    bad.append(f"$delayed/{int(time.time()) + 2 * SECONDS_MAX}/a")
    with caplog.at_level(logging.WARNING):
        await sent(
            publisher,
            *(publish(topic, b"x", qos=1, packet_id=n) for n, topic in enumerate([*bad, "$delayed/9/a"], 1)),
            count=len(bad) + 1,
        )
    assert "does not say when and where" in caplog.text or "from now" in caplog.text
    assert await waiting(world.broker) == 1


@pytest.mark.parametrize("topic", ["$SYS", "$SYS/broker/uptime", "$SYS/"])
async def test_sys_is_the_brokers_own(world: World, topic: str) -> None:
    watcher = await world.client("w")
    await watcher.subscribe(("$SYS/#", 0), ("#", 0))
    publisher = await world.client("p")
    await sent(publisher, publish(topic, b"x", qos=1), publish("a", b"y", qos=1, packet_id=2), count=2)
    assert watcher.take() == publish("a", b"y")


@pytest.mark.parametrize(
    ("topic", "reason"), [("$SYS/a", ReasonCode.NOT_AUTHORIZED), ("$delayed/1/a", ReasonCode.TOPIC_NAME_INVALID)]
)
async def test_a_will_that_cannot_be_published_is_told_when_the_client_connects(
    world: World, topic: str, reason: ReasonCode
) -> None:
    config = MqttConfig(topic_rewrites=(TopicRewrite("mine", topic),))
    for named in (topic, "mine"):
        old, new = world.open(config=config), world.open(config=config)
        await old.send(connect("old", will=(named, b"x", 1, True)))
        assert old.closed
        assert old.take() == (b"\x20\2\0\5" if reason == ReasonCode.NOT_AUTHORIZED else b"")
        await new.send(connect_5("new", flags=2 | 4, rest=sized(b"") + text(named) + text(b"x")))
        assert new.closed
        ((first, body),) = packets(new.take())
        assert (first, body[1]) == (0x20, reason)
    assert not world.broker.clients


async def test_a_bridge_tells_whether_it_is_connected(world: World) -> None:
    """Below `$SYS`, as Mosquitto has it: "1", and "0" as its will."""
    topic = "$SYS/broker/connection/there.bridge/state"
    watcher = await world.client("w")
    await watcher.subscribe(("$SYS/broker/connection/+/state", 1), ("#", 0))
    bridge = world.open()
    await bridge.send(connect("bridge", will=(topic, b"0", 1, True)))
    await bridge.expect(b"\x20\2\0\0")
    await sent(bridge, publish(topic, b"1", qos=1, packet_id=1, retain=True), count=1)
    bridge.lose()
    await watcher.expect(publish(topic, b"1", qos=1, packet_id=1) + publish(topic, b"0", qos=1, packet_id=2))
    assert world.broker.retained.matching("/", "$SYS.#", "mqtt") == ["$SYS.broker.connection.there/bridge.state"]
    await sent(await world.client("b"), publish("$SYS/broker/connection/a/b/state", b"", qos=1), count=1)
    assert watcher.take() == b""


async def test_other_topics_with_a_dollar_are_topics(world: World) -> None:
    watcher = await world.client("w")
    await watcher.subscribe(("$own/#", 0), ("$SYSTEM/+", 0))
    await (await world.client("p")).send(publish("$own/a", b"1"), publish("$SYSTEM/a", b"2"), publish("$delayedx", b""))
    assert [payload for *_, payload in watcher.take_deliveries()] == [b"1", b"2"]
