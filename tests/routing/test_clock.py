"""The time that queues go by: even, and it is said when the wall clock was set to another one."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from core_log.memory_files import MemoryFiles
from routing.broker import open_broker
from routing.facts import TTL_MS_MAX, pack
from routing.lives_left import life_left_ms
from routing.queue_host import Clock
from tests.routing.harness import Engine, passing, wall_clock_ms
from tests.routing.queues.test_queue_rules import slab

NOW_MS = 1_800_000_000_000


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
    for now_ms in (NOW_MS, NOW_MS - 29_000, NOW_MS - 7_200_000):
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


@pytest.mark.parametrize("unset_ms", [600_000, 946_684_800_000])
async def test_a_clock_that_has_not_been_set_makes_nothing_wait_for_decades(
    clock: MockClock, caplog: pytest.LogCaptureFixture, unset_ms: int
) -> None:
    files, ahead_ms = MemoryFiles(), 0
    async with open_broker(files, wall_clock_ms=lambda: NOW_MS + ahead_ms + int(trio.current_time() * 1000)) as broker:
        running = Engine(broker)
        await running.queue("delayed", arguments={"x-delayed": True})
        await running.queue("mortal", arguments={"x-message-ttl": 60_000})
        running.client().session.publish(
            slab("delayed", ["first", "last"], [pack(True, 0, None, 1), pack(True, 0, None, 9000)])
        )
        running.turn()
        await passing(clock, 1)
        ahead_ms = 10**12  # for a moment
        await running.client().publish_safely("mortal", "x")
        producer = await broker.coordinator.begin("id", 10_000, None, "u@here")
        assert (running.count("delayed"), running.count("mortal")) == (1, 1)
        await running.synced()
        left = files.crash()
    async with open_broker(left, wall_clock_ms=lambda: unset_ms + int(trio.current_time() * 1000)) as broker:
        running = Engine(broker)
        assert 0 <= broker.clock.now_ms() - NOW_MS < 20_000
        assert 0 <= broker.clock.wall_ms() - unset_ms < 20_000
        await passing(clock, 0.01)
        assert (running.count("delayed"), running.count("mortal")) == (1, 1)
        await passing(clock, 10)
        broker.clock.look()  # says nothing
        assert (running.count("delayed"), running.count("mortal")) == (2, 1)
        await passing(clock, 60)
        assert (running.count("delayed"), running.count("mortal")) == (2, 0)
        assert broker.coordinator.describe("id").producer_id == producer[0]
    said = [record.getMessage() for record in caplog.records if "wall clock" in record.getMessage()]
    assert [text[:31] for text in said] == ["the wall clock has not been set"]


def test_no_message_has_more_life_left_than_it_was_given() -> None:
    for ttl_ms in (1, 60_000, TTL_MS_MAX):
        facts = pack(True, ttl_ms=ttl_ms)
        whole_ms = life_left_ms(facts, 0)
        assert life_left_ms(facts, -849_297_600_000) == whole_ms
        assert life_left_ms(facts, 1) == (whole_ms or 0) - 1
