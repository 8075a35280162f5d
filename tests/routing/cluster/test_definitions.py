"""What a set of queues is stands in the part of a home's log that every replica has."""

from __future__ import annotations

import pytest

from routing.cluster.metadata.operating import drain
from routing.queues.homes.reclaim import give_back
from tests.routing.cluster.test_homes import all_committed
from tests.support.home_cluster import Member, Mesh, mesh, until


async def led_by(brokers: Mesh, me: int) -> None:
    """Have home 0 led by one of two."""
    wanted, other = brokers.members[me], brokers.members[3 - me]
    await drain(wanted.part, me, on=False)
    await drain(wanted.part, other.me, on=True)
    await until(lambda: wanted.leads(0))
    await brokers.settled(0)


def follows(member: Member) -> int:
    """How far the standby of home 0 has come."""
    assert member.broker.homes is not None
    feed = member.broker.homes._here[0].feed
    return feed.standby.offset if feed is not None else 0


@pytest.mark.parametrize("told", [True, False])
async def test_a_leader_that_emptied_the_log_leads_again_with_what_came_meanwhile(told: bool) -> None:
    async with mesh(2) as brokers:
        one, two = brokers.members[1], brokers.members[2]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await led_by(brokers, 1)
        await one.client().publish_safely("q", *(f"{n}" + "." * 100 for n in range(1000)))
        assert len(await one.drain("q")) == 1000
        await all_committed(one, 0)
        await until(lambda: follows(two) == one.log(0).high_watermark == two.log(0).high_watermark)
        while not give_back(one.home("q")) or one.log(0).log_start_offset < 1000:
            await all_committed(one, 0)
        if told:
            await until(lambda: two.log(0).log_start_offset == one.log(0).log_start_offset)
        await led_by(brokers, 2)
        await two.client().publish_safely("q", "kept")
        await led_by(brokers, 1)
        assert await one.drain("q") == [("kept", True)]
