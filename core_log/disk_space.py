"""How much room the disk has, and a reserve for when it has none.

1. The free bytes are measured (one system call) in the flusher's threads, after a job that failed, gave something back
   or made `_MEASURE_BYTES` full, and when somebody asks: nobody on the event loop waits for it. In between what jobs
   write is taken off: a system call of its own would cost each of them another wait for the interpreter.
2. The reserve is a preallocated file. When the disk refuses a job for lack of room, so much of the reserve is given
   back as the job needs, and the job is tried again at once: what was promised, settlements, retention and deletions
   can be written while publishers wait, and checkpoints as well (`save`). It is filled up again when there is room
   (`tend`).
3. A start on a full disk gives some of the reserve back first, because opening a log writes small files.
4. A data directory that was moved away, removed, or covered by another file system is noticed when it is measured: what
   is written to files that are open would be found by nobody. Until it is back all jobs fail.

Sizes that are not configured follow the disk, so that a small one is not all reserve.
"""

from __future__ import annotations

import errno
import logging
import threading

from core_log.checkpoint import save
from core_log.files import Files, NoInodes
from core_log.flush_job import FlushJob, execute

logger = logging.getLogger(__name__)

RESERVE = "reserve"
_RESERVE_BYTES = 4 << 20
_RESERVE_SHARE = 16
"""Of a small disk no more than this part is kept as reserve."""
_SMALL_FILES_BYTES = 512 << 10
"""Room for what a job writes besides batches: indexes, recovery point, names; and for a start."""
_ROOM_AHEAD_BYTES = 256 << 20
"""With less than that free segments get no room ahead (`room_ahead.py`)."""
_MEASURE_BYTES = 4 << 20
_NO_LIMIT = 1 << 62
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What a disk says that takes no more."""


def _wants_bytes(error: OSError) -> bool:
    """Whether bytes of the reserve may help: they make no inode."""
    return error.errno in NO_ROOM and not isinstance(error, NoInodes)


class DiskSpace:
    """See the module. `total_bytes` is 0 where there is no disk to measure: then nothing here does anything."""

    def __init__(self, files: Files, reserve_bytes: int | None = None) -> None:
        """Blocks. Raises OSError."""
        self.free_bytes = 0
        self.total_bytes = 0
        self.reserved_bytes = 0
        self.misplaced = False
        """Another directory is where ours was, or none."""
        self._files = files
        self._place = files.place()
        self._lock = threading.Lock()
        self._unmeasured_bytes = 0
        self._shortage_said = False
        self.measure()
        share = self.total_bytes // _RESERVE_SHARE
        self.reserve_bytes = min(_RESERVE_BYTES, share) if reserve_bytes is None else reserve_bytes
        if not self.total_bytes:
            return
        if files.exists(RESERVE):
            self.reserved_bytes = files.size(RESERVE)
        if self.free_bytes < _SMALL_FILES_BYTES:
            self.give_back(_SMALL_FILES_BYTES)

    def measure(self) -> None:
        """Ask the disk; in any thread. Raises OSError."""
        self._unmeasured_bytes = 0
        self.misplaced = self._files.place() != self._place
        if not self.misplaced:
            self.free_bytes, self.total_bytes = self._files.space()

    def tend(self, free_bytes_min: int) -> None:
        """Measure, and fill the reserve up as long as more than `free_bytes_min` stays free; where it does not, and
        publishers are not blocked for it, that is said once. Blocks. Raises OSError.
        """
        with self._lock:
            self.measure()
            missing = self.reserve_bytes - self.reserved_bytes
            if not self.total_bytes or self.misplaced or missing <= 0:
                return
            if self.free_bytes - missing > free_bytes_min:
                file = self._files.open(RESERVE)
                try:
                    file.allocate(self.reserve_bytes)
                finally:
                    file.close()
                    self.reserved_bytes = self._files.size(RESERVE)
                self.measure()
                self._shortage_said = False
            elif self.free_bytes > free_bytes_min and not self._shortage_said:
                self._shortage_said = True
                text = "the reserve has %d of %d bytes, the disk has no room for it: %d are free, %d have to stay so"
                logger.warning(text, self.reserved_bytes, self.reserve_bytes, self.free_bytes, free_bytes_min)

    def give_back(self, size: int) -> bool:
        """Make room for so many bytes out of the reserve; whether there was any of it left. Raises OSError."""
        with self._lock:
            if not self.reserved_bytes:
                return False
            left = max(self.reserved_bytes - size, 0)
            logger.warning("the disk is full: %d bytes of the reserve are given back", self.reserved_bytes - left)
            file = self._files.open(RESERVE)
            try:
                file.truncate(left)
            finally:
                file.close()
            self.reserved_bytes = left
            return True

    @property
    def room_bytes(self) -> int:
        """How much may be written for nobody's sake but to make room: half of what is free, and of the reserve."""
        return (self.free_bytes + self.reserved_bytes) // 2 if self.total_bytes else _NO_LIMIT

    def save(self, path: str, content: bytes) -> None:
        """As `checkpoint.save`, once more with some of the reserve if the disk is full. Blocks. Raises OSError."""
        try:
            save(self._files, path, content)
        except OSError as error:
            if not _wants_bytes(error) or not self.give_back(len(content) + _SMALL_FILES_BYTES):
                raise
            save(self._files, path, content)

    def execute(self, job: FlushJob) -> None:
        """Do a job, once more with some of the reserve if the disk is full, and measure. In any thread."""
        if self.misplaced:
            job.error, job.finished = OSError(errno.ESTALE, "the data directory is not where it was"), True
            return
        job.may_take_room = not self.total_bytes or self.free_bytes >= _ROOM_AHEAD_BYTES
        execute(job)
        try:
            if job.error is not None and _wants_bytes(job.error):
                size = sum(write.size for write in job.writes if not write.durable)
                if self.give_back(size + _SMALL_FILES_BYTES):
                    job.error, job.finished, job.may_take_room, job.again = None, False, False, True
                    execute(job)
        except OSError as error:
            logger.warning("the reserve cannot be given back: %s", error)
        self.account(job)

    def account(self, job: FlushJob) -> None:
        """A job took its room; measured when much was taken, or something has changed besides."""
        if not self.total_bytes:
            return
        self.free_bytes -= job.size + job.room_bytes
        self._unmeasured_bytes += job.size + job.room_bytes
        if job.error is not None or job.removals or self._unmeasured_bytes >= _MEASURE_BYTES:
            try:
                self.measure()
            except OSError as error:
                logger.warning("cannot measure the room on the disk: %s", error)
