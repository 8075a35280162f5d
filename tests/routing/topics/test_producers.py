"""What partitions know of idempotent producers."""

from __future__ import annotations

import random
import threading

import pytest

from core_log.batch_header import HEADER_BYTES, BatchHeader, parse_header
from core_log.errors import LogUnavailable
from core_log.files import FaultyFiles, Files, MemoryFiles
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.record_batch import validate
from core_log.wall_clock import wall_clock_ms
from routing.broker import open_broker
from routing.config import BrokerConfig
from routing.topics.producers import Producers, know_all, save_all
from routing.topics.upkeep import apply_retention
from tests.core_log.compaction.helpers import of_producer
from tests.core_log.helpers import DIRECTORY, flush, make_batch, open_log
from tests.protocols.kafka.door import idempotent

PATH = "topics/t-0/producers"
COUNT = 20
CONFIG = LogConfig(index_interval_bytes=1, tail_cache_bytes=1)


def written(files: MemoryFiles) -> list[BatchHeader]:
    """A log of batches of two producers in turn, of which the second ends early; it is closed."""
    log = open_log(files, CONFIG)
    for number in range(COUNT):
        producer = 2 if number % 2 and number < COUNT // 2 else 1
        log.append(of_producer(make_batch([b"%d" % number]), producer, number))
    flush(log)
    headers = [parse_header(log.read_blocking(offset, 1)[0]) for offset in range(COUNT)]
    log.close()
    return headers


def damage(files: MemoryFiles, headers: list[BatchHeader], offset: int) -> None:
    place = sum(header.size for header in headers[:offset])
    files.open(f"{DIRECTORY}/00000000000000000000.log").pwritev([b"\xff"], place + HEADER_BYTES + 3)


async def saved(files: MemoryFiles) -> PartitionLog:
    """The log again, with a file of its producers."""
    log = open_log(files, CONFIG)
    await Producers(log).states()
    return log


def filled(files: Files, directory: str = "topics/t-0", size: int = 1000) -> PartitionLog:
    """A log with a batch of that many bytes, of no producer."""
    log = open_log(files, directory=directory)
    log.append(make_batch([bytes(size)]))
    flush(log)
    return log


async def append(log: PartitionLog, sequence: int = 0) -> Producers:
    """Append a batch of an idempotent producer."""
    producers = Producers(log)
    batch = idempotent(make_batch([b"x"]), 7, 0, sequence)
    states = await producers.states()
    assert states.check(parse_header(batch)) is None
    producers.note(parse_header(batch), log.append(batch))
    flush(log)
    return producers


async def knows(files: Files, sequence: int = 0) -> bool:
    """Whether a batch is known to be there already."""
    states = await Producers(open_log(files)).states()
    return states.check(parse_header(idempotent(make_batch([b"x"]), 7, 0, sequence))) is not None


async def test_a_new_partition_costs_no_sync_of_its_own() -> None:
    files, synced = FaultyFiles(MemoryFiles()), list[str]()
    plain, log = open_log(files, directory="topics/t-1"), open_log(files)
    files.hook = lambda operation, path: synced.append(path) if operation.startswith("sync") else None
    plain.append(make_batch([b"x"]))
    flush(plain)
    usual = len(synced)
    synced.clear()
    await append(log)
    assert len(synced) == usual
    assert files.size(PATH) == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [0, 1000, 70_000])
async def test_what_was_synced_is_known_after_a_crash(size: int, seed: int) -> None:
    files = MemoryFiles()
    producers = await append(filled(files, size=size) if size else open_log(files))
    assert producers.are_known
    files = files.crash(random.Random(seed))
    assert await knows(files)
    assert await knows(files.crash(random.Random(seed)))


