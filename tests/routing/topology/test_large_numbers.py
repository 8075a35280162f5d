"""A catalog of an earlier version may have numbers of over 64 bits as text, where it once took them over HTTP."""

from __future__ import annotations

import pytest

from core_log.files import MemoryFiles
from routing.topology.entries import Entry
from routing.topology.large_numbers import number_again, numbers_again
from tests.routing.harness import engine

LARGE = str(1 << 70)
LARGEST = (1 << 63) - 1


async def test_a_broker_starts_with_them() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q")
        catalog = running.broker.topology.catalog
        (queue,) = catalog.entries("queue")
        told = {"x-max-length": LARGE, "x-delivery-limit": f"-{LARGE}", "x-priority-window": LARGE, "x-mine": LARGE}
        policy = {"pattern": "", "definition": {"max-length-bytes": LARGE}, "priority": LARGE, "apply-to": "all"}
        await catalog.change([Entry(queue[0], queue[1] | {"arguments": told}, True)])
        await catalog.change([Entry(("policy", "/", "p"), policy, True)])
    async with engine(files) as running:
        found = running.broker.topology.vhosts["/"].queues["q"]
        assert found.arguments == {
            "x-max-length": LARGEST, "x-delivery-limit": -LARGEST, "x-priority-window": LARGEST, "x-mine": LARGE,
        }  # fmt: skip
        settings = found.settings
        assert (settings.max_length, settings.max_length_bytes, settings.delivery_limit) == (LARGEST, LARGEST, None)
        client = running.client()
        await client.publish_safely("q", "m")
        await running.broker.delete_queue("q")


@pytest.mark.parametrize("text", [LARGE, "1" * 18, "", "-", "1h", "x" + LARGE])
def test_text_stays_text_where_it_may_be(text: str) -> None:
    values = {"x-dead-letter-routing-key": text, "x-mine": text, "mine": text}
    assert numbers_again(values) is values


@pytest.mark.parametrize("value", [7, None, "7", [LARGE], "high"])
def test_what_is_no_such_text(value: object) -> None:
    assert number_again(value) is value
