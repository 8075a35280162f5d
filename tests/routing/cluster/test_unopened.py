"""A log of a topic that the disk does not let be opened at a start: what lies there stays, and is opened later."""

from __future__ import annotations

import errno
import os
from typing import Any

from core_log.absent_log import AbsentLog
from core_log.files import FaultyFiles
from routing.cluster.metadata.standing import Standing
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
