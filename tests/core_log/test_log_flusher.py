"""Group commit with real threads, on a disk in memory that can be held up or fail."""

from __future__ import annotations

import errno
import gc
import threading
from collections.abc import AsyncIterator
from functools import partial

import msgspec
import pytest
import trio
import trio.lowlevel
import trio.testing

from core_log.errors import BelowHighWatermark, LogUnavailable, OffsetOutOfRange
from core_log.files import FaultyFiles, MemoryFiles
from core_log.flush_job import FlushJob
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from tests.core_log.helpers import make_batch, open_log, read_all, records_of


@pytest.fixture
async def flusher() -> AsyncIterator[LogFlusher]:
    """A running flusher that retries at once and has room for 1000 bytes."""
    flusher = LogFlusher(retry_interval_s=0.001, unflushed_bytes_max=1000)
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        yield flusher
        nursery.cancel_scope.cancel()


class Gate:
    """Holds operations of the flusher's threads until opened, and counts them."""

    def __init__(self, *operations: str) -> None:
        self.operations = operations
        self.counts: dict[str, int] = {}
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, operation: str, path: str) -> None:
        if path.endswith(".log"):
            self.counts[operation] = self.counts.get(operation, 0) + 1
        if operation in self.operations and threading.current_thread().name == "log-flusher":
            self.reached.set()
            self.open.wait(10)


def gated(*operations: str) -> tuple[FaultyFiles, Gate]:
    """Files whose `operations` wait."""
    files = FaultyFiles(MemoryFiles())
    gate = files.hook = Gate(*operations)
    return files, gate


async def test_unwritten_batches_are_invisible_and_join_the_next_job(flusher: LogFlusher) -> None:
    files, gate = gated("write")
    log = open_log(files, flusher=flusher)
    for i in range(20):
        log.append(make_batch([b"%d" % i]))
        log.request_sync()
        if not i:
            await trio.to_thread.run_sync(gate.reached.wait)
    assert (log.log_end_offset, log.written_offset, log.committed_offset, log.high_watermark) == (20, 0, 0, 0)
    assert log.read(0, 1 << 20) == log.read(0, 1 << 20, before=20) == []
    assert log.read_blocking(0, 1 << 20, before=20) == []
    assert flusher.unflushed_bytes == log.size_bytes > 0
    gate.open.set()
    await log.wait_committed(20)
    assert records_of(log.read(0, 1 << 20)) == [(i, b"%d" % i) for i in range(20)]
    assert gate.counts["sync"] == gate.counts["write"] == 2, "the first batch, then all that had gathered"
    assert flusher.unflushed_bytes == 0


def jobs_with(body: bytes) -> list[FlushJob]:
    """Those in memory that wrote it."""
    found = [one for one in gc.get_objects() if isinstance(one, FlushJob)]
    return [one for one in found if any(body in bytes(part) for write in one.writes for part in write.buffers)]


async def test_what_was_written_leaves_memory_also_when_nothing_comes_after_it(flusher: LogFlusher) -> None:
    files, gate = gated("write")
    log, body = open_log(files, flusher=flusher), b"written and let go"
    log.append(make_batch([body]))
    log.request_sync()
    await trio.to_thread.run_sync(gate.reached.wait)
    assert jobs_with(body)
    gate.open.set()
    await log.wait_committed(1)
    with trio.fail_after(10):
        while jobs_with(body):
            await trio.sleep(0.001)


async def test_written_is_not_committed_until_a_sync_was_asked_for(flusher: LogFlusher) -> None:
    files, gate = gated()
    log = open_log(files, flusher=flusher)
    log.append(make_batch([b"transient"]))
    await flusher.drain(log)
    assert (log.high_watermark, log.written_offset, log.flushed_offset, log.committed_offset) == (0, 1, 0, 0)
    assert "sync" not in gate.counts
    log.request_sync()
    await log.wait_committed(1)
    assert (log.flushed_offset, gate.counts["sync"]) == (1, 1)
    log.request_sync()
    await trio.testing.wait_all_tasks_blocked()
    assert gate.counts["sync"] == 1, "nothing new to sync"


