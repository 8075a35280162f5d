"""Records that a group does not get past: what counts as a try, and what becomes of them."""

from __future__ import annotations

import random
import struct

import pytest
from trio.testing import MockClock

from core_log.memory_files import MemoryFiles
from core_log.record_batch import Record, encode_headers, iterate_records
from routing.config import BrokerConfig
from routing.errors import InvalidConfig, StorageUnavailable
from routing.groups.assigned import assigned
from routing.topics.offset_store import Committed
from routing.topics.topic_config import log_config
from tests.routing.harness import Engine, engine, killed, passing
from tests.routing.queues.test_views import append
from tests.routing.republishing.test_delayed_records import become

PLACE = ("t", 0)


def assignment(*topics: tuple[str, tuple[int, ...]]) -> bytes:
    out = struct.pack(">hi", 0, len(topics))
    for name, partitions in topics:
        out += struct.pack(">h", len(name)) + name.encode()
        out += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return out + struct.pack(">i", -1)


def test_what_a_member_had_is_read_from_its_assignment_and_other_bytes_say_nothing() -> None:
    data = assignment(("t", (0, 3)), ("other", ()), ("u", (1,)))
    assert assigned(data) == [("t", 0), ("t", 3), ("u", 1)]
    assert assigned(b"") == assigned(data[:9]) == []
    assert assigned(struct.pack(">hihi", 0, 1, 0, 1 << 30)) == []
    dice = random.Random(1)
    for _ in range(500):
        torn = bytearray(data)
        torn[dice.randrange(len(torn))] = dice.randrange(256)
        assigned(bytes(torn[: dice.randrange(len(torn) + 1)]))


async def goes_on(running: Engine, *, after: int = 0) -> int:
    """Where the group goes on, after so many members that had the partition have gone."""
    group = running.broker.groups.groups["g"]
    group.departed[PLACE] += after  # type: ignore[union-attr]
    found = await running.broker.offsets.fetch("g", [PLACE])
    return (await running.broker.poison.look("g", found))[PLACE][0]


async def test_a_position_is_tried_when_somebody_begins_there_whose_forerunner_is_gone() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"millrace.dead.letter.fetches": "2"})
        await append(running, *range(5))
        await running.broker.offsets.commit("g", {PLACE: Committed(3, "note")})
        assert (await running.broker.poison.look("g", {PLACE: Committed(3)}))[PLACE] == Committed(3), (
            "it has no members"
        )
        running.broker.groups._add_classic("g")
        for _ in range(5):
            assert await goes_on(running) == 3, "who asks again has not failed"
        assert await goes_on(running, after=1) == 3
        assert await goes_on(running) == 3
        assert await goes_on(running, after=1) == 4
        assert (await running.broker.offsets.fetch("g", [PLACE]))[PLACE] == Committed(4)
        log = running.broker.topics["t.dlq"].partitions[0].log
        (dead,) = [one for each in log.read_blocking(0, 1 << 20) for one in iterate_records(each)]
        assert bytes(dead.value or b"") == b"3"
        assert dict(dead.headers)["x-dead-letter-tries"] == b"2"
        assert await goes_on(running, after=1) == 4
        await running.broker.offsets.commit("g", {PLACE: Committed(5)})
        for _ in range(5):
            assert await goes_on(running, after=1) == 5, "there is nothing to fail at"
        await append(running, "later")
        assert await goes_on(running, after=1) == 5


async def test_a_group_that_got_past_a_record_and_goes_back_to_it_tries_it_anew() -> None:
    """Each time an operator set the group back counted, and at last a record that never failed was a dead letter."""
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"millrace.dead.letter.fetches": "1"})
        await append(running, *range(5))
        running.broker.groups._add_classic("g")
        for _ in range(3):
            await running.broker.offsets.commit("g", {PLACE: Committed(1)})
            assert await goes_on(running, after=1) == 1
            await running.broker.offsets.commit("g", {PLACE: Committed(5)})
        await running.broker.offsets.commit("g", {PLACE: Committed(1)})
        assert await goes_on(running, after=1) == 1
        await running.broker.offsets.commit("g", {PLACE: Committed(1)})
        assert await goes_on(running, after=1) == 2, "who commits where it stands gets no further"


async def test_a_topic_that_is_made_anew_has_no_tries_of_the_one_before() -> None:
    async with engine(MemoryFiles()) as running:
        running.broker.groups._add_classic("g")
        for _ in range(2):
            await running.broker.create_topic("t", config={"millrace.dead.letter.fetches": "1"})
            await append(running, *range(3))
            await running.broker.offsets.commit("g", {PLACE: Committed(1)})
            assert await goes_on(running, after=1) == 1
            await running.broker.delete_topic("t")


async def ready() -> None:
    pass


@pytest.mark.parametrize("committed", [True, False])
async def test_where_a_transaction_may_change_how_far_the_group_is_nothing_is_tried(committed: bool) -> None:
    """The first record became a dead letter, and what the transaction had for the group was forgotten: what it had
    worked on came again.
    """
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"millrace.dead.letter.fetches": "1"})
        await append(running, *range(5))
        running.broker.groups._add_classic("g")
        offsets = running.broker.offsets
        await offsets.commit("g", {PLACE: Committed(1)})
        assert await goes_on(running, after=1) == 1
        await offsets.store_of("g").commit_pending("g", 7, {PLACE: Committed(4)}, ready)  # type: ignore[union-attr]
        assert await goes_on(running, after=1) == 1
        await offsets.store_of("g").end_pending("g", 7, committed=committed)  # type: ignore[union-attr]
        assert await goes_on(running) == (4 if committed else 2)


