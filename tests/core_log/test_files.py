"""All disks behave alike, and the one in memory forgets what a real one may forget."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from core_log import checkpoint
from core_log.files import IO_VECTORS_MAX, FaultyFiles, Files, MemoryFiles, NoInodes, OsFiles


@pytest.fixture(params=["os", "memory", "faulty"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """One of each kind."""
    if request.param == "os":
        return OsFiles(tmp_path / "root")
    return MemoryFiles() if request.param == "memory" else FaultyFiles(MemoryFiles())


def test_contract(files: Files) -> None:
    files.make_directory("a/b")
    files.make_directory("a/b")
    assert files.list("a") == ["b"]
    assert files.list("none") == []
    with pytest.raises(FileNotFoundError):
        files.open("a/f", create=False)
    with pytest.raises(FileNotFoundError):
        files.open("none/f")
    file = files.open("a/f")
    assert file.pwritev([b"01", bytearray(b"23"), memoryview(b"45")], 4) == 6
    file.sync()
    assert files.size("a/f") == 10
    assert file.pread(100, 0) == bytes(4) + b"012345"
    assert file.pread(3, 5) == b"123"
    assert file.pread(3, 10) == b""
    assert file.pwritev([], 0) == 0
    file.truncate(6)
    file.truncate(8)
    assert file.pread(100, 4) == b"01\0\0"
    many = [b"%d," % i for i in range(IO_VECTORS_MAX * 2 + 5)]
    assert file.pwritev(many, 0) == len(b"".join(many))
    assert file.pread(1 << 20, 0) == b"".join(many)
    file.close()
    files.rename("a/f", "a/g")
    files.sync_directory("a")
    assert (files.exists("a/f"), files.exists("a/g"), files.exists("a/b")) == (False, True, True)
    for missing in ("a/f", "none"):
        with pytest.raises(FileNotFoundError):
            files.size(missing)
        with pytest.raises(FileNotFoundError):
            files.remove(missing)
    files.open("a/b/deep").close()
    files.remove("a/g")
    files.remove_directory("a")
    files.remove_directory("a")
    assert files.list("") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_that_cannot_be_removed_is_named_in_full(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a").chmod(0o500)
    with pytest.raises(PermissionError, match=str(tmp_path / "a")):
        OsFiles(tmp_path).remove_directory("a")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFiles(tmp_path)
    file = files.open("f")
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: whole(fd, [b"".join(buffers)[:7]], at))
    single = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: single(fd, data[:3], at))
    data = bytes(range(100))
    assert file.pwritev([data[:50], data[50:]], 2) == 100
    assert file.pread(200, 2) == data
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="took no bytes"):
        file.pwritev([data], 0)


def test_power_loss_drops_what_was_not_synced() -> None:
    disk = MemoryFiles()
    disk.make_directory("d")
    kept, lost = disk.open("d/kept"), disk.open("d/lost")
    kept.pwritev([b"synced"], 0)
    kept.sync()
    disk.sync_directory("d")
    kept.pwritev([b"not"], 6)
    lost.pwritev([b"x"], 0)
    disk.open("d/unnamed").sync()
    disk.rename("d/kept", "d/renamed")
    after = disk.crash()
    assert after.list("d") == ["kept", "lost"]
    assert after.open("d/kept").pread(100, 0) == b"synced"
    assert after.size("d/lost") == 0
    assert disk.list("d") == ["lost", "renamed", "unnamed"], "the running system sees everything"
    contents = {disk.crash(random.Random(i)).size("d/lost") for i in range(50)}
    assert contents == {0, 1}, "with dice some of it survives"


def test_what_was_in_a_removed_directory_is_not_in_one_made_again() -> None:
    files = MemoryFiles()
    for name in ("old", "new"):
        files.make_directory("a/b")
        files.open(f"a/b/{name}").close()
        if name == "old":
            files.remove_directory("a")
            files.sync_directory("")
    files.sync_directory("a/b")
    assert files.crash().list("a/b") == ["new"]


def test_a_failed_sync_is_not_made_good_by_the_next() -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    file = files.open("f")
    files.sync_directory("")
    file.pwritev([b"lost"], 0)
    files.failing["sync"] = errno.EIO
    with pytest.raises(OSError, match="error"):
        file.sync()
    files.failing.clear()
    file.sync()
    assert disk.crash().size("f") == 0
    file.pwritev([b"kept"], 0)
    file.sync()
    assert disk.crash().size("f") == 4


def test_a_full_disk_takes_a_part() -> None:
    files = FaultyFiles(MemoryFiles())
    files.room_bytes = 5
    file = files.open("f")
    file.pwritev([b"123"], 0)
    with pytest.raises(OSError, match="space") as raised:
        file.pwritev([b"4567"], 3)
    assert raised.value.errno == errno.ENOSPC
    assert file.pread(10, 0) == b"12345"


def test_checkpoints(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    files.make_directory("c")
    assert checkpoint.load(files, "c/x") is None
    for content in (b"", b"first", b"second, longer", b"3"):
        checkpoint.save(files, "c/x", content)
        assert checkpoint.load(files, "c/x") == content
    assert not caplog.text
    file = files.open("c/x")
    good = file.pread(100, 0)
    for bad in (good[:-1], b"", good[:4], good + b"!", good[:-1] + b"!"):
        file.truncate(0)
        file.pwritev([bad], 0)
        assert checkpoint.load(files, "c/x") is None
    assert "damaged" in caplog.text


@pytest.mark.parametrize("step", range(8))
def test_a_checkpoint_is_old_or_new_after_a_power_loss(step: int) -> None:
    disk = MemoryFiles()
    checkpoint.save(disk, "x", b"old")
    files = FaultyFiles(disk)
    left = step

    def hook(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    files.hook = hook
    done = False
    try:
        checkpoint.save(files, "x", b"new")
        done = True
    except KeyboardInterrupt:
        pass
    for seed in range(30):
        found = checkpoint.load(disk.crash(random.Random(seed)), "x")
        assert found == b"new" if done else found in (b"old", b"new")


def test_a_disk_without_inodes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFiles(tmp_path)
    found = list(os.statvfs(tmp_path))

    def refuse(path: str, *_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    for left, free, what in ((0, 9, NoInodes), (1, 9, OSError), (0, 0, OSError)):
        found[7], found[4] = left, free  # f_favail, f_bavail
        with monkeypatch.context() as patched:
            patched.setattr(os, "statvfs", lambda _: os.statvfs_result(found))
            patched.setattr(os, "open", refuse)
            patched.setattr(os, "mkdir", refuse)
            for make in (files.open, files.make_directory):
                with pytest.raises(OSError, match="/x") as refused:
                    make("x")
                assert type(refused.value) is what
                assert refused.value.errno == errno.ENOSPC
                assert (refused.value.strerror == "No inodes left on device") == (what is NoInodes)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles(tmp_path).open("x")

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", refuse)
        with pytest.raises(OSError, match=r"\[Errno 5\] Input/output error: '.*/x'"):
            file.pread(10, 0)
    file.close()


def test_a_file_without_a_name_is_told_from_one_whose_names_nobody_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsFiles(tmp_path).open("file")
    file.require_name()
    there = os.stat(tmp_path / "file")
    uncounted = SimpleNamespace(st_nlink=0, st_dev=there.st_dev, st_ino=there.st_ino)
    monkeypatch.setattr(os, "fstat", lambda _: uncounted)
    file.require_name()
    os.unlink(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match="it was removed while it is in use"):
        file.require_name()
    (tmp_path / "file").touch()
    (tmp_path / "other").touch()
    os.replace(tmp_path / "other", tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        file.require_name()
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        file.require_name()
    file.close()
