"""What was a replica: kept for an hour, under a name of its own."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from core_log.absent_log import AbsentLog
from core_log.files import MemoryFiles
from core_log.replication.moves import begun
from core_log.replication.state import encode, log_key
from routing.cluster.metadata import operating
from routing.cluster.trash import KEPT_MS, TRASH, expired, keep_empty, put_aside
from routing.topics.offset_store import Committed
from tests.support.home_cluster import Mesh, mesh, until
from tests.support.replica_node import batch_of


def make(files: MemoryFiles, directory: str) -> None:
    files.make_directory(directory)
    files.open(f"{directory}/0.log").close()


def test_a_directory_is_kept_for_an_hour() -> None:
    files = MemoryFiles()
    assert expired(files, 0) == []
    for _ in range(2):
        make(files, "topics/t-0")
        assert put_aside(files, "topics/t-0", 1000).startswith(f"{TRASH}/topics-t-0.100")
        assert not files.exists("topics/t-0")
    make(files, f"{TRASH}/by hand")
    assert expired(files, KEPT_MS + 999) == []
    assert expired(files, KEPT_MS + 1000) == [f"{TRASH}/topics-t-0.1000"]
    assert len(expired(files, KEPT_MS + 1001)) == 2
    with pytest.raises(FileNotFoundError):
        put_aside(files, "topics/none", 0)


async def test_what_is_old_is_removed(autojump_clock: MockClock) -> None:
    files = MemoryFiles()
    make(files, "queues/3")
    put_aside(files, "queues/3", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_empty, files, lambda: int(trio.current_time() * 1000))
        while files.list(TRASH):
            await trio.sleep(60)
        assert trio.current_time() * 1000 >= KEPT_MS
        nursery.cancel_scope.cancel()


async def test_what_others_have_since_a_broker_went_is_no_topic_that_nobody_knows() -> None:
    async with mesh() as brokers:
        await brokers.members[1].broker.create_topic("t")
        partitions = {me: member.broker.topics["t"].partitions[0] for me, member in brokers.members.items()}
        (leader,) = [me for me, partition in partitions.items() if partition.leadership.leads]
        log: Any = partitions[leader].log
        log.append(batch_of(0, 10, 10))
        log.request_sync()
        brokers.members[leader].turn()
        await until(lambda: all(partition.log.log_end_offset == 10 for partition in partitions.values()))
        gone = leader % 3 + 1
        files = await brokers.kill(gone)
        part = brokers.members[leader].part
        (name,) = [name for name in part.elections.logs if name.startswith("topic-")]
        others = tuple(brokers.members)
        await until(lambda: part.state_of(name).isr_brokers == sorted(others))
        state = msgspec.structs.replace(part.state_of(name), replicas=others, factor=2)
        await part.store.change([], [(log_key(b"", name), encode(state))])
        again = await brokers.add(gone, files)
        partition = again.broker.topics["t"].partitions[0]
        assert isinstance(partition.log, AbsentLog)
        assert (files.list("unknown"), len(files.list(TRASH))) == ([], 1)
        await part.store.change([], [(log_key(b"", name), encode(begun(part.state_of(name), (1, 2, 3))))])
        await until(lambda: len(part.state_of(name).isr) == 3)
        assert partition.log.log_end_offset == 10


LOGS = {"home-0": "queues/0", "offsets-0": "offsets/0"}


async def move(brokers: Mesh, *replicas: int) -> None:
    """Have the logs lie there, all of them in sync."""
    part = brokers.members[replicas[0]].part
    for name in LOGS:
        await operating.move(part, log=name, replicas=list(replicas))
        await until(lambda name=name: sorted(part.state_of(name).isr_brokers) == sorted(replicas))
        await until(lambda name=name: part.state_of(name).target is None)


@pytest.mark.parametrize("away", [False, True], ids=["running", "away"])
async def test_homes_and_offsets_that_others_have_now_are_moved_aside_and_freed(away: bool) -> None:
    async with mesh() as brokers:
        await brokers.members[1].broker.offsets.commit("g", {("t", 0): Committed(5)})
        leader = brokers.leader(0)
        gone = leader.me % 3 + 1
        others = [me for me in brokers.members if me != gone]
        member = brokers.members[gone]
        files = member.files
        logs = [weakref.ref(member.part.replicas.by_name[name].log) for name in LOGS]
        if away:
            files = await brokers.kill(gone)
        await move(brokers, *others)
        if away:
            member = await brokers.add(gone, files)
        await until(lambda: [path for path in LOGS.values() if files.exists(path)] == [])
        assert len(files.list(TRASH)) == len(LOGS)
        del member, leader
        gc.collect()
        assert away or [log() for log in logs] == [None] * len(LOGS)
        await move(brokers, *others, gone)
        assert all(files.exists(path) for path in LOGS.values())


async def test_nothing_stays_in_memory_of_topics_that_are_deleted() -> None:
    async with mesh() as brokers:
        members = list(brokers.members.values())
        await members[0].broker.create_topic("t", partitions=2)
        await until(lambda: all("t" in member.broker.topics for member in members))
        logs = [weakref.ref(one.log) for member in members for one in member.broker.topics["t"].partitions]
        await members[0].broker.delete_topic("t")

        def gone() -> bool:
            gc.collect()
            return not any(log() for log in logs)

        await until(gone)
