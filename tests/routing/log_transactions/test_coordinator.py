"""The coordinator of a single broker, on a disk in memory: decided is decided, whenever it is killed."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.batch_header import parse_header
from core_log.committed import committed
from core_log.errors import CoordinatorFenced
from core_log.files import Files
from core_log.memory_files import FaultyFiles, MemoryFiles
from core_log.record_batch import iterate_records
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig
from routing.log_transactions.errors import (
    NotATransactionalId,
    ProducerFenced,
    TooManyInTransaction,
    UnknownTransactionalId,
    WrongProducerId,
    WrongTimeout,
    WrongTransactionState,
)
from routing.log_transactions.links import Ending
from routing.log_transactions.state import EPOCH_MAX, Stage
from routing.log_transactions.store import TransactionalId
from routing.topics.offset_store import Committed
from tests.core_log.helpers import make_batch
from tests.routing.harness import killed, passing
from tests.support.transactional import transactional

TIMEOUT_MS = 10_000


class World:
    """A broker with a topic."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.coordinator = broker.coordinator

    async def begin(self, name: str = "id", expected: tuple[int, int] | None = None) -> tuple[int, int]:
        return await self.coordinator.begin(name, TIMEOUT_MS, expected, "u@here")

    async def add(self, producer: tuple[int, int], *partitions: int, name: str = "id", **more: Any) -> None:
        await self.coordinator.add(name, *producer, "u@here", partitions=[("t", one) for one in partitions], **more)

    async def write(self, producer: tuple[int, int], value: bytes, partition: int = 0, name: str = "id") -> None:
        """As a door and its client do it, who ends no transaction before all of it was confirmed."""
        place = self.broker.topics["t"].partitions[partition]
        sequence = 0
        for one in (await place.producers.states()).active():
            if (one.producer_id, one.epoch) == producer:
                sequence = one.last_sequence + 1
        batch = transactional(make_batch([value]), *producer, sequence)

        async def check() -> None:
            await self.coordinator.check_anywhere(name, *producer, partition=("t", partition))

        await place.append_once([parse_header(batch)], [batch], check)
        self.broker.end_turn()
        await place.log.wait_committed(place.log.log_end_offset)

    async def end(self, producer: tuple[int, int], *, committed: bool = True, name: str = "id") -> None:
        await self.coordinator.end(name, *producer, committed=committed)

    async def seen(self, partition: int = 0) -> list[bytes]:
        """What readers of committed records get."""
        log = self.broker.topics["t"].partitions[partition].log
        await log.wait_committed(log.log_end_offset)
        found: list[bytes] = []
        offset = log.log_start_offset
        while batches := log.read_blocking(offset, 1000, before=log.stable_offset):
            for batch in committed(log, batches):
                offset = parse_header(batch).next_offset
                if not parse_header(batch).is_control:
                    found += [record.value or b"" for record in iterate_records(batch)]
        return found

    async def passing(self, clock: MockClock, seconds: float) -> None:
        """Let time go by, and be done what is to be done then."""
        await passing(clock, seconds)
        store = self.broker.transactions.store
        assert store is not None
        for _ in range(4):
            for log in (store.log, *(one.log for one in self.broker.topics["t"].partitions)):
                await log.wait_committed(log.log_end_offset)
            await wait_all_tasks_blocked()

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        with trio.fail_after(10):
            while not await condition():
                await trio.sleep(0.02)


@asynccontextmanager
async def world(files: Files | None = None, **settings: Any) -> AsyncIterator[World]:
    async with open_broker(files or MemoryFiles(), BrokerConfig(stripes=1, **settings)) as broker:
        if "t" not in broker.topics:
            await broker.create_topic("t", partitions=2, config={})
        yield World(broker)


