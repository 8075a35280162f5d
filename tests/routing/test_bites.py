"""Long work lets others have their turn."""

from __future__ import annotations

import time

import trio

from routing.bites import BITE_S, bites
from tests.support.turns import Turns


async def test_others_have_their_turn_each_time_that_it_has_taken_a_bite() -> None:
    others, seen = Turns(), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others.take)
        while not others.count:
            await trio.lowlevel.checkpoint()
        before = others.count
        async for item in bites(range(10)):
            seen.append(item)
            until_s = time.perf_counter() + BITE_S
            while time.perf_counter() <= until_s:
                pass
        assert 9 <= others.count - before <= 11
        nursery.cancel_scope.cancel()
    assert seen == list(range(10))


async def test_what_is_added_meanwhile_is_left_out() -> None:
    there = [1, 2]
    async for item in bites(there):
        there.append(item)
    assert there == [1, 2, 1, 2]
