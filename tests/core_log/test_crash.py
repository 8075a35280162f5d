"""Whatever is done to a log, wherever it stops: what was called flushed is there, and nothing is made up."""

from __future__ import annotations

import errno
import random
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.errors import LogUnavailable
from core_log.files import FaultyFiles, MemoryFiles
from core_log.flush_job import execute
from core_log.partition_log import LogConfig, PartitionLog
from core_log.segment import scan
from core_log.truncation import cut_files
from tests.core_log.helpers import DIRECTORY, TIME_MS, flush, make_batch, open_log, read_all, records_of, write


class PowerLoss(BaseException):
    """Raised in the middle of a job."""


class World:
    """A log on a disk that fails, and what we know was appended to it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.config = LogConfig(
            segment_bytes=self.dice.choice([400, 2000, 100_000]),
            index_interval_bytes=self.dice.choice([0, 100, 1000]),
            tail_cache_bytes=self.dice.choice([0, 500, 10_000]),
            fsync=self.dice.choice(["commit", "commit", "interval", "never"]),
            recovery_bytes=self.dice.choice([1, 300, 5000]),
            room_syncs_min=self.dice.choice([0, 3, 1000]),
            room_bytes_min=self.dice.choice([50, 1000]),
            unsynced_bytes_max=self.dice.choice([100, 1000, 1 << 20]),
        )
        self.rows: list[tuple[int, bytes | None]] = []
        self.gone: set[tuple[int, bytes | None]] = set()
        """What a process before did not leave to the next one. A loss of power may bring it back, with a file's length
        or a log's start that was not synced.
        """
        self.seen: dict[tuple[int, int], bytes | None] = {}
        """What readers could see, by epoch and offset."""
        self.watermark = 0
        self.serial = 0
        self.start(MemoryFiles())

    def start(self, disk: MemoryFiles) -> None:
        self.disk = disk
        self.files = FaultyFiles(disk)
        self.log: PartitionLog = open_log(self.files, self.config)

    def append(self) -> None:
        log = self.log
        for _ in range(self.dice.randrange(1, 4)):
            values = []
            for _ in range(self.dice.randrange(1, 5)):
                self.serial += 1
                values.append(b"%d " % self.serial * self.dice.randrange(1, 12))
            base = log.log_end_offset + self.dice.choice([0, 0, 0, 3])
            batch = make_batch(values, base_offset=self.dice.choice([0, base]), time_ms=TIME_MS + self.serial)
            try:
                assert log.append(self.dice.choice([bytes, bytearray, memoryview])(batch), base_offset=base) == base
            except LogUnavailable:
                assert log.error is not None
                return
            self.rows += enumerate(values, base)

    def flush(self) -> None:
        if self.dice.random() < 0.6:
            self.log.request_sync()
        if self.config.fsync != "commit" and self.dice.random() < 0.5:
            self.log.request_interval_sync()
        before = self.log.written_offset, self.log.flushed_offset
        self.write()
        assert before <= (self.log.written_offset, self.log.flushed_offset)
        self.look()

    def write(self) -> None:
        """Do one job; what closes a full segment aside is done some other time."""
        job = self.log.take_job(aside=True)
        if job is not None:
            execute(job)
            self.log.complete(job)

    def close_full(self) -> None:
        """Do what closes a full segment."""
        if self.log.closing is not None:
            execute(self.log.closing)
            self.log.complete(self.log.closing)

    def look(self) -> None:
        """What is visible now: what is called durable, and never two things under one epoch and offset."""
        log = self.log
        assert log.high_watermark <= log.committed_offset
        assert self.watermark <= log.high_watermark
        self.watermark = log.high_watermark
        starts = [first for _, first in log.epochs.entries]
        for offset, value in self.rows:
            if offset < log.high_watermark:
                epoch = log.epochs.entries[max(bisect_right(starts, offset) - 1, 0)][0]
                assert self.seen.setdefault((epoch, offset), value) == value

    def truncate(self) -> None:
        """As a follower: down to the high watermark at most."""
        log = self.log
        self.repair_disk()
        self.write()
        self.close_full()
        if log.error is not None or log.written_offset < log.log_end_offset:
            return
        end = self.dice.randrange(log.high_watermark, log.log_end_offset + 1)
        if end == log.log_end_offset:
            return
        crash_after = self.dice.randrange(20) if self.dice.random() < 0.4 else 1000
        promised = log.flushed_offset

        def hook(operation: str, path: str) -> None:
            nonlocal crash_after
            crash_after -= 1
            if crash_after < 0:
                raise PowerLoss

        self.files.hook = hook
        try:
            log.shorten(cut_files(log, end))
        except PowerLoss:
            self.after_crash(self.disk.crash(self.dice), min(promised, end))
            return
        finally:
            self.files.hook = None
        assert log.log_end_offset <= max(end, log.segments[0].base_offset)
        self.rows = [row for row in self.rows if row[0] < log.log_end_offset]
        assert read_written(log) == [row for row in self.rows if row[0] >= log.log_start_offset]
        assert log.verify() == []
        assert self.log.flushed_offset <= self.log.written_offset <= self.log.log_end_offset

    def break_disk(self) -> None:
        operations = [
            "write",
            "sync",
            "sync",
            "sync",
            "open",
            "truncate",
            "rename",
            "sync_directory",
            "remove",
            "allocate",
        ]
        operation = self.dice.choice(operations)
        if operation != "sync" or self.config.fsync != "never":  # which promises nothing then
            self.files.failing = {operation: errno.EIO}
        if self.dice.random() < 0.5:
            self.files.room_bytes = self.dice.randrange(2000)

    def repair_disk(self) -> None:
        self.files.failing = {}
        self.files.room_bytes = None

    def delete(self) -> None:
        self.log.delete_prefix(self.dice.randrange(self.log.log_end_offset + 5))

    def read(self) -> None:
        """Tail, disk and model agree."""
        log = self.log
        self.repair_disk()
        offset = self.dice.randrange(log.log_start_offset, log.log_end_offset + 1)
        assert read_written(log) == [row for row in self.rows if log.log_start_offset <= row[0] < log.written_offset]
        expected = [row for row in self.rows if offset <= row[0] < log.high_watermark]
        assert read_all(log, offset, self.dice.choice([1, 300, 100_000])) == expected
        batches = log.read(offset, self.dice.choice([1, 300, 100_000]))
        if batches is not None:
            found = [row for row in records_of(batches) if row[0] >= offset]
            assert found == expected[: len(found)]
            assert bool(found) == bool(expected)

    def restart(self) -> None:
        self.repair_disk()
        self.close_full()
        self.log.close()
        assert self.log.flushed_offset == self.log.log_end_offset
        self.after_crash(self.disk, self.log.log_end_offset)

    def kill(self) -> None:
        self.after_crash(self.disk, self.log.written_offset)

    def lose_power(self) -> None:
        dice = self.dice if self.dice.random() < 0.8 else None
        self.after_crash(self.disk.crash(dice), self.log.flushed_offset)

    def lose_power_in_job(self) -> None:
        """Stop at any operation of a job."""
        steps = self.dice.randrange(12)

        def hook(operation: str, path: str) -> None:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise PowerLoss

        if self.dice.random() < 0.5:
            self.log.request_sync()
        self.log.take_job(aside=True)
        self.files.hook = hook
        try:
            for job in self.dice.sample([self.log.job, self.log.closing], 2):
                if job is not None:
                    execute(job)
        except PowerLoss:
            pass
        self.lose_power()

    def kill_while_the_disk_refuses(self) -> None:
        """The next process may be refused its start as well, and be killed in the middle of it."""
        files = self.files
        for _ in range(self.dice.randrange(3)):
            steps = self.dice.randrange(30)
            files = FaultyFiles(self.disk)
            files.failing = {self.dice.choice(["sync", "write"]): errno.EIO} if self.config.fsync != "never" else {}

            def hook(operation: str, path: str) -> None:
                nonlocal steps
                steps -= 1
                if steps < 0:
                    raise PowerLoss

            files.hook = hook
            try:
                open_log(files, self.config)
            except (OSError, PowerLoss):
                pass
        self.kill()

    def after_crash(self, disk: MemoryFiles, promised_offset: int) -> None:
        start = self.log.log_start_offset
        promised_offset = max(promised_offset, 0 if self.config.fsync != "commit" else self.watermark)
        self.start(disk)
        log = self.log
        self.watermark = log.high_watermark
        assert log.log_start_offset <= start
        assert log.log_end_offset >= promised_offset
        assert not log.damaged
        assert log.verify() == []
        found = read_all(log)
        known = [row for row in self.rows if row[0] >= log.log_start_offset]
        is_prefix = found == known[: len(found)]
        assert is_prefix or self.gone.union(known).issuperset(found), "a prefix of what was appended, by some process"
        assert {row for row in known if start <= row[0] < promised_offset}.issubset(found)
        assert [row for row in found if start <= row[0]] or not [r for r in known if start <= r[0] < promised_offset]
        assert len(found) >= len([row for row in known if row[0] < promised_offset])
        assert log.flushed_offset == log.log_end_offset
        self.gone.update(self.rows)
        self.gone.difference_update(found)
        self.rows = found
        self.look()
        assert not [name for name in disk.list(DIRECTORY) if name.endswith(".new")]


def read_written(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """All that is written, visible or not."""
    offset, rows = log.log_start_offset, []
    while batches := log.read_blocking(offset, 1 << 20, unsynced=True):
        rows += [row for row in records_of(batches) if row[0] >= offset]
        offset = rows[-1][0] + 1
    return rows


STEPS = {
    World.append: 8,
    World.flush: 8,
    World.close_full: 3,
    World.read: 4,
    World.break_disk: 2,
    World.repair_disk: 2,
    World.delete: 1,
    World.restart: 1,
    World.truncate: 1,
    World.kill: 1,
    World.kill_while_the_disk_refuses: 1,
    World.lose_power: 1,
    World.lose_power_in_job: 2,
}


def run_world(seed: int, steps: int) -> None:
    world = World(seed)
    chosen = world.dice.choices(list(STEPS), weights=list(STEPS.values()), k=steps)
    for step in chosen:
        step(world)
    world.read()
    world.restart()


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_promises_survive_everything(seed: int, steps: int) -> None:
    run_world(seed, steps)


@pytest.mark.parametrize("operation", ["write", "sync", "open", "sync_directory"])
def test_what_a_failed_job_held_is_written_again(operation: str) -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = open_log(files)
    log.append(make_batch([b"written before, not synced"]))
    write(log)
    assert (log.written_offset, log.flushed_offset) == (1, 0)
    log.append(make_batch([b"in the failing job"]))
    log.segments[-1].close_file()
    files.failing[operation] = errno.EIO
    flush(log)
    assert isinstance(log.error, OSError)
    assert (log.written_offset, log.flushed_offset, log.committed_offset) == (1, 0, 0)
    with pytest.raises(LogUnavailable):
        log.append(make_batch([b"refused"]))
    assert log.read(0, 1 << 20) == [], "to readers it is not there before it is durable"
    files.failing.clear()
    flush(log)
    assert log.error is None
    assert log.committed_offset == log.flushed_offset == 2
    assert read_all(open_log(disk.crash())) == [(0, b"written before, not synced"), (1, b"in the failing job")]


def test_a_segment_that_is_full_while_the_disk_refuses_is_closed_all_the_same() -> None:
    """Its bytes were durable, the directory was not: it was left without index files, and could not be read."""
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, LogConfig(tail_cache_bytes=0))
    log.append(make_batch([b"written"]))
    write(log)
    log.append(make_batch([b"synced"]))
    files.failing["sync_directory"] = errno.EIO
    flush(log)
    assert log.error is not None
    log.roll()
    files.failing.clear()
    flush(log)
    assert (log.error, log.flushed_offset, len(log.segments)) == (None, 2, 2)
    assert log.verify() == []
    assert read_all(log, 1) == [(1, b"synced")]


def killed_after_a_failed_sync(config: LogConfig) -> MemoryFiles:
    """A disk that has the first of three records; the others were never synced, and only the cache shows them."""
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = open_log(files, config)
    log.append(make_batch([b"synced"]))
    log.flush_blocking()
    log.append(make_batch([b"two", b"three"]))
    files.failing["sync"] = errno.EIO
    log.flush_blocking()
    assert (log.error is not None, log.flushed_offset) == (True, 1)
    return disk


ALL = [(0, b"synced"), (1, b"two"), (2, b"three")]


@pytest.mark.parametrize("fsync", ["commit", "interval"])
def test_what_only_the_cache_shows_is_written_again_by_the_next_process(fsync: str) -> None:
    disk = killed_after_a_failed_sync(LogConfig(fsync=fsync))  # type: ignore[arg-type]
    files = FaultyFiles(disk)
    for operation in ("sync", "write", "sync"):
        files.failing[operation] = errno.EIO
        with pytest.raises(OSError, match="page cache only") as refused:
            open_log(files)
        assert refused.value.errno == errno.EIO
        assert refused.value.filename.endswith(".log")
        files.failing.clear()
        assert read_all(open_log(disk.crash())) == ALL[:1], "a start that was refused has not made it durable"
    assert read_all(open_log(files)) == ALL
    assert read_all(open_log(disk.crash())) == ALL


def test_a_log_that_promises_no_sync_is_not_written_again() -> None:
    config = LogConfig(fsync="never")
    disk = killed_after_a_failed_sync(config)
    files = FaultyFiles(disk)
    files.failing["write"] = errno.EIO
    assert read_all(open_log(files, config)) == ALL


def test_what_is_behind_the_recovery_point_is_not_written_again() -> None:
    disk = MemoryFiles()
    log = open_log(disk, LogConfig(recovery_bytes=1))
    for number in range(3):
        log.append(make_batch([b"%d" % number * 100]))
        log.flush_blocking()
    position = log.size_bytes
    log.append(make_batch([b"written, not synced"]))
    write(log)
    files, written = FaultyFiles(disk), []

    def look(operation: str, path: str) -> None:
        if operation == "sync" and path == log.segments[0].log_path:
            written.extend((at, len(data or b"")) for at, data in disk.open(path).node.unsynced)

    files.hook = look
    open_log(files)
    assert written == [(position, log.size_bytes - position)] * 2, "by the process before, and by this one"


def test_pieces_that_end_within_a_batch_are_written_again_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scan.__kwdefaults__, "piece_bytes", 200)
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = open_log(files)
    values = [b"%d" % number * (number * 37 % 300 + 1) for number in range(40)]
    for value in values:
        log.append(make_batch([value]))
        if value == b"0":
            log.flush_blocking()
    files.failing["sync"] = errno.EIO
    log.flush_blocking()
    assert [value for _, value in read_all(open_log(disk))] == values
    assert [value for _, value in read_all(open_log(disk.crash()))] == values


def test_an_index_that_was_made_anew_and_not_synced_is_made_again() -> None:
    disk = MemoryFiles()
    config = LogConfig(segment_bytes=1000, index_interval_bytes=0)
    log = open_log(disk, config)
    for number in range(20):
        log.append(make_batch([b"%d" % number * 100]))
    log.close()
    stem = log.segments[0].stem
    disk.remove(stem + ".index")
    disk.sync_directory(DIRECTORY)
    files = FaultyFiles(disk)
    files.failing["sync"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        open_log(files, config)
    assert not disk.exists(stem + ".index")
    files.failing.clear()
    assert open_log(files, config).verify() == []
    assert open_log(disk.crash(), config).verify() == []


def test_a_full_disk_leaves_no_torn_tail() -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = open_log(files)
    log.append(make_batch([b"first"]))
    log.request_sync()
    flush(log)
    size = disk.size(log.segments[-1].log_path)
    files.room_bytes = 30
    log.append(make_batch([b"second" * 100]))
    flush(log)
    assert log.error is not None
    assert log.error.errno == errno.ENOSPC
    assert disk.size(log.segments[-1].log_path) == size
    files.room_bytes = None
    flush(log)
    assert read_all(log) == [(0, b"first"), (1, b"second" * 100)]


def test_closing_while_the_disk_refuses_says_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = open_log(files)
    log.append(make_batch([b"a", b"b"]))
    files.failing["sync"] = errno.EIO
    log.close()
    assert "2 offsets not made durable" in caplog.text
    assert open_log(disk.crash()).log_end_offset == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "zeros", "length"])
@pytest.mark.parametrize("at_batch", [0, 3, 9])
def test_the_log_is_cut_at_the_first_damaged_batch(
    damage: str, at_batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryFiles()
    log = open_log(disk)
    positions = []
    for i in range(10):
        positions.append(log.size_bytes)
        log.append(make_batch([b"value %d" % i] * 3))
    flush(log)
    path = log.segments[0].log_path
    file = disk.open(path)
    position = positions[at_batch]
    if damage == "flip":
        file.pwritev([b"X"], position + 70)
    elif damage == "length":
        file.pwritev([b"\x7f\xff\xff\xff"], position + 8)
    else:
        file.truncate(position + 40)
        if damage == "zeros":
            file.truncate(position + 400)
    log = open_log(disk)
    assert log.log_end_offset == at_batch * 3
    assert path in caplog.text
    assert f"position {position}" in caplog.text
    log.append(make_batch([b"after"]))
    flush(log)
    assert read_all(log)[-1] == (at_batch * 3, b"after")


def test_segments_after_a_damaged_one_go(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFiles()
    log = open_log(disk, LogConfig(segment_bytes=350))
    for i in range(10):
        log.append(make_batch([b"%d" % i * 100]))
    flush(log)
    assert len(log.segments) == 5
    disk.remove(f"{DIRECTORY}/recovery-point")
    disk.open(log.segments[1].log_path).pwritev([b"!"], 100)
    log = open_log(disk, log.config)
    assert log.log_end_offset == 2
    assert "cutting the log" in caplog.text
    assert read_all(log) == [(0, b"0" * 100), (1, b"1" * 100)]
    assert len([name for name in log.files.list(DIRECTORY) if name.endswith(".log")]) == 2


def test_a_segment_that_is_gone_is_named(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFiles()
    log = open_log(disk)
    log.append(make_batch([b"x" * 100]))
    log.close()
    disk.remove(log.segments[0].log_path)
    assert open_log(disk).damaged
    assert (
        f"{log.segments[0].log_path} is missing, {log.size_bytes} bytes of it that were synced are lost" in caplog.text
    )


def test_a_recovery_point_beyond_the_file_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryFiles()
    log = open_log(disk)
    for i in range(5):
        log.append(make_batch([b"%d" % i * 100]))
    log.close()
    disk.open(log.segments[0].log_path).truncate(log.size_bytes - 10)
    log = open_log(disk)
    assert "are lost" in caplog.text
    assert log.log_end_offset == 4
    for _ in range(3):
        log.append(make_batch([b"x" * 300]))
    flush(log)
    log = open_log(disk)
    assert log.log_end_offset == 7
    assert log.verify() == []
