"""Files that are longer than what is in them, while and after they are written to."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from core_log.disk_space import DiskSpace
from core_log.files import FaultyFiles, Files, MemoryFiles, OsFiles
from core_log.flush_job import execute
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.room_ahead import ROOM_BYTES_MAX
from tests.core_log.helpers import flush, make_batch, open_log, read_all

CONFIG = LogConfig(room_syncs_min=2, room_bytes_min=4096)
ROWS = [(offset, b"%d" % offset) for offset in range(1000)]


@pytest.fixture(params=["memory", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return MemoryFiles() if request.param == "memory" else OsFiles(tmp_path)


def append(log: PartitionLog, count: int = 1) -> None:
    """As many synced batches of one record."""
    for offset in range(log.log_end_offset, log.log_end_offset + count):
        log.append(make_batch([b"%d" % offset]))
        flush(log)


def bytes_of(files: Files, log: PartitionLog) -> list[int]:
    """Lengths of the files of batches."""
    return [files.size(segment.log_path) for segment in log.segments]


def test_who_syncs_often_gets_room_and_who_writes_much_gets_none(files: Files) -> None:
    log = open_log(files, CONFIG)
    append(log, 2)
    assert bytes_of(files, log) == [log.size_bytes]
    append(log)
    assert bytes_of(files, log) == [log.size_bytes + 4096]
    end = bytes_of(files, log)
    append(log, 20)
    assert bytes_of(files, log) == end
    log.append(make_batch([bytes(300_000)]))
    flush(log)
    assert bytes_of(files, log) == [log.size_bytes]
    append(log, 2)
    assert bytes_of(files, log) == [log.size_bytes]
    append(log)
    assert bytes_of(files, log) == [2 * log.size_bytes], "as much as there is"
    for _ in range(12):
        log.append(make_batch([bytes(300_000)]))
        flush(log)
        append(log, 2)
    assert bytes_of(files, log) == [log.size_bytes], "large ones come between"
    append(log)
    assert bytes_of(files, log) == [log.size_bytes + ROOM_BYTES_MAX]


@pytest.mark.parametrize("settings", [{"room_syncs_min": -1}, {"fsync": "never"}])
def test_there_is_none_where_it_is_not_wanted_or_nothing_is_synced(files: Files, settings: dict[str, object]) -> None:
    log = open_log(files, LogConfig(**{"room_syncs_min": 0, **settings}))  # type: ignore[arg-type]
    for offset in range(50):
        log.append(make_batch([b"%d" % offset]))
        if "fsync" in settings:
            job = log.take_job()
            assert job is not None
            assert not job.sync
            log.complete(job)
        else:
            flush(log)
    assert log.segments[0].room_end == 0


@pytest.mark.parametrize("more", [0, 3])
def test_after_a_kill_it_is_taken_off_without_a_word(files: Files, caplog: pytest.LogCaptureFixture, more: int) -> None:
    log = open_log(files, CONFIG)
    append(log, 9)
    log.roll()
    append(log, 9)
    end = log.log_end_offset
    assert log.segments[1].room_end
    caplog.set_level(logging.INFO)
    for _ in range(2):
        log = open_log(files, CONFIG)
        assert (log.log_end_offset, log.damaged) == (end, False)
        assert read_all(log) == ROWS[:end]
        assert bytes_of(files, log) == [segment.size for segment in log.segments]
        append(log, more)
        end += more
    assert not caplog.records


def test_a_full_segment_a_log_that_is_cut_and_one_that_is_closed_have_none(files: Files) -> None:
    log = open_log(files, CONFIG)
    append(log, 9)
    log.roll()
    append(log, 9)
    assert files.size(log.segments[0].log_path) == log.segments[0].size
    log.close()
    again = open_log(files, CONFIG)
    assert bytes_of(files, again) == bytes_of(files, log) == [segment.size for segment in log.segments]
    assert (again.room_bytes, again.log_end_offset) == (0, 18)


async def test_a_log_that_is_cut_has_none(files: Files) -> None:
    log = open_log(files, CONFIG)
    append(log, 9)
    log.high_watermark = log.committed_offset = 0
    await log.truncate(5)
    assert bytes_of(files, log) == [log.size_bytes]
    append(log, 3)
    assert bytes_of(files, log)[0] > log.size_bytes
    assert read_all(open_log(files, CONFIG)) == ROWS[:8]


def test_what_is_behind_a_damaged_batch_is_no_room(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(files, CONFIG)
    append(log, 9)
    file = files.open(log.segments[0].log_path)
    size = log.size_bytes // 9
    file.pwritev([b"?"], 8 * size - 1)
    again = open_log(files, CONFIG)
    assert (again.log_end_offset, again.room_bytes) == (7, 0)
    assert "cutting the log" in caplog.text


def test_a_disk_that_refuses_it_takes_what_is_written() -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, CONFIG)
    files.failing["allocate"] = errno.EOPNOTSUPP
    append(log, 9)
    files.failing.clear()
    append(log, 9)
    assert log.error is None
    assert bytes_of(files, log) == [log.size_bytes]


@pytest.mark.parametrize("truncates", [True, False])
def test_what_a_full_disk_gave_of_it_goes_again(truncates: bool) -> None:
    """A file may be longer though the disk has refused to make it so."""
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = open_log(files, CONFIG)
    append(log, 2)
    files.room_bytes = 1000
    if not truncates:
        files.failing["truncate"] = errno.EIO
    append(log)
    assert bytes_of(disk, log) == [log.segments[0].written_bytes + (0 if truncates else 1000)]
    files.room_bytes = None
    files.failing.clear()
    flush(log)
    append(log, 5)
    log.roll()
    append(log, 2)
    assert disk.size(log.segments[0].log_path) == log.segments[0].size
    again = open_log(disk, CONFIG)
    assert read_all(again) == ROWS[: log.log_end_offset]
    assert again.verify() == []


def test_a_disk_that_is_nearly_full_gives_none() -> None:
    files = FaultyFiles(MemoryFiles())
    files.disk = (300 << 20, 1 << 40)
    space = DiskSpace(files)
    log = open_log(files, CONFIG)

    def append_more(count: int) -> None:
        for _ in range(count):
            log.append(make_batch([b"one"]))
            log.request_sync()
            job = log.take_job()
            assert job is not None
            space.execute(job)
            log.complete(job)

    append_more(2)
    before = space.free_bytes
    append_more(1)
    assert bytes_of(files, log) == [log.size_bytes + 4096]
    assert before - space.free_bytes == log.size_bytes // 3 + 4096 + log.size_bytes // 3
    log.roll()
    files.disk = (200 << 20, 1 << 40)
    space.measure()
    append_more(20)
    assert files.size(log.segments[1].log_path) == log.segments[1].size


def test_what_is_written_again_gets_its_room_behind_all_that_was_written(tmp_path: Path) -> None:
    """Where the disk has refused something all that is not synced is written anew, from the first of it on."""
    files = FaultyFiles(OsFiles(tmp_path))
    log = open_log(files, CONFIG)
    append(log, 2)
    for offset in range(2, 9):  # written, and not synced
        log.append(make_batch([b"%d" % offset * 1000]))
        job = log.take_job()
        assert job is not None
        execute(job)
        log.complete(job)
    written = log.size_bytes
    log.append(make_batch([b"last"]))
    files.failing["write"] = errno.EIO
    flush(log)
    files.failing.clear()
    flush(log)
    assert (log.error, log.flushed_offset) == (None, 10)
    assert bytes_of(files, log)[0] >= 2 * written, "there is room behind all of it"
    assert open_log(files, CONFIG).verify() == []


def test_a_job_that_only_syncs_needs_none(files: Files) -> None:
    log = open_log(files, LogConfig(room_syncs_min=0, fsync="interval"))
    for offset in range(9):
        log.append(make_batch([b"%d" % offset]))
        for _ in range(2):
            job = log.take_job()
            assert job is not None
            assert not job.lacks_room()
            execute(job)
            log.complete(job)
            log.request_interval_sync()
    assert bytes_of(files, log) == [log.size_bytes]


@pytest.mark.parametrize(("zeros", "is_room"), [(ROOM_BYTES_MAX, True), (4 << 20, False)])
def test_more_zeros_than_there_is_room_are_a_loss(
    files: Files, caplog: pytest.LogCaptureFixture, zeros: int, is_room: bool
) -> None:
    log = open_log(files, CONFIG)
    append(log, 9)
    log.segments[0].writable(files).allocate(log.size_bytes + zeros)
    again = open_log(files, CONFIG)
    assert (again.log_end_offset, again.room_bytes) == (9, zeros if is_room else 0)
    assert ("cutting the log" in caplog.text) is not is_room


def test_a_torn_tail_is_cut_off_with_it() -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, CONFIG)
    append(log, 9)
    files.failing["write"] = errno.EIO
    append(log)
    assert log.error is not None
    assert bytes_of(files, log) == [log.segments[0].written_bytes]
    files.failing.clear()
    flush(log)
    append(log, 5)
    assert read_all(open_log(files, CONFIG)) == ROWS[:15]
