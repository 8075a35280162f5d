"""What operators change at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from routing.cluster.metadata import operating
from routing.cluster.metadata.records import drain_key
from routing.errors import PreconditionFailed
from tests.support.home_cluster import mesh, until


async def test_a_broker_that_is_removed_meanwhile_leaves_no_drain_for_the_next_of_its_id() -> None:
    async with mesh() as brokers:
        part: Any = (await brokers.settled(0)).part
        await brokers.add(4)
        await until(lambda: 4 in part.members.brokers)
        await brokers.kill(4)
        await until(lambda: 4 not in part.members.brokers)
        change = part.store.change

        async def late(*asked: Any) -> Any:
            part.store.change = change
            await operating.remove(part, 4, called=str)
            return await change(*asked)

        part.store.change = late
        with pytest.raises(PreconditionFailed, match="look again"):
            await operating.drain(part, 4, on=True)
        assert part.store.get(drain_key(4)) is None
