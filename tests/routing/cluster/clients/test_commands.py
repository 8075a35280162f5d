"""Operations on queues that another broker leads: what it finds, and what may go wrong there."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest
import trio
import trio.testing

from routing.administration.operations import administer
from routing.errors import InvalidArgument, LimitExceeded, StorageUnavailable
from routing.facts import pack
from routing.message import NeutralProperties, Properties, Slab
from routing.property_editors import NEUTRAL, to_neutral_raw
from tests.routing.cluster.clients.test_served_consumers import Client
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import town_of


def nested(levels: int) -> dict[str, Any]:
    headers: dict[str, Any] = {}
    for _ in range(levels - 1):
        headers = {"a": headers}
    return headers


def with_headers(headers: dict[str, Any]) -> Properties:
    return Properties(NEUTRAL, to_neutral_raw(NeutralProperties(headers=headers)), persistent=True)


async def test_headers_that_could_not_be_shown_are_refused_and_end_no_broker() -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, other = town.nodes[1].broker, town.nodes[2].broker
        await leader.declare_queue("q", durable=True)
        said = {"routing_key": "q", "body": "x"}
        with trio.fail_after(10):
            await administer(other, "guest", "messages.publish", {**said, "headers": nested(32)})
            (shown,) = await administer(other, "guest", "queues.peek", {"name": "q"})
            assert shown["headers"] == nested(32)
            for levels in (33, 480):
                with pytest.raises(InvalidArgument, match="nested"):
                    await administer(other, "guest", "messages.publish", {**said, "headers": nested(levels)})
            Client(town.nodes[1]).session.publish(Slab("", "q", with_headers(nested(480)), [b"from before"]))
            leader.end_turn()
            fails = pytest.raises(StorageUnavailable, match="has failed")
            with fails if sys.version_info < (3, 12) else nullcontext():  # later ones go deeper
                await administer(other, "guest", "queues.peek", {"name": "q"})
            assert (await other.check_queue("q", None)).message_count == 2


async def test_who_asks_for_more_than_goes_between_brokers_is_told_so_and_the_link_stands() -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, other = town.nodes[1].broker, town.nodes[2]
        await leader.declare_queue("q", durable=True)
        slab = Slab("", "q", with_headers({"h": "x" * 120_000}), [b"\xff" * 65_536] * 100)
        Client(town.nodes[1]).session.publish(slab)
        leader.end_turn()
        link, said = other.engine.forwarding.links[1], {"name": "q", "limit": 100, "bytes_max": 65_536}
        with trio.fail_after(20):
            with pytest.raises(LimitExceeded, match="ask for less"):
                await administer(other.broker, "guest", "queues.peek", said)
            assert len(await administer(other.broker, "guest", "queues.peek", {**said, "limit": 10})) == 10
        assert other.engine.forwarding.links[1] is link


async def test_what_is_moved_while_the_source_gets_another_leader_is_moved_from_there() -> None:
    async with town_of(1, 2, 3) as town:
        first, third = town.nodes[1].broker, town.nodes[3]
        town.lead(1, 2)
        for name in ("a", "b", "c"):
            await first.declare_queue(name, durable=True)
        names = {first.topology.queues[name].partition.index: name for name in ("a", "b", "c")}
        source, destination = names[0], names[1]
        queue = first.topology.queues[source]
        facts = [pack(True, 0, 600_000)] * 1500
        Client(town.nodes[1]).session.publish(Slab("", source, PERSISTENT, [b"old"] * 1500, facts=facts))
        first.end_turn()
        done: list[dict[str, int]] = []

        async def move() -> None:
            said = {"source": source, "destination": destination}
            done.append(await administer(first, "guest", "queues.move", said))

        with trio.fail_after(15):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(move)
                while not queue.outstanding:
                    await trio.lowlevel.checkpoint()
                town.lead(0, 3)  # what nobody has moved is not there: nothing is replicated
                new = Slab("", source, PERSISTENT, [b"new"] * 1200, facts=facts[:1200])
                Client(third).session.publish(new)
                third.broker.end_turn()
        assert not third.broker.topology.queues[source].message_count
        assert done[0]["left"] == 0
        assert done[0]["moved"] >= 1200


async def test_a_queue_that_ends_with_another_broker_is_described_and_peeked_at_from_here() -> None:
    async with town_of(1, 2, stripes=1) as town:
        one, two = town.nodes[1].broker, town.nodes[2].broker
        await two.declare_queue("q", durable=False)
        Client(town.nodes[2]).session.publish(Slab("", "q", PERSISTENT, [b"a"]))
        two.end_turn()
        with trio.fail_after(10):
            while "q" not in one.topology.vhosts["/"].away:
                await trio.sleep(0.001)
            described = await administer(one, "guest", "queues.describe", {"name": "q"})
            (shown,) = await administer(one, "guest", "queues.peek", {"name": "q"})
        assert (described["name"], described["ready"]) == ("q", 1)
        assert (shown["key"], shown["body"]) == ("q", {"text": "a"})


async def test_what_is_moved_to_a_queue_that_ends_with_another_broker_goes_there_and_nowhere_else() -> None:
    """Whatever it was published to before: 30 MB are more than may wait for a broker."""
    async with town_of(1, 2, stripes=1) as town:
        one, two = town.nodes[1].broker, town.nodes[2].broker
        await one.declare_queue("d", durable=True)
        await one.bind("queue", "d", "amq.topic", "x")
        publisher = Client(town.nodes[1]).session
        for _ in range(60):
            publisher.publish(Slab("amq.topic", "x", PERSISTENT, [b"a" * 500_000]))
        one.end_turn()
        for name in ("q", "other"):
            await two.declare_queue(name, durable=False)
        await two.bind("queue", "other", "amq.topic", "x")
        with trio.fail_after(20):
            while "q" not in one.topology.vhosts["/"].away:
                await trio.sleep(0.001)
            done = await administer(one, "guest", "queues.move", {"source": "d", "destination": "q"})
            while two.topology.queues["q"].message_count < done["moved"]:
                await trio.sleep(0.001)
        assert done == {"moved": 60, "left": 0}
        assert not two.topology.queues["other"].message_count


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        ("queues.move", {"source": "a", "destination": "b"}),
        ("queues.peek", {"name": "a"}),
        ("queues.describe", {"name": "a"}),
        ("queues.alter", {"name": "a", "arguments": {"x-max-length": 5}}),
        ("delayed.list", {"queue": "a"}),
    ],
)
async def test_what_is_asked_while_nobody_leads_is_done_by_who_was_asked_once_he_leads(
    operation: str, said: dict[str, Any]
) -> None:
    async with town_of(1, 2, stripes=1, leader=1) as town:
        one, two = town.nodes[1].broker, town.nodes[2].broker
        for name in ("a", "b"):
            await one.declare_queue(name, durable=True)
        town.lead(0, None)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(administer, two, "guest", operation, said)
                await trio.testing.wait_all_tasks_blocked()
                town.lead(0, 2)
