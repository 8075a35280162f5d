"""Routing keys that are longer than a short string of AMQP."""

from __future__ import annotations

import pytest

from protocols.amqp import methods
from protocols.amqp.wire import fitting
from routing.tracing import trace
from tests.protocols.amqp.conftest import Client, World
from tests.protocols.amqp.wire import PERSISTENT, call, publish

NAME = "q" * 255


async def watched(world: World, *properties: bytes) -> Client:
    """A client with the firehose in queue "seen", in which there is what became of these messages and one more."""
    client = await world.client()
    await client.calls(
        methods.QueueDeclare(queue="seen"),
        methods.QueueBind(queue="seen", exchange="amq.rabbitmq.trace", routing_key="deliver.#"),
        methods.QueueDeclare(queue=NAME),
    )
    trace(world.broker, "/", on=True)
    await client.send(*(publish(NAME, b"long", raw=raw) for raw in properties))
    await client.calls(methods.BasicConsume(queue=NAME, no_ack=True))
    trace(world.broker, "/", on=False)
    await client.send(publish("seen", b"short"))
    client.take()
    return client


@pytest.mark.parametrize("properties", [(b"\0\0",), (b"\0\0", PERSISTENT), (b"\x80\0\1a", b"\x80\0\2bb")])
async def test_as_much_of_it_as_fits_is_delivered_and_so_is_what_follows(
    world: World, properties: tuple[bytes, ...]
) -> None:
    client = await watched(world, *properties)
    await client.send(call(1, methods.BasicConsume(queue="seen")))
    got = [(method.routing_key, body) for _, method, _, body in client.take() if body]
    assert got == [(f"deliver.{NAME}"[:255], b"long")] * len(properties) + [("seen", b"short")]


async def test_a_get_has_as_much_of_it_as_fits(world: World) -> None:
    client = await watched(world, PERSISTENT)
    (answer,) = await client.calls(methods.BasicGet(queue="seen"))
    assert isinstance(answer, methods.BasicGetOk)
    assert answer.routing_key == f"deliver.{NAME}"[:255]


def test_what_fits_in_bytes() -> None:
    assert fitting("short") == "short"
    assert fitting("ü" * 127 + "x") == "ü" * 127 + "x"
    assert len(fitting("ü" * 200).encode("utf-8", "surrogateescape")) == 255
