"""What an operator asks of retained messages."""

from __future__ import annotations

import trio

from core_log.files import MemoryFiles
from routing.administration import administer
from tests.routing.harness import engine
from tests.routing.kept.test_retained import slab


async def test_the_first_of_many_are_found_while_others_have_their_turns() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with engine(MemoryFiles()) as running, trio.open_nursery() as nursery:
        for first in range(0, 20_000, 1000):
            running.broker.retained.keep(
                "/", slab(*((f"k{n * 7 % 20_000:05}", b"1") for n in range(first, first + 1000)))
            )
        nursery.start_soon(others)
        asked = {"limit": 3, "start": 9}
        found = await administer(running.broker, "guest", "retained.list", asked)
        nursery.cancel_scope.cancel()
    assert [row[0] for row in found["rows"]] == ["k00009", "k00010", "k00011"]
    assert turns
