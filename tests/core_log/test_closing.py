"""Full segments that are closed while the next one is written."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from core_log.errors import LogUnavailable
from core_log.files import FaultyFiles, MemoryFiles, OsFiles
from core_log.flush_job import RecoveryPoint, execute
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from tests.core_log.helpers import DIRECTORY, flush, make_batch, open_log, read_all

NEVER = LogConfig(segment_bytes=400, fsync="never", index_interval_bytes=0)
"""Two batches a segment."""
OPEN_FILES = "/proc/self/fd"


def batch(number: int) -> bytes:
    """One of 161 bytes."""
    return make_batch([b"%02d" % number * 45])


def rows(count: int) -> list[tuple[int, bytes | None]]:
    """What is read of the first so many."""
    return [(number, b"%02d" % number * 45) for number in range(count)]


def append(log: PartitionLog, count: int) -> None:
    """So many more."""
    for _ in range(count):
        log.append(batch(log.log_end_offset))


def write(log: PartitionLog) -> None:
    """One job of the flusher's."""
    job = log.take_job(aside=True)
    assert job is not None
    execute(job)
    log.complete(job)


def being_closed(files: FaultyFiles | MemoryFiles) -> PartitionLog:
    """Three batches: the first segment is full and not closed yet, the next one is written."""
    log = open_log(files, NEVER)
    append(log, 3)
    write(log)
    assert log.closing is not None
    assert (log.written_offset, log.flushed_offset) == (3, 0)
    return log


def close_full(log: PartitionLog) -> None:
    """What the closing thread does."""
    assert log.closing is not None
    execute(log.closing)
    log.complete(log.closing)


def point_of(log: PartitionLog) -> int:
    """Where the segment begins from which on a start scans."""
    found = RecoveryPoint.load(log.files, DIRECTORY)
    assert found is not None
    return found.segment_base


class Disk:
    """One whose syncs of full segments wait until they may go on."""

    def __init__(self) -> None:
        self.memory = MemoryFiles()
        self.files = FaultyFiles(self.memory)
        self.files.hook = self._before
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def _before(self, operation: str, path: str) -> None:
        if operation == "sync" and threading.current_thread().name == "log-closer":
            self.reached.set()
            self.goes_on.wait(10)


async def during_a_sync(flusher: LogFlusher) -> tuple[Disk, PartitionLog]:
    """A log of three batches, while its first segment, which is full, is synced."""
    disk = Disk()
    log = open_log(disk.files, NEVER, flusher=flusher)
    append(log, 3)
    await log.wait_committed(3)
    await trio.to_thread.run_sync(disk.reached.wait)
    return disk, log


async def until(flusher: LogFlusher, log: PartitionLog, done: Callable[[], bool]) -> None:
    """Wait for something that a job brings."""
    while not done():
        await flusher._wait_for_change(log)


async def test_the_next_segment_is_written_while_a_full_one_is_synced(flusher: LogFlusher) -> None:
    disk, log = await during_a_sync(flusher)
    append(log, 1)
    await log.wait_committed(4)
    assert read_all(log) == rows(4)
    assert (log.closing is not None, len(log.segments), point_of(log)) == (True, 2, 0)
    append(log, 1)
    await trio.testing.wait_all_tasks_blocked()
    assert (log.written_offset, log.job) == (4, None), "the second is full as well"
    disk.goes_on.set()
    await until(flusher, log, lambda: log.closing is None and log.written_offset == 5 and point_of(log) == 4)
    assert [segment.index is None for segment in log.segments] == [True, True, False]
    assert read_all(log) == rows(5)


async def test_who_wants_a_sync_waits_for_the_full_segment(flusher: LogFlusher) -> None:
    disk, log = await during_a_sync(flusher)
    log.configure(LogConfig(segment_bytes=400))
    append(log, 1)
    log.request_sync()
    await log.wait_written(4)
    await trio.testing.wait_all_tasks_blocked()
    assert (log.flushed_offset, log.committed_offset) == (0, 3), "the last promise of before"
    disk.goes_on.set()
    await log.wait_committed(4)
    assert log.flushed_offset == 4
    assert read_all(open_log(disk.memory.crash())) == rows(4)


async def test_to_close_and_to_cut_wait_for_the_full_segment(flusher: LogFlusher) -> None:
    disk, log = await during_a_sync(flusher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.drain, log)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        disk.goes_on.set()
    append(log, 2)
    log.close()
    assert (log.error, log.flushed_offset, log.closing) == (None, 5, None)
    assert read_all(open_log(disk.memory.crash(), NEVER)) == rows(5)
    assert open_log(disk.memory, NEVER).epochs.latest == 0, "a clean stop"