@pytest.mark.parametrize("is_committed", [True, False])
async def test_all_or_nothing_in_all_partitions(is_committed: bool) -> None:
    async with world() as one:
        producer = await one.begin()
        await one.add(producer, 0, 1)
        for partition in (0, 1):
            await one.write(producer, b"x", partition)
        assert await one.seen(0) == await one.seen(1) == []
        await one.end(producer, committed=is_committed)
        assert await one.seen(0) == await one.seen(1) == ([b"x"] if is_committed else [])
        await one.end(producer, committed=is_committed)  # asked again: its answer was lost
        with pytest.raises(WrongTransactionState):
            await one.end(producer, committed=not is_committed)


async def test_half_a_transaction_is_not_committed_where_the_epochs_run_out() -> None:
    async with world() as one:
        await one.begin()
        ids = one.coordinator._alone
        assert ids is not None
        await ids.put(ids.ids["id"], replace(one.coordinator.describe("id"), epoch=EPOCH_MAX - 1))
        last = one.coordinator.describe("id").producer_id, EPOCH_MAX - 1
        await one.add(last, 0)
        await one.write(last, b"given up")
        producer = await one.begin(expected=last)
        assert producer == await one.begin(expected=last)  # its answer was lost
        await one.add(producer, 0)
        await one.write(producer, b"first half")
        assert await one.coordinator.give_up("id")
        with pytest.raises(ProducerFenced):
            await one.add(producer, 1)
        assert await one.seen(0) == []


async def test_what_was_not_added_is_refused() -> None:
    async with world() as one:
        producer = await one.begin()
        with pytest.raises(WrongTransactionState):
            await one.write(producer, b"early")
        await one.add(producer, 0)
        with pytest.raises(WrongTransactionState):
            await one.write(producer, b"elsewhere", 1)
        await one.write(producer, b"x")
        await one.end(producer)
        with pytest.raises(WrongTransactionState):
            await one.write(producer, b"late")
        assert await one.seen() == [b"x"]
        assert one.broker.topics["t"].partitions[0].log.stable_offset == 2


async def test_what_is_wrong_is_told() -> None:
    async with world(transaction_partitions_max=2, transactional_ids_max=1) as one:
        for timeout_ms in (0, -1, 900_001):
            with pytest.raises(WrongTimeout):
                await one.coordinator.begin("id", timeout_ms, None, "u")
        for name in ("", "n" * 1025):
            with pytest.raises(NotATransactionalId):
                await one.begin(name)
        with pytest.raises(WrongProducerId):
            await one.add((1, 0), 0)
        assert (await one.begin("id", (1, 0)))[0] != 1, "nobody has the id, so it is given out as to anybody"
        producer_id, epoch = await one.begin()
        with pytest.raises(TooManyInTransaction):
            await one.begin("another")
        with pytest.raises(TooManyInTransaction):
            await one.add((producer_id, epoch), 0, 1, groups=["g"])
        with pytest.raises(WrongProducerId):
            await one.add((producer_id + 1, epoch), 0)
        with pytest.raises(ProducerFenced):
            await one.end((producer_id, epoch + 1))
        with pytest.raises(UnknownTransactionalId):
            one.coordinator.describe("nobody")


async def test_who_takes_over_gives_up_what_was_under_way() -> None:
    async with world() as one:
        first = await one.begin()
        await one.add(first, 0)
        await one.write(first, b"zombie")
        second = await one.begin()
        assert second[0] == first[0]
        assert second[1] > first[1]
        for late in (one.write(first, b"late"), one.add(first, 0), one.end(first)):
            with pytest.raises(ProducerFenced):
                await late
        await one.add(second, 0)
        await one.write(second, b"heir")
        await one.end(second)
        assert await one.seen() == [b"heir"]


