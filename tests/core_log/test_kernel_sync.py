"""Files synced by the kernel, and logs whose small jobs need no thread; files that are removed meanwhile."""

from __future__ import annotations

import math
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from core_log import log_flusher
from core_log.errors import LogUnavailable
from core_log.files import OsFiles
from core_log.flush_job import FlushJob, execute
from core_log.kernel_sync import KernelSync
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig
from tests.core_log.helpers import flush, make_batch, open_log, read_all

needs_kernel = pytest.mark.usefixtures("offered")


@pytest.fixture
def offered() -> None:
    """There is only so much of it for all processes of a machine."""
    if KernelSync.open() is None:
        pytest.skip("the kernel does not offer it here, or has no more of it now")


@pytest.fixture(autouse=True)
def no_disk_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much else it does: who writes goes by that, too."""
    monkeypatch.setattr(log_flusher, "_SLOW_SYNC_S", math.inf)
    monkeypatch.setattr(log_flusher, "_SLOW_WRITE_S", math.inf)


@needs_kernel
def test_what_was_ordered_ends(tmp_path: Path) -> None:
    kernel = KernelSync.open()
    assert kernel is not None
    assert not kernel
    assert kernel.take() == []
    with open(tmp_path / "file", "wb", buffering=0) as file:
        for index in range(10):
            file.write(b"x" * 100)
            assert kernel.submit(file.fileno(), index)
        assert kernel
        found = []
        while kernel:
            found += kernel.take(wait=True)
    assert sorted(token for token, _ in found) == list(range(10))
    assert not any(error for _, error in found)


@needs_kernel
def test_what_cannot_be_synced_is_not_taken_or_an_error(tmp_path: Path) -> None:
    kernel = KernelSync.open(under_way_max=1)
    assert kernel is not None
    assert not kernel.submit(1 << 20, "no such descriptor")
    reader, writer = os.pipe()
    assert not kernel.submit(writer, "a pipe has nothing to sync")
    os.close(reader)
    os.close(writer)
    with open(tmp_path / "file", "wb", buffering=0) as file:
        file.write(b"x")
        assert kernel.submit(file.fileno(), "first")
        assert not kernel.submit(file.fileno(), "one too many")
        assert kernel.take(wait=True) == [("first", None)]


def _in_threads(flusher: LogFlusher) -> list[int]:
    sizes: list[int] = []

    def noted(job: FlushJob) -> None:
        assert threading.current_thread().name == "log-flusher"
        sizes.append(job.size)
        execute(job)

    flusher.execute = noted
    return sizes


@needs_kernel
@pytest.mark.parametrize("fsync", ["commit", "never"])
async def test_small_jobs_need_no_thread(fsync: str, flusher: LogFlusher, tmp_path: Path) -> None:
    sizes, told = _in_threads(flusher), []
    flusher.account = lambda job: told.append(job.size)
    log = open_log(OsFiles(tmp_path), msgspec.convert({"fsync": fsync}, LogConfig), flusher=flusher)
    for index in range(5):
        log.append(make_batch([b"%d" % index]))
        await log.wait_committed(index + 1)
    assert len(sizes) == 1, "the one that makes the file"
    assert len(told) == 5 - len(sizes)
    large = make_batch([os.urandom(1 << 19)])
    log.append(large)
    await log.wait_committed(6)
    assert sizes[-1] == len(large), "much is written in a thread"
    assert [value for _, value in read_all(log)][:5] == [b"%d" % index for index in range(5)]
    assert flusher.unflushed_bytes == 0


@needs_kernel
async def test_while_a_write_was_slow_threads_write(flusher: LogFlusher, tmp_path: Path) -> None:
    sizes = _in_threads(flusher)
    log = open_log(OsFiles(tmp_path), flusher=flusher)
    for index in range(4):
        if index == 3:
            flusher._no_writes_before = float("inf")
        before = len(sizes)
        log.append(make_batch([b"%d" % index]))
        await log.wait_committed(index + 1)
        assert len(sizes) - before == (index in (0, 3))


@needs_kernel
async def test_a_log_is_taken_back_while_the_kernel_has_its_job(flusher: LogFlusher, tmp_path: Path) -> None:
    log = open_log(OsFiles(tmp_path), flusher=flusher)
    for index in range(3):
        log.append(make_batch([b"%d" % index]))
        await log.wait_committed(index + 1)
    log.append(make_batch([b"last"]))
    log.request_sync()
    flusher.submit(log)
    assert log.job is not None
    assert not log.job.finished
    log.close()
    assert log.flushed_offset == 4


async def test_without_the_kernel_threads_do_all(flusher: LogFlusher, tmp_path: Path) -> None:
    flusher._kernel = None
    sizes = _in_threads(flusher)
    log = open_log(OsFiles(tmp_path), flusher=flusher)
    for index in range(3):
        log.append(make_batch([b"%d" % index]))
        await log.wait_committed(index + 1)
    assert len(sizes) == 3


@needs_kernel
@pytest.mark.parametrize("whole", [True, False])
async def test_what_comes_in_a_round_is_looked_at_when_it_ends(
    whole: bool, tmp_path: Path, flusher: LogFlusher
) -> None:
    log = open_log(OsFiles(str(tmp_path)), LogConfig(fsync="never"), flusher=flusher)
    log.append(make_batch([b"the first of a segment takes a thread"]))
    await log.wait_written(1)
    await trio.testing.wait_all_tasks_blocked()
    flusher._no_writes_before = 0.0  # however long the first one took
    flusher.begin_round()
    log.append(make_batch([b"x"]))
    if whole:
        flusher.end_round()
        assert log.written_offset == 2, "at once"
        return
    await trio.testing.wait_all_tasks_blocked()
    assert log.written_offset == 1, "nobody has ended the round"
    flusher.break_off_round()
    with trio.fail_after(20):
        await log.wait_written(2)


@pytest.mark.parametrize("fsync", ["commit", "never"])
@pytest.mark.parametrize("kernel", [True, False])
async def test_nothing_is_confirmed_in_a_file_that_was_removed(
    kernel: bool, fsync: str, flusher: LogFlusher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_flusher, "_NAMED_S", 0.0)
    flusher.writes_here = kernel
    log = open_log(OsFiles(tmp_path), LogConfig(fsync=fsync), flusher=flusher)
    for _ in range(3):
        log.append(make_batch([b"there"]))
        await log.wait_committed(log.log_end_offset)
    shutil.rmtree(tmp_path / log.directory)
    log.append(make_batch([b"nowhere"]))
    with pytest.raises(LogUnavailable, match="it was removed while it is in use"):
        await log.wait_committed(4)
    assert log.committed_offset == 3
    log.close(keep=False)


def test_a_full_segment_that_was_removed_is_not_closed(tmp_path: Path) -> None:
    log = open_log(OsFiles(tmp_path))
    log.append(make_batch([b"there"]))
    flush(log)
    (tmp_path / f"{log.segments[-1].log_path}").unlink()
    log.roll()
    log.append(make_batch([b"there as well"]))
    flush(log)
    assert log.error is not None
    assert log.committed_offset == 1
    log.close(keep=False)
