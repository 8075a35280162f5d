"""What the broker itself publishes to queues that take no message twice, and that had it before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from routing.administration import administer
from routing.message import Slab
from tests.routing.harness import with_headers
from tests.routing.republishing.test_full_elsewhere import Client, _queue
from tests.support.engine_node import EngineNode, town_of

WINDOW = {"x-deduplication-window-ms": 3_600_000}


async def _until(condition: Callable[[], object]) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.001)


async def _reject_one(client: Client, name: str) -> None:
    """A message of a queue."""
    client.session.publish(Slab("", name, with_headers({"message-id": "id"}), [b"x"]))
    client.session.broker.end_turn()
    consumer = await client.session.consume(name, tag="c", no_ack=False)
    await _until(lambda: client.given)
    client.session.cancel(consumer)
    client.reject()


def _of(node: EngineNode, name: str) -> tuple[int, int]:
    queue = node.broker.topology.queues[name]
    return queue.message_count, queue.duplicates


@pytest.mark.parametrize("home", [0, 1], ids=["here", "elsewhere"])
@pytest.mark.parametrize("way", ["moved", "dead"])
async def test_they_are_no_duplicates(way: str, home: int) -> None:
    async with town_of(1, 2, stripes=2, leader=1) as town:
        town.lead(1, 2)
        here, there = town.nodes[1], town.nodes[home + 1]
        ends = {} if way == "moved" else {"x-message-ttl": 50}
        dead = await _queue(town, 0, {**ends, "x-max-length": 9})
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        name = await _queue(town, home, {**WINDOW, **letters})
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
        await here.broker.alter_queue(dead, back)
        await _until(lambda: "x-dead-letter-exchange" in there.broker.topology.queues[dead].arguments)
        await _reject_one(Client(here), name)
        if way == "moved":
            await _until(lambda: _of(here, dead)[0])
            told = await administer(here.broker, "guest", "queues.move", {"source": dead, "destination": name})
            assert told == {"moved": 1, "left": 0}
        await _until(lambda: _of(there, name)[0] or _of(there, name)[1])
        assert _of(there, name) == (1, 0)
