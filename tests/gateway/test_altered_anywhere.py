"""Named queues that end with another broker, when they are altered or policies change: what is known of them here."""

from __future__ import annotations

from typing import Any

import pytest

from routing.administration import administer
from routing.errors import PreconditionFailed
from tests.gateway.test_member import until
from tests.support.engine_node import town_of

TIMEOUT = "x-consumer-timeout"


@pytest.mark.parametrize("altered_at", [1, 2, 3])
async def test_it_is_declared_anywhere_with_its_new_arguments_or_its_old_ones(altered_at: int) -> None:
    async with town_of(1, 2, 3, stripes=1) as town:
        brokers = {number: node.broker for number, node in town.nodes.items()}
        await brokers[1].declare_queue("n", arguments={"x-max-length": 5})
        there: dict[int, Any] = {number: brokers[number].topology.vhosts["/"].away for number in (2, 3)}
        await until(lambda: all("n" in away for away in there.values()))
        for length in (6, 7):
            said = {"name": "n", "arguments": {"x-max-length": length, TIMEOUT: 60_000}}
            await administer(brokers[altered_at], "guest", "queues.alter", said)
        for broker in brokers.values():
            for length in (7, 5, 7):
                more = {TIMEOUT: 60_000} if length > 5 else {}
                await broker.declare_queue("n", arguments={"x-max-length": length, **more})
            with pytest.raises(PreconditionFailed, match="x-max-length"):
                await broker.declare_queue("n", arguments={"x-max-length": 8})
        assert [away["n"].settings.consumer_timeout_ms for away in there.values()] == [60_000, 60_000]


async def test_policies_that_are_set_later_count_for_its_consumers_anywhere() -> None:
    async with town_of(1, 2, stripes=1) as town:
        one, two = (node.broker for node in town.nodes.values())
        await one.declare_queue("n")
        there = two.topology.vhosts["/"].away
        await until(lambda: "n" in there)
        for broker in (two, one):
            await broker.set_policy("p", "^n$", {"consumer-timeout": 60_000})
            await until(lambda: there["n"].settings.consumer_timeout_ms == 60_000)
            assert there["n"] in two.host.impatient
            await broker.delete_policy("p")
            await until(lambda: there["n"].settings.consumer_timeout_ms == 0)
