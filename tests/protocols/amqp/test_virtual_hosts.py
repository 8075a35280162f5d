"""Connections to virtual hosts: what they see, and how they end."""

from __future__ import annotations

from protocols.amqp import methods
from protocols.amqp.connection import PROTOCOL_HEADER
from tests.protocols.amqp.conftest import Client, World
from tests.protocols.amqp.wire import CAPABILITIES, call

START_OK = methods.ConnectionStartOk({"capabilities": CAPABILITIES}, "PLAIN", b"\0guest\0guest", "en_US")


async def opened(world: World, vhost: str) -> tuple[Client, list[methods.Method]]:
    """A client that asked for a virtual host, and what it was answered."""
    client = world.connect()
    await client.send(PROTOCOL_HEADER)
    await client.send(call(0, START_OK), call(0, methods.ConnectionTuneOk(2047, 131072, 60)))
    client.take()
    return client, await client.calls(methods.ConnectionOpen(vhost), channel=0)


async def test_a_virtual_host_of_its_own_and_its_end(world: World) -> None:
    await world.broker.set_vhost("v")
    client, answer = await opened(world, "v")
    assert answer == [methods.ConnectionOpenOk()]
    neighbour = await world.client()
    await client.calls(methods.ChannelOpen())
    declared = await client.calls(methods.QueueDeclare(queue="q"), methods.ExchangeDeclare(exchange="x", kind="fanout"))
    assert declared == [methods.QueueDeclareOk("q", 0, 0), methods.ExchangeDeclareOk()]
    assert await client.calls(methods.QueueBind(queue="q", exchange="x")) == [methods.QueueBindOk()]
    assert list(world.broker.topology.vhosts["v"].queues) == ["q"]
    (refused,) = await neighbour.calls(methods.QueueDeclare(queue="q", passive=True))
    assert refused.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    (refused,) = await client.calls(methods.QueueDeclare(queue="r", passive=True))
    assert refused.reply_text == "NOT_FOUND - no queue 'r' in vhost 'v'"
    await world.broker.delete_vhost("v")
    assert client.methods() == [methods.ConnectionClose(320, "CONNECTION_FORCED - vhost 'v' is deleted", 0, 0)]
    assert (client.closed, neighbour.closed) == (True, False)
    client.lose()


async def test_refusals(world: World) -> None:
    await world.broker.set_vhost("v", limits={"max-connections": 1})
    _, answer = await opened(world, "no")
    assert answer == [methods.ConnectionClose(530, "NOT_ALLOWED - vhost no not found", 10, 40)]
    one, answer = await opened(world, "v")
    assert answer == [methods.ConnectionOpenOk()]
    _, answer = await opened(world, "v")
    text = "NOT_ALLOWED - access to vhost 'v' refused for user 'guest': connection limit (1) is reached"
    assert answer == [methods.ConnectionClose(530, text, 10, 40)]
    one.lose()
    _, answer = await opened(world, "v")
    assert answer == [methods.ConnectionOpenOk()]