@pytest.mark.parametrize("fsync", ["interval", "never"])
async def test_other_promises_are_kept_by_writing(fsync: str, flusher: LogFlusher) -> None:
    config = msgspec.convert({"fsync": fsync, "fsync_interval_ms": 1}, LogConfig)
    log = open_log(MemoryFiles(), config, flusher=flusher)
    log.append(make_batch([b"x"]))
    await log.wait_committed(1)
    assert log.committed_offset == log.written_offset == 1
    if fsync == "interval":
        await flusher._wait_for_change(log)
        assert log.flushed_offset == 1
    else:
        assert log.flushed_offset == 0


async def test_the_interval_is_kept(mock_clock: trio.testing.MockClock, flusher: LogFlusher) -> None:
    log = open_log(MemoryFiles(), LogConfig(fsync="interval", fsync_interval_ms=60_000), flusher=flusher)
    log.append(make_batch([b"x"]))
    await log.wait_committed(1)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(59)
    await trio.testing.wait_all_tasks_blocked()
    assert log.flushed_offset == 0
    assert log.job is None
    mock_clock.jump(2)
    await flusher._wait_for_change(log)
    assert log.flushed_offset == 1


async def test_the_log_syncs_by_itself_when_much_is_unsynced(flusher: LogFlusher) -> None:
    log = open_log(MemoryFiles(), LogConfig(unsynced_bytes_max=500), flusher=flusher)
    while log.size_bytes <= 500:
        assert log.flushed_offset == 0
        log.append(make_batch([b"x" * 100]))
        await flusher.drain(log)
    while log.flushed_offset < log.log_end_offset:
        await flusher._wait_for_change(log)


async def test_error_is_announced_retried_and_cleared(flusher: LogFlusher) -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = open_log(files, flusher=flusher)
    states: list[tuple[bool, int]] = []
    log.listeners.append(lambda changed: states.append((changed.error is not None, changed.committed_offset)))
    files.failing["sync"] = errno.EIO
    log.append(make_batch([b"kept"]))
    with pytest.raises(LogUnavailable):
        await log.wait_committed(1)
    with pytest.raises(LogUnavailable):
        log.append(make_batch([b"refused"]))
    attempts = len(states)
    while len(states) < attempts + 2:
        await flusher._wait_for_change(log)
    files.failing.clear()
    while log.error is not None:
        await flusher._wait_for_change(log)
    assert states[-1] == (False, 1)
    assert set(states[:-1]) == {(True, 0)}
    log.append(make_batch([b"after"]))
    await log.wait_committed(2)
    assert read_all(open_log(disk.crash())) == [(0, b"kept"), (1, b"after")]


async def test_wait_for_room(flusher: LogFlusher) -> None:
    files, gate = gated("write")
    log = open_log(files, flusher=flusher)
    while flusher.unflushed_bytes <= flusher.unflushed_bytes_max:
        await flusher.wait_for_room()
        log.append(make_batch([b"x" * 100]))
    await flusher.wait_for_room(little=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.wait_for_room)
        await trio.to_thread.run_sync(gate.reached.wait)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks, "still waiting"
        while flusher.unflushed_bytes <= 2 * flusher.unflushed_bytes_max:
            await flusher.wait_for_room(little=True)
            log.append(make_batch([b"x" * 100]))
        nursery.start_soon(partial(flusher.wait_for_room, little=True))
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 2, "both are waiting"
        gate.open.set()
    assert flusher.unflushed_bytes <= flusher.unflushed_bytes_max


async def test_listeners_and_after_turn_may_append(flusher: LogFlusher) -> None:
    log = open_log(MemoryFiles(), flusher=flusher)
    turns: list[int] = []

    def after_turn() -> None:
        turns.append(log.committed_offset)
        if log.log_end_offset < 10:
            log.append(make_batch([b"by the turn"]))
            log.request_sync()

    flusher.after_turn = after_turn
    log.append(make_batch([b"first"]))
    log.request_sync()
    while log.committed_offset < 10:
        await flusher._wait_for_change(log)
    await trio.testing.wait_all_tasks_blocked()
    assert turns[-1] == 10
    assert turns == sorted(turns)


async def test_many_logs_share_the_threads(flusher: LogFlusher) -> None:
    files = MemoryFiles()
    flusher.unflushed_bytes_max = 1 << 30
    logs = [open_log(files, LogConfig(segment_bytes=1000), flusher=flusher, directory=f"t-{i}") for i in range(20)]
    for i in range(30):
        for log in logs:
            log.append(make_batch([b"%d" % i * 10, b"x"]))
            log.request_sync()
        if i % 10 == 0:
            await trio.lowlevel.checkpoint()
    for log in logs:
        await log.wait_committed(60)
        assert [offset for offset, _ in read_all(log)] == list(range(60))
        log.close()
    after = files.crash()
    for i in range(20):
        log = open_log(after, directory=f"t-{i}")
        assert (log.log_end_offset, log.verify()) == (60, [])


