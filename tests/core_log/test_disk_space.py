"""The room on a disk, and the reserve: on a disk that counts its bytes."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from core_log.disk_space import RESERVE, DiskSpace
from core_log.errors import LogUnavailable
from core_log.files import BytesLike, FaultyFiles, MemoryFiles, NoInodes
from core_log.log_flusher import LogFlusher
from core_log.memory_files import MemoryFile
from core_log.partition_log import LogConfig, PartitionLog
from tests.core_log.helpers import flush, make_batch, open_log, read_all, write

TOTAL = 64 << 20


class CountingFile(MemoryFile):
    """Refuses what has no room."""

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> int:
        files.require(position + sum(map(len, buffers)) - len(self.node.data))
        return super().pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        files.require(size - len(self.node.data))
        super().truncate(size)


class CountingFiles(MemoryFiles):
    """64 MiB, of which somebody else has `others`."""

    def __init__(self) -> None:
        super().__init__()
        self.others = 0
        self.inodes = True

    def open(self, path: str, *, create: bool = True) -> MemoryFile:
        if not self.inodes and not self.exists(path):
            raise NoInodes(errno.ENOSPC, "No inodes left on device", path)
        found = super().open(path, create=create)
        return CountingFile(found.node, found._lock)

    def space(self) -> tuple[int, int]:
        used = sum(len(node.data) for node in self._names.values() if node is not None)
        return max(TOTAL - used - self.others, 0), TOTAL

    def require(self, size: int) -> None:
        if size > self.space()[0]:
            raise OSError(errno.ENOSPC, "no room")


files: CountingFiles


@pytest.fixture(autouse=True)
def disk() -> CountingFiles:
    global files
    files = CountingFiles()
    return files


def a_log(space: DiskSpace) -> PartitionLog:
    log = open_log(files, LogConfig(message_bytes_max=8 << 20, segment_bytes=4 << 20))
    assert isinstance(log._flusher, LogFlusher)
    log._flusher.execute = space.execute
    return log


def flush_with(space: DiskSpace, log: PartitionLog) -> None:
    log.request_sync()
    job = log.take_job()
    assert job is not None
    space.execute(job)
    log.complete(job)


def test_the_reserve_is_taken_and_filled_up_only_while_there_is_room() -> None:
    space = DiskSpace(files)
    assert (space.reserve_bytes, space.reserved_bytes, space.total_bytes) == (TOTAL // 16, 0, TOTAL)
    space.tend(8 << 20)
    assert space.reserved_bytes == files.size(RESERVE) == TOTAL // 16
    assert space.free_bytes == TOTAL - TOTAL // 16
    assert DiskSpace(files).reserved_bytes == TOTAL // 16, "it is there at the next start"
    assert space.give_back(1 << 20)
    assert space.reserved_bytes == files.size(RESERVE) == TOTAL // 16 - (1 << 20)
    files.others = TOTAL - (12 << 20)
    space.tend(8 << 20)
    assert space.reserved_bytes < space.reserve_bytes, "it would fall below the watermark"
    files.others = 0
    space.tend(8 << 20)
    assert space.reserved_bytes == space.reserve_bytes
    assert space.give_back(1 << 40)
    assert not space.give_back(1)
    assert files.size(RESERVE) == 0


def test_a_reserve_that_the_disk_has_no_room_for_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    space = DiskSpace(files, reserve_bytes=2 * TOTAL)
    space.tend(8 << 20)
    space.tend(8 << 20)
    assert [f"the reserve has 0 of {2 * TOTAL} bytes" in said for said in caplog.messages] == [True]


def test_a_job_that_finds_no_room_gets_some_of_the_reserve() -> None:
    space = DiskSpace(files)
    space.tend(0)
    log = a_log(space)
    flush_with(space, _append(log, b"before"))
    files.others = files.space()[0]
    flush_with(space, _append(log, b"x" * 1000))
    assert log.error is None
    assert read_all(log) == [(0, b"before"), (1, b"x" * 1000)]
    assert 0 < space.reserved_bytes < space.reserve_bytes
    files.others += files.space()[0] + space.reserved_bytes
    space.give_back(1 << 40)
    flush_with(space, _append(log, b"y" * 1000))
    assert log.error is not None, "no reserve is left"
    assert space.free_bytes == 0
    with pytest.raises(LogUnavailable):
        _append(log, b"z")


def test_a_sync_that_finds_no_room_has_all_written_again_that_it_was_about() -> None:
    """As file systems say that give a page its place late, or have it from elsewhere (btrfs, NFS, a thin volume)."""
    space = DiskSpace(files)
    space.tend(0)
    log = a_log(space)
    flush_with(space, _append(log, b"durable"))
    write(_append(log, b"written"))
    log.files = faulty = FaultyFiles(files)
    log.segments[-1].close_file()
    faulty.failing["sync"] = errno.ENOSPC

    def recover(operation: str, path: str) -> None:
        if path == RESERVE:
            faulty.failing.clear()

    space._files = FaultyFiles(files)
    space._files.hook = recover
    flush_with(space, _append(log, b"synced"))
    assert (log.error, log.committed_offset) == (None, 3)
    assert read_all(open_log(files.crash())) == [(0, b"durable"), (1, b"written"), (2, b"synced")]


def test_the_reserve_makes_no_inode_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    space = DiskSpace(files)
    space.tend(0)
    log = a_log(space)
    flush_with(space, _append(log, b"before"))
    files.inodes = False
    log.roll()
    flush_with(space, _append(log, b"after"))
    assert isinstance(log.error, NoInodes)
    with pytest.raises(NoInodes):
        space.save("checkpoint", b"x")
    assert space.reserved_bytes == space.reserve_bytes
    assert "is full" not in caplog.text
    files.inodes = True
    flush_with(space, log)
    assert log.error is None
    assert read_all(log) == [(0, b"before"), (1, b"after")]


def _append(log: PartitionLog, value: bytes) -> PartitionLog:
    log.append(make_batch([value]))
    return log


def test_a_prefix_goes_although_nothing_can_be_written() -> None:
    space = DiskSpace(files, reserve_bytes=0)
    log = a_log(space)
    for _ in range(3):
        flush(_append(log, bytes(3 << 20)))
    assert len(log.segments) == 3
    files.others = files.space()[0] - 4096
    log.delete_prefix(2)
    log.append(make_batch([bytes(1 << 20)]))
    job = log.take_job()
    assert job is not None
    space.execute(job)
    assert job.error is not None
    assert job.shortened
    log.complete(job)
    assert files.space()[0] > 6 << 20
    write(log)
    assert log.error is None
    assert [offset for offset, _ in read_all(log)] == [2, 3]


def test_a_start_on_a_full_disk() -> None:
    space = DiskSpace(files)
    space.tend(0)
    files.others = files.space()[0]
    space = DiskSpace(files)
    assert 0 < files.space()[0] < 1 << 20
    assert a_log(space).log_end_offset == 0


def test_without_a_disk_nothing_is_done() -> None:
    memory = MemoryFiles()
    space = DiskSpace(memory)
    space.tend(0)
    assert not memory.exists(RESERVE)
