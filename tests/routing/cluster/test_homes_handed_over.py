"""Homes whose leader hands over while the broker itself moves what is in their queues."""

from __future__ import annotations

from typing import Any

import pytest

from routing.republishing.dead_letters import _Flight
from tests.support.home_cluster import Mesh, mesh, until

TTL_MS = 50
DEAD = {"x-message-ttl": TTL_MS, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


async def declared(brokers: Mesh, homes: dict[str, int], **arguments: Any) -> None:
    one = brokers.members[1]
    for name, index in homes.items():
        one.broker.topology.place_queue = lambda queue_id, arguments, index=index: index  # type: ignore[misc]
        await one.queue(name, arguments=arguments if name == "q" else {})
    await until(lambda: all(set(homes) <= set(m.broker.topology.queues) for m in brokers.members.values()))


@pytest.mark.parametrize("home", [0, 1], ids=["here", "elsewhere"])
async def test_who_hands_over_waits_for_dead_letters_that_are_under_way(home: int) -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        await declared(brokers, {"dead": home, "q": 0}, **DEAD)
        assert one.leads(0)
        letters = one.broker.dead_letters
        landed, under_way = letters._landed, list[_Flight]()
        letters._landed = under_way.append  # type: ignore[method-assign]
        role, client = one.part.role_of("home-0"), one.client()
        assert role is not None
        await client.publish_safely("q", *range(3))
        await until(lambda: under_way)
        await one.one.members.update(draining=True)
        await until(lambda: role.closed_until_s is not None)
        letters._landed = landed  # type: ignore[method-assign]
        for flight in under_way:
            landed(flight)
        one.turn()
        await until(lambda: not one.leads(0))
        await one.one.members.update(draining=False)
        await brokers.settled(0)
        await client.publish_safely("q", "last")
        leader = await brokers.settled(home)
        found: list[str] = []
        while "last" not in found:
            await until(lambda: leader.count("dead"))
            found += [body for body, _ in await leader.drain("dead")]
        assert found == ["0", "1", "2", "last"]
