"""Deliveries that cannot be encoded, which is a bug of the broker: the client is told, and has nothing of them."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.amqp import methods
from protocols.amqp.adapter_channel import Channel
from tests.protocols.amqp.conftest import World
from tests.protocols.amqp.wire import call, publish

DECLARE = methods.QueueDeclare(queue="q", durable=True)
CONSUME = methods.BasicConsume(queue="q", consumer_tag="c")


async def test_who_could_not_be_delivered_to_is_told_and_another_has_the_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await world.client(), await world.client()
    await client.calls(DECLARE, CONSUME)
    deliver = Channel.deliver

    def fail_once(*_: Any) -> None:
        monkeypatch.setattr(Channel, "deliver", deliver)
        raise ValueError("a bug")

    monkeypatch.setattr(Channel, "deliver", fail_once)
    await client.send(publish("q", b"1") + publish("q", b"2"))
    await client.expect(methods.ConnectionClose(541, "INTERNAL_ERROR - messages could not be delivered"))
    await other.send(call(1, CONSUME))
    assert other.bodies() == [b"1", b"2"]
