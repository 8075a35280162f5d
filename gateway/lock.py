"""One process per data directory: an advisory lock on the file `lock` in it, held as long as the process lives.

The kernel drops the lock with the process, so one that was killed leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import StartError

_LOCKS = "/proc/locks"
_LOOKS = 3
"""The kernel tells its locks page by page: one may be missed while others end."""


@contextmanager
def locked_data_dir(path: str) -> Iterator[None]:
    """Create the directory when it is missing, and hold its lock. Raises StartError."""
    try:
        os.makedirs(path, exist_ok=True)
        handle = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except (FileExistsError, NotADirectoryError):
        raise StartError(f"data directory {path}: not a directory") from None
    except OSError as error:
        raise StartError(f"data directory {path}: cannot be used: {error.strerror}") from None
    try:
        _lock(handle, fcntl.LOCK_EX, path)
        _sign(handle, path)
        yield
    finally:
        os.close(handle)


@contextmanager
def unlocked_data_dir(path: str) -> Iterator[None]:
    """Have no broker begin on the directory, which is not changed. Raises StartError where one runs."""
    try:
        handle = os.open(os.path.join(path, "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise StartError(f"data directory {path}: cannot be used: {error.strerror}") from None
    try:
        _lock(handle, fcntl.LOCK_SH, path)
        yield
    finally:
        os.close(handle)


def holder(path: str) -> int | None:
    """The process that has said in `lock` that the directory is its own, if it is there and has the lock. Takes none
    itself, so nobody is refused for it.
    """
    try:
        with open(os.path.join(path, "lock"), "rb") as file:
            process, inode = int(file.read(20)), os.fstat(file.fileno()).st_ino
        os.kill(process, 0)
    except PermissionError:
        pass  # it is another user's
    except (OSError, ValueError):
        return None
    return process if _has_lock(process, inode) else None


def _has_lock(process: int, inode: int) -> bool:
    """As far as the kernel tells: elsewhere than on Linux it is believed. Another process may have the id now."""
    wanted = (b"FLOCK", b"%d" % process, b"%d" % inode)
    try:
        for _ in range(_LOOKS):
            with open(_LOCKS, "rb") as file:
                # NUMBER: FLOCK ADVISORY WRITE PROCESS MAJOR:MINOR:INODE 0 EOF; file systems tell devices of their own
                entries = [line.split() for line in file]
            if any(len(one) > 5 and (one[1], one[4], one[5].rpartition(b":")[2]) == wanted for one in entries):
                return True
    except OSError:
        return True
    return False


def _sign(handle: int, path: str) -> None:
    """Say whose the lock is: over what was there, as a full disk may have no room for more. Raises StartError."""
    signature = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(handle, signature, 0)
        os.ftruncate(handle, len(signature))
    except OSError as error:
        raise StartError(f"data directory {path}: cannot be used: {error.strerror}") from None


def _lock(handle: int, how: int, path: str) -> None:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
        raise StartError(f"data directory {path}: in use by process {holder or 'unknown'}") from None
    except OSError as error:
        raise StartError(f"data directory {path}: cannot be locked: {error.strerror}") from None
