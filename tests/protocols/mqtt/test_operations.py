"""MQTT clients as operators see them: sessions, kicks, what is retained."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing

from protocols.mqtt.raw import mark_of
from routing.access.grants import Permission
from routing.administration import administer
from routing.errors import AccessRefused, InvalidArgument, NotFound
from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.test_clauses_5 import delivery, opened, told
from tests.protocols.mqtt.test_sessions_5 import WILL, ended_with, is_present, watch, will
from tests.protocols.mqtt.wire import connect, publish
from tests.protocols.mqtt.wire_5 import block, connect_5, publish_5, subscribe_5

ADMINISTRATIVE_ACTION = 0x98


async def ask(world: World, operation: str, **arguments: Any) -> Any:
    return await administer(world.broker, "guest", operation, arguments)


async def sessions(world: World) -> dict[str, dict[str, Any]]:
    """Those that are listed, by client."""
    found = await ask(world, "sessions.list")
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return {row["client_id"]: row for row in rows}


async def test_sessions_are_listed_connected_or_not(world: World) -> None:
    lasting = await world.client("lasting", clean=False)
    await lasting.subscribe(("a/+", 1), ("b.c", 0))
    passing = await world.client("passing")
    await passing.subscribe(("x", 1))
    await world.client("silent")
    found = await sessions(world)
    assert set(found) == {"lasting", "passing", "silent"}
    assert (await ask(world, "sessions.list", start=10**30))["rows"] == []
    one = found["lasting"]
    assert (one["user"], one["vhost"], one["peer"], one["connected"]) == ("guest", "/", "127.0.0.1:5000", True)
    assert (one["protocol"], one["version"], one["expiry_s"], one["subscriptions"]) == ("mqtt", "3.1.1", None, 2)
    assert one["connected_at_ms"] > 0
    assert [found[name]["expiry_s"] for name in ("passing", "silent")] == [0, 0]
    assert [found[name]["subscriptions"] for name in ("passing", "silent")] == [1, 0]
    lasting.lose()
    passing.lose()
    publisher = await world.client("publisher")
    await publisher.send(publish("a/1", b"1", qos=1), publish("a/2", b"2", qos=1, packet_id=2))
    found = await sessions(world)
    assert set(found) == {"lasting", "silent", "publisher"}
    one = found["lasting"]
    assert (one["user"], one["peer"], one["connected"], one["connected_at_ms"]) == ("", "", False, None)
    assert (one["waiting"], one["unacknowledged"]) == (2, 0)
    described = await ask(world, "sessions.describe", client_id="lasting")
    assert {**described, "subscriptions": 2} == one
    assert [(item["filter"], item["qos"]) for item in described["subscriptions"]] == [("a/+", 1), ("b.c", 0)]
    back = world.open()
    await back.send(connect("lasting", clean=False))
    assert (await sessions(world))["lasting"]["unacknowledged"] == 2


async def test_what_clients_are_subscribed_to_is_shown_as_they_said_it(world: World) -> None:
    client = world.open()
    await client.send(connect_5("c", block(session_expiry=60), flags=0))
    requests = [("a/#", 2 | 4 | 8), ("$share/g/s/+", 1), ("$exclusive/e", 0)]
    await client.send(subscribe_5(1, *requests, properties=block(subscription_id=7)))
    expected = [
        {"filter": "a/#", "qos": 2, "no_local": True, "retain_as_published": True, "subscription_id": 7},
        {"filter": "e", "qos": 0, "no_local": False, "retain_as_published": False, "subscription_id": 7},
        {"filter": "$share/g/s/+", "qos": 1, "no_local": False, "retain_as_published": False, "subscription_id": 7},
    ]

    async def described() -> dict[str, Any]:
        found: dict[str, Any] = await ask(world, "sessions.describe", client_id="c")
        return found

    here = await described()
    assert sorted(here["subscriptions"], key=str) == sorted(expected, key=str)
    assert (here["version"], here["expiry_s"]) == ("5.0", 60)
    client.lose()
    gone = await described()
    assert sorted(gone["subscriptions"], key=str) == sorted(expected, key=str)
    assert (gone["version"], gone["connected"], gone["subscriptions"] != []) == ("", False, True)
    with pytest.raises(NotFound, match="no session of client 'nobody'"):
        await ask(world, "sessions.describe", client_id="nobody")


async def test_a_session_is_deleted_with_its_connection(world: World) -> None:
    client, _ = await is_present(world, 60, "c")
    await client.send(subscribe_5(1, ("a", 1)))
    publisher = await world.client("publisher")
    client.lose()
    await publisher.send(publish("a", b"1", qos=1))
    assert await ask(world, "sessions.delete", client_id="c") == 1
    assert set(await sessions(world)) == {"publisher"}
    client, there = await is_present(world, 60, "c")
    assert not there
    await ask(world, "sessions.delete", client_id="c")
    world.broker.end_turn()
    assert ended_with(client) == ADMINISTRATIVE_ACTION
    client.lose()
    assert not (await is_present(world, 0, "c"))[1]
    await ask(world, "sessions.delete", client_id="publisher")  # its connection is all there is of it
    assert publisher.closed
    with pytest.raises(NotFound, match="no session of client 'nobody'"):
        await ask(world, "sessions.delete", client_id="nobody")


@pytest.mark.parametrize("is_connected", [True, False])
async def test_a_will_does_not_wait_for_a_session_that_was_deleted(world: World, is_connected: bool) -> None:
    watcher = await watch(world)
    client, _ = await opened(world, "c", block(session_expiry=60), flags=WILL, rest=will(delay_s=50))
    if not is_connected:
        client.lose()
    await ask(world, "sessions.delete", client_id="c")
    if is_connected:
        world.broker.end_turn()
        client.lose()
    assert delivery((await told(watcher))[0])[1:] == ("will", b"", b"gone")


async def test_a_client_is_kicked_by_its_name(world: World) -> None:
    client, other = (await is_present(world, 60, "c"))[0], await world.client("other")
    assert await ask(world, "connections.close", client_id="c", reason="enough") == 1
    assert ended_with(client) == ADMINISTRATIVE_ACTION
    client.lose()
    assert not other.closed
    assert (await sessions(world))["c"]["connected"] is False
    assert (await is_present(world, 60, "c"))[1]
    with pytest.raises(NotFound, match="no connection of nobody"):
        await ask(world, "connections.close", client_id="nobody")
    with pytest.raises(InvalidArgument, match="which connections"):
        await ask(world, "connections.close", vhost="/")


async def test_what_is_retained_is_shown(world: World) -> None:
    publisher = await world.client("publisher", level=4)
    await publisher.send(publish("a/b", "grün".encode(), qos=1, retain=True), publish("bin", b"\xff\0", retain=True))
    assert await ask(world, "retained.get", key="a.b") == {
        "key": "a.b", "ends_at_ms": 0, "bytes": 5, "protocol": "mqtt", "persistent": True, "properties": {},
        "headers": {"x-mqtt-publisher": mark_of("publisher").hex()}, "body": {"text": "grün"},
    }  # fmt: skip
    cut = await ask(world, "retained.get", key="a.b", bytes_max=3)
    assert cut["body"] == {"text": "gr", "bytes": 5}
    assert (await ask(world, "retained.get", key="bin"))["body"] == {"base64": "/wA="}
    client = world.open()
    block_5 = block(("name", "value"), content_type="text/plain", correlation_data=b"\xff", message_expiry=60)
    await client.send(connect_5("c"), publish_5("p", b"x", block_5, retain=True))
    shown = await ask(world, "retained.get", key="p")
    assert shown["properties"] == {"content_type": "text/plain", "correlation_id": {"base64": "/w=="}}
    assert shown["headers"]["name"] == "value"
    assert shown["ends_at_ms"] > 0
    with pytest.raises(NotFound, match="nothing is retained of 'a'"):
        await ask(world, "retained.get", key="a")
    with pytest.raises(InvalidArgument, match="without wildcards"):
        await ask(world, "retained.get", key="a.#")
    await world.broker.rights.add_user("reader", b"secret")
    await world.broker.rights.set_permission("/", "reader", Permission("", "", "^queue$"))
    with pytest.raises(AccessRefused):
        await administer(world.broker, "reader", "retained.get", {"key": "a.b"})


async def test_an_operator_publishes_as_a_client_does(world: World) -> None:
    client, _ = await opened(world, "c")
    await client.send(subscribe_5(1, ("a/+", 1)))
    await told(client)
    said = {"content_type": "text/plain", "expiration_ms": 60_000}
    given: dict[str, Any] = {"mqtt_topic": "a/b.c", "body": "1", "properties": said, "headers": {"name": "value"}}
    assert await ask(world, "messages.publish", **given, retain=True) == {"routed": True}
    flags, topic, properties, payload = delivery((await told(client))[0])
    assert (flags & ~8, topic, payload) == (2, "a/b.c", b"1")
    expected = block(("name", "value"), content_type="text/plain")
    assert sorted(properties) == sorted(block(message_expiry=60) + expected)
    late, _ = await opened(world, "late")
    await late.send(subscribe_5(1, ("a/+", 1)))
    flags, topic, _, payload = delivery((await told(late, 2))[1])
    assert (flags & 1, topic, payload) == (1, "a/b.c", b"1")
    assert (await ask(world, "retained.get", key="a.b/c"))["body"] == {"text": "1"}
    assert await ask(world, "messages.publish", mqtt_topic="a/b.c", retain=True) == {"routed": True}
    with pytest.raises(NotFound):
        await ask(world, "retained.get", key="a.b/c")
    assert await ask(world, "messages.publish", mqtt_topic="nobody", properties={"persistent": False}) == {
        "routed": False
    }
    for topic in ("", "a/+", "$SYS/x"):
        with pytest.raises(InvalidArgument):
            await ask(world, "messages.publish", mqtt_topic=topic)
    with pytest.raises(InvalidArgument, match="a topic, or an exchange"):
        await ask(world, "messages.publish", mqtt_topic="a", exchange="amq.topic")


@pytest.mark.parametrize("by_way_of", ["", "dead"])
async def test_what_is_moved_to_another_client_has_its_topic(world: World, by_way_of: str) -> None:
    """From the session of a device that is replaced, or from where its messages died."""
    broker = world.broker
    await broker.declare_queue("dead", durable=True)
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    if by_way_of:
        await broker.set_policy("dead", "^mqtt\\.old", definition | {"message-ttl": 0}, apply_to="queues")
    for name in ("old", "new"):
        client, _ = await opened(world, name, block(session_expiry=100), flags=0)
        await client.send(subscribe_5(1, (f"{name}/#", 1)))
        client.lose()
    publisher, _ = await opened(world, "p")
    topics = ["old/v1.2", "old/x", "old/x", "old"]
    await publisher.send(*(publish_5(topic, b"x", qos=1, packet_id=at) for at, topic in enumerate(topics, 1)))
    await trio.testing.wait_all_tasks_blocked()
    world.broker.end_turn()
    source = by_way_of or "mqtt.old"
    assert await ask(world, "queues.move", source=source, destination="mqtt.new") == {"moved": 4, "left": 0}
    client = world.open()
    await client.send(connect_5("new", block(session_expiry=100), flags=0))
    _, *messages = await told(client)
    assert [body[2 : 2 + body[1]].decode() for _, body in messages] == topics


async def test_dead_letters_that_are_moved_back_have_their_topics_again(world: World) -> None:
    broker = world.broker
    await broker.declare_queue("dead", durable=True)
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "max-length": 1}
    await broker.set_policy("dead", "^mqtt\\.", definition, apply_to="queues")
    client, _ = await opened(world, "s", block(session_expiry=100), flags=0)
    await client.send(subscribe_5(1, ("a/#", 1), ("b/#", 1)))
    client.lose()
    publisher, _ = await opened(world, "p")
    topics = ["a/v1.2", "a/x", "a/x", "b/y", "b/z"]
    await publisher.send(*(publish_5(topic, b"x", qos=1, packet_id=at) for at, topic in enumerate(topics, 1)))
    await trio.testing.wait_all_tasks_blocked()
    world.broker.end_turn()
    assert broker.topology.queues["dead"].message_count == 4
    await broker.set_policy("dead", "^mqtt\\.", {"max-length": 10}, apply_to="queues")
    await publisher.send(publish_5("c/d", b"x", qos=1, packet_id=9))
    assert await ask(world, "queues.move", source="dead", destination="mqtt.s") == {"moved": 4, "left": 0}
    client = world.open()
    await client.send(connect_5("s", block(session_expiry=100), flags=0))
    _, *messages = await told(client)
    assert [body[2 : 2 + body[1]].decode() for _, body in messages] == ["b/z", *topics[:4]]
