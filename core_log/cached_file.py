"""A file of which only what the operating system has in memory is read, so that the event loop may do it.

Nothing is waited for: what would have to come from the disk, or is large, is refused, and a thread's to read.
"""

from __future__ import annotations

import os

from core_log.files import File

READ_BYTES_MAX = 256 << 10
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class NotInMemory(Exception):
    """It has to be read in a thread."""


class CachedFile:
    """Reads of a file that block for nothing. Raises NotInMemory, from the start where the system cannot tell."""

    __slots__ = ("_descriptor", "_file")

    def __init__(self, file: File) -> None:
        self._file = file
        self._descriptor = file.for_kernel() if _NOWAIT else -1
        if self._descriptor < 0:
            raise NotInMemory

    def pread(self, size: int, position: int) -> bytes:
        """`size` bytes at `position`, all within the file. Raises NotInMemory."""
        if size > READ_BYTES_MAX:
            raise NotInMemory
        data = bytearray(size)
        try:
            count = os.preadv(self._descriptor, [data], position, _NOWAIT)
        except OSError:
            raise NotInMemory from None  # a thread's read says what is wrong, if anything is
        if count < size:
            raise NotInMemory
        return bytes(data)
