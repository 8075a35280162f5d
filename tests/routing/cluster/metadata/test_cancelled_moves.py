"""Moves of replicas that are taken back."""

from __future__ import annotations

from typing import Any

from routing.cluster.metadata import operating
from tests.support.home_cluster import mesh, until

LOG = "home-0"


async def test_a_move_is_taken_back_though_a_broker_is_away_that_has_a_replica() -> None:
    async with mesh() as brokers:
        leader = await brokers.settled(0)
        away = leader.me % 3 + 1
        part: Any = leader.part
        had = part.state_of(LOG).replicas
        gone = await brokers.add(4)
        gone.cut()  # so the move does not come to an end
        await operating.move(part, LOG, [leader.me, 4])
        await brokers.kill(away)
        await until(lambda: away not in part.members.brokers and away not in part.state_of(LOG).isr_brokers)
        assert part.state_of(LOG).target == (leader.me, 4)
        assert await operating.cancel_move(part, LOG)
        await until(lambda: part.state_of(LOG).target is None)
        state = part.state_of(LOG)
        assert (state.replicas, state.origin, state.factor) == (had, None, 3)
        assert not await operating.cancel_move(part, LOG)
