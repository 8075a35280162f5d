"""A log takes its part of a step once, whoever brings it how often, and whoever leads the log."""

from __future__ import annotations

import pytest
import trio

from core_log.record_batch import BatchBuilder, iterate_records
from routing.cluster.clients.transaction_links import OutcomeUnknown
from routing.cluster.metadata.log_names import home_log, topic_log
from routing.errors import StorageUnavailable
from routing.message import Slab
from routing.publishing.published_once import Step, _slabs
from routing.publishing.step_parts import parts_of
from routing.redo_records import Places, Published, encode
from routing.transactions import Plan
from tests.routing.cluster.test_homes import all_committed, home_of
from tests.routing.harness import PERSISTENT
from tests.support.home_cluster import Member, mesh, until

STEP = Step("w", 0)


def slab(*bodies: int, key: str = "k") -> Slab:
    builder = BatchBuilder(0, -1, 1000)
    for offset, body in enumerate(bodies):
        builder.add(offset, key.encode(), b"%d" % body, [])
    (found,) = _slabs("", [builder.build()], STEP.marker)
    return found


def record(index: int, since: int, *entries: tuple[Slab, list[int]]) -> bytes:
    ids = sorted({queue_id for _, queue_ids in entries for queue_id in queue_ids})
    publishes = [Published(one, queue_ids, [], False) for one, queue_ids in entries]
    return encode(publishes, (), Places(STEP.marker, [(index, since, *ids)], []))


async def put(member: Member, log: str, said: bytes) -> None:
    assert member.broker.engine is not None
    await member.broker.engine.transactions.steps.put_here(log, said)


async def test_a_home_has_a_part_once_whoever_leads_it() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        for name in ("q", "r", "gone"):
            await one.queue(name)
        index = home_of(one, "q")
        assert index == 0
        q, r, gone = (one.broker.topology.queues[name].id for name in ("q", "r", "gone"))
        await one.client().publish_safely("q", "first")
        since = one.log(index).high_watermark
        first = [(slab(1, 2), [q]), (slab(4), [gone]), (slab(3, 3), [q, r])]
        entries = [*first, (slab(4), [gone]), (slab(5, 6), [r])]
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(put, one, home_log(index), record(index, since, *first))
        await put(one, home_log(index), record(index, since, *first))
        await one.client().publish_safely("q", "later")
        await one.broker.delete_queue("gone", owner=None)
        await all_committed(one, index)
        await brokers.kill(1)
        leader = await brokers.settled(index)
        for _ in range(2):  # the beginning is there already: a crash has cut off the rest
            await put(leader, home_log(index), record(index, since, *entries))
        others = [member for member in brokers.members.values() if member is not leader]
        with pytest.raises(StorageUnavailable):
            await put(others[0], home_log(index), record(index, since, *entries))
        assert [int(body) if body.isdigit() else body for body, _ in await leader.drain("q")] == [
            "first", 1, 2, 3, 3, "later",
        ]  # fmt: skip
        assert [body for body, _ in await leader.drain("r")] == ["3", "3", "5", "6"]


async def test_a_part_that_is_consumed_and_gone_from_the_log_does_not_come_again() -> None:
    async with mesh(queue_segment_bytes=100_000) as brokers:
        one = brokers.members[1]
        await one.queue("q")
        index = home_of(one, "q")
        said = record(index, one.log(index).high_watermark, (slab(1, 2), [one.broker.topology.queues["q"].id]))
        await put(one, home_log(index), said)
        for _ in range(40):
            await one.client().publish_safely("q", "." * 10_000)
        assert len(await one.drain("q")) == 42
        await all_committed(one, index)
        await one.shortened(one.home("q"), 2)
        await put(one, home_log(index), said)
        assert await one.drain("q") == []


async def test_partitions_get_what_they_would_have_got_when_it_was_decided() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        topic = await one.broker.create_topic("t", partitions=2)
        names = [topic_log(topic.uid, index) for index in range(2)]
        await until(lambda: all(one.part.leader_of(name)[0] is not None for name in names))
        publishes = [Published(slab(number, key=f"k{number}"), [], ["t"], False) for number in range(20)]
        places = Places(STEP.marker, [], [("t", 0, 0), ("t", 1, 0)])

        async def hand_over() -> None:
            for part in parts_of(publishes, places, one.broker.topology.topics):
                name, number, _ = part.places.topics[0]
                assert name == "t"
                log = topic_log(topic.uid, number)
                leader = brokers.members[one.part.leader_of(log)[0] or 0]
                await put(leader, log, encode(part.publishes, (), part.places))

        await hand_over()
        first = read(brokers.members[1], names)
        assert sorted(row for rows in first for row in rows) == list(range(20))
        await one.broker.create_partitions("t", 3)
        await until(lambda: all(len(m.broker.topology.topic("t").partitions) == 3 for m in brokers.members.values()))
        for member in brokers.members.values():
            assert member.broker.engine is not None
            member.broker.engine.transactions.steps._put.clear()  # as if others led them now
        await hand_over()
        assert read(brokers.members[1], names) == first
        assert read(brokers.members[1], [topic_log(topic.uid, 2)]) == [[]]


def read(member: Member, names: list[str]) -> list[list[int]]:
    found = []
    for name in names:
        log = member.part.replicas.by_name[name].log
        batches = log.read_replica(0, 1 << 20) if log.log_end_offset else []
        found.append([int(one.value or b"") for batch in batches or [] for one in iterate_records(batch)])
    return found


async def test_a_disk_that_refuses_is_asked_again() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        await one.queue("q")
        index = home_of(one, "q")
        said = record(index, one.log(index).high_watermark, (slab(1, 2), [one.broker.topology.queues["q"].id]))
        log = one.log(index)
        log.error = OSError("full")
        with pytest.raises((OutcomeUnknown, StorageUnavailable)):
            await put(one, home_log(index), said)
        log.error = None
        await put(one, home_log(index), said)
        assert await one.drain("q") == [("1", False), ("2", False)]


async def test_a_step_for_a_topic_that_is_deleted_before_it_is_decided_is_refused() -> None:
    """It failed with an internal error; and was put behind the end of a topic that was made anew meanwhile."""
    async with mesh() as brokers:
        one = brokers.members[1]
        for is_anew in (True, False):
            await one.broker.create_topic("t")
            await one.broker.bind("topic", "t", "amq.topic", "k")
            session = one.client().session
            session.begin()
            session.publish(Slab("amq.topic", "k", PERSISTENT, [b"1"]))
            assert session.transaction is not None
            plan = Plan(session, session.transaction)
            await one.broker.delete_topic("t")
            if is_anew:
                await one.broker.create_topic("t")
            assert one.broker.engine is not None
            with pytest.raises(StorageUnavailable):
                await one.broker.engine.transactions.steps._places(plan, STEP.marker)
            if is_anew:
                await one.broker.delete_topic("t")
