"""What the broker itself publishes to queues that another one leads and that are full."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from routing.message import Slab
from routing.session import Session
from routing.tracing import EXCHANGE, trace
from routing.unsettled import Outcome
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, Town, town_of

FULL_SOON = {"x-max-length": 1, "x-overflow": "reject-publish"}


class Client:
    """It rejects all that it is given, and notes what it is told of its publishes."""

    def __init__(self, node: EngineNode) -> None:
        self.session: Session = node.broker.session(self, protocol="amqp", owner=self)  # type: ignore[arg-type]
        self.given = 0
        self.told: list[str] = []

    def deliver(self, consumer: object, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        self.given = first_id + stop - start - 1

    def reject(self) -> None:
        self.session.settle_up_to(self.given, Outcome.DISCARD)
        self.session.broker.end_turn()

    def publish(self, queue: str, *bodies: bytes) -> None:
        self.session.publish(Slab("", queue, PERSISTENT, list(bodies)), confirm=True)
        self.session.broker.end_turn()

    def confirm(self, up_to: int) -> None:
        self.told.append("confirm")

    def refuse(self, first: int, last: int, error: Exception) -> None:
        self.told.append("refuse")

    def writable(self) -> bool:
        return True


async def _queue(town: Town, home: int, arguments: dict[str, Any]) -> str:
    """The name of a new queue of a home."""
    broker = town.nodes[1].broker
    for number in range(100):
        name = f"{home}-{len(arguments)}-{number}"
        await broker.declare_queue(name, durable=True, arguments=arguments)
        if broker.topology.queues[name].partition.index == home:
            return name
    raise AssertionError("no name leads to this home")


async def test_they_are_taken_there_as_well_and_nobody_else_is_refused_anything() -> None:
    async with town_of(1, 2, stripes=2, leader=1) as town:
        town.lead(1, 2)
        here, there = town.nodes[1], town.nodes[2]
        letters = await _queue(town, 1, FULL_SOON)
        free = await _queue(town, 1, {})
        letters_of = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters, "x-max-length": 10}
        source = await _queue(town, 0, letters_of)
        client, other = Client(here), Client(here)
        await client.session.consume(source, tag="c", no_ack=False)
        with trio.fail_after(10):
            client.publish(source, b"1", b"2", b"3")
            while client.given < 3:
                await trio.sleep(0.001)
            client.reject()
            other.publish(free, b"x")
            while not other.told or here.broker.topology.queues[source].outstanding:
                await trio.sleep(0.001)
        assert other.told == ["confirm"]
        assert there.broker.topology.queues[letters].message_count == 3


async def _remember(town: Town, name: str) -> None:
    """Have an exchange that remembers three messages give them to a queue."""
    broker, client = town.nodes[1].broker, Client(town.nodes[1])
    await broker.declare_exchange("recent", "x-recent-history", durable=True, arguments={"x-recent-history-length": 3})
    client.session.publish(Slab("recent", "", PERSISTENT, [b"1", b"2", b"3"]))
    broker.end_turn()
    await broker.bind("queue", name, "recent", "", {})


async def _trace(town: Town, name: str) -> None:
    """Have a queue get copies of three publishes."""
    broker, client = town.nodes[1].broker, Client(town.nodes[1])
    await broker.bind("queue", name, EXCHANGE, "#", {})
    trace(broker, "/", on=True)
    client.publish("nowhere", b"1", b"2", b"3")
    trace(broker, "/", on=False)


@pytest.mark.parametrize("send", [_remember, _trace])
async def test_what_is_refused_of_it_does_not_cost_others_theirs(send: Callable[[Town, str], Awaitable[None]]) -> None:
    async with town_of(1, 2, stripes=2, leader=1) as town:
        town.lead(1, 2)
        full = await _queue(town, 1, FULL_SOON)
        free = await _queue(town, 1, {})
        other = Client(town.nodes[1])
        await send(town, full)
        other.publish(free, b"x")
        with trio.fail_after(10):
            while not other.told:
                await trio.sleep(0.001)
        assert other.told == ["confirm"]
        assert town.nodes[2].broker.topology.queues[full].message_count == 1
