"""Topics that the operator has a say in: rewritten ones, subscriptions that nobody asked for; and exclusive ones."""

from __future__ import annotations

import msgspec
import pytest

from core_log.memory_files import MemoryFiles
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.topics import AutoSubscription, Rewriting, TopicRewrite
from routing.broker import open_broker
from routing.config import BrokerConfig
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.test_sessions import broker, join
from tests.protocols.mqtt.wire import connect, deliveries, packets, publish, subscribe, unsubscribe
from tests.routing.harness import killed

RULES = (
    TopicRewrite("old/(.+)/(.+)", "new/$2/$1", "publish"),
    TopicRewrite("old/.*", "second", "publish"),
    TopicRewrite("mine/(.+)", "of/%c/%u/$1"),
    TopicRewrite("bad", "a/#", "publish"),
    TopicRewrite("long", "x" * 300),
    TopicRewrite("old/#", "new/#", "subscribe"),
    TopicRewrite("(a+)+b", "never"),
)


@pytest.mark.parametrize(
    ("topic", "published", "subscribed"),
    [
        ("old/a/b", "new/b/a", "old/a/b"),
        ("old/a", "second", "old/a"),
        ("very/old/a/b", "very/old/a/b", "very/old/a/b"),
        ("mine/x", "of/c7/me/x", "of/c7/me/x"),
        ("mine/+/x", "mine/+/x", "of/c7/me/+/x"),
        ("bad", "bad", "bad"),
        ("long", "long", "long"),
        ("old/#", "second", "new/#"),
        ("a" * 250, "a" * 250, "a" * 250),
        ("$delayed/5/mine/x", "$delayed/5/of/c7/me/x", "$delayed/5/mine/x"),
        ("$share/g/mine/x", "$share/g/mine/x", "$share/g/of/c7/me/x"),
        ("$share/g/old/#", "$share/g/old/#", "$share/g/new/#"),
        ("$exclusive/mine/x", "$exclusive/mine/x", "$exclusive/of/c7/me/x"),
        ("$replay/-1h/mine/x", "$replay/-1h/mine/x", "$replay/-1h/of/c7/me/x"),
        ("$share/g/" + "mine/x" + "y" * 240, "$share/g/" + "mine/x" + "y" * 240, "$share/g/" + "mine/x" + "y" * 240),
        ("$share/g", "$share/g", "$share/g"),
        ("$delayed/5/", "$delayed/5/", "$delayed/5/"),
    ],
)
def test_rules(topic: str, published: str, subscribed: str) -> None:
    rewriting = Rewriting(RULES, "c7", "me", MqttConfig().over_limit)
    assert rewriting.name(topic) == published
    assert rewriting.filter(topic) == subscribed


@pytest.mark.parametrize("name", ["#", "+", "+/#", "a#"])
def test_a_name_with_a_wildcard_stands_for_nobody(name: str) -> None:
    rules = TopicRewrite("mine/(.+)", "of/%c/$1"), TopicRewrite("ours/(.+)", "of/%u/$1")
    assert Rewriting(rules, name, "me", MqttConfig().over_limit).filter("mine/x") == "mine/x"
    assert Rewriting(rules, name, "me", MqttConfig().over_limit).filter("ours/x") == "of/me/x"
    assert Rewriting(rules, "c", name, MqttConfig().over_limit).filter("ours/x") == "ours/x"


@pytest.mark.parametrize("topic", ["", "a/#/b", "a+"])
def test_a_subscription_of_everybody_that_cannot_be_is_told_at_the_start(topic: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="auto_subscriptions"):
        msgspec.convert({"auto_subscriptions": [{"topic": topic}]}, MqttConfig)


@pytest.mark.parametrize(("match", "to"), [("(", "x"), ("a/(.+)", "b/$2"), (r"(a)\1", "b")])
def test_rules_that_make_no_sense_are_told_at_the_start(match: str, to: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="topic_rewrites"):
        msgspec.convert({"topic_rewrites": [{"match": match, "to": to}]}, MqttConfig)


async def test_what_is_published_and_subscribed_to_is_rewritten(world: World) -> None:
    config = MqttConfig(topic_rewrites=(TopicRewrite("old/(.+)", "new/$1"),))
    reader, other = await world.client("reader", config=config), await world.client("other")
    assert await reader.subscribe(("old/+", 0)) == b"\0"
    assert await other.subscribe(("#", 0)) == b"\0"
    sender = await world.client("sender", config=config)
    await sender.send(publish("old/a", b"1"), publish("old/b", b"2"), publish("c", b"3"))
    assert reader.take_deliveries() == [("new/a", 0, None, b"1"), ("new/b", 0, None, b"2")]
    assert [topic for topic, *_ in other.take_deliveries()] == ["new/a", "new/b", "c"]
    await reader.send(unsubscribe(2, "old/+"))
    reader.take()
    await sender.send(publish("old/a", b"4"))
    assert reader.take() == b""
    assert await reader.subscribe(("$share/g/old/+", 0), ("$exclusive/old/b/#", 0)) == b"\0\0"
    await sender.send(publish("old/a", b"5"), publish("old/b/c", b"6"))
    assert {topic for topic, *_ in reader.take_deliveries()} == {"new/a", "new/b/c"}
    await reader.send(unsubscribe(3, "$share/g/old/+", "$exclusive/old/b/#"))
    reader.take()
    await sender.send(publish("old/a", b"7"), publish("old/b/c", b"8"))
    assert reader.take() == b""


