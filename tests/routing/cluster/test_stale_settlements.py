"""What was delivered by a leader that leads no more cannot be settled: nobody says that it was."""

from __future__ import annotations

import pytest

from routing.cluster.metadata.operating import drain
from routing.errors import PreconditionFailed
from tests.routing.cluster.test_homes import home_of
from tests.support.home_cluster import mesh, until


async def test_a_transaction_that_settles_what_has_another_leader_now_is_refused() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        await one.queue("q")
        index = home_of(one, "q")
        client = one.client()
        await client.publish_safely("q", *range(4))
        await client.consume("q")
        client.session.begin()
        assert client.take_bodies() == ["0", "1", "2", "3"]
        client.ack(1, 2)
        await client.session.commit()
        client.ack(3, 3)
        await drain(one.part, 1, on=True)
        await until(lambda: not one.leads(index))
        with pytest.raises(PreconditionFailed, match="is back in queue 'q'"):
            await client.session.commit()
        leader = await brokers.settled(index)
        assert await leader.drain("q") == [("2", True), ("3", True)]
