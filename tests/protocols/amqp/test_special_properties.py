"""Messages that ask the broker for something: copies by CC and BCC, and direct replies."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.amqp import methods
from protocols.amqp.adapter_properties import REPLY_TO, SpecialProperties, facts_of, intern
from protocols.amqp.errors import AmqpError
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties
from protocols.amqp.property_edits import with_reply_to
from routing.access.grants import TopicPermission
from routing.queues.settings import type_name
from tests.protocols.amqp.conftest import Client, World
from tests.protocols.amqp.wire import call, publish


def raw_of(**properties: Any) -> bytes:
    return encode_properties(BasicProperties(**properties))


# --- CC and BCC ----------------------------------------------------------------------------


async def test_copies_reach_every_queue_once_and_are_confirmed_once(world: World) -> None:
    client = await world.client()
    await client.calls(methods.ConfirmSelect(), *(methods.QueueDeclare(queue=name) for name in "abcd"))
    await client.calls(methods.QueueBind(queue="d", exchange="amq.topic", routing_key="#"))
    raw = raw_of(headers={"CC": ["a", "b", "a", "nowhere", 5], "BCC": ["c"], "other": 1}, delivery_mode=2)
    await client.send(publish("a", b"one", raw=raw) + publish("b", b"two", raw=raw) + publish("nowhere", b"3", raw=raw))
    await client.expect(methods.BasicAck(3, True))
    await client.send(publish("k", b"four", raw=raw, exchange="amq.topic"))
    await client.expect(methods.BasicAck(4))
    for queue, bodies in {"a": [b"one", b"two", b"3"], "b": [b"one", b"two", b"3"], "c": [b"one", b"two", b"3"],
                          "d": [b"four"]}.items():  # fmt: skip
        await client.send(call(1, *[methods.BasicGet(queue=queue, no_ack=True)] * (len(bodies) + 1)))
        answers = client.take()
        assert [body for _, _, _, body in answers] == [*bodies, b""]
        for _, _, properties, _ in answers[:-1]:
            headers = decode_properties(properties).headers
            assert headers == {"CC": ["a", "b", "a", "nowhere", 5], "other": 1}
        keys = [method.routing_key for _, method, _, _ in answers[:-1]]
        assert keys == (["k"] if queue == "d" else ["a", "b", "nowhere"])


async def test_copies_that_go_nowhere_are_returned(world: World) -> None:
    client = await world.client()
    raw = raw_of(headers={"CC": ["nowhere"]})
    await client.send(publish("nobody", b"x", raw=raw, mandatory=True))
    ((_, method, properties, body),) = client.take()
    assert (method.reply_code, method.routing_key, properties, body) == (312, "nobody", raw, b"x")
    await client.calls(methods.QueueDeclare(queue="nowhere"))
    await client.send(publish("nobody", b"x", raw=raw, mandatory=True))
    assert client.take() == []


@pytest.mark.parametrize("header", ["CC", "BCC"])
async def test_keys_of_copies_need_the_right_that_others_need(world: World, header: str) -> None:
    await world.broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission("^mine[.]", ""))
    client, open_to_all = await world.client(), await world.client()
    await open_to_all.calls(methods.QueueDeclare(queue="q"))
    await world.broker.bind("queue", "q", "amq.topic", "#")
    await client.send(publish("mine.1", b"x", raw=raw_of(headers={header: ["mine.2"]}), exchange="amq.topic"))
    assert client.take() == []
    raw = raw_of(headers={header: ["mine.2", "theirs"]})
    await client.send(publish("mine.1", b"x", raw=raw, exchange="amq.topic"))
    text = "ACCESS_REFUSED - access to topic 'theirs' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    assert client.methods() == [methods.ChannelClose(403, text, 60, 40)]
    assert world.broker.topology.vhost("/").queues["q"].message_count == 1


async def test_without_bcc_the_other_bytes_stay(world: World) -> None:
    # Types that an encoder of ours would not choose.
    items = b"\1ab\5" + b"\3BCCA\0\0\0\6S\0\0\0\1q" + b"\1bs\0\7"
    raw = b"\xa0\0" + b"\4text" + len(items).to_bytes(4, "big") + items
    found = intern(raw, "guest")
    assert isinstance(found, SpecialProperties)
    assert found.properties.raw == b"\xa0\0" + b"\4text" + b"\0\0\0\x09" + b"\1ab\5" + b"\1bs\0\7"
    assert (found.copies, found.wants_reply_address, facts_of(raw, "guest")) == (("q",), False, None)


async def test_the_names_of_others_are_for_impersonators_as_long_as_they_are(world: World) -> None:
    client, raw = await world.client(), raw_of(user_id="ada")
    for tags, refused in ((["impersonator"], False), ([], True), (["impersonator"], False)):
        await world.broker.rights.set_tags("guest", tags)
        await client.send(publish("nobody", b"x", raw=raw))
        answers = client.methods()
        assert [type(one) for one in answers] == [methods.ChannelClose] * refused
        if refused:
            assert answers[0].reply_code == 406
            await client.calls(methods.ChannelCloseOk(), methods.ChannelOpen())


@pytest.mark.parametrize("value", ["q", 5, None, {"a": 1}, True])
def test_copies_are_lists(value: Any) -> None:
    found = intern(raw_of(headers={"BCC": value}), "guest")
    assert isinstance(found, AmqpError)
    assert found.explanation == f'invalid message: {{unacceptable_type_in_header,"BCC",{type_name(value)}}}'


# --- direct reply-to -----------------------------------------------------------------------

REPLIES = methods.BasicConsume(queue=REPLY_TO, consumer_tag="r", no_ack=True)


async def ask(client: Client, world: World, body: bytes = b"question", channel: int = 1) -> tuple[str, str]:
    """Publish a request; the reply address and the correlation id that a server finds in it."""
    raw = raw_of(reply_to=REPLY_TO, correlation_id="7", delivery_mode=1, priority=3, expiration="60000", headers={})
    await client.send(publish("requests", body, raw=raw, channel=channel))
    server = await world.client()
    await server.send(call(1, methods.BasicGet(queue="requests", no_ack=True)))
    ((_, _, properties, found),) = server.take()
    assert found == body
    got = decode_properties(properties)
    assert (got.delivery_mode, got.priority, got.expiration, got.headers) == (1, 3, "60000", {})
    assert got.reply_to is not None
    assert got.correlation_id is not None
    return got.reply_to, got.correlation_id


async def test_replies_come_straight_to_the_channel_that_asked(world: World) -> None:
    client, server = await world.client(channels=2), await world.client()
    await server.calls(methods.QueueDeclare(queue="requests"))
    await client.send(call(1, REPLIES) + call(2, REPLIES))
    assert client.methods() == [methods.BasicConsumeOk("r")] * 2
    first, second = [await ask(client, world, channel=channel) for channel in (1, 2)]
    assert first[0] != second[0]
    assert all(address.startswith(REPLY_TO + ".") and len(address) > 40 for address, _ in (first, second))
    before = world.broker.topology.transient.next_offset
    for address, correlation_id in (second, first):
        await server.send(publish(address, b"answer", raw=raw_of(correlation_id=correlation_id), mandatory=True))
    answers = client.take()
    assert [(channel, body) for channel, _, _, body in answers] == [(2, b"answer"), (1, b"answer")]
    assert [method.routing_key for _, method, _, _ in answers] == [second[0], first[0]]
    assert world.broker.topology.transient.next_offset == before, "replies pass the queue"
    assert server.take() == []


@pytest.mark.parametrize("end", ["cancel", "close", "lose"])
async def test_an_address_goes_with_its_consumer(world: World, end: str) -> None:
    client, server = await world.client(), await world.client()
    await server.calls(methods.QueueDeclare(queue="requests"))
    await client.calls(REPLIES)
    address, _ = await ask(client, world)
    passive = methods.QueueDeclare(queue=address, passive=True)
    assert await server.calls(passive) == [methods.QueueDeclareOk(address, 0, 1)]
    assert await client.calls(passive) == [methods.QueueDeclareOk(address, 0, 1)]
    if end == "cancel":
        await client.calls(methods.BasicCancel("r"))
        await client.send(publish("requests", b"x", raw=raw_of(reply_to=REPLY_TO)))
        assert [method.reply_text for method in client.methods()] == [
            "PRECONDITION_FAILED - fast reply consumer does not exist"
        ]
    elif end == "close":
        await client.calls(methods.ChannelClose(200, "bye"))
    else:
        client.lose()
    await server.send(publish(address, b"late", mandatory=True))
    assert [method.reply_text for method in server.methods()] == ["NO_ROUTE"]
    text = f"NOT_FOUND - no queue '{address}' in vhost '/'"
    assert await server.calls(passive) == [methods.ChannelClose(404, text, 50, 10)]


def test_only_the_reply_address_changes() -> None:
    full = {
        "content_type": "t", "content_encoding": "e", "headers": {"a": 1}, "delivery_mode": 2, "priority": 1,
        "correlation_id": "c", "expiration": "5", "message_id": "m", "timestamp": 1, "type": "t", "user_id": "u",
        "app_id": "a", "cluster_id": "c",
    }  # fmt: skip
    for names in ([], ["headers"], ["correlation_id"], list(full)):
        properties = {name: full[name] for name in names}
        changed = with_reply_to(raw_of(reply_to=REPLY_TO, **properties), "address")
        assert changed == raw_of(reply_to="address", **properties)
