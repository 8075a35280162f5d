"""Checkpoints: each is the one before and what was appended since, and says what the log alone would say."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
import trio

from core_log.checkpoint import load, save
from core_log.files import MemoryFiles
from routing.facts import pack
from routing.message import Slab
from routing.queues.fact_columns import FactColumns
from routing.queues.homes.checkpoints import checkpoint_path, decode_checkpoint, encode_checkpoint
from routing.queues.homes.journal import Journal
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.homes.reclaim import give_back
from routing.queues.homes.standby import Standby
from routing.queues.packed_ranges import unpack
from tests.routing.harness import PERSISTENT, Engine, engine, killed

CONFIG: dict[str, Any] = {"stripes": 1, "checkpoint_interval_bytes": 1}


async def checkpointed(running: Engine, home: QueuePartition) -> Standby:
    """A checkpoint of all that happened."""
    running.turn()
    home.seal()
    wanted = home.next_offset
    home.unchecked_bytes = max(home.unchecked_bytes, 1)
    running.broker.checkpoints.take(home)
    with trio.fail_after(20):
        while True:
            content = load(running.broker.files, checkpoint_path(home.log))
            if content is not None and (found := decode_checkpoint(content).standby).offset == wanted:
                return found
            running.broker.checkpoints.take(home)
            await trio.sleep(0.001)


def from_log(home: QueuePartition) -> Standby:
    """The same from the log alone."""
    standby = Standby(home.log.log_start_offset)
    standby.read(home.log, home.log.log_end_offset)
    standby.fold(home.queues, home.log.log_start_offset)
    return standby


def facts_by_offset(facts: FactColumns, live: set[int]) -> dict[int, int]:
    end = max(live, default=0) + 1
    return {
        run.first + at: one
        for run in facts.between(0, end)
        for at, one in enumerate(run.facts)
        if run.first + at in live
    }


def offsets(standby: Standby) -> dict[int, list[int]]:
    return {
        queue_id: [offset for first, count in unpack(packed) for offset in range(first, first + count)]
        for queue_id, packed in standby.live.items()
    }


@pytest.mark.parametrize("seed", range(6))
async def test_a_chain_of_checkpoints_says_what_the_log_says(seed: int) -> None:
    dice = random.Random(seed)
    files = MemoryFiles()
    names = ["a", "b", "c"]
    async with engine(files, **CONFIG) as running:
        for name in names:
            await running.queue(name)
            await running.bind("amq.fanout", name)
        home = running.home("a")
        client = running.client()
        for _ in range(15):
            for _ in range(dice.randint(1, 10)):
                count = dice.randint(1, 5)
                facts = [pack(True, dice.randrange(9), None, dice.choice([0, 1 << 39])) for _ in range(count)]
                slab = Slab(
                    dice.choice(["", "amq.fanout"]),
                    dice.choice(names),
                    PERSISTENT,
                    [b"x"] * count,
                    facts=dice.choice([None, facts]),
                )
                client.session.publish(slab, confirm=True)
                if dice.random() < 0.7:
                    running.turn()
                for _ in range(dice.randint(0, 4)):
                    await running.client().session.get(dice.choice(names), no_ack=True)
            if dice.random() < 0.3:
                await running.broker.purge_queue("c")
            if dice.random() < 0.2:
                running.turn()
                home.journal = Journal(home.next_offset)  # as when it grew too large
            saved = await checkpointed(running, home)
            expected = from_log(home)
            assert offsets(saved) == offsets(expected)
            live = {offset for one in offsets(saved).values() for offset in one}
            assert facts_by_offset(saved.facts, live) == facts_by_offset(expected.facts, live)
            assert facts_by_offset(home.facts, live) == facts_by_offset(expected.facts, live)
            counts = {name: running.count(name) for name in names}
            if dice.random() < 0.3:
                home.delete_dead_prefix()
        found = killed(files)
    async with engine(found, **CONFIG) as running:
        assert {name: running.count(name) for name in names} == counts
        assert facts_by_offset(running.home("a").facts, live) == facts_by_offset(saved.facts, live)


async def test_what_a_crashed_broker_replayed_is_its_next_checkpoint() -> None:
    files = MemoryFiles()
    async with engine(files, stripes=1) as running:
        await running.queue("q")
        await running.client().publish_safely("q", *range(10))
        found = killed(files)
    async with engine(found, stripes=1) as running:
        home = running.home("q")
        end = home.log.log_end_offset
        running.broker.checkpoints.take(home)
        with trio.fail_after(20):
            while not found.exists(checkpoint_path(home.log)):
                await trio.sleep(0.001)
        assert home.replayed is None
        content = load(found, checkpoint_path(home.log))
        assert content is not None
        assert decode_checkpoint(content).standby.offset == end


async def test_what_no_queue_needs_may_go_while_a_checkpoint_reads_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the queues are emptied faster than a thread reads."""
    monkeypatch.setattr("routing.queues.homes.standby._READ_BYTES", 1)
    async with engine(MemoryFiles(), stripes=1) as running:
        await running.queue("q")
        home, client = running.home("q"), running.client()
        for number in range(4):
            await client.publish_safely("q", number, "x" * 20_000)
        standby, read_blocking = Standby(0), home.log.read_blocking
        await running.drain("q")
        await running.synced()

        def read(offset: int, max_bytes: int, **limits: Any) -> Any:
            if home.log.log_start_offset == 0 and offset:
                assert give_back(home)
            return read_blocking(offset, max_bytes, **limits)

        monkeypatch.setattr(home.log, "read_blocking", read)
        end = home.log.log_end_offset
        standby.read(home.log, end)
        assert home.log.log_start_offset > 0
        assert standby.offset == end
        standby.fold(home.queues, home.log.log_start_offset)
        assert not any(offsets(standby).values())


async def test_a_checkpoint_of_the_old_form_is_understood() -> None:
    files = MemoryFiles()
    async with engine(files, **CONFIG) as running:
        await running.queue("q")
        await running.client().publish_safely("q", *range(10))
        home = running.home("q")
        saved = await checkpointed(running, home)
        found = killed(files)
    (queue_id,) = saved.live
    first, count = next(iter(unpack(saved.live[queue_id])))
    for clean in (False, True):
        old = {
            "offset": saved.offset,
            "clean": clean,
            "next_set_id": saved.next_set_id,
            "sets": {set_id: ids for set_id, (ids, _) in saved.sets.items()},
            "queues": {queue_id: [[[first + 3, count - 3]], [[first, 2]], 0]},
        }
        files = killed(found)
        save(files, checkpoint_path(home.log), msgpack.packb(old))
        async with engine(files, stripes=1) as running:
            bodies = await running.drain("q")
            assert [int(body) for body, _ in bodies] == [0, 1, *range(3, 10)]
            assert [marked for _, marked in bodies] == [True, True] + [not clean] * 7


@pytest.mark.parametrize("content", [b"", b"\x80", msgpack.packb({"offset": 1}), msgpack.packb([1, 2]), b"\xff" * 50])
def test_what_is_no_checkpoint_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a checkpoint"):
        decode_checkpoint(content)


def test_a_checkpoint_both_ways() -> None:
    standby = Standby(77)
    standby.states = {5: {"deliveries": {3: 2}}}
    standby.sets = {1: ((5,), 3)}
    standby.moves.place([(2, 3, 40)])
    decoded = decode_checkpoint(encode_checkpoint(standby)).standby
    assert decoded.states == standby.states
    assert list(decoded.moves.all()) == [(2, 3, 40)]
    assert decoded.sets == {1: ((5,), 0)}
    assert decoded.offset == 77
