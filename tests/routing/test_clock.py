"""The time that queues go by: even, and it is said when the wall clock was set to another one."""

from __future__ import annotations

import logging
from functools import partial

import pytest
from trio.testing import MockClock

from core_log.memory_files import MemoryFiles
from routing.broker import open_broker
from routing.queue_host import Clock
from tests.routing.harness import Engine, passing, wall_clock_ms


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


async def test_a_start_with_a_clock_that_is_far_behind_what_is_stored_is_told_of(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    files, said = MemoryFiles(), []
    for now_ms in (10**12, 10**12 - 29_000, 10**12 - 7_200_000):
        caplog.clear()
        async with open_broker(files, wall_clock_ms=partial(int, now_ms)) as broker:
            engine = Engine(broker)
            await engine.queue("q")
            await engine.client().publish_safely("q", "a")
        said.append([record.getMessage() for record in caplog.records if "wall clock" in record.getMessage()])
    assert said == [
        [],
        [],
        [
            "the wall clock is 7200 s behind the time at which queues were written to last: what waits in them since "
            "then expires, and is due, so much later"
        ],
    ]