async def test_a_will_is_rewritten(world: World) -> None:
    config = MqttConfig(topic_rewrites=(TopicRewrite("gone", "gone/%c"),))
    watcher = await world.client("watcher")
    await watcher.subscribe(("gone/#", 0))
    device = world.open(config=config)
    await device.send(connect("d7", will=("gone", b"!", 0, False)))
    device.lose()
    while not (found := watcher.take_deliveries()):
        await world.next_turn()
    assert found == [("gone/d7", 0, None, b"!")]


async def test_clients_have_subscriptions_that_they_did_not_ask_for(world: World) -> None:
    config = MqttConfig(
        auto_subscriptions=(AutoSubscription("inbox/%c", qos=1), AutoSubscription("news", retain_handling=2))
    )
    sender = await world.client("sender")
    await sender.send(publish("inbox/c1", b"kept", retain=True), publish("news", b"kept", retain=True))
    client = world.open(config=config)
    await client.send(connect("c1"))
    told = list(packets(client.take()))
    assert [first & 0xF0 for first, _ in told] == [0x20, 0x30], "CONNACK, what is retained, and no SUBACK"
    assert told[1][1].endswith(b"kept")
    await sender.send(publish("inbox/c1", b"1", qos=1, packet_id=1), publish("inbox/c2", b"2"), publish("news", b"3"))
    assert [(topic, body) for topic, _, _, body in client.take_deliveries()] == [("inbox/c1", b"1"), ("news", b"3")]


async def test_who_is_called_by_a_wildcard_is_subscribed_to_nobodys(world: World) -> None:
    config = MqttConfig(auto_subscriptions=(AutoSubscription("inbox/%c", qos=1), AutoSubscription("news")))
    sender = await world.client("sender")
    for name in ("#", "+", "+/#", "a#"):
        client = await world.client(name, config=config)
        await sender.send(publish("inbox/c1", b"1"), publish("inbox/c1/x", b"2"), publish("news", b"3"))
        assert [topic for topic, _, _, _ in client.take_deliveries()] == ["news"]


# --- exclusive subscriptions ---------------------------------------------------------------


async def test_one_client_at_a_time_has_it(world: World) -> None:
    first, second = await world.client("first"), await world.client("second")
    assert await first.subscribe(("$exclusive/a/+", 1)) == b"\1"
    assert await second.subscribe(("$exclusive/a/+", 1), ("a/+", 0), ("$exclusive/b", 0)) == b"\x80\0\0"
    assert await first.subscribe(("$exclusive/b", 0), ("$exclusive/a/+", 0)) == b"\x80\0", "again is no second"
    sender = await world.client("sender")
    await sender.send(publish("a/1", b"x"))
    assert first.take_deliveries() == second.take_deliveries() == [("a/1", 0, None, b"x")]
    await first.send(unsubscribe(2, "$exclusive/a/+"))
    await sender.send(publish("a/1", b"y"))
    assert deliveries(first.take()[4:]) == []
    assert second.take_deliveries() == [("a/1", 0, None, b"y")], "of its other subscription"
    assert await second.subscribe(("$exclusive/a/+", 1)) == b"\1"
    second.lose()
    assert await first.subscribe(("$exclusive/a/+", 1), ("$exclusive/b", 1)) == b"\1\1", "it went with the connection"


@pytest.mark.parametrize("name", ["$exclusive/", "$exclusive/$share/g/a", "$exclusive/$SYS/#"])
async def test_what_cannot_be_exclusive(world: World, name: str) -> None:
    assert await (await world.client("c")).subscribe((name, 1)) == b"\x80"


async def test_what_cannot_be_bound_is_not_claimed_either() -> None:
    async with open_broker(MemoryFiles(), BrokerConfig(bindings_max=3), users={"guest": "guest"}) as engine:
        world = World(engine)
        first, second = await world.client("first"), await world.client("second")
        assert await first.subscribe(("$exclusive/a", 1)) == b"\1"
        assert await first.subscribe(("$exclusive/b", 1), ("$exclusive/a", 1)) == b"\x80\1", "room for one binding more"
        assert await second.subscribe(("$exclusive/a", 1)) == b"\x80"
        await first.send(unsubscribe(2, "$exclusive/a"))
        first.take()
        assert await second.subscribe(("$exclusive/b", 1)) == b"\1"


async def test_a_session_that_lasts_keeps_it_over_a_crash() -> None:
    files = MemoryFiles()
    async with broker(files) as world:
        owner = await join(world, "owner")
        owner.take()
        assert await owner.subscribe(("$exclusive/a", 1)) == b"\1"
        owner.lose()
        assert await refused(world)
        left = killed(files)
    async with broker(left) as world:
        assert await refused(world)
        owner = await join(world, "owner")
        await owner.send(unsubscribe(1, "$exclusive/a"))
        assert not await refused(world)


async def refused(world: World) -> bool:
    client: Client = await world.client("other")
    await client.send(subscribe(1, ("$exclusive/a", 1)))
    code = next(iter(packets(client.take())))[1][2]
    await client.send(unsubscribe(2, "$exclusive/a"))
    client.lose()
    return code == 0x80
