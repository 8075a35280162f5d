"""A log of a topic that the disk does not let be opened at a start: what lies there stays, and is opened later."""

from __future__ import annotations

import errno
import os
from typing import Any

from msgspec.structs import replace

from core_log.absent_log import AbsentLog
from core_log.files import FaultyFiles
from core_log.replication.state import encode, log_key
from routing.cluster.metadata.standing import Standing
from routing.topics.offset_store import Committed
from tests.support.home_cluster import Member, mesh, until
from tests.support.replica_node import batch_of


async def test_a_log_that_cannot_be_opened_at_a_start_stays_where_it_is() -> None:
    async with mesh() as brokers:
        await brokers.members[1].broker.create_topic("t")
        partitions = {me: member.broker.topics["t"].partitions[0] for me, member in brokers.members.items()}
        (leader,) = [me for me, partition in partitions.items() if partition.leadership.leads]
        log: Any = partitions[leader].log
        log.append(batch_of(0, 10, 10))
        log.request_sync()
        brokers.members[leader].turn()
        await until(lambda: all(partition.log.log_end_offset == 10 for partition in partitions.values()))
        await until(lambda: log.high_watermark == 10)
        gone = leader % 3 + 1
        files = FaultyFiles(await brokers.kill(gone))

        def refuse(operation: str, path: str) -> None:
            if path.startswith(log.directory):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        files.hook = refuse
        again = await brokers.add(gone, files)  # type: ignore[arg-type]
        partition = again.broker.topics["t"].partitions[0]
        assert isinstance(partition.log, AbsentLog)
        assert len(await said(again)) == 1, "it is away for this log, whoever elects leaders"
        files.hook = None
        assert files.list("unknown") == []
        again.cut()
        assert again.broker.storage.topic_logs is not None
        again.broker.storage.topic_logs.retry()
        assert partition.log.log_end_offset == 10
        assert await said(again) == ()


async def said(member: Member) -> tuple[str, ...]:
    """What a broker says of itself, once it has."""
    await Standing(member.part).look()
    return member.part.members.brokers[member.me].record.unopened


async def test_a_log_of_group_offsets_that_cannot_be_opened_is_one_that_its_broker_does_not_have() -> None:
    async with mesh() as brokers:
        part, offsets = brokers.members[1].part, brokers.members[1].broker.offsets
        groups = {offsets.log_of(group): group for group in "abcdefgh"}
        for number in (0, 1):
            await offsets.commit(groups[number], {("t", 0): Committed(5)})
            log = brokers.members[3].part.replicas.by_name[f"offsets-{number}"].log
            await until(lambda log=log: log.high_watermark)
        files = FaultyFiles(await brokers.kill(3))

        async def move(*replicas: int) -> None:
            state = replace(part.state_of("offsets-1"), replicas=replicas, factor=len(replicas))
            await part.store.change([], [(log_key(b"", "offsets-1"), encode(state))])

        def refuse(operation: str, path: str) -> None:
            if path.startswith(("offsets/0", "offsets/1")):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        await until(lambda: len(part.state_of("offsets-1").isr) == 2)
        await move(1, 2)
        files.hook = refuse
        again = await brokers.add(3, files)  # type: ignore[arg-type]
        assert await said(again) == ("offsets-0",)
        await move(1, 2, 3)
        await until(lambda: again.part.is_replica("offsets-1"))
        assert await said(again) == ("offsets-0", "offsets-1")
        files.hook = None
        await until(lambda: {"offsets-0", "offsets-1"} <= again.part.replicas.by_name.keys(), 5)
        assert await said(again) == ()
        await until(lambda: len(part.state_of("offsets-1").isr) == 3)
