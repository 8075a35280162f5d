"""What a consumer remembers of the messages it was given."""

from __future__ import annotations

import pytest

from protocols.amqp import methods
from protocols.amqp.properties import BasicProperties, encode_properties
from tests.protocols.amqp.conftest import Client, World
from tests.protocols.amqp.wire import call, publish


def remembered(client: Client) -> int:
    (consumer,) = client.adapter._channels[1].session.consumers
    return len(consumer.context)


async def given(client: Client, number: int) -> list[bytes]:
    raw = encode_properties(BasicProperties(correlation_id=str(number), delivery_mode=1))
    await client.send(publish("q", b"reply", raw=raw))
    return client.bodies()


@pytest.mark.parametrize("no_ack", [False, True])
async def test_it_is_what_comes_more_than_once(world: World, no_ack: bool) -> None:
    client = await world.client()
    await client.send(call(1, methods.QueueDeclare(queue="q"), methods.BasicConsume(queue="q", no_ack=no_ack)))
    client.take()
    for number in range(200):
        assert await given(client, number) == [b"reply"]
    assert remembered(client) == 0
    for number in (1, 2, 3) * 3:
        assert await given(client, number) == [b"reply"]
    assert remembered(client) == 3
    for number in range(300):
        assert await given(client, number % 100) == await given(client, number % 100) == [b"reply"]
    assert 0 < remembered(client) <= 64
