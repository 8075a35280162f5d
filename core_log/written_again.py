"""What the last process left of a log, written again where it is: it may be in the page cache and nowhere else.

1. After an fdatasync that failed Linux calls the pages clean that it could not write: all processes see them, and no
   later fdatasync has anything to do. The process that wrote them keeps the bytes and writes them again. The next one
   cannot tell whether that was still to come, but it need not: bytes that are written again are dirty again.
2. Only what was read and checked is written, as it was read: the cache may lose such a page at any time.
3. Bytes over equal bytes harm nothing, wherever it stops, and need no room on a disk that writes in place.
"""

from __future__ import annotations

import errno

from core_log.files import File


class WrittenAgain:
    """A file to be scanned once, from its start to its end: what was passed is written again, from `durable` on."""

    def __init__(self, file: File, path: str, durable: int) -> None:
        self._file = file
        self._path = path
        self._durable = durable
        self._piece = memoryview(b"")
        self._start = 0

    def pread(self, size: int, position: int) -> bytes:
        """See `File`; all before `position` was checked. Raises OSError."""
        self._write(position)
        data = self._file.pread(size, position)
        self._piece, self._start = memoryview(data), position
        return data

    def finish(self, end: int) -> None:
        """All before `end` was checked, and is the disk's when this returns. Raises OSError."""
        self._write(end)
        try:
            self._file.sync()
        except OSError as error:
            raise self._refused(error) from None

    def _write(self, end: int) -> None:
        first = max(self._start, self._durable)
        if first >= end:
            return
        try:
            self._file.pwritev([self._piece[first - self._start : end - self._start]], first)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> OSError:
        what = f"{error.strerror or error}, and what was written here last may be in the page cache only"
        return OSError(error.errno or errno.EIO, what, self._path)
