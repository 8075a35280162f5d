"""A disk in memory, and a disk that fails: what the crash tests of the log engine run on.

`MemoryFiles` keeps two states, what a process sees and what is durable, and `crash()` returns what a machine would find
after a power loss. The model is strict, as POSIX allows:

1. Bytes are durable after `sync`; of the writes since then any subset may survive, each whole, torn, or not at all.
2. Names (created, removed, renamed) are durable after `sync_directory`; of the changes since then a prefix survives.
3. A `sync` that failed forgets what was written and not durable yet: all processes see it, but later syncs do not cover
   it (the page cache of Linux marks pages clean after a failed fsync), only writing the bytes again does. Lengths are
   not forgotten: they are the journal's, which is written or stops the file system.

`FaultyFiles` wraps any files and fails writes and syncs on request.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core_log.files import BytesLike, File, Files


class _Node:
    """A file's content: as seen, as durable, and the writes and cuts in between."""

    __slots__ = ("data", "durable", "unsynced")

    def __init__(self, data: BytesLike = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.unsynced: list[tuple[int, bytes | None]] = []

    def apply(self, target: bytearray, position: int, data: bytes | None) -> None:
        if data is None:
            del target[position:]
            target.extend(bytes(position - len(target)))
            return
        if position > len(target):
            target.extend(bytes(position - len(target)))
        target[position : position + len(data)] = data

    def change(self, position: int, data: bytes | None) -> None:
        self.apply(self.data, position, data)
        self.unsynced.append((position, data))

    def sync(self) -> None:
        for position, data in self.unsynced:
            self.apply(self.durable, position, data)
        self.unsynced.clear()

    def fail(self) -> None:
        """A sync failed: rule 3."""
        self.unsynced = [change for change in self.unsynced if change[1] is None]

    def survivor(self, dice: random.Random | None) -> bytes:
        """The content after a power loss; without dice nothing unsynced survives."""
        content = bytearray(self.durable)
        for position, data in self.unsynced if dice else ():
            assert dice is not None
            fate = dice.random()
            if fate < 0.4:
                self.apply(content, position, data)
            elif fate < 0.6 and data:
                self.apply(content, position, data[: dice.randrange(len(data))])
        return bytes(content)


class MemoryFile:
    """An open file of `MemoryFiles`."""

    __slots__ = ("_lock", "node")

    def __init__(self, node: _Node, lock: threading.Lock) -> None:
        self.node = node
        self._lock = lock

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `File`."""
        data = b"".join(buffers)
        with self._lock:
            self.node.change(position, data)
        return len(data)

    def pread(self, size: int, position: int) -> bytes:
        """See `File`."""
        with self._lock:
            return bytes(self.node.data[position : position + size])

    def sync(self) -> None:
        """See `File`."""
        with self._lock:
            self.node.sync()

    def for_kernel(self) -> int:
        """See `File`."""
        return -1

    def require_name(self) -> None:
        """Nobody else is there who removes it."""

    def truncate(self, size: int) -> None:
        """See `File`."""
        with self._lock:
            self.node.change(size, None)

    def allocate(self, size: int, start: int = 0) -> None:
        """See `File`. As POSIX's it refuses to set nothing aside, and makes no file shorter."""
        if size <= start:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if size > len(self.node.data):
            self.truncate(size)

    def close(self) -> None:
        """See `File`."""


_Names = dict[str, _Node | None]
"""Full path to content; None is a directory."""


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class MemoryFiles:
    """`Files` in memory; see the module's rules."""

    def __init__(self) -> None:
        self._names: _Names = {"": None}
        self._durable: _Names = {"": None}
        self._unsynced: dict[str, list[Callable[[_Names], None]]] = {}
        self._lock = threading.Lock()

    def _change(self, directory: str, change: Callable[[_Names], None]) -> None:
        change(self._names)
        self._unsynced.setdefault(directory, []).append(change)

    def _node(self, path: str) -> _Node:
        node = self._names.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def open(self, path: str, *, create: bool = True) -> MemoryFile:
        """See `Files`."""
        with self._lock:
            if create and path not in self._names:
                if _parent(path) not in self._names:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                node = _Node()
                self._change(_parent(path), lambda names: names.__setitem__(path, node))
            return MemoryFile(self._node(path), self._lock)

    def exists(self, path: str) -> bool:
        """See `Files`."""
        return path in self._names

    def size(self, path: str) -> int:
        """See `Files`."""
        with self._lock:
            return len(self._node(path).data)

    def list(self, directory: str) -> Sequence[str]:
        """See `Files`."""
        with self._lock:
            return sorted(p.rpartition("/")[2] for p in self._names if p and _parent(p) == directory)

    def remove(self, path: str) -> None:
        """See `Files`."""
        with self._lock:
            self._node(path)
            self._change(_parent(path), lambda names: _forget(names, path))

    def rename(self, source: str, target: str) -> None:
        """See `Files`."""
        with self._lock:
            node = self._node(source)

            def change(names: _Names) -> None:
                names.pop(source, None)
                names[target] = node

            self._change(_parent(target), change)

    def make_directory(self, path: str) -> None:
        """See `Files`."""
        with self._lock:
            while path not in self._names:
                self._names[path] = None
                self._durable[path] = None
                path = _parent(path)

    def remove_directory(self, path: str) -> None:
        """See `Files`."""
        with self._lock:
            if path in self._names:
                for directory in [d for d in self._unsynced if d == path or d.startswith(path + "/")]:
                    del self._unsynced[directory]  # nobody will sync it: what had a name there is gone
                self._change(_parent(path), lambda names: _forget(names, path))

    def move_directory(self, source: str, target: str) -> None:
        """See `Files`."""
        with self._lock:
            if source not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
            for directory in (source, _parent(source), _parent(target)):
                for change in self._unsynced.pop(directory, []):
                    change(self._durable)
            for names in (self._names, self._durable):
                for path in [p for p in names if p == source or p.startswith(source + "/")]:
                    names[target + path[len(source) :]] = names.pop(path)

    def sync_directory(self, path: str) -> None:
        """See `Files`."""
        with self._lock:
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            for change in self._unsynced.pop(path, []):
                change(self._durable)

    def space(self) -> tuple[int, int]:
        """There is no disk."""
        return 0, 0

    def place(self) -> tuple[int, int] | None:
        """It has no name that another could have."""
        return None

    def crash(self, dice: random.Random | None = None) -> MemoryFiles:
        """What is found after a power loss. Without `dice` nothing unsynced survives, with them it is drawn."""
        with self._lock:
            names = dict(self._durable)
            for changes in self._unsynced.values() if dice else ():
                assert dice is not None
                for change in changes[: dice.randrange(len(changes) + 1)]:
                    change(names)
            return _found(names, lambda node: node.survivor(dice))

    def kill(self) -> MemoryFiles:
        """What is found after the process was killed at this moment: all that was written, synced or not."""
        with self._lock:
            return _found(self._names, lambda node: node.data)


def _found(names: _Names, content: Callable[[_Node], BytesLike]) -> MemoryFiles:
    """A disk with these names, all of it durable."""
    found = MemoryFiles()
    found._names = {path: None if node is None else _Node(content(node)) for path, node in names.items()}
    found._durable = dict(found._names)
    return found


def _forget(names: _Names, path: str) -> None:
    """Remove a name and all below it."""
    for name in [p for p in names if p == path or p.startswith(path + "/")]:
        del names[name]


class FaultyFile:
    """An open file of `FaultyFiles`."""

    __slots__ = ("_files", "_inner", "_path")

    def __init__(self, files: FaultyFiles, inner: File, path: str) -> None:
        self._files = files
        self._inner = inner
        self._path = path

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> int:
        """Writes as much as `room_bytes` allows, then fails, as a full disk does."""
        files = self._files
        files.before("write", self._path)
        if files.room_bytes is None:
            return self._inner.pwritev(buffers, position)
        data = b"".join(buffers)
        written = self._inner.pwritev([data[: files.room_bytes]], position)
        files.room_bytes -= written
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        return written

    def pread(self, size: int, position: int) -> bytes:
        """See `File`."""
        self._files.before("read", self._path)
        return self._inner.pread(size, position)

    def sync(self) -> None:
        """A failed sync forgets what was not durable: rule 3 of the module."""
        try:
            self._files.before("sync", self._path)
        except OSError:
            if isinstance(self._inner, MemoryFile):
                self._inner.node.fail()
            raise
        self._inner.sync()

    def for_kernel(self) -> int:
        """See `File`."""
        return -1

    def require_name(self) -> None:
        """See `File`."""
        self._inner.require_name()

    def truncate(self, size: int) -> None:
        """See `File`."""
        self._files.before("truncate", self._path)
        self._inner.truncate(size)

    def allocate(self, size: int, start: int = 0) -> None:
        """Makes the file as much longer as `room_bytes` allows, then fails, as a full disk does."""
        files = self._files
        files.before("allocate", self._path)
        if files.room_bytes is not None:
            more = size - files.inner.size(self._path)
            if more > files.room_bytes:
                if files.room_bytes:
                    self._inner.allocate(size - more + files.room_bytes, start)
                files.room_bytes = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            files.room_bytes -= max(more, 0)
        self._inner.allocate(size, start)

    def close(self) -> None:
        """See `File`."""
        self._inner.close()


class FaultyFiles:
    """Files that fail on request.

    `failing` maps an operation ("open", "write", "read", "sync", "truncate", "remove", "rename", "sync_directory") to
    the errno it raises until taken out again. `room_bytes` is what the disk still takes: the write that goes beyond is
    cut short and raises ENOSPC. `disk` is what `space` answers instead of the inner files. `hook`, when set, is called
    with (operation, path) first, in the caller's thread.
    """

    def __init__(self, inner: Files) -> None:
        self.inner = inner
        self.failing: dict[str, int] = {}
        self.room_bytes: int | None = None
        self.disk: tuple[int, int] | None = None
        self.hook: Callable[[str, str], None] | None = None

    def before(self, operation: str, path: str) -> None:
        """Fail if asked to."""
        if self.hook is not None:
            self.hook(operation, path)
        code = self.failing.get(operation)
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def open(self, path: str, *, create: bool = True) -> FaultyFile:
        """See `Files`."""
        self.before("open", path)
        return FaultyFile(self, self.inner.open(path, create=create), path)

    def exists(self, path: str) -> bool:
        """See `Files`."""
        return self.inner.exists(path)

    def size(self, path: str) -> int:
        """See `Files`."""
        return self.inner.size(path)

    def list(self, directory: str) -> Sequence[str]:
        """See `Files`."""
        return self.inner.list(directory)

    def remove(self, path: str) -> None:
        """See `Files`."""
        self.before("remove", path)
        self.inner.remove(path)

    def rename(self, source: str, target: str) -> None:
        """See `Files`."""
        self.before("rename", source)
        self.inner.rename(source, target)

    def make_directory(self, path: str) -> None:
        """See `Files`."""
        self.inner.make_directory(path)

    def remove_directory(self, path: str) -> None:
        """See `Files`."""
        self.inner.remove_directory(path)

    def move_directory(self, source: str, target: str) -> None:
        """See `Files`."""
        self.before("rename", source)
        self.inner.move_directory(source, target)

    def sync_directory(self, path: str) -> None:
        """See `Files`."""
        self.before("sync_directory", path)
        self.inner.sync_directory(path)

    def space(self) -> tuple[int, int]:
        """See `Files`; `disk` when it is set."""
        return self.disk or self.inner.space()

    def place(self) -> tuple[int, int] | None:
        """See `Files`."""
        return self.inner.place()

    def crash(self, dice: random.Random | None = None) -> MemoryFiles:
        """See `MemoryFiles.crash`; the inner files must be in memory."""
        assert isinstance(self.inner, MemoryFiles)
        return self.inner.crash(dice)
