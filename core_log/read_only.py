"""Files that are looked at and never changed: what is written to them stays in memory, and is gone with it.

So everything can be opened as a start opens it, which cuts torn tails and rebuilds what is missing, and the directory
is as it was. Of a file that is cut only the new length is kept; one that is written to is held as a whole, which in a
start are small ones alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from core_log.files import BytesLike, OsFile, OsFiles


class _Node:
    """A file as it appears: bytes of its own, or those of the disk up to a length."""

    def __init__(self, path: str) -> None:
        self.path = path
        """On the disk; empty for a file that is not there."""
        self.own: bytearray | None = None if path else bytearray()
        self.size = os.stat(path).st_size if path else 0

    def written(self) -> bytearray:
        """Its bytes, to be changed."""
        if self.own is None:
            with open(self.path, "rb") as file:
                self.own = bytearray(file.read(self.size))
        return self.own


class _ReadOnlyFile(OsFile):
    """A file that is open; the handle is one to read with."""

    __slots__ = ("_node",)

    def __init__(self, descriptor: int, node: _Node) -> None:
        super().__init__(descriptor, node.path)
        self._node = node

    def pwritev(self, buffers: Sequence[BytesLike], position: int) -> int:
        """See `File`."""
        data = b"".join(buffers)
        if self.pread(len(data), position) == data:
            return len(data)  # as a start does with what it has checked
        own = self._node.written()
        own.extend(bytes(max(position - len(own), 0)))
        own[position : position + len(data)] = data
        self._node.size = len(own)
        return len(data)

    def pread(self, size: int, position: int) -> bytes:
        """See `File`."""
        node = self._node
        if node.own is not None:
            return bytes(node.own[position : position + size])
        return super().pread(max(min(size, node.size - position), 0), position)

    def for_kernel(self) -> int:
        """See `File`."""
        return -1

    def require_name(self) -> None:
        """See `File`."""

    def sync(self) -> None:
        """See `File`."""

    def truncate(self, size: int) -> None:
        """See `File`."""
        node = self._node
        if node.own is None and size <= node.size:
            node.size = size
        elif size != node.size:
            own = node.written()
            del own[size:]
            own.extend(bytes(size - len(own)))
            node.size = size

    def allocate(self, size: int, start: int = 0) -> None:
        """See `File`."""
        self.truncate(max(size, self._node.size))


class ReadOnlyFiles(OsFiles):
    """See the module."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self._nodes: dict[str, _Node | None] = {}
        """Files that were looked at or made; None for those that were removed."""

    def _node(self, path: str) -> _Node | None:
        if path not in self._nodes and os.path.isfile(self._path(path)):
            self._nodes[path] = _Node(self._path(path))
        return self._nodes.get(path)

    def _required(self, path: str) -> _Node:
        node = self._node(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def open(self, path: str, *, create: bool = True) -> OsFile:
        """See `Files`."""
        if create and self._node(path) is None:
            self._nodes[path] = _Node("")
        node = self._required(path)
        return _ReadOnlyFile(os.open(node.path, os.O_RDONLY | os.O_CLOEXEC) if node.path else -1, node)

    def exists(self, path: str) -> bool:
        """See `Files`."""
        return self._node(path) is not None or os.path.isdir(self._path(path))

    def size(self, path: str) -> int:
        """See `Files`."""
        return self._required(path).size

    def list(self, directory: str) -> Sequence[str]:
        """See `Files`."""
        prefix = f"{directory}/" if directory else ""
        names = set(super().list(directory))
        for path, node in self._nodes.items():
            name = path.removeprefix(prefix)
            if path.startswith(prefix) and "/" not in name:
                (names.discard if node is None else names.add)(name)
        return sorted(names)

    def remove(self, path: str) -> None:
        """See `Files`."""
        self._required(path)
        self._nodes[path] = None

    def rename(self, source: str, target: str) -> None:
        """See `Files`."""
        self._nodes[target] = self._required(source)
        self._nodes[source] = None

    def make_directory(self, path: str) -> None:
        """See `Files`; there are as many as anybody wants."""

    def remove_directory(self, path: str) -> None:
        """See `Files`; never asked for."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def move_directory(self, source: str, target: str) -> None:
        """See `Files`; never asked for."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), source)

    def sync_directory(self, path: str) -> None:
        """See `Files`."""