async def test_the_file_is_there_before_the_first_batch() -> None:
    for failing in range(12):
        inner = MemoryFiles()
        files, left = FaultyFiles(inner), [failing]

        def hook(operation: str, path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("refused")

        log = open_log(files)
        files.hook = hook
        await append(log)
        after = inner.crash()
        there = open_log(after)
        assert not there.log_end_offset or await knows(after)
        files.hook = None


async def test_a_file_that_is_damaged_has_the_log_read(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    log = filled(files, size=70_000)
    await append(log)
    file = files.open(PATH)
    file.pwritev([b"xxxx"], 0)
    assert await knows(files)
    assert f"{PATH} is damaged, the log is read" in caplog.text
    file.truncate(0)
    assert await knows(files)


async def test_many_are_known_and_saved_side_by_side() -> None:
    together = threading.Barrier(3)
    files = FaultyFiles(MemoryFiles())
    logs = [filled(files, f"topics/t-{number}", 70_000) for number in range(3)]
    found = [Producers(log) for log in logs]

    def hook(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith("producers.new"):
            together.wait(20)

    files.hook = hook
    await know_all(found)
    assert all(one.are_known for one in found)
    saved: list[str] = []
    files.hook = lambda operation, path: saved.append(path) if path.endswith("producers.new") else None
    logs[0].append(make_batch([bytes(1000)]))
    await save_all(found)
    assert saved == [], "that is read in no time"
    for log in logs:
        log.append(make_batch([bytes(70_000)]))
    files.hook = hook
    await save_all(found)
    files.hook = None


async def test_what_cannot_be_known_does_not_keep_the_others_from_it() -> None:
    files = FaultyFiles(MemoryFiles())
    found = [Producers(filled(files, f"topics/t-{number}")) for number in range(3)]

    def hook(operation: str, path: str) -> None:
        if path.startswith("topics/t-1/"):
            raise OSError("refused")

    files.hook = hook
    await know_all(found)
    assert [one.are_known for one in found] == [True, False, True]


async def test_a_damaged_file_is_no_file_that_never_was(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    headers = written(files)
    log = await saved(files)
    files.open(f"{DIRECTORY}/producers").pwritev([b"\xff"], 0)
    states = await Producers(log).states()
    assert states.check(headers[-1]) is not None, "the last batch is known, and not taken once more"
    assert ["damaged" in record.message for record in caplog.records] == [True]
    log.close()


async def test_producers_go_on_although_the_log_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    headers = written(files)
    log = await saved(files)
    files.open(f"{DIRECTORY}/producers").pwritev([b"\xff"], 0)
    damage(files, headers, COUNT // 2)
    states = await Producers(log).states()
    assert states.check(headers[-1]) is not None
    assert states.check(headers[1]) is None, "what was known before it is forgotten"
    assert len(caplog.records) == 2
    log.close()


async def test_what_another_leader_has_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    headers = written(files)
    log = await saved(files)
    files.open(f"{DIRECTORY}/producers").pwritev([b"\xff"], 0)
    damage(files, headers, COUNT // 2)
    log.may_hand_over = lambda: True
    producers = Producers(log)
    for _ in range(3):
        with pytest.raises(LogUnavailable, match="wrong CRC"):
            await producers.states()
    assert len(caplog.records) == 1, "that the file is damaged is said once"
    log.close()


async def test_producers_that_are_silent_for_a_day_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    async with open_broker(files, BrokerConfig()) as broker:
        topic = await broker.create_topic("t", partitions=1, config={"retention.ms": "-1"})
        known, now_ms = topic.partitions[0].producers, wall_clock_ms()
        for producer, hours in ((1, 0), (2, 20), (3, 25)):
            monkeypatch.setattr("routing.topics.producers.wall_clock_ms", lambda at=now_ms + hours * 3_600_000: at)
            batch = idempotent(make_batch([b"x"]), producer, 0, 0)
            await topic.partitions[0].append_once([validate(batch)], [batch])
        await apply_retention([topic])
        assert [one.producer_id for one in (await known.states()).active()] == [2, 3]
