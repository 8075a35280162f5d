"""Group offsets divided among the brokers of a cluster: each asked at any of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from core_log.files import MemoryFiles
from core_log.log_config import LogConfig
from core_log.replica_log import ReplicaLog
from core_log.replication.state import LogState, encode, log_key
from routing.broker import open_broker
from routing.cluster.cluster import Cluster
from routing.cluster.offsets import ReplicatedOffsets
from routing.errors import StorageUnavailable
from routing.topics.offset_store import Committed, Partition
from tests.routing.cluster.test_elections import start
from tests.routing.cluster.test_members import cluster, until
from tests.simulation.etcd_model import EtcdModel

PLACE: Partition = ("t", 0)
FOREIGN = {"group a": 1, "group d": 0}
"""A group of each of two logs."""


class Direct:
    """To the other broker at once."""

    def __init__(self, there: dict[int, ReplicatedOffsets]) -> None:
        self._there = there

    async def commit_offsets(self, broker: int, group: str, offsets: Mapping[Partition, Committed]) -> None:
        await self._there[broker].commit(group, offsets)

    async def fetch_offsets(
        self, broker: int, group: str, partitions: list[Partition] | None
    ) -> dict[Partition, Committed]:
        return await self._there[broker].fetch(group, partitions)


def offsets_of(part: Cluster, nursery: trio.Nursery, topics: set[str], *, patience_s: float = 5.0) -> ReplicatedOffsets:
    def open_log(number: int) -> ReplicaLog:
        return part.open_log(f"offsets-{number}", f"offsets/{number}", LogConfig())

    return ReplicatedOffsets(
        part,
        count=2,
        open_log=open_log,
        spawn=nursery.start_soon,
        topic_exists=topics.__contains__,
        patience_s=patience_s,
    )


async def test_any_broker_is_asked_and_the_leader_answers_also_after_a_restart() -> None:
    model = EtcdModel()
    topics = {"t", "gone"}
    async with cluster(model) as nursery:
        disks = {me: MemoryFiles() for me in (1, 2)}
        for round_number in (1, 2):
            members = {me: await start(nursery, model, me, disks[me]) for me in (1, 2)}
            parts = {me: Cluster(one.store, one.members, elections) for me, (one, elections) in members.items()}
            if round_number == 1:
                for number, me in enumerate((1, 2)):
                    state = LogState(replicas=(me,), isr=((me, members[me][0].members.epoch),))
                    key = log_key(b"", f"offsets-{number}")
                    await members[1][0].store.change([], [(key, encode(state))])
            async with (
                open_broker(disks[1], cluster=parts[1]) as one,
                open_broker(disks[2], cluster=parts[2]) as two,
                trio.open_nursery() as tasks,
            ):
                there: dict[int, ReplicatedOffsets] = {}
                for me, part in parts.items():
                    there[me] = offsets_of(part, tasks, topics)
                for each in there.values():
                    each.forward = Direct(there)
                assert {group: there[1].log_of(group) for group in FOREIGN} == FOREIGN
                tasks.start_soon(_turns, [one, two])
                if round_number == 1:
                    for group in FOREIGN:
                        for me, each in there.items():
                            await each.commit(group, {PLACE: (me, group), ("gone", me): (7, "")})
                for group in FOREIGN:
                    for each in there.values():
                        assert await each.fetch(group, [PLACE]) == {PLACE: (2, group)}
                        if round_number == 2:
                            assert await each.fetch(group) == {PLACE: (2, group)}, "topics that went meanwhile"
                assert there[1].known("group d")
                assert not there[1].known("group a")
                assert there[2].count(PLACE, "group") == 1
                tasks.cancel_scope.cancel()
            topics.discard("gone")
            for member, _ in members.values():
                member.kill()


async def _turns(brokers: list) -> None:  # type: ignore[type-arg]
    while True:
        for broker in brokers:
            broker.end_turn()
        await trio.sleep(0.001)


async def test_what_nobody_leads_is_refused_after_a_while() -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, elections = await start(nursery, model, 1, MemoryFiles())
        part = Cluster(one.store, one.members, elections)
        async with open_broker(MemoryFiles(), cluster=part), trio.open_nursery() as tasks:
            offsets = offsets_of(part, tasks, {"t"}, patience_s=0.3)
            with pytest.raises(StorageUnavailable, match="nobody leads"):
                await offsets.commit("group a", {PLACE: (1, "")})
            state = LogState(replicas=(1, 2), isr=((1, one.members.epoch),), min_insync=2)
            await one.store.change([], [(log_key(b"", "offsets-1"), encode(state))])
            await until(lambda: part.role_of("offsets-1") is not None)
            await until(lambda: part.may_append("offsets-1"))
            with pytest.raises(StorageUnavailable, match="too few"):
                await offsets.commit("group a", {PLACE: (1, "")})
            tasks.cancel_scope.cancel()
        one.kill()
