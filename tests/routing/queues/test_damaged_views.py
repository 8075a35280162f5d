"""Views of a topic of which the disk has lost something that nobody else has."""

from __future__ import annotations

import errno

import pytest

from core_log.batch_header import encode_batch, parse_header
from core_log.memory_files import FaultyFiles, MemoryFiles
from core_log.partition_log import PartitionLog
from routing.session import Outcome
from tests.routing.harness import Engine, engine
from tests.routing.queues.test_views import append, batch, bodies, topic, view, worker


async def damaged(running: Engine, files: MemoryFiles, count: int) -> None:
    """A topic in the middle of which a bit has flipped, in a record that nobody has in memory any more."""
    await topic(running, **{"index.interval.bytes": "0"})
    for number in range(count):
        await append(running, number)
    log = running.broker.topics["t"].partitions[0].log
    flip(files, log, count // 2)


def flip(files: MemoryFiles, log: PartitionLog, offset: int) -> None:
    log._tail = type(log._tail)(0, log.log_end_offset, log._tail._budget)
    before = sum(map(len, log.read_blocking(0, 1 << 30, before=offset)))
    file = files.open(log.segments[0].log_path)
    (byte,) = file.pread(1, before + 65)
    file.pwritev([bytes([byte ^ 4])], before + 65)


async def test_what_the_disk_has_lost_is_passed_and_said(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await damaged(running, files, 20)
        queue = await view(running, stream_offset="first")
        client = await worker(running)
        await running.until(lambda: client.deliveries and client.deliveries[-1].body == "19")
        got = bodies(client.take())
        lost = {str(number) for number in range(20)} - set(got)
        assert "10" in lost
        assert len(lost) < 4
        assert queue.view.gone == len(lost)
        said = [record.message for record in caplog.records]
        assert [text.startswith("queue v lacks") for text in said] == [False, True]
        await append(running, "later")
        await running.until(lambda: client.deliveries)
        assert client.take_bodies() == ["later"]


async def test_what_the_disk_refuses_behind_it_is_asked_for_again() -> None:
    inner = MemoryFiles()
    files = FaultyFiles(inner)
    async with engine(files) as running:
        await damaged(running, inner, 20)
        path, log = running.broker.topics["t"].partitions[0].log.segments[0].log_path, []

        def hook(operation: str, opened: str) -> None:
            if (operation, opened) == ("open", path):
                log.append(opened)
                if 3 <= len(log) < 13:
                    raise OSError(errno.EMFILE, "too many open files")

        files.hook = hook
        queue = await view(running, stream_offset="first")
        client = await worker(running)
        await running.until(lambda: client.deliveries and client.deliveries[-1].body == "19")
        assert len(bodies(client.take())) > 16
        assert queue.view.gone < 4


async def test_what_the_disk_has_lost_since_it_was_given_out_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running, **{"index.interval.bytes": "0"})
        for number in range(20):
            await append(running, number)
        queue = await view(running, stream_offset="first")
        client = await worker(running)
        assert len(client.take()) == 20
        flip(files, running.broker.topics["t"].partitions[0].log, 10)
        queue.view._last = None
        for reader in running.broker.topology.stream_host._readers.values():
            reader._chunks.clear()
        client.session.close()
        client = await worker(running)
        await running.until(lambda: client.deliveries and client.deliveries[-1].body == "19")
        got = bodies(client.take())
        assert "10" not in got
        assert len(got) > 16
        assert len(caplog.records) == 2, "and not once each turn"
        client.session.settle_up_to(0, Outcome.ACK)
        running.turn()
        assert (queue.message_count, queue.outstanding) == (0, 0)


async def test_what_nobody_can_decode_is_passed_and_not_what_is_before_it(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        await append(running, 0, 1)
        await append(running, 2)
        header = parse_header(batch(3, 4))
        garbage = encode_batch(header._replace(attributes=1), b"no gzip")
        running.broker.topics["t"].partitions[0].append(garbage)
        await append(running, 5)
        queue = await view(running, stream_offset="first")
        client = await worker(running)
        await running.until(lambda: client.deliveries and client.deliveries[-1].body == "5")
        assert bodies(client.take()) == ["0", "1", "2", "5"]
        assert queue.view.gone == 2
        assert [record.message.startswith("queue v lacks 2 messages") for record in caplog.records] == [True]
