"""What goes past its queue to a consumer that gives nothing back."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.files import MemoryFiles
from routing.facts import pack
from routing.message import Properties
from routing.session import Outcome
from tests.routing.harness import PERSISTENT, PROTOCOL, Client, Engine, engine

TIMED = Properties(PROTOCOL, b"", persistent=True, facts=pack(True, ttl_ms=60_000))


async def consuming(running: Engine, *, prefetch: int = 0, **arguments: Any) -> Client:
    """A client whose deliveries end with it, of a transient queue."""
    await running.queue("q", durable=False, arguments=arguments)
    client = running.client()
    client.session.set_prefetch(prefetch, per_session=True)
    await client.consume("q", gives_back=False)
    return client


def next_offset(running: Engine) -> int:
    return running.home("q").next_offset


async def test_nothing_is_kept_but_what_is_unsettled_is_counted() -> None:
    async with engine(MemoryFiles()) as running:
        consumer = await consuming(running)
        publisher = running.client()
        before = next_offset(running)
        for first in (0, 3):
            publisher.publish("q", *range(first, first + 3), confirm=True)
        assert consumer.take_bodies() == ["0", "1", "2", "3", "4", "5"]
        assert publisher.confirmed == 6
        assert next_offset(running) == before
        queue = running.broker.topology.queues["q"]
        assert (queue.outstanding, consumer.session.outstanding, len(consumer.session.unsettled)) == (6, 6, 1)
        consumer.ack(2, 4)
        consumer.session.settle(1, 1, Outcome.DISCARD)
        assert (queue.outstanding, consumer.session.outstanding) == (2, 2)
        consumer.session.close()
        assert (queue.outstanding, running.count("q")) == (0, 0)


async def test_what_has_no_room_waits_in_the_queue_and_what_comes_then_waits_behind_it() -> None:
    async with engine(MemoryFiles()) as running:
        consumer = await consuming(running, prefetch=3)
        publisher = running.client()
        publisher.publish("q", 1, 2)
        publisher.publish("q", 3, 4)
        publisher.publish("q", 5)
        assert consumer.take_bodies() == ["1", "2", "3"]
        assert running.count("q") == 2
        consumer.ack(1, 2)
        publisher.publish("q", 6)
        assert consumer.take_bodies() == ["4", "5"]
        consumer.ack(3, 5)
        assert consumer.take_bodies() == ["6"]
        queue = running.broker.topology.queues["q"]
        assert (queue.outstanding, queue.message_count) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "properties"),
    [
        ({"x-dead-letter-exchange": "amq.fanout"}, PERSISTENT),
        ({"x-delivery-limit": 3}, PERSISTENT),
        ({"x-max-priority": 3}, PERSISTENT),
        ({}, TIMED),
    ],
)
async def test_what_the_queue_has_a_say_in_enters_it(arguments: dict[str, Any], properties: Properties) -> None:
    async with engine(MemoryFiles()) as running:
        consumer = await consuming(running, **arguments)
        before = next_offset(running)
        running.client().publish("q", 1, 2, properties=properties)
        assert consumer.take_bodies() == ["1", "2"]
        assert next_offset(running) == before + 2
        consumer.ack(1, 2)


async def test_refused_messages_reach_the_dead_letter_exchange() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("dead")
        await running.bind("amq.fanout", "dead")
        consumer = await consuming(running, **{"x-dead-letter-exchange": "amq.fanout"})
        running.client().publish("q", 1)
        assert consumer.take_bodies() == ["1"]
        consumer.session.settle(1, 1, Outcome.DISCARD)
        running.turn()
        assert running.count("dead") == 1


async def test_two_consumers_share_what_comes() -> None:
    async with engine(MemoryFiles()) as running:
        first = await consuming(running)
        second = running.client()
        await second.consume("q", gives_back=False)
        before = next_offset(running)
        running.client().publish("q", *range(10))
        got = first.take_bodies(), second.take_bodies()
        assert sorted(int(body) for bodies in got for body in bodies) == list(range(10))
        assert next_offset(running) == before + 10
