"""Connections that end while a request of theirs waits."""

from __future__ import annotations

import trio

from protocols.amqp import methods
from tests.protocols.amqp.conftest import World
from tests.protocols.amqp.wire import call


async def test_an_exclusive_queue_of_a_connection_that_was_closed_meanwhile_goes(world: World) -> None:
    broker = world.broker
    client, other = await world.client(), await world.client()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: broker.set_vhost("/", description="being written"))
        await trio.lowlevel.checkpoint()
        nursery.start_soon(client.send, call(1, methods.QueueDeclare(queue="mine", exclusive=True)))
        await trio.lowlevel.checkpoint()
        assert not broker.topology.queues, "it waits"
        broker.topology.vhosts["/"].connections[client.adapter].close("an operator said so")
    client.lose()
    assert not broker.topology.queues
    assert not broker.topology.owned
    (answer,) = await other.calls(methods.QueueDeclare(queue="mine"))
    assert isinstance(answer, methods.QueueDeclareOk)
