"""The time that queues go by: even, and it is said when the wall clock was set to another one."""

from __future__ import annotations

import logging

import pytest
from trio.testing import MockClock

from routing.queue_host import Clock
from tests.routing.harness import passing, wall_clock_ms


async def test_a_wall_clock_that_is_set_changes_nothing_and_is_told_of(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ahead_ms = [0]
    even = Clock(lambda: wall_clock_ms() + ahead_ms[0])
    start_ms = even.now_ms()
    with caplog.at_level(logging.WARNING):
        for ahead_ms[0] in (0, 29_000, 7_200_000, 7_201_000, -7_200_000, 1_000, 0):
            await passing(clock, 1)
            even.look()
    assert even.now_ms() == start_ms + 7_000
    apart = (
        "the wall clock is 7200 s {} the time that queues go by, which is that of this start: "
        "after the next one what waits now expires, and is due, so much {}"
    )
    assert [record.getMessage() for record in caplog.records] == [
        apart.format("ahead of", "earlier"),
        apart.format("behind", "later"),
        "the wall clock agrees again with the time that queues go by",
    ]
