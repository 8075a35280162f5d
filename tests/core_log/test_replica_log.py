"""A replica's log against a plain list of batches, whatever is done to it and wherever it stops."""

from __future__ import annotations

import errno
import itertools
import random

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_log import high_watermarks
from core_log.errors import BelowHighWatermark, CorruptBatch, LogUnavailable, OffsetOutOfRange
from core_log.files import FaultyFiles, MemoryFiles, read_file
from core_log.flush_job import execute
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig
from core_log.record_batch import parse_header
from core_log.replica_log import ReplicaLog
from core_log.truncation import cut_files, restart_files
from tests.core_log.helpers import DIRECTORY, TIME_MS, flush, make_batch, write


def open_replica(
    files: MemoryFiles | FaultyFiles,
    config: LogConfig | None = None,
    *,
    high_watermark: int = 0,
    flusher: LogFlusher | None = None,
) -> ReplicaLog:
    return ReplicaLog.open_replica(
        files,
        DIRECTORY,
        config or LogConfig(),
        flusher or LogFlusher(),
        wall_clock_ms=lambda: TIME_MS,
        high_watermark=high_watermark,
    )


def content(log: ReplicaLog, *, cold: bool = False) -> list[bytes]:
    """All batches from the log start on; with `cold` those that are written, from the disk."""
    offset, found = log.log_start_offset, []
    while True:
        batches = None if cold else log.read_replica(offset, 300)
        if batches is None:
            batches = log.read_blocking(offset, 300, unsynced=True)
        if not batches:
            return found
        found += map(bytes, batches)
        offset = parse_header(found[-1]).next_offset


class PowerLoss(BaseException):
    """Raised in the middle of what a thread does."""