async def test_closing_takes_the_job_back_from_its_thread(flusher: LogFlusher) -> None:
    files, gate = gated("write")
    log = open_log(files, flusher=flusher)
    log.append(make_batch([b"in the job"]))
    log.request_sync()
    await trio.to_thread.run_sync(gate.reached.wait)
    log.append(make_batch([b"after the job"]))
    gate.open.set()
    log.close()
    assert log.committed_offset == 2
    await trio.testing.wait_all_tasks_blocked()
    assert read_all(open_log(files.crash())) == [(0, b"in the job"), (1, b"after the job")]
    with pytest.raises(LogUnavailable):
        log.append(make_batch([b"closed"]))
    assert flusher.unflushed_bytes == 0


@pytest.mark.parametrize("under_way", [False, True])
async def test_closing_waits_for_what_listeners_begin(under_way: bool, flusher: LogFlusher) -> None:
    files, gate = gated("write")
    gate.open.set()
    log = open_log(files, flusher=flusher)
    values = [b"%d" % number for number in range(4)]

    def listener(_: PartitionLog) -> None:
        if log.log_end_offset < len(values):
            log.append(make_batch([values[log.log_end_offset]]))
            log.request_sync()

    log.listeners.append(listener)
    log.append(make_batch([values[0]]))
    if under_way:
        log.request_sync()
    log.close()
    assert log.job is None
    assert log.committed_offset == len(values)
    assert flusher.unflushed_bytes == 0
    await trio.testing.wait_all_tasks_blocked()
    assert [value for _, value in read_all(open_log(files.crash()))] == values


async def test_a_flusher_can_run_again() -> None:
    files = MemoryFiles()
    flusher = LogFlusher()
    log = open_log(files, flusher=flusher)
    for end in (1, 2):
        log.append(make_batch([b"x"]))
        async with trio.open_nursery() as nursery:
            await nursery.start(flusher.run)
            await log.wait_committed(end)
            nursery.cancel_scope.cancel()


async def test_cold_reads_in_a_thread(flusher: LogFlusher) -> None:
    log = open_log(MemoryFiles(), LogConfig(tail_cache_bytes=0, segment_bytes=500), flusher=flusher)
    for i in range(50):
        log.append(make_batch([b"%d" % i * 20]))
    await log.wait_committed(50)
    assert log.read(10, 100) is None
    assert records_of(await log.read_cold(10, 1)) == [(10, b"10" * 20)]
    assert await log.read_cold(50, 1) == []
    assert await log.offset_for_timestamp_cold(0) == log.offset_for_timestamp(0)


async def test_cold_reads_race_with_deletion(flusher: LogFlusher) -> None:
    """A prefix goes between the snapshot of the segments and the opening of the file."""
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, LogConfig(tail_cache_bytes=0, segment_bytes=500), flusher=flusher)
    for i in range(50):
        log.append(make_batch([b"%d" % i * 20]))
    await log.wait_committed(50)
    segments = log.segments_from(0)
    log.delete_prefix(20)
    while files.exists(segments[0].log_path):
        await flusher._wait_for_change(log)
    log.segments_from = lambda offset: segments  # type: ignore[method-assign]
    log.log_start_offset = 0
    with pytest.raises(FileNotFoundError):
        log.read_blocking(0, 100)

    def hook(operation: str, path: str) -> None:
        log.log_start_offset = 20

    files.hook = hook
    with pytest.raises(OffsetOutOfRange, match=r"offset 0 is not in \[20, 50\]"):
        log.read_blocking(0, 100)


async def test_truncate(flusher: LogFlusher) -> None:
    files = MemoryFiles()
    log: PartitionLog = open_log(files, LogConfig(segment_bytes=500), flusher=flusher)
    for i in range(50):
        log.append(make_batch([b"%d" % i * 20, b"second"]))
    await log.truncate(31)
    assert log.log_end_offset == log.committed_offset == 30
    log.append(make_batch([b"new"] * 100))
    await log.wait_committed(130)
    await log.truncate(1000)
    with pytest.raises(BelowHighWatermark):
        await log.truncate(129)
    assert log.log_end_offset == log.high_watermark == 130
    assert [offset for offset, _ in read_all(log)] == list(range(130))
    for disk in (files, files.crash()):
        again = open_log(disk, log.config)
        assert (again.log_end_offset, again.verify()) == (130, [])
        assert read_all(again)[30:] == [(30 + i, b"new") for i in range(100)]


