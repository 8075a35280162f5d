"""Moves of replicas that are taken back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from core_log.replication.state import LogState
from routing.cluster.metadata import operating
from routing.cluster.metadata.elections import Known
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


@pytest.mark.parametrize("target", [(3, 4), (1, 3, 4), (2,), (2, 1)])
async def test_what_lacks_a_replica_gets_it_also_after_a_move_was_taken_back(
    target: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made while one of three brokers was away."""
    known = Known(LogState(replicas=(1, 2), isr=((1, 1), (2, 2)), leader=1, factor=3), 5)
    part: Any = SimpleNamespace(
        elections=SimpleNamespace(logs={LOG: known}), members=SimpleNamespace(brokers=dict.fromkeys(range(1, 5)))
    )

    async def write(_: object, changes: list[tuple[str, Known, LogState]]) -> bool:
        for log, before, state in changes:
            part.elections.logs[log] = Known(state, before.mod_revision + 1)
        return True

    monkeypatch.setattr(operating, "_write", write)
    await operating.move(part, LOG, target)
    assert part.elections.logs[LOG].state.factor == len(target)
    await operating.move(part, LOG, target)  # once more, which changes nothing
    assert await operating.cancel_move(part, LOG)
    state = part.elections.logs[LOG].state
    assert (operating.wanted(state), state.factor) == ((1, 2), 3)
    assert await operating.cancel_move(part, LOG) == (state.target is not None)
    assert part.elections.logs[LOG].state.factor == 3
