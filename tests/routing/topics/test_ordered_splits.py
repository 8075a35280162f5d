"""Partitions added to a topic whose keys keep their order: nobody sees them before groups have read what was before."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

from core_log.memory_files import MemoryFiles
from core_log.record_batch import encode_headers
from routing.errors import InvalidConfig, InvalidPartitions, PreconditionFailed
from routing.topics.offset_store import Committed
from routing.topics.topic_config import SPLIT_STATE
from tests.routing.harness import Engine, engine, killed, passing
from tests.routing.queues.test_views import append

GROUPS, SETTLE, WAIT = "millrace.split.groups", "millrace.split.settle.ms", "millrace.split.wait.max.ms"
CONFIG = {GROUPS: "g, h", SETTLE: "60000", WAIT: "300000", "retention.ms": "-1"}


def visible(running: Engine) -> list[int]:
    """Where readers' sight ends in each partition."""
    return [partition.log.stable_offset for partition in running.broker.topics["t"].partitions]


async def reads(running: Engine, *offsets: int, groups: str = "gh") -> None:
    """Groups commit where they are in the first partitions."""
    for group in groups:
        places = {("t", index): Committed(offset) for index, offset in enumerate(offsets)}
        await running.broker.offsets.commit(group, places)


async def seconds(clock: MockClock, count: float) -> None:
    for _ in range(40):
        await passing(clock, count / 40)
        await trio.to_thread.run_sync(lambda: None)  # what is asked of the disk is done in one


async def come_to_see(running: Engine, clock: MockClock, *ends: int) -> None:
    """Within a minute, and however busy the machine is."""
    for _ in range(6000):
        if visible(running) == list(ends):
            return
        await passing(clock, 0.01)
        await trio.to_thread.run_sync(lambda: None)
    assert visible(running) == list(ends)


async def test_what_is_added_is_seen_when_all_groups_have_read_what_was_before(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker = running.broker
        await broker.create_topic("t", partitions=2, config=CONFIG)
        await append(running, *range(3))
        await append(running, *range(2), partition=1)
        with pytest.raises(InvalidPartitions, match="multiple of 2"):
            await broker.create_partitions("t", 5)
        await broker.create_partitions("t", 4)
        await append(running, *range(4), partition=2)
        assert visible(running) == [3, 2, 0, 0]
        with pytest.raises(PreconditionFailed, match="not read yet"):
            await broker.create_partitions("t", 8)
        await reads(running, 3, 2)
        await seconds(clock, 50)
        assert visible(running) == [3, 2, 0, 0], "a producer may not know of them yet"
        await append(running, "by one who does not")
        await seconds(clock, 20)
        assert visible(running) == [4, 2, 0, 0]
        await append(running, "nobody waits for what comes later", partition=1)
        await reads(running, 4, 2, groups="g")
        await seconds(clock, 2)
        await running.synced()
        crashed = killed(files)
    async with engine(crashed) as running:
        broker = running.broker
        told: list[int] = []
        broker.topics["t"].partitions[2].log.listeners.append(lambda log: told.append(log.stable_offset))
        await seconds(clock, 2)
        assert visible(running) == [4, 3, 0, 0], "nobody is seen as further than before"
        await reads(running, 4, 3, groups="h")
        await seconds(clock, 2)
        assert visible(running) == [4, 3, 0, 0]
        await reads(running, 4, 3, groups="g")
        await come_to_see(running, clock, 4, 3, 4, 0)
        assert told == [4]
        assert SPLIT_STATE not in broker.topics["t"].config
        await append(running, "now at once", partition=3)
        assert visible(running) == [4, 3, 4, 1]
        await broker.create_partitions("t", 8)
        assert visible(running) == [4, 3, 4, 1, 0, 0, 0, 0]
        assert broker.topics["t"].partitions[4].log.config.held


async def test_groups_are_waited_for_no_longer_than_it_is_said(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config=CONFIG)
        await append(running, "0")
        await running.broker.create_partitions("t", 2)
        await append(running, "1", partition=1)
        await reads(running, 1, groups="g")
        await seconds(clock, 350)
        assert visible(running) == [1, 0]
        with caplog.at_level(logging.WARNING):
            await come_to_see(running, clock, 1, 1)
        assert "topic t are read now, though groups h have not" in caplog.text


async def test_who_takes_the_groups_away_ends_it_and_nobody_else_sets_its_state(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.create_topic("t", config=CONFIG)
        await append(running, "0")
        await broker.create_partitions("t", 2)
        await append(running, "1", partition=1)
        alter = broker.topic_control.alter_topic
        await alter("t", lambda config: {GROUPS: "g", "retention.ms": "-1"})  # all of it, as AlterConfigs says it
        assert visible(running) == [1, 0]
        with pytest.raises(InvalidConfig, match="the broker's to set"):
            await alter("t", lambda config: config | {SPLIT_STATE: "1:0"})
        await alter("t", lambda config: config | {GROUPS: ""})
        assert visible(running) == [1, 1]
        assert SPLIT_STATE not in broker.topics["t"].config


async def test_without_groups_they_are_seen_at_once(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", partitions=2)
        await append(running, "0")
        await running.broker.create_partitions("t", 3)
        await append(running, "1", partition=2)
        assert visible(running) == [1, 0, 1]
        for bad in ({SPLIT_STATE: "1:0"}, {GROUPS: ",".join(map(str, range(17)))}, {GROUPS: "g" * 256}):
            with pytest.raises(InvalidConfig):
                await running.broker.create_topic("u", config=bad)


async def test_what_no_reader_sees_at_an_end_is_not_waited_for(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.create_topic("t", partitions=2, config=CONFIG | {GROUPS: "g", "millrace.expiry.enable": "true"})
        await append(running, "0")
        await append(running, "1", headers=encode_headers([("x-ttl", b"1")]))
        await append(running, "deleted", partition=1)
        await broker.create_partitions("t", 4)
        await broker.topics["t"].partitions[1].delete_records(-1)
        await append(running, "2", partition=2)
        await reads(running, 0, groups="g")
        await seconds(clock, 65)
        assert visible(running) == [2, 1, 0, 0]
        await reads(running, 1, groups="g")
        await come_to_see(running, clock, 2, 1, 1, 0)


async def test_a_split_that_a_clock_ahead_of_this_one_dated_settles_all_the_same(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.broker.create_topic("t", config=CONFIG)
        year_ms = 365 * 86_400_000
        now_ms = running.broker.clock.now_ms
        running.broker.clock.now_ms = lambda: now_ms() + year_ms  # type: ignore[method-assign]
        await running.broker.create_partitions("t", 2)
        await append(running, "1", partition=1)
        await reads(running, 0)
        await running.synced()
        left = killed(files)
    async with engine(left) as running:
        await seconds(clock, 50)
        assert visible(running) == [0, 0]
        await seconds(clock, 20)
        await come_to_see(running, clock, 0, 1)