async def test_a_reader_at_the_end_has_what_is_written_synced(flusher: LogFlusher) -> None:
    files, gate = gated()
    log = open_log(files, flusher=flusher)
    log.append(make_batch([b"there already"]))
    await flusher.drain(log)
    assert log.high_watermark == 0
    log.reader_waits(1)
    await log.wait_committed(1)
    log.append(make_batch([b"while it waits"]))
    await flusher.drain(log)
    assert (log.high_watermark, gate.counts["sync"]) == (2, 2)
    log.reader_waits(-1)
    log.append(make_batch([b"nobody waits"]))
    await flusher.drain(log)
    assert (log.high_watermark, log.written_offset, gate.counts["sync"]) == (2, 3, 2)


async def test_readers_do_not_make_syncs_where_none_are_promised(flusher: LogFlusher) -> None:
    files, gate = gated()
    log = open_log(files, LogConfig(fsync="never"), flusher=flusher)
    log.reader_waits(1)
    log.append(make_batch([b"seen when written"]))
    await flusher.drain(log)
    assert log.high_watermark == 1
    assert "sync" not in gate.counts


async def test_nothing_is_appended_or_flushed_while_the_end_is_cut_off(flusher: LogFlusher) -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, flusher=flusher)
    for i in range(10):
        log.append(make_batch([b"%d" % i]))
    inside, go_on = threading.Event(), threading.Event()

    def hook(operation: str, path: str) -> None:
        if operation == "truncate" and path.endswith(".log"):
            inside.set()
            go_on.wait(10)

    async with trio.open_nursery() as nursery:
        await flusher.drain(log)
        files.hook = hook
        nursery.start_soon(log.truncate, 5)
        await trio.to_thread.run_sync(inside.wait)
        with pytest.raises(LogUnavailable, match="being truncated"):
            log.append(make_batch([b"meanwhile"]))
        with pytest.raises(LogUnavailable, match="being truncated"):
            await log.truncate(3)
        log.request_interval_sync()
        assert log.job is None
        go_on.set()
    assert (log.log_end_offset, log.high_watermark) == (5, 0)
    log.append(make_batch([b"after"]))
    await log.wait_committed(6)
    assert [value for _, value in read_all(log)] == [b"0", b"1", b"2", b"3", b"4", b"after"]


async def test_nobody_waits_for_room_while_the_disk_refuses(flusher: LogFlusher) -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, flusher=flusher)
    files.failing["write"] = errno.ENOSPC
    log.append(make_batch([bytes(2000)]))
    with trio.fail_after(10):
        await flusher.wait_for_room()
        assert log.error is not None
        del files.failing["write"]
        while log.error is not None:
            await trio.lowlevel.checkpoint()
        await log.wait_committed(log.log_end_offset)


async def test_deleted_records_stay_deleted(flusher: LogFlusher) -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=1000)
    log = open_log(files, config, flusher=flusher)
    for _ in range(20):
        log.append(make_batch([b"x" * 100] * 5))
    await log.wait_committed(100)
    for wrong in (-2, 101):
        with pytest.raises(OffsetOutOfRange):
            await log.delete_records(wrong)
    size = log.size_bytes
    assert await log.delete_records(52) == 52, "within a batch"
    assert log.size_bytes < size
    assert await log.delete_records(3) == 52, "it never falls"
    for offset in (0, 51):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1)
        with pytest.raises(OffsetOutOfRange):
            log.read_blocking(offset, 1)
    again = open_log(files.crash(), config)
    assert (again.log_start_offset, again.log_end_offset) == (52, 100), "durable when it was said"
    assert [offset for offset, _ in read_all(again)] == list(range(52, 100))
    assert await log.delete_records(-1) == 100
    assert len(log.segments) == 1
    again = open_log(files.crash(), config)
    assert (again.log_start_offset, again.log_end_offset, read_all(again)) == (100, 100, [])


