"""Who has a data directory, as its lock says."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gateway.errors import StartError
from gateway.lock import holder, locked_data_dir

needs_proc_locks = pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="the kernel tells of no locks")


def test_a_directory_is_held_while_its_lock_is(tmp_path: Path) -> None:
    assert holder(str(tmp_path)) is None, "there is no lock"
    with locked_data_dir(str(tmp_path)):
        assert holder(str(tmp_path)) == os.getpid()


@needs_proc_locks
@pytest.mark.parametrize("process", [os.getpid(), 1], ids=("own", "of another user"))
def test_a_process_that_was_given_the_id_of_one_that_is_gone_has_no_lock(tmp_path: Path, process: int) -> None:
    (tmp_path / "lock").write_text(f"{process}\n")
    assert holder(str(tmp_path)) is None
    with locked_data_dir(str(tmp_path / "another")):
        assert holder(str(tmp_path)) is None, "it has that of another directory"


def test_the_process_is_believed_where_locks_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr("gateway.lock._LOCKS", str(tmp_path / "none"))
    assert holder(str(tmp_path)) == os.getpid()
    (tmp_path / "lock").write_text("")
    assert holder(str(tmp_path)) is None


def test_a_full_disk_does_not_keep_a_directory_from_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes, position: int) -> int:
        if position + len(data) > os.fstat(handle).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data, position)

    write = os.pwrite
    with locked_data_dir(str(tmp_path / "used")):
        pass
    monkeypatch.setattr(os, "pwrite", full)
    with locked_data_dir(str(tmp_path / "used")):
        assert holder(str(tmp_path / "used")) == os.getpid()
    with pytest.raises(StartError, match="new: cannot be used: No space left"), locked_data_dir(str(tmp_path / "new")):
        pass