async def test_time_is_enforced_and_unused_ids_go(clock: MockClock) -> None:
    async with world(transactional_id_expiration_ms=100_000) as one:
        producer = await one.begin()
        await one.add(producer, 0)
        await one.write(producer, b"late")
        await one.passing(clock, TIMEOUT_MS / 1000 - 1)
        assert one.coordinator.describe("id").stage is Stage.ONGOING
        await one.passing(clock, 2)
        assert one.coordinator.describe("id").stage is Stage.COMPLETE_ABORT
        assert await one.seen() == []
        with pytest.raises(ProducerFenced):
            await one.end(producer)
        await one.passing(clock, 90)
        assert [name for name, _ in one.coordinator.known()] == ["id"]
        await one.passing(clock, 80)
        assert list(one.coordinator.known()) == []
        assert await one.begin() != producer


async def test_many_ids_are_forgotten_together(clock: MockClock) -> None:
    class Spawned(trio.abc.Instrument):
        count = 0

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            self.count += 1

    async with world(transactional_id_expiration_ms=100_000) as one:
        ids = one.coordinator._alone
        assert ids is not None
        await one.begin("used")
        state = one.coordinator.describe("used")
        await ids.put_all([(TransactionalId(f"id {number}"), state) for number in range(1000)])
        await one.passing(clock, 90)
        await one.begin("used")
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        await one.passing(clock, 80)
        for _ in range(10):  # some at a time
            await one.passing(clock, 0)
        assert [name for name, _ in one.coordinator.known()] == ["used"]
        assert spawned.count < 300, "each would cost a task and a wait for the disk, all at one moment"


