"""Files that stay as they are, whatever is done to them."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from core_log import checkpoint
from core_log.read_only import ReadOnlyFiles


def test_what_is_done_is_seen_and_never_reaches_the_disk(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "log").write_bytes(b"0123456789")
    (tmp_path / "d" / "index").write_bytes(b"index")
    (tmp_path / "d" / "note").write_bytes(b"note")
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    files = ReadOnlyFiles(tmp_path)
    log = files.open("d/log")
    log.truncate(6)
    assert (files.size("d/log"), log.pread(100, 2), files.open("d/log").pread(9, 5)) == (6, b"2345", b"5")
    assert log.pread(1, 6) == b""
    log.pwritev([b"ab", b"c"], 8)
    assert log.pread(100, 0) == b"012345\0\0abc"
    log.allocate(13)
    assert files.size("d/log") == 13
    index = files.open("d/index", create=False)
    index.pwritev([b"I"], 0)
    assert index.pread(9, 0) == b"Index"
    index.truncate(2)
    assert (index.pread(9, 0), files.size("d/index")) == (b"In", 2)
    files.remove("d/note")
    assert not files.exists("d/note")
    for missing in ("d/note", "d/none"):
        with pytest.raises(FileNotFoundError):
            files.open(missing, create=False)
        with pytest.raises(FileNotFoundError):
            files.size(missing)
        with pytest.raises(FileNotFoundError):
            files.remove(missing)
    checkpoint.save(files, "d/checkpoint", b"content")
    checkpoint.save(files, "new/checkpoint", b"other")
    assert checkpoint.load(files, "d/checkpoint") == b"content"
    assert files.list("d") == ["checkpoint", "index", "log"]
    assert files.list("new") == ["checkpoint"]
    assert files.list("none") == []
    for refused in (lambda: files.remove_directory("d"), lambda: files.move_directory("d", "e")):
        with pytest.raises(OSError, match="Read-only file system"):
            refused()
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before


def test_a_directory_that_nobody_may_write_to_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"there")
    (tmp_path / "file").chmod(0o444)
    file = ReadOnlyFiles(tmp_path).open("file")
    assert file.pread(9, 0) == b"there"
    file.sync()
    file.close()


def test_a_file_that_cannot_be_opened_says_nothing_when_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError(errno.EACCES, "refused")

    unraisable: list[object] = []
    (tmp_path / "file").write_bytes(b"there")
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with pytest.raises(PermissionError):
        ReadOnlyFiles(tmp_path).open("file")
    assert not unraisable
