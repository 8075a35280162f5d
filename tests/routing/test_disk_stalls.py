"""A disk that stands still and refuses nothing: operators are told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.administration import administer
from routing.broker import Broker, open_broker
from routing.cluster.metadata.standing import Standing
from routing.disk_stalls import LOOKS
from tests.support.home_cluster import mesh
from tests.support.replica_node import batch_of


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.01)


async def is_said_to_be_stalled(broker: Broker) -> bool:
    found = await administer(broker, "guest", "cluster.brokers", {})
    return bool(found["brokers"][0]["stalled"])


async def test_a_disk_that_does_not_answer_is_said_to(caplog: pytest.LogCaptureFixture) -> None:
    files, still, goes_on = FaultyFiles(MemoryFiles()), threading.Event(), threading.Event()
    async with open_broker(files) as broker:
        log = (await broker.create_topic("t", config={})).partitions[0].log

        def stand_still(operation: str, path: str) -> None:
            if operation == "sync" and path.startswith(log.directory):
                still.set()
                goes_on.wait(60)

        files.hook = stand_still
        try:
            log.append(batch_of(0, 10, 10))
            log.request_sync()
            await until(still.is_set)
            for _ in range(LOOKS):
                broker.stalls.look()
            broker.stalls.look()
            assert await is_said_to_be_stalled(broker)
        finally:
            goes_on.set()
        await log.wait_committed(10)
        broker.stalls.look()
        assert not await is_said_to_be_stalled(broker)
    assert [record.getMessage() for record in caplog.records if record.name == "routing.disk_stalls"] == [
        f"the disk has not answered for 5 s: {log.directory} waits, and others may",
        "the disk answers again",
    ]


async def test_a_busy_disk_answers() -> None:
    async with open_broker(FaultyFiles(MemoryFiles())) as broker:
        log = (await broker.create_topic("t", config={})).partitions[0].log
        for number in range(2 * LOOKS):
            log.append(batch_of(number, 1, 1))
            log.request_sync()
            await until(lambda: log.job is not None or log.committed_offset == log.log_end_offset)
            broker.stalls.look()
            await log.wait_committed(number + 1)
        assert not broker.stalls.stalled


async def test_other_brokers_know_of_it() -> None:
    async with mesh() as brokers:
        member = brokers.members[1]
        member.broker.stalls.stalled = True
        await Standing(member.part).look()
        await until(lambda: brokers.members[2].part.members.brokers[1].record.stalled)