class Replica(RuleBasedStateMachine):
    """A log that leads and follows by turns; `batches` is all it ever had that may still be there."""

    @initialize(
        segment_bytes=st.sampled_from([300, 2000, 100_000]),
        interval=st.sampled_from([0, 100, 1000]),
        cache_bytes=st.sampled_from([0, 500, 10_000]),
        fsync=st.sampled_from(["commit", "commit", "interval", "never"]),
        recovery_bytes=st.sampled_from([1, 300, 5000]),
    )
    def begin(self, segment_bytes: int, interval: int, cache_bytes: int, fsync: str, recovery_bytes: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            tail_cache_bytes=cache_bytes,
            fsync=fsync,  # type: ignore[arg-type]
            recovery_bytes=recovery_bytes,
        )
        self.batches: list[bytes] = []
        self.serial = self.epoch = 0
        self.leads = False
        self.files = FaultyFiles(MemoryFiles())
        self.log = open_replica(self.files, self.config)

    def view(self) -> list[bytes]:
        return [batch for batch in self.batches if parse_header(batch).next_offset > self.log.log_start_offset]

    # ---- what is done to it

    def make(self, base: int, epoch: int, records: int) -> bytes:
        self.serial += 1
        return make_batch([b"%d " % self.serial * 9] * records, base_offset=base, epoch=epoch)

    @rule(step=st.integers(1, 3))
    def lead(self, step: int) -> None:
        self.epoch += step
        self.log.begin_epoch(self.epoch)
        self.leads = True

    @precondition(lambda self: self.leads)
    @rule(records=st.integers(1, 4), gap=st.sampled_from([0, 0, 3]))
    def append(self, records: int, gap: int) -> None:
        base = self.log.log_end_offset + gap
        try:
            self.log.append(self.make(0, 0, records), base_offset=base)
        except LogUnavailable:
            assert self.log.error is not None
        else:
            self.serial -= 1
            self.batches.append(self.make(base, self.epoch, records))

    @rule(records=st.integers(1, 4), gap=st.sampled_from([0, 0, 3]), step=st.sampled_from([0, 0, 0, 1, 4]))
    def append_replica(self, records: int, gap: int, step: int) -> None:
        self.epoch += step + (1 if self.leads else 0)
        self.leads = False
        kind = (bytes, bytearray, memoryview)[self.serial % 3]
        batch = self.make(self.log.log_end_offset + gap, self.epoch, records)
        try:
            assert self.log.append_replica(kind(batch)) == self.log.log_end_offset
        except LogUnavailable:
            assert self.log.error is not None
        else:
            self.batches.append(batch)

    @rule(step=st.integers(1, 5))
    def skip(self, step: int) -> None:
        self.log.skip_to(self.log.log_end_offset + step)

    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:
        if sync:
            self.log.sync_to(self.log.log_end_offset)
            self.log.request_interval_sync()
        write(self.log)

    @rule(share=st.floats(0, 1.2))
    def advance(self, share: float) -> None:
        before = self.log.high_watermark
        ends = [0, *(parse_header(batch).next_offset for batch in self.batches), self.log.log_end_offset + 5]
        self.log.advance_high_watermark(ends[min(int(share * len(ends)), len(ends) - 1)])
        assert before <= self.log.high_watermark <= self.log.local_committed

    @rule(share=st.floats(0, 1.2))
    def delete(self, share: float) -> None:
        self.log.delete_prefix(int(share * self.log.high_watermark))

    @rule(operation=st.sampled_from(["write", "sync", "open", "rename", "sync_directory"]))
    def break_disk(self, operation: str) -> None:
        if operation != "sync" or self.config.fsync != "never":
            self.files.failing = {operation: errno.EIO}

    @rule()
    def repair_disk(self) -> None:
        self.files.failing = {}

    def drain(self) -> bool:
        self.repair_disk()
        write(self.log)
        return self.log.error is None and self.log.written_offset == self.log.log_end_offset

    @rule(share=st.floats(0, 1), crash_after=st.one_of(st.just(1000), st.integers(0, 20)), seed=st.integers(0, 1 << 20))
    def truncate(self, share: float, crash_after: int, seed: int) -> None:
        log = self.log
        if not self.drain():
            return
        end = log.high_watermark + int(share * (log.log_end_offset - log.high_watermark))
        if end == log.log_end_offset:
            return
        promised = min(log.flushed_offset, end)
        kept = [batch for batch in self.batches if parse_header(batch).next_offset <= end]
        try:
            self.interruptible(crash_after, lambda: log.shorten(cut_files(log, end)))
        except PowerLoss:
            self.reopen(self.files.crash(random.Random(seed)), promised)
            return
        self.leads = False
        self.batches = kept
        assert log.log_end_offset <= max(end, log.log_start_offset)

    @rule(step=st.integers(-20, 20), crash_after=st.one_of(st.just(1000), st.integers(0, 20)))
    def restart(self, step: int, crash_after: int) -> None:
        log = self.log
        offset = log.log_end_offset + step
        if offset < log.log_start_offset or not self.drain():
            return
        try:
            self.interruptible(crash_after, lambda: log.started_anew(restart_files(log, offset)))
        except PowerLoss:
            start = log.log_start_offset
            self.reopen(self.files.crash(random.Random(step)), None)
            assert self.log.log_start_offset <= max(start, offset)
            return
        self.leads = False
        self.batches = []
        high_watermarks.save(self.files, "", {DIRECTORY: offset})
        assert log.log_start_offset == log.high_watermark == log.local_committed == log.log_end_offset == offset
        assert log.last_epoch == -1

    def interruptible(self, steps: int, work) -> None:  # type: ignore[no-untyped-def]
        def hook(operation: str, path: str) -> None:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise PowerLoss

        self.files.hook = hook
        try:
            work()
        finally:
            self.files.hook = None

    @rule()
    def close(self) -> None:
        self.repair_disk()
        high_watermarks.save(self.files, "", {DIRECTORY: self.log.high_watermark})
        self.log.close()
        end, hw, epoch = self.log.log_end_offset, self.log.high_watermark, self.log.last_epoch
        self.reopen(self.files.inner, end)  # type: ignore[arg-type]
        assert (self.log.log_end_offset, self.log.high_watermark, self.log.last_epoch) == (end, hw, epoch)

    @precondition(lambda self: self.log.error is None)
    @rule()
    def kill(self) -> None:
        self.reopen(self.files.inner, self.log.written_offset)  # type: ignore[arg-type]

    @rule(seed=st.one_of(st.none(), st.integers(0, 1 << 20)), steps=st.integers(0, 12))
    def lose_power(self, seed: int | None, steps: int) -> None:
        promised = self.log.flushed_offset
        job = self.log.take_job()
        if job is not None:
            try:
                self.interruptible(steps, lambda: execute(job))
            except PowerLoss:
                pass
        self.reopen(self.files.crash(None if seed is None else random.Random(seed)), promised)

    def reopen(self, disk: MemoryFiles, promised: int | None) -> None:
        self.files = FaultyFiles(disk)
        if promised is None:
            high_watermarks.save(disk, "", {})  # a replica that restarts is out of its watermark's service
        saved = high_watermarks.load(disk, "").get(DIRECTORY, 0)
        log = self.log = open_replica(self.files, self.config, high_watermark=saved)
        self.leads = False
        assert log.flushed_offset == log.log_end_offset
        assert not log.damaged or (self.config.fsync != "commit" and saved > log.log_end_offset)
        found = content(log)
        known = self.view()
        if promised is not None:  # a gap holds nothing that could be lost
            ends = [parse_header(batch).next_offset for batch in self.batches]
            assert log.log_end_offset >= max((end for end in ends if end <= promised), default=0)
        assert found == known[: len(found)], "what was lost was lost at the end"
        self.batches = self.batches[: len(self.batches) - (len(known) - len(found))]
        assert log.verify() == []

    # ---- what is always true

    @invariant()
    def the_list_is_what_is_read(self) -> None:
        log = self.log
        expected = self.view()
        if not self.files.failing:
            written = [batch for batch in expected if parse_header(batch).base_offset < log.written_offset]
            assert content(log, cold=True) == written
            after = parse_header(written[-1]).next_offset if written else log.log_start_offset
            assert content(log) == (expected if log.read_replica(after, 1) is not None else written)
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        assert log.committed_offset == log.high_watermark
        assert log.flushed_offset <= log.written_offset <= log.log_end_offset

    @invariant()
    def epochs_end_where_the_list_says(self) -> None:
        log = self.log
        headers = [parse_header(batch) for batch in self.view()]
        if log.log_end_offset == log.log_start_offset:
            assert log.last_epoch == -1
        elif headers:
            assert log.last_epoch >= headers[-1].leader_epoch  # above it: it led, and was cut in a gap
        for one, other in itertools.pairwise(headers):
            if one.leader_epoch != other.leader_epoch:
                for epoch in range(one.leader_epoch, other.leader_epoch):
                    found = log.epochs.end_of(epoch, log.log_end_offset)
                    assert found is not None
                    assert found[0] <= epoch
                    assert one.next_offset <= found[1] <= other.base_offset