def test_what_goes_waits_for_the_full_segment() -> None:
    disk = MemoryFiles()
    log = being_closed(disk)
    path = log.segments[0].log_path
    log.delete_prefix(2)
    write(log)
    assert disk.exists(path)
    assert log.take_job(aside=True) is None, "nothing else to do"
    close_full(log)
    write(log)
    assert not disk.exists(path)
    assert read_all(open_log(disk.crash(), NEVER)) == []


@pytest.mark.parametrize("kept", [0, 1])
def test_who_lost_the_end_of_a_full_segment_has_nothing_behind_it(kept: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFiles()
    log = being_closed(disk)
    full, active = (disk.open(segment.log_path) for segment in log.segments)
    active.sync()
    disk.sync_directory(DIRECTORY)
    full.node.durable = bytearray(full.pread(kept * len(batch(0)), 0))
    found = disk.crash()
    again = open_log(found, NEVER)
    assert f"ends at offset {kept}, not at 2" in caplog.text
    assert (again.log_end_offset, read_all(again)) == (kept, rows(kept))
    append(again, 4)
    again.flush_blocking()
    assert read_all(open_log(found.crash(), NEVER)) == rows(kept + 4)


def test_a_process_that_ends_meanwhile_loses_nothing() -> None:
    disk = MemoryFiles()
    being_closed(disk)
    assert read_all(open_log(disk, NEVER)) == rows(3)


@pytest.mark.parametrize("seed", range(12))
def test_a_gap_between_segments_is_no_loss(seed: int) -> None:
    disk = MemoryFiles()
    log = open_log(disk, NEVER)
    append(log, 2)
    log.append(batch(2), base_offset=7)
    write(log)
    assert (log.closing, log.segments[-1].base_offset) == (None, 7)
    found = disk.crash(random.Random(seed))
    survived = found.exists(log.segments[-1].log_path) and found.size(log.segments[-1].log_path) == len(batch(2))
    again = open_log(found, NEVER)
    assert read_all(again) == [*rows(2), (7, b"02" * 45)][: 3 if survived else 2]


@pytest.mark.parametrize("under_way", [False, True])
def test_a_full_segment_that_cannot_be_synced_is_an_error_of_all_behind_it(under_way: bool) -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = being_closed(files)
    job = None
    if under_way:
        append(log, 1)
        job = log.take_job(aside=True)
        assert job is not None
    files.failing["sync"] = errno.EIO
    close_full(log)
    assert log.error is not None
    with pytest.raises(LogUnavailable):
        append(log, 1)
    if job is not None:
        execute(job)
        assert job.error is None
        log.complete(job)
        assert log.error is not None, "the disk had refused what came before"
    assert (log.written_offset, point_of(log)) == (3, 0)
    write(log)
    assert (log.error is not None, log.closing, point_of(log)) == (True, None, 0)
    files.failing.clear()
    write(log)
    assert (log.error, log.written_offset, point_of(log)) == (None, 4 if under_way else 3, 2)
    assert log.segments[0].index is None
    assert read_all(log) == rows(log.written_offset)


def test_what_is_tried_again_waits_for_the_full_segment() -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = being_closed(files)
    log.configure(LogConfig(segment_bytes=400))
    append(log, 1)
    files.failing["write"] = errno.EIO
    write(log)
    files.failing.clear()
    assert log.error is not None
    assert log.take_job(aside=True) is None, "it would sync what comes after a segment that is not synced"
    close_full(log)
    write(log)
    assert (log.error, log.flushed_offset) == (None, 4)
    assert read_all(open_log(disk.crash())) == rows(4)


def test_a_job_that_fills_many_segments_holds_few_files_open() -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, LogConfig(segment_bytes=400))
    append(log, 100)
    held: list[int] = []
    files.hook = lambda operation, path: held.append(sum(segment.file is not None for segment in log.segments))
    flush(log)
    assert len(log.segments) == 50
    assert log.committed_offset == 100
    assert max(held) <= 2
    log.close()


@pytest.mark.skipif(not os.path.isdir(OPEN_FILES), reason="nobody says which files are open")
def test_a_start_that_looks_through_many_segments_holds_few_files_open(tmp_path: Path) -> None:
    files = FaultyFiles(OsFiles(tmp_path))
    log = open_log(files, LogConfig(segment_bytes=400))
    append(log, 100)
    flush(log)
    log.close()
    files.remove(f"{DIRECTORY}/recovery-point")
    before, held = len(os.listdir(OPEN_FILES)), list[int]()
    files.hook = lambda operation, path: held.append(len(os.listdir(OPEN_FILES)))
    assert len(open_log(files, LogConfig(segment_bytes=400)).segments) == 50
    assert max(held) <= before + 3