async def test_a_group_that_moves_while_its_dead_letter_is_written_is_not_moved_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"millrace.dead.letter.fetches": "1"})
        await append(running, *range(5))
        running.broker.groups._add_classic("g")
        await running.broker.offsets.commit("g", {PLACE: Committed(1)})
        assert await goes_on(running, after=1) == 1

        async def slow(*_: object) -> None:
            await running.broker.offsets.commit("g", {PLACE: Committed(4)})

        monkeypatch.setattr("routing.republishing.poison_records.bury", slow)
        assert await goes_on(running, after=1) == 4
        assert (await running.broker.offsets.fetch("g", [PLACE]))[PLACE] == Committed(4)


@pytest.mark.parametrize("delays", [{}, {"millrace.retry.delays.ms": "1000"}])
async def test_a_record_as_large_as_its_topic_takes_is_a_dead_letter_at_once(delays: dict[str, str]) -> None:
    async with engine(MemoryFiles()) as running:
        largest = "x" * ((1 << 20) - 100)
        await running.broker.create_topic("t", config={"millrace.dead.letter.fetches": "1"} | delays)
        await append(running, largest)
        await running.broker.offsets.commit("g", {PLACE: Committed(0)})
        running.broker.groups._add_classic("g")
        assert [await goes_on(running, after=1) for _ in range(2)] == [0, 1]
        assert [record.value for record in records(running, "t.dlq")] == [largest.encode()]


def records(running: Engine, name: str) -> list[Record]:
    log = running.broker.topics[name].partitions[0].log
    found: list[Record] = []
    while batches := log.read_blocking(found[-1].offset + 1 if found else 0, 1 << 20):
        found += [one for each in batches for one in iterate_records(each)]
    return found


async def test_who_goes_back_to_a_record_that_was_put_off_gets_it_again_as_well(clock: MockClock) -> None:
    """It was taken for one whose broker was gone before the group's position had moved, and passed over."""
    config = {"millrace.dead.letter.fetches": "1", "millrace.retry.delays.ms": "5000"}
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config=config)
        await append(running, *range(3))
        running.broker.groups._add_classic("g")
        for copies in (1, 2):
            await running.broker.offsets.commit("g", {PLACE: Committed(1)})
            assert [await goes_on(running, after=1) for _ in range(2)] == [1, 2]
            await become(running, clock, [b"0", b"1", b"2", *[b"1"] * copies])


async def test_before_it_is_a_dead_letter_it_comes_again_after_each_delay(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise StorageUnavailable("gone")

    config = {"millrace.dead.letter.fetches": "2", "millrace.retry.delays.ms": "5000, 60000"}
    files = MemoryFiles()
    async with engine(files) as running:
        await running.broker.create_topic("t", config=config)
        await append(running, *range(3), headers=encode_headers([("h", b"\xff"), ("x-retry-tries", b"9")]))
        await running.broker.offsets.commit("g", {PLACE: Committed(1)})
        running.broker.groups._add_classic("g")
        for expected in (1, 1):
            assert await goes_on(running, after=1) == expected
        with monkeypatch.context() as patched:  # the broker was gone before the position moved
            patched.setattr(running.broker.offsets, "commit", refuse)
            with pytest.raises(StorageUnavailable):
                await goes_on(running, after=1)
        assert await goes_on(running, after=1) == 2
        assert "t.dlq" not in running.broker.topics
        await passing(clock, 4.9)
        assert [one.value for one in records(running, "t")] == [b"0", b"1", b"2"]
        await become(running, clock, [b"0", b"1", b"2", b"1"])
        copy = records(running, "t")[3]
        assert copy.timestamp_ms == 1_000
        told = {"x-retry-group": b"g", "x-retry-count": b"1", "x-retry-tries": b"2", "x-retry-offset": b"1"}
        assert copy.headers == [("h", b"\xff"), *told.items()]
        await running.broker.offsets.commit("g", {PLACE: Committed(3)})
        for expected in (3, 3, 4):
            assert await goes_on(running, after=1) == expected
        await running.synced()
        crashed = killed(files)
    async with engine(crashed) as running:
        await passing(clock, 58)
        assert len(records(running, "t")) == 4
        await become(running, clock, [b"0", b"1", b"2", b"1", b"1"])
        running.broker.groups._add_classic("g")
        for expected in (4, 4, 5):
            assert await goes_on(running, after=1) == expected
        (dead,) = records(running, "t.dlq")
        said = dict(dead.headers)
        assert (dead.value, said["h"], said["x-dead-letter-offset"], said["x-dead-letter-tries"]) == (
            b"1", b"\xff", b"1", b"6",
        )  # fmt: skip
        assert not [name for name in said if name.startswith("x-retry")]
        await passing(clock, 120)
        assert len(records(running, "t")) == 5


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"millrace.retry.delays.ms": "1"}, "wants millrace.dead.letter.fetches"),
        ({"millrace.retry.delays.ms": "1", "cleanup.policy": "compact"}, "replace"),
        ({"millrace.retry.delays.ms": "1,,2"}, "not a whole number"),
        ({"millrace.retry.delays.ms": "0"}, "less than 1"),
        ({"millrace.retry.delays.ms": ",".join(["1"] * 17)}, "more than 16"),
    ],
)
def test_delays_that_are_none_are_refused(config: dict[str, str], why: str) -> None:
    fetches = {} if "fetches" in why else {"millrace.dead.letter.fetches": "1"}
    with pytest.raises(InvalidConfig, match=why):
        log_config(fetches | config, BrokerConfig())
