"""What becomes of logs when etcd is put back to a state from before their replicas moved, under brokers that run."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.replica_log import ReplicaLog
from core_log.replication.state import BEYOND_EPOCHS
from routing.cluster.metadata import operating
from routing.cluster.trash import TRASH
from tests.support.home_cluster import REPLICATION, Mesh, mesh, until
from tests.support.replica_node import batch_of


async def move(brokers: Mesh, logs: list[str], *replicas: int) -> None:
    """Have the logs lie there."""
    part = brokers.members[1].part
    for log in logs:
        await operating.move(part, log=log, replicas=list(replicas))
    for log in logs:
        await until(lambda log=log: part.state_of(log).replicas == replicas and part.state_of(log).target is None)


@pytest.mark.parametrize("who_hears_first", ["all", "old"])
async def test_a_log_is_where_it_was_last_before_etcd_was_put_back(
    autojump_clock: MockClock, who_hears_first: str
) -> None:
    async with mesh() as brokers:
        await brokers.add(4)
        await brokers.members[1].broker.create_topic("t")
        part = brokers.members[1].part
        (name,) = [log for log in part.elections.logs if log.startswith("topic-")]
        logs = [name, "home-0", "offsets-0"]
        await move(brokers, logs, 1, 2)
        backup = brokers.model.revision
        await move(brokers, logs, 3, 4)
        log: Any = brokers.members[3].broker.topics["t"].partitions[0].log
        await until(lambda: brokers.members[3].part.may_append(name))
        log.append(batch_of(0, 10, 10))
        log.request_sync()
        brokers.members[3].turn()
        await until(lambda: log.high_watermark == 10)
        there = {me: len(brokers.members[me].files.list(TRASH)) for me in (3, 4)}
        if who_hears_first == "old":
            for me in (3, 4):
                brokers.members[me].one.transport.cut_off = True
        brokers.model.restore(backup)
        if who_hears_first == "old":
            await until(lambda: part.state_of(name).replicas == (1, 2))
            for _ in range(20):
                await trio.sleep(REPLICATION.grant_s / 4)
                for me in (1, 2):
                    assert not [log for log in logs if brokers.members[me].part.role_of(log)], "it has nothing of it"
            for me in (3, 4):
                brokers.members[me].one.transport.cut_off = False
        for log_name in logs:
            await until(lambda log_name=log_name: part.leader_of(log_name)[1] > BEYOND_EPOCHS)
            assert part.state_of(log_name).replicas == (3, 4)
        for me in (3, 4):
            partition = brokers.members[me].broker.topics["t"].partitions[0]
            assert isinstance(partition.log, ReplicaLog)
            assert partition.log.log_end_offset == 10
            assert len(brokers.members[me].files.list(TRASH)) == there[me], "none of its logs was moved aside"
        for member in brokers.members.values():
            await until(lambda member=member: not member.part.elections.lost)
        await until(lambda: any(brokers.members[me].part.may_append(name) for me in (3, 4)))
