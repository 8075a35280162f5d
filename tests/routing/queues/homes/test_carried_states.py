"""What is written again for a late replica, a bite a turn, is what is so at that turn."""

from __future__ import annotations

import pytest

from core_log.files import MemoryFiles
from routing.queues.homes import carried_states
from routing.queues.settlement import RETURNED_KEY, decode_returned
from tests.routing.harness import engine


async def test_counts_of_returns_are_those_of_the_turn_in_which_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carried_states, "_RETURNS", 1)
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-delivery-limit": 50})
        client = running.client()
        await client.publish_safely("q", *range(3))
        await client.consume("q")
        client.take()
        client.requeue(1, 3)
        client.take()
        await client.publish_safely("q", "last")
        home = running.home("q")
        with monkeypatch.context() as short:
            short.setattr(home.log, "log_start_offset", home.next_offset)
            carrying = carried_states.carried_states(home)
            key, _ = next(carrying)
            assert key == RETURNED_KEY
            client.requeue(5)
            client.ack(6)
            rest = [decode_returned(value) for key, value in carrying if key == RETURNED_KEY]
        returns = running.broker.topology.queues["q"].returns
        assert returns is not None
        offset = max(returns.tries)
        assert [one[1:3] for found in rest for one in found] == [(offset, returns.tries[offset].packed)]