async def test_who_deletes_records_is_told_that_the_disk_refuses(flusher: LogFlusher) -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, flusher=flusher)
    log.append(make_batch([b"x"] * 5))
    await log.wait_committed(5)
    files.failing["write"] = errno.ENOSPC
    with pytest.raises(LogUnavailable):
        await log.delete_records(3)
    files.failing.clear()
    with trio.fail_after(10):
        while log.error is not None:
            await trio.sleep(0.001)
    assert await log.delete_records(3) == 3, "it is tried again"


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_directory"])
async def test_a_log_whose_new_start_is_refused_once_takes_appends_again(flusher: LogFlusher, operation: str) -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, flusher=flusher)
    log.append(make_batch([b"a", b"b", b"c"]))
    await log.wait_committed(3)
    refused = []

    def refuse_once(what: str, path: str) -> None:
        if what == operation and not refused:
            refused.append(path)
            raise OSError(errno.EIO, "once")

    files.hook = refuse_once
    assert await log.delete_records(2) == 2
    with trio.fail_after(10):
        while log.error is not None:
            await trio.sleep(0.001)
    assert log.append(make_batch([b"d"])) == 3
    await log.wait_committed(4)
    assert (refused != [], log.durable_start_offset) == (True, 2)


async def test_what_waits_is_not_handed_over_until_it_is_enlisted_again(flusher: LogFlusher) -> None:
    log, other = open_log(MemoryFiles(), flusher=flusher), open_log(MemoryFiles(), flusher=flusher)
    waiting = [True]
    log.waits = lambda: waiting[0]
    flusher.hold()
    for one in (log, other):
        one.append(make_batch([b"a"]))
        one.request_sync()
    await trio.testing.wait_all_tasks_blocked()
    assert other.job is None, "it is held"
    flusher.end_turn()
    await other.wait_committed(1)
    assert (log.job, log.written_offset) == (None, 0)
    waiting.clear()
    waiting.append(False)
    flusher.enlist(log)
    await log.wait_written(1)
    assert log.committed_offset == 1


def test_logs_are_closed_side_by_side() -> None:
    together = threading.Barrier(3)

    def hook(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith("recovery-point.new"):
            together.wait(20)

    files = FaultyFiles(MemoryFiles())
    flusher = LogFlusher()
    logs = [open_log(files, flusher=flusher, directory=f"topics/t-{number}") for number in range(3)]
    for log in logs:
        log.append(make_batch([b"a"]))
    files.hook = hook
    flusher.close(logs)
    files.hook = None
    assert all(log.closed for log in logs)
    assert [read_all(open_log(files, directory=log.directory)) for log in logs] == [[(0, b"a")]] * 3


def test_one_of_many_logs_that_the_disk_refuses_does_not_keep_the_others_from_being_closed() -> None:
    def hook(operation: str, path: str) -> None:
        if path.startswith("topics/t-1/"):
            raise OSError(errno.EIO, "broken")

    files = FaultyFiles(MemoryFiles())
    flusher = LogFlusher()
    logs = [open_log(files, flusher=flusher, directory=f"topics/t-{number}") for number in range(3)]
    for log in logs:
        log.append(make_batch([b"a"]))
    files.hook = hook
    flusher.close(logs)
    files.hook = None
    assert all(log.closed for log in logs)
    assert [read_all(open_log(files, directory=log.directory)) for log in logs] == [[(0, b"a")], [], [(0, b"a")]]


def test_closing_what_has_not_changed_asks_nothing_of_the_disk() -> None:
    asked: list[tuple[str, str]] = []
    files = FaultyFiles(MemoryFiles())
    flusher = LogFlusher()

    def closing() -> list[tuple[str, str]]:
        log = open_log(files, flusher=flusher)
        asked.clear()
        files.hook = lambda operation, path: asked.append((operation, path))
        flusher.close([log])
        files.hook = None
        return [one for one in asked if one[0] != "close"]

    assert closing() == [], "it never had anything"
    log = open_log(files, flusher=flusher)
    log.append(make_batch([b"a"]))
    flusher.close([log])
    assert closing() == []
    log = open_log(files, flusher=flusher)
    assert read_all(log) == [(0, b"a")]
    assert log.append(make_batch([b"b"])) == 1
    log.close()
    assert (open_log(files).leader_epoch, read_all(open_log(files))) == (0, [(0, b"a"), (1, b"b")])
