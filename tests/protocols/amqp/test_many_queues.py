"""Messages that go each to another queue with a waiting consumer: handed over together, or one by one where not all of
them can be."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.amqp import methods
from protocols.amqp.adapter_channel import Channel
from protocols.amqp.properties import BasicProperties, encode_properties
from tests.protocols.amqp.conftest import Client, World
from tests.protocols.amqp.wire import PERSISTENT, call, publish

QUEUES = 30
BODIES = [b"", b"x", b"y" * 100, b"z" * 300]
RAWS = [PERSISTENT, encode_properties(BasicProperties(delivery_mode=2, message_id="one"))]
RULED = encode_properties(BasicProperties(delivery_mode=2, expiration="100000"))


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many deliveries were handed over together, each time."""
    counts: list[int] = []
    real = Channel.deliver_each

    def noting(channel: Channel, consumers: list[Any], first_id: int, slab: Any) -> None:
        counts.append(len(consumers))
        real(channel, consumers, first_id, slab)

    monkeypatch.setattr(Channel, "deliver_each", noting)
    return counts


async def consuming(client: Client, queues: range, *, no_ack: bool = True) -> None:
    for at in queues:
        await client.send(
            call(1, methods.QueueDeclare(queue=f"q{at}", exclusive=True)),
            call(1, methods.BasicConsume(queue=f"q{at}", consumer_tag=f"tag {at}", no_ack=no_ack)),
        )
    client.take()


def many(rounds: int, raws: list[bytes] = RAWS) -> tuple[bytes, list[tuple[str, bytes, bytes]]]:
    """Publishes, and what their consumers are to get: consumer tag, property list, body."""
    data, expected = [], []
    for number in range(rounds * QUEUES):
        at, raw, body = number * 7 % QUEUES, raws[number % len(raws)], BODIES[number * 3 % len(BODIES)]
        data.append(publish(f"q{at}", body, raw=raw))
        expected.append((f"tag {at}", raw, body))
    return b"".join(data), expected


def deliveries(client: Client, first_tag: int = 1) -> list[tuple[str, bytes, bytes]]:
    found = []
    for tag, (_, method, raw, body) in enumerate(client.take(), first_tag):
        assert isinstance(method, methods.BasicDeliver)
        assert (method.delivery_tag, method.redelivered, method.exchange) == (tag, False, "")
        assert method.routing_key == "q" + method.consumer_tag.removeprefix("tag ")
        found.append((method.consumer_tag, raw, body))
    return found


async def test_each_consumer_gets_its_own(world: World, together: list[int]) -> None:
    client, publisher = await world.client(), await world.client()
    await consuming(client, range(QUEUES))
    data, expected = many(2)
    await client.send(data)  # the queues are exclusive, but anybody may publish
    assert deliveries(client) == expected
    await publisher.send(data)
    assert deliveries(client, len(expected) + 1) == expected
    assert sum(together) > len(expected)


@pytest.mark.parametrize("why", ["two sessions", "acknowledging", "waiting", "expiring", "a large body"])
async def test_it_makes_no_difference_where_they_go_one_by_one(world: World, together: list[int], why: str) -> None:
    client, other, publisher = await world.client(), await world.client(), await world.client()
    await consuming(client, range(QUEUES - 1), no_ack=why != "acknowledging")
    await consuming(other if why == "two sessions" else client, range(QUEUES - 1, QUEUES))
    if why == "waiting":
        client.outbox.writable = False
        await publisher.send(publish("q5", b"first"))
        client.outbox.writable = True
    data, expected = many(2, [RULED] if why == "expiring" else RAWS)
    if why == "a large body":
        data += publish("q0", bytes(200_000))
        expected.append(("tag 0", PERSISTENT, bytes(200_000)))
    await publisher.send(data)
    if why == "waiting":
        expected.insert(0, ("tag 5", PERSISTENT, b"first"))
    found = deliveries(client) + deliveries(other)
    for at in range(QUEUES):
        mine = [one for one in found if one[0] == f"tag {at}"]
        assert mine == [one for one in expected if one[0] == f"tag {at}"]
    if why in ("acknowledging", "waiting", "expiring", "two sessions"):
        assert not together


async def test_messages_of_one_key_go_each_where_its_headers_lead(world: World, together: list[int]) -> None:
    client = await world.client()
    await consuming(client, range(QUEUES))
    for at in range(QUEUES):
        bound = methods.QueueBind(queue=f"q{at}", exchange="amq.headers", routing_key="", arguments={"at": at})
        await client.calls(bound)
    raws = [encode_properties(BasicProperties(headers={"at": at})) for at in range(QUEUES)]
    await client.send(b"".join(publish("key", b"x", exchange="amq.headers", raw=raw) for raw in raws))
    got = [(method.consumer_tag, method.exchange, method.routing_key, raw) for _, method, raw, _ in client.take()]
    assert got == [(f"tag {at}", "amq.headers", "key", raw) for at, raw in enumerate(raws)]
    assert together
