"""Rights that are asked for when what is declared is new, while what had its name goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from protocols.amqp import methods
from protocols.amqp.method_codec import Method
from routing.access.grants import Permission
from routing.broker import Broker
from routing.topology.entries import exchange_key, queue_key
from tests.protocols.amqp.conftest import World
from tests.protocols.amqp.wire import call

REFUSED = "ACCESS_REFUSED - access to {} in vhost '/' refused for user 'ada'"


@pytest.mark.parametrize(
    ("declare", "delete", "refused"),
    [
        (
            methods.QueueDeclare(queue="a", durable=True, arguments={"x-dead-letter-exchange": "amq.fanout"}),
            lambda broker: broker.delete_queue("a"),
            "exchange 'amq.fanout'",
        ),
        (
            methods.QueueDeclare(queue="a", durable=True, arguments={"x-retry": [1], "x-retry-then": "b"}),
            lambda broker: broker.delete_queue("a"),
            "queue 'b'",
        ),
        (
            methods.ExchangeDeclare(
                exchange="a", kind="direct", durable=True, arguments={"alternate-exchange": "amq.fanout"}
            ),
            lambda broker: broker.delete_exchange("a"),
            "exchange 'amq.fanout'",
        ),
    ],
)
async def test_where_something_leads_that_is_made_anew(
    world: World, declare: Method, delete: Callable[[Broker], Awaitable[object]], refused: str
) -> None:
    broker = world.broker
    await broker.rights.add_user("ada", b"x")
    await broker.rights.set_permission("/", "ada", Permission("^a$", "^a$", "^a$"))
    operator = await world.client()
    await operator.calls(declare)
    client = world.connect(authenticate=lambda *_: True)
    await client.log_in(response=b"\0ada\0x")
    client.take()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete, broker)
        while not any(key in broker.topology.in_flight for key in (queue_key("/", "a"), exchange_key("/", "a"))):
            await trio.lowlevel.checkpoint()
        await client.send(call(1, declare))
    (closed,) = client.methods()
    assert isinstance(closed, methods.ChannelClose)
    assert (closed.reply_code, closed.reply_text) == (403, REFUSED.format(refused))
