"""A file of which only what the operating system has in memory is read, so that the event loop may do it.

Nothing is waited for: what would have to come from the disk, or is large, is refused, and a thread's to read.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

from core_log.files import File

READ_BYTES_MAX = 256 << 10
_NOWAIT = 8
"""RWF_NOWAIT of preadv2(2)."""


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _by_library() -> Callable[[int, bytearray, int], int] | None:
    """The call of the C library for a Python that has none, as it was built for older systems as well: those are that
    uv installs, for one.
    """
    library = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    preadv2 = getattr(library, "preadv64v2", None)
    if preadv2 is None:
        return None
    preadv2.argtypes = (ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_int, ctypes.c_int64, ctypes.c_int)
    preadv2.restype = ctypes.c_ssize_t

    def read(descriptor: int, buffer: bytearray, position: int) -> int:
        place = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        count: int = preadv2(descriptor, _Vector(ctypes.addressof(place), len(buffer)), 1, position, _NOWAIT)
        if count < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return count

    return read


def _by_python(descriptor: int, buffer: bytearray, position: int) -> int:
    return os.preadv(descriptor, [buffer], position, _NOWAIT)


read_cached = _by_python if hasattr(os, "RWF_NOWAIT") else _by_library()
"""Reads a file's bytes at a position into a buffer, and says how many. Raises OSError where it would have to wait. None
where the system cannot tell.
"""


class NotInMemory(Exception):
    """It has to be read in a thread."""


class CachedFile:
    """Reads of a file that block for nothing. Raises NotInMemory, from the start where the system cannot tell."""

    __slots__ = ("_descriptor", "_file")

    def __init__(self, file: File) -> None:
        self._file = file
        self._descriptor = file.for_kernel() if read_cached is not None else -1
        if self._descriptor < 0:
            raise NotInMemory

    def pread(self, size: int, position: int) -> bytes:
        """`size` bytes at `position`, all within the file. Raises NotInMemory."""
        if size > READ_BYTES_MAX:
            raise NotInMemory
        data = bytearray(size)
        assert read_cached is not None, "else there is no such file"
        try:
            count = read_cached(self._descriptor, data, position)
        except OSError:
            raise NotInMemory from None  # a thread's read says what is wrong, if anything is
        if count < size:
            raise NotInMemory
        return bytes(data)
