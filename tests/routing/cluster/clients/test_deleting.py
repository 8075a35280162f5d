"""Queues that are deleted at a broker that does not lead them."""

from __future__ import annotations

import pytest

from routing.cluster.clients.remote_queue import RemoteQueue
from tests.support.engine_node import town_of


@pytest.mark.parametrize("if_unused", [False, True])
async def test_a_queue_that_goes_while_its_leader_is_asked_is_gone(
    if_unused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, other = (town.nodes[number].broker for number in (1, 2))
        await leader.declare_queue("q", durable=True)
        refresh = RemoteQueue.refresh

        async def late(queue: RemoteQueue) -> None:
            await leader.delete_queue("q")
            await refresh(queue)

        monkeypatch.setattr(RemoteQueue, "refresh", late)
        assert await other.delete_queue("q", if_unused=if_unused) == 0
        assert "q" not in other.topology.queues
