"""Replicas that move, and how many of them have to be in sync, changed at the same time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core_log.replication.moves import begun
from routing.cluster.metadata import operating
from routing.cluster.metadata.placement import Place, grown, new_state
from routing.errors import InvalidArgument
from tests.support.home_cluster import mesh, until

LOG = "home-0"
THREE = [Place(1, 11), Place(2, 12), Place(3, 13)]


def test_a_minimum_does_not_rise_above_the_replicas_that_a_move_leaves() -> None:
    state = msgspec.structs.replace(begun(new_state(THREE, factor=3, minimum=2), [1, 2]), minimum=3, factor=2)
    assert grown(state, THREE, 0) == state
    assert grown(begun(state, [1, 2, 3]), THREE, 0).min_insync == 3


async def test_a_minimum_that_is_raised_does_not_hold_up_a_move() -> None:
    async with mesh() as brokers:
        leader = await brokers.settled(0)
        part: Any = leader.part
        other = leader.me % 3 + 1
        gone = await brokers.add(4)
        gone.cut()  # so the move does not come to an end
        await operating.move(part, LOG, [leader.me, 4])
        await operating.require_insync(part, [LOG], 3)
        state = part.state_of(LOG)
        assert (state.target, state.min_insync, state.minimum) == ((leader.me, 4), 2, 3)
        await operating.move(part, LOG, [leader.me, other])
        await until(lambda: part.state_of(LOG).target is None)
        assert part.state_of(LOG).replicas == (leader.me, other)


async def test_nobody_moves_to_fewer_replicas_than_a_minimum_that_waits_for_one_that_is_away() -> None:
    async with mesh() as brokers:
        leader = await brokers.settled(0)
        part: Any = leader.part
        away = leader.me % 3 + 1
        left = [one for one in part.state_of(LOG).replicas if one != away]
        await brokers.kill(away)
        await until(lambda: away not in part.members.brokers and away not in part.state_of(LOG).isr_brokers)
        await operating.require_insync(part, [LOG], 3)
        assert part.state_of(LOG).min_insync == 2
        with pytest.raises(InvalidArgument, match="2 replicas are fewer than its min_insync_replicas, 3"):
            await operating.move(part, LOG, left)
        found = await operating.rebalance(part, dry_run=True)
        assert (found.changes.get(LOG), found.kept.count(LOG)) == (None, 1)
