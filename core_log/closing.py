"""Full segments: the next one begins, and what is full is closed, which is synced with its indexes.

1. The flusher closes a segment before it writes to the next one. What is not durable of it is what waits for a sync,
   and no more than `unsynced_bytes_max`, so that takes milliseconds.
2. With fsync="never" all of a segment may be in the page cache only, which takes the disk a second. It is closed
   *aside*, by a job of its own in a thread of its own, while the next segment is written. There is at most one such job
   a log: the log waits for it when the next segment is full as well.
3. Until it is done nothing is synced that comes after, the recovery point does not move, nothing is removed or put in
   another's place. Who wants a sync gets it then.
4. After a loss of power the next segment may be there and the end of the full one not. So before there is a next one
   the recovery point says where that begins: recovery keeps it only if the full one goes on to there. Where offsets are
   left out between the two (`before_gap`) the full one is not closed aside.
5. If the disk refuses it, that counts as an error of all that was written since: the log takes no appends until the
   segment is closed by another job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from core_log.flush_job import FlushJob, RecoveryPoint, SegmentWrite
from core_log.log_config import LogConfig
from core_log.segment import Segment
from core_log.segment_index import SegmentIndex

if TYPE_CHECKING:
    from core_log.flusher import Flusher
    from core_log.partition_log import PartitionLog


class RollingLog:
    """The part of a `PartitionLog` that begins and closes segments, on the event loop."""

    closing: FlushJob | None = None
    """What closes a full segment, beside other jobs."""

    directory: str
    config: LogConfig
    wall_clock_ms: Callable[[], int]
    segments: list[Segment]
    log_end_offset: int
    error: OSError | None
    job: FlushJob | None
    _flusher: Flusher
    _active: Segment
    _pending: list[SegmentWrite]
    _names_unsynced: bool
    _recovery_position: int
    _skipped_to: int
    """A log end that no batch may have reached: the last ones before it were cut off, or there never were any."""

    def _refuse_appends(self, error: OSError) -> None:
        raise NotImplementedError

    def roll(self, base_offset: int | None = None) -> Segment:
        """Begin a new segment at `base_offset` (default: the log end offset); an empty active one is kept.

        The files are made and the full one is closed by the flusher, before anything later is called flushed.
        """
        end = self.log_end_offset
        if base_offset is None:
            base_offset = end
            if not self._active.size:
                return self._active
        full = self._active
        if not self._pending or self._pending[-1].segment is not full or self._pending[-1].durable:
            self._pending.append(SegmentWrite(full, full.size))
        self._pending[-1].closing = RecoveryPoint.at_start_of(base_offset, self.segments)
        self._pending[-1].before_gap = base_offset != end or end == self._skipped_to
        active = Segment(self.directory, base_offset, self.config.index_interval_bytes, SegmentIndex())
        active.created_ms = self.wall_clock_ms()
        self.segments.append(active)
        self._active = active
        self._names_unsynced = True
        self._recovery_position = 0
        self._flusher.enlist(cast("PartitionLog", self))
        return active

    def _may_close_aside(self, writes: Sequence[SegmentWrite]) -> bool:
        """Whether a job that syncs nothing may leave the full segment in it to another one: rules 2 and 4."""
        if len(writes) < 2 or self.config.fsync != "never" or self.error is not None:
            return False
        full = [write for write in writes if write.closing is not None]
        return len(full) == 1 and full[0] is not writes[-1] and not full[0].before_gap

    def _waits_for_closing(self) -> bool:
        """Whether there is no job until the full segment is closed."""
        return self.closing is not None and (
            self.error is not None or any(write.closing is not None for write in self._pending)
        )

    def _is_full(self, job: FlushJob, write: SegmentWrite) -> None:
        """`job` has written the last of a segment, and closed it or left it to be closed."""
        segment = write.segment
        if not job.aside:
            segment.let_go()
            return
        self.closing = FlushJob(
            log=job.log,
            files=job.files,
            directory=job.directory,
            writes=[SegmentWrite(segment, segment.size, closing=write.closing)],
            written_before=[],
            active=segment,
            active_bytes=segment.size,
            end_offset=job.end_offset,
        )

    def _closed(self, job: FlushJob) -> None:
        """What closes a full segment has ended."""
        self.closing = None
        (write,) = job.writes
        if job.error is None:
            write.segment.let_go()
            return
        self._pending.insert(0, write)
        if self.job is not None:
            self.job.undone = job.error
        self._refuse_appends(job.error)