async def test_what_cannot_be_given_up_now_is_said_once(clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFiles(MemoryFiles())
    async with world(files) as one:
        await one.add(await one.begin(), 0)
        files.failing["write"] = errno.EIO
        for _ in range(40):
            await passing(clock, TIMEOUT_MS / 1000)
            await wait_all_tasks_blocked(0.01)  # the disk's threads
        assert one.coordinator.describe("id").stage is Stage.ONGOING
        said = [record.getMessage() for record in caplog.records if "the transaction of 'id'" in record.getMessage()]
        assert len(said) == 2, said  # it is given up, which cannot be done now
        files.failing.clear()
        for _ in range(2000):
            if one.coordinator.describe("id").stage is Stage.COMPLETE_ABORT:
                break
            await passing(clock, 0.1)
            await wait_all_tasks_blocked(0.01)
        assert one.coordinator.describe("id").stage is Stage.COMPLETE_ABORT


async def test_a_transaction_that_a_clock_ahead_of_this_one_dated_ends_in_time(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    async with world(files) as one:
        year_ms = 365 * 86_400_000
        monkeypatch.setattr(one.coordinator, "_now_ms", lambda: one.broker.clock.now_ms() + year_ms)
        producer = await one.begin()
        await one.add(producer, 0)
        await one.write(producer, b"late")
        await one.seen()
        left = files.crash()
    async with world(left) as one:
        assert one.coordinator.describe("id").stage is Stage.ONGOING
        await one.passing(clock, TIMEOUT_MS / 1000 + 1)
        for _ in range(2000):  # a disk takes its time, whatever the test's clock says
            if one.coordinator.describe("id").stage is Stage.COMPLETE_ABORT:
                break
            await one.passing(clock, 0.1)
            await wait_all_tasks_blocked(0.01)
        assert one.coordinator.describe("id").stage is Stage.COMPLETE_ABORT


async def test_an_operator_ends_a_transaction() -> None:
    async with world() as one:
        producer = await one.begin()
        assert await one.coordinator.give_up("id") is False
        await one.add(producer, 0)
        await one.write(producer, b"x")
        assert one.coordinator.describe("id").owner == "u@here"
        assert await one.coordinator.give_up("id") is True
        assert await one.seen() == []
        with pytest.raises(ProducerFenced):
            await one.write(producer, b"more")


@pytest.mark.parametrize("is_committed", [True, False])
async def test_offsets_of_groups_go_with_it(is_committed: bool) -> None:
    async with world() as one:
        offsets = one.broker.offsets
        await offsets.commit("g", {("t", 0): Committed(3, "before")})
        producer = await one.begin()
        await one.add(producer, groups=["g"])

        async def check() -> None:
            await one.coordinator.check_anywhere("id", *producer, group="g")

        await offsets.commit_pending("g", producer[0], {("t", 0): Committed(9, "n"), ("t", 1): Committed(4)}, check)
        assert offsets.known("g") == {("t", 0): Committed(3, "before")}
        assert offsets.unstable("g") == {("t", 0), ("t", 1)}
        assert offsets.unstable("g", [("t", 1), ("s", 0)]) == {("t", 1)}
        await one.end(producer, committed=is_committed)
        after = (
            {("t", 0): Committed(9, "n"), ("t", 1): Committed(4)}
            if is_committed
            else {("t", 0): Committed(3, "before")}
        )
        assert offsets.known("g") == after
        assert offsets.unstable("g") == set()
        with pytest.raises(WrongTransactionState):
            await offsets.commit_pending("g", producer[0], {("t", 0): Committed(10)}, check)


async def test_a_kill_at_any_moment_leaves_all_or_nothing() -> None:
    """Pictures of the disk are taken all the time while transactions run; each is opened, and has ended what was
    decided: what the client was told, and what it asked for last as a whole.
    """
    pictures: list[tuple[MemoryFiles, int]] = []
    files = MemoryFiles()
    told = 0
    async with world(files) as one:
        producer = await one.begin()
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while True:
                    before = told
                    pictures.append((killed(files), before))
                    await trio.sleep(0.001)

            nursery.start_soon(watch)
            for number in range(4):
                await one.add(producer, 0, 1, groups=["g"])
                for partition in (0, 1):
                    await one.write(producer, b"%d" % number, partition)

                async def check() -> None:
                    await one.coordinator.check_anywhere("id", *producer, group="g")

                await one.broker.offsets.commit_pending("g", producer[0], {("t", 0): Committed(number + 1)}, check)
                await one.end(producer, committed=number != 2)
                told = number + 1
            nursery.cancel_scope.cancel()
    step = max(len(pictures) // 25, 1)
    for picture, count in pictures[::step]:
        async with world(picture) as one:

            async def ended(one: World = one) -> bool:
                return not any(state.is_prepared for _, state in one.coordinator.known())

            await one.until(ended)
            await one.begin()  # what was not decided is given up
            left, right = await one.seen(0), await one.seen(1)
            assert left == right
            committed_values = [b"%d" % number for number in range(count) if number != 2]
            assert left[: len(committed_values)] == committed_values
            assert len(left) <= len(committed_values) + 1
            known = one.broker.offsets.known("g").get(("t", 0), (0, ""))[0]
            assert known == (int(left[-1]) + 1 if left else 0)
            assert one.broker.offsets.unstable("g") == set()


@pytest.mark.parametrize("is_killed", [True, False])
async def test_what_a_deposed_coordinator_says_late_ends_no_later_transaction(is_killed: bool) -> None:
    files = MemoryFiles()
    async with world(files) as one:
        place, endings = one.broker.topics["t"].partitions[0], one.coordinator.endings

        async def write(value: bytes, sequence: int) -> None:
            batch = transactional(make_batch([value]), 7, 0, sequence)
            await place.append_once([parse_header(batch)], [batch], trio.lowlevel.checkpoint)

        await write(b"first", 0)
        await endings.mark(place, Ending(7, 0, committed=True, coordinator_epoch=6))
        await write(b"second", 1)
        late = Ending(7, 0, committed=False, coordinator_epoch=5)
        with pytest.raises(CoordinatorFenced):
            await endings.mark(place, late)
        assert await one.seen() == [b"first"]
        left = killed(files) if is_killed else files
    async with world(left) as one:
        place, endings = one.broker.topics["t"].partitions[0], one.coordinator.endings
        with pytest.raises(CoordinatorFenced):
            await endings.mark(place, late)
        await endings.mark(place, late._replace(committed=True, coordinator_epoch=6))
        assert await one.seen() == [b"first", b"second"]