class TestReplica(Replica.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# ---- single rules


def test_a_followers_file_is_its_leaders() -> None:
    leader, follower = open_replica(MemoryFiles()), open_replica(MemoryFiles())
    leader.begin_epoch(4)
    for base, values in ((0, [b"a"]), (5, [b"b" * 70_000, b"c"])):
        leader.append(make_batch(values), base_offset=base)
    leader.begin_epoch(9)
    leader.append(make_batch([b"d"]))
    for batch in leader.read_replica(0, 1 << 20) or ():
        follower.append_replica(batch)
    for log in (leader, follower):
        flush(log)
        assert log.epochs.entries == [(4, 0), (9, 7)]
        assert (log.high_watermark, log.local_committed, log.last_epoch) == (0, 8, 9)
    path = leader.segments[0].log_path
    one, other = (log.files.open(path).pread(1 << 20, 0) for log in (leader, follower))
    assert one == other


def test_where_all_is_deleted_nothing_of_it_is_damage() -> None:
    replica = Replica()
    replica.begin(segment_bytes=100_000, interval=0, cache_bytes=0, fsync="commit", recovery_bytes=1)
    replica.append_replica(gap=0, records=1, step=1)
    replica.close()
    replica.advance(share=1.0)
    replica.delete(share=1.0)
    replica.close()  # and the next start verifies it


def test_what_a_follower_refuses() -> None:
    log = open_replica(MemoryFiles())
    log.append_replica(make_batch([b"a"] * 5, base_offset=10, epoch=3))
    for batch, why in (
        (make_batch([b"b"], base_offset=14, epoch=3), "offset 14"),
        (make_batch([b"b"], base_offset=15, epoch=2), "epoch 2"),
        (make_batch([b"b"], base_offset=15, epoch=3)[:-1], "batch length"),
        (b"b", "1 bytes"),
    ):
        with pytest.raises(CorruptBatch, match=why):
            log.append_replica(batch)
    with pytest.raises(ValueError, match="epoch 3"):
        log.begin_epoch(3)
    assert log.log_end_offset == 15
    with pytest.raises(OffsetOutOfRange):
        log.read_replica(16, 1)


def test_an_epoch_in_which_nothing_was_written_is_forgotten() -> None:
    log = open_replica(MemoryFiles())
    log.append_replica(make_batch([b"a"], epoch=1))
    log.begin_epoch(2)
    assert (log.epochs.entries, log.last_epoch) == ([(1, 0), (2, 1)], 1)
    log.append_replica(make_batch([b"b"], base_offset=1, epoch=1))
    assert (log.epochs.entries, log.last_epoch) == ([(1, 0)], 1)


@pytest.mark.parametrize("records", [0, 3])
def test_a_gap_at_the_end_is_kept(records: int) -> None:
    disk = MemoryFiles()
    log = open_replica(disk)
    if records:
        log.append_replica(make_batch([b"a"] * records, epoch=1))
    log.skip_to(10)
    log.skip_to(9)
    flush(log)
    log.advance_high_watermark(10)
    assert (log.log_end_offset, log.local_committed, log.high_watermark) == (10, 10, 10)
    again = open_replica(disk.crash(), high_watermark=10)
    assert (again.log_end_offset, again.high_watermark, again.damaged) == (10, 10, False)
    again.append_replica(make_batch([b"b"], base_offset=10, epoch=2))
    assert again.epochs.entries == ([(1, 0), (2, 10)] if records else [(2, 10)])


def test_committed_is_what_the_role_says() -> None:
    log = open_replica(MemoryFiles())
    told: list[int] = []
    log.listeners.append(lambda log: told.append(log.committed_offset))
    log.append_replica(make_batch([b"a"] * 10))
    log.advance_high_watermark(7)
    assert log.high_watermark == 0, "nothing is on the disk"
    flush(log)
    log.advance_high_watermark(7)
    log.advance_high_watermark(3)
    assert (log.high_watermark, log.committed_offset, told) == (7, 7, [0, 7])
    log.delete_prefix(9)
    assert log.log_start_offset == 7


def test_nobody_waits_so_nobody_syncs() -> None:
    log = open_replica(MemoryFiles())
    log.begin_epoch(0)
    log.append(make_batch([b"a"] * 10))
    assert log.sync_before == 0
    log.sync_to(0)
    write(log)
    assert (log.written_offset, log.flushed_offset) == (10, 0)
    log.request_sync()
    assert log.sync_before == 10
    write(log)
    assert log.flushed_offset == 10
    log.append(make_batch([b"b"]))
    assert log.sync_before == 10
    log.reader_waits(1)
    assert log.sync_before == 11


def test_a_log_that_ends_below_its_watermark_is_damaged() -> None:
    disk = MemoryFiles()
    log = open_replica(disk)
    log.append_replica(make_batch([b"a"] * 5))
    flush(log)
    assert not open_replica(disk, high_watermark=5).damaged
    log = open_replica(disk, high_watermark=6)
    assert (log.damaged, log.high_watermark) == (True, 5)
    assert not open_replica(disk, LogConfig(fsync="never"), high_watermark=6).damaged


@pytest.mark.parametrize("what", ["tail", "segment", "first", "clean"])
def test_bytes_that_had_been_synced_are_missed(what: str) -> None:
    disk = MemoryFiles()
    config = LogConfig(segment_bytes=300, recovery_bytes=1)
    log = open_replica(disk, config)
    for offset in range(9):
        log.append_replica(make_batch([b"x" * 50], base_offset=offset))
        flush(log)
    if what == "clean":
        log.close()
        disk.remove(f"{DIRECTORY}/recovery-point")
    assert not open_replica(disk, config).damaged
    assert len(log.segments) == 5
    if what in ("tail", "clean"):
        file = disk.open(log.segments[-1].log_path)
        file.truncate(10)
    else:
        disk.remove(log.segments[{"segment": -1, "first": 0}[what]].log_path)
    assert open_replica(disk, config).damaged


def test_epochs_are_found_in_the_batches_when_their_file_is_lost() -> None:
    disk = MemoryFiles()
    log = open_replica(disk, LogConfig(segment_bytes=200))
    for offset, epoch in enumerate([1, 1, 4, 6, 6, 6, 9]):
        log.append_replica(make_batch([b"x" * 50], base_offset=offset, epoch=epoch))
    flush(log)
    disk.remove(f"{DIRECTORY}/leader-epochs")
    assert open_replica(disk, log.config).epochs.entries == [(1, 0), (4, 2), (6, 3), (9, 6)]


def test_epochs_are_found_in_the_batches_when_their_file_is_an_older_copy(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFiles()
    log = open_replica(disk, LogConfig(segment_bytes=200))
    for offset, epoch in enumerate([1, 1, 4, 6, 6, 6, 9]):
        log.append_replica(make_batch([b"x" * 50], base_offset=offset, epoch=epoch))
        if offset == 2:
            flush(log)
            log.close()
            older = read_file(disk, f"{DIRECTORY}/leader-epochs")
            log = open_replica(disk, log.config)
    flush(log)
    log.close()
    log = open_replica(disk, log.config)
    assert "from before" not in caplog.text
    disk.open(f"{DIRECTORY}/leader-epochs").truncate(0)
    disk.open(f"{DIRECTORY}/leader-epochs").pwritev([older], 0)
    log = open_replica(disk, log.config)
    assert log.epochs.entries == [(1, 0), (4, 2), (6, 3), (9, 6)]
    assert not log.damaged
    assert "leader-epochs is from before: a stop at offset 3, and the log ends at 7" in caplog.text


def test_the_file_of_watermarks() -> None:
    disk = MemoryFiles()
    disk.make_directory("data")
    for directory in ("", "data"):
        assert high_watermarks.load(disk, directory) == {}
        high_watermarks.save(disk, directory, {"topics/t-0": 1 << 40, "queues/3": 0})
        assert high_watermarks.load(disk, directory) == {"topics/t-0": 1 << 40, "queues/3": 0}
    file = disk.open("data/high-watermarks")
    file.pwritev([b"?"], 12)
    assert high_watermarks.load(disk, "data") == {}


async def test_truncating_and_restarting_on_a_running_flusher() -> None:
    flusher = LogFlusher()
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        log = open_replica(MemoryFiles(), LogConfig(segment_bytes=300), flusher=flusher)
        for offset in range(20):
            log.append_replica(make_batch([b"x" * 50], base_offset=offset, epoch=offset // 5))
        await flusher.drain(log)
        log.sync_to(20)
        await flusher.drain(log)
        log.advance_high_watermark(8)
        with pytest.raises(BelowHighWatermark):
            await log.truncate(7)
        await log.truncate(12)
        assert (log.log_end_offset, log.last_epoch, log.high_watermark) == (12, 2, 8)
        assert len(await log.read_replica_cold(8, 1 << 20)) >= 1
        await log.restart_at(100)
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
        log.append_replica(make_batch([b"y"], base_offset=103, epoch=3))
        log.request_sync()
        await flusher.drain(log)
        again = open_replica(log.files.crash())  # type: ignore[attr-defined]
        assert (again.log_start_offset, again.log_end_offset, again.last_epoch) == (100, 104, 3)
        assert len([name for name in again.files.list(DIRECTORY) if name.endswith(".log")]) == 1
        nursery.cancel_scope.cancel()


async def test_what_a_sync_before_a_cut_lost_is_written_again() -> None:
    flusher, files = LogFlusher(retry_interval_s=0.001), FaultyFiles(MemoryFiles())
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        log = open_replica(files, flusher=flusher)
        for offset in range(6):
            log.append_replica(make_batch([b"%d" % offset], base_offset=offset))
        await flusher.drain(log)
        assert (log.written_offset, log.flushed_offset) == (6, 0)
        files.failing["sync"] = errno.EIO
        with pytest.raises(OSError, match="Input/output error"):
            await log.truncate(4)
        assert log.error is not None
        with pytest.raises(LogUnavailable):
            await log.truncate(4)
        files.failing.clear()
        well = trio.Event()
        log.listeners.append(lambda _: well.set() if log.error is None else None)
        await well.wait()
        await log.truncate(4)
        assert (log.log_end_offset, log.flushed_offset) == (4, 4)
        assert content(open_replica(files.crash()), cold=True) == content(log)
        nursery.cancel_scope.cancel()
