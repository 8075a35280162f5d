"""The only door to the disk: a small interface and its three implementations.

1. Paths are `str`, separated by "/", relative to a root the implementation knows; "" is the root itself.
2. A file is written at positions (`pwritev`), never appended to, so that writing the same bytes again is harmless.
3. What was written is durable after `sync` of the file; that a name exists, is gone or was renamed is durable after
   `sync_directory` of its directory. `make_directory` and `move_directory` are rare and durable when they return.
4. Everything raises `OSError` as the operating system does. All implementations may be used from several threads.

`OsFiles` is the disk, `MemoryFiles` a disk in memory that knows what a power loss would leave (`memory_files.py`), and
`FaultyFiles` makes another one fail on request (same place).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

BytesLike = bytes | bytearray | memoryview

IO_VECTORS_MAX = 1024
"""Buffers one pwritev takes (IOV_MAX of Linux)."""


class File(Protocol):
    """An open file."""

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> int:
        """Write all of `buffers` at `position`; loops until everything is written and returns the number of bytes."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes at `position`; less only at the end of the file."""

    def sync(self) -> None:
        """Make the written bytes durable (fdatasync)."""

    def for_kernel(self) -> int:
        """The operating system's descriptor, for `KernelSync`; -1 where nobody may sync the file but by `sync`."""

    def require_name(self) -> None:
        """Raise OSError if the file was removed: what is written to it would be found by nobody."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def allocate(self, size: int, start: int = 0) -> None:
        """Make the file `size` bytes long, and have the disk set aside room for all from `start` on.

        A disk that refuses this may have made it longer all the same.
        """

    def close(self) -> None:
        """Give the handle back. Does not sync."""


class Files(Protocol):
    """A directory tree."""

    def open(self, path: str, *, create: bool = True) -> File:
        """Open for reading and writing; a missing file is created, or `FileNotFoundError` with create=False."""

    def exists(self, path: str) -> bool:
        """Is there a file or directory of that name?"""

    def size(self, path: str) -> int:
        """Bytes of a file."""

    def list(self, directory: str) -> Sequence[str]:
        """Sorted names in a directory; empty when it does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in the same directory, replacing what has it."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, durably; nothing happens when it exists."""

    def remove_directory(self, path: str) -> None:
        """Remove a directory and all it holds; nothing happens when it does not exist."""

    def move_directory(self, source: str, target: str) -> None:
        """Give a directory another name, anywhere, durably; `target` must not exist, its parent must."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def space(self) -> tuple[int, int]:
        """Bytes that are free for us, and of the whole disk; (0, 0) where there is no disk."""

    def place(self) -> tuple[int, int] | None:
        """What tells the directory from another one that has its name now; None where nothing does, or it is gone."""


def free_name(files: Files, path: str) -> str:
    """A name for what is put aside, such as `path`.1, that nothing has yet."""
    number = 1
    while files.exists(f"{path}.{number}"):
        number += 1
    return f"{path}.{number}"


def read_file(files: Files, path: str, size: int | None = None) -> bytes:
    """The first `size` bytes of a file, or as many as it has; None: all. Raises OSError."""
    file = files.open(path, create=False)
    try:
        return file.pread(files.size(path) if size is None else size, 0)
    finally:
        file.close()


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `File`."""
        start = position
        at = 0
        while at < len(buffers):
            some = buffers[at : at + IO_VECTORS_MAX]
            size = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, position)
            position += written
            if written < size:
                position += self._write_rest(b"".join(some)[written:], position)
            at += IO_VECTORS_MAX
        return position - start

    def _write_rest(self, data: bytes, position: int) -> int:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, position)
            if written == 0:
                raise OSError(errno.EIO, "the disk took no bytes")
            position += written
            view = view[written:]
        return len(data)

    def pread(self, size: int, position: int) -> bytes:
        """See `File`. What cannot be read is named: else nobody would know which file it was."""
        try:
            data = os.pread(self._descriptor, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            got = len(data)
            while got < size and (data := os.pread(self._descriptor, size - got, position + got)):
                parts.append(data)
                got += len(data)
        except OSError as error:
            error.filename = self._path
            raise
        return b"".join(parts)

    def sync(self) -> None:
        """See `File`."""
        os.fdatasync(self._descriptor)

    def for_kernel(self) -> int:
        """See `File`."""
        return self._descriptor

    def require_name(self) -> None:
        """See `File`. There are file systems that count no names; then the file is to be where it was opened."""
        found = os.fstat(self._descriptor)
        if found.st_nlink:
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            there = os.stat(self._path)
            if (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino):
                return
        raise OSError(errno.ENOENT, "it was removed while it is in use", self._path)

    def truncate(self, size: int) -> None:
        """See `File`."""
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int, start: int = 0) -> None:
        """See `File`."""
        os.posix_fallocate(self._descriptor, start, size - start)

    def close(self) -> None:
        """See `File`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class NoInodes(OSError):
    """A file system has bytes left and no inode: no file can be made. The system says that no space is left."""


class OsFiles:
    """`Files` below a directory of the operating system."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.fspath(root)
        self.root = os.path.abspath(self._root)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def open(self, path: str, *, create: bool = True) -> OsFile:
        """See `Files`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        place = self._path(path)
        try:
            return OsFile(os.open(place, flags, 0o644), place)
        except OSError as error:
            self._require_inodes(error)
            raise

    def _require_inodes(self, error: OSError) -> None:
        """Something cannot be made. Raises NoInodes where that is why."""
        if error.errno == errno.ENOSPC:
            found = os.statvfs(self._root)
            if found.f_files and not found.f_favail and found.f_bavail:  # where both are counted by the same bytes
                raise NoInodes(errno.ENOSPC, "No inodes left on device", error.filename) from None

    def exists(self, path: str) -> bool:
        """See `Files`."""
        return os.path.exists(self._path(path))

    def size(self, path: str) -> int:
        """See `Files`."""
        return os.stat(self._path(path)).st_size

    def list(self, directory: str) -> Sequence[str]:
        """See `Files`."""
        try:
            return sorted(os.listdir(self._path(directory)))
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """See `Files`."""
        os.unlink(self._path(path))

    def rename(self, source: str, target: str) -> None:
        """See `Files`."""
        os.replace(self._path(source), self._path(target))

    def make_directory(self, path: str) -> None:
        """See `Files`."""
        if os.path.isdir(self._path(path)):
            return
        parent = path.rpartition("/")[0]
        if parent:
            self.make_directory(parent)
        else:
            os.makedirs(self._root, exist_ok=True)
        if path:
            try:
                os.mkdir(self._path(path), 0o755)
            except FileExistsError:
                if not os.path.isdir(self._path(path)):
                    raise
            except OSError as error:
                self._require_inodes(error)
                raise
            self.sync_directory(parent)

    def remove_directory(self, path: str) -> None:
        """See `Files`."""
        try:
            shutil.rmtree(self._path(path))
        except FileNotFoundError:
            pass
        except OSError as error:  # that names a file in it as seen from its own directory
            raise OSError(error.errno, error.strerror, self._path(path)) from None

    def move_directory(self, source: str, target: str) -> None:
        """See `Files`."""
        os.rename(self._path(source), self._path(target))
        self.sync_directory(target.rpartition("/")[0])
        self.sync_directory(source.rpartition("/")[0])

    def sync_directory(self, path: str) -> None:
        """See `Files`."""
        descriptor = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def space(self) -> tuple[int, int]:
        """See `Files`."""
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def place(self) -> tuple[int, int] | None:
        """See `Files`; the file is the one that whoever serves the directory holds."""
        try:
            found = os.stat(self._path("lock"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino


from core_log.memory_files import FaultyFiles, MemoryFiles  # noqa: E402  (they build on the interface above)

__all__ = ["BytesLike", "FaultyFiles", "File", "Files", "MemoryFiles", "NoInodes", "OsFile", "OsFiles"]
