"""A partition log: batches in segments, appended by the event loop, written by the flusher's threads.

1. `append` is memory only: it assigns offsets, notes the batch in the active segment and queues the bytes. No system
   call is made and nothing is awaited, so the event loop never stalls on a disk.
2. A log has at most one job with the flusher, and one that closes a full segment (`closing.py`). `take_job` hands over
   everything that is due, `complete` takes the result; between the two the job's bytes stay in memory, and unless
   fsync="never" until a sync covers them. After an error the next job writes all of them again.
3. log_start_offset <= flushed_offset <= written_offset <= log_end_offset. `written_offset` and `flushed_offset` only
   rise. Readers see what is below `high_watermark`, which is what `fsync` promises will stay: nobody's committed offset
   may lie beyond the end of the log after a loss of power. A single node moves it with `committed_offset`. What was
   appended without anybody waiting for its sync is synced once a reader waits for it (`reader_waits`).
4. A stop that was not clean begins a new leader epoch (`replication/epochs.py`). A log of which other brokers have
   replicas differs in what it promises and in who gives out epochs: `replica_log.py`.
5. The event loop changes the state, other threads only read it: lists are replaced or appended to, never reordered.

Offsets may have gaps. Where it says `before` or `end`, the offset itself is excluded.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from core_log import retention, truncation
from core_log.appendable_log import AppendableLog
from core_log.closing import RollingLog
from core_log.files import Files
from core_log.flush_job import FlushJob, RecoveryPoint, SegmentWrite, execute
from core_log.log_config import LogConfig as LogConfig
from core_log.readable_log import ReadableLog
from core_log.recovery import RecoveredLog, recover
from core_log.replacement import ReplaceableLog
from core_log.segment import Segment
from core_log.tail_cache import TailCache
from core_log.transaction_index import TransactionIndex

if TYPE_CHECKING:
    from core_log.flusher import Flusher

logger = logging.getLogger(__name__)

_base_offset = attrgetter("base_offset")


class PartitionLog(RollingLog, ReplaceableLog, AppendableLog, ReadableLog):
    """See the module. Made by `open`."""

    waits_out_errors = False
    """Who waits for it to be committed goes on waiting while the disk refuses: another broker may take over."""

    drops_what_failed = False
    """What it could not be given may come to nothing, though it goes on: who waits for it has to put it there again."""

    waits: Callable[[], bool] | None = None
    """Whether the disk shall not get now what is enlisted."""

    def __init__(
        self,
        files: Files,
        directory: str,
        config: LogConfig,
        flusher: Flusher,
        wall_clock_ms: Callable[[], int],
        found: RecoveredLog,
    ) -> None:
        self.files = files
        self.directory = directory
        self.config = config
        self.wall_clock_ms = wall_clock_ms
        self.log_start_offset = self.durable_start_offset = found.log_start_offset
        end = found.next_offset
        self.log_end_offset = self.written_offset = self.flushed_offset = self.high_watermark = end
        self.committed_offset = self._skipped_to = end
        self.epochs = found.epochs
        self.leader_epoch = self._first_epoch(found.clean)
        self.damaged = found.damaged
        """Bytes that had been synced were missing when it was opened."""
        self.expired_left_out = 0
        """So often a reader was not given a record because its time was up."""
        self.room_bytes = found.room_bytes
        """So much longer the last file was, with nothing in it."""
        self.aside = found.aside
        """Where what was cut off when it was opened is kept, if it may be more than a torn tail."""
        self.error: OSError | None = None
        self.closed = False
        self.truncating = self.cutting = self.half_cut = False
        """No appends now; no jobs either; nor until the cut that the disk refused is done again."""
        self.listeners: list[Callable[[PartitionLog], None]] = []
        self.segments = found.segments
        self.unreadable = any(segment.missing for segment in found.segments)
        self.size_bytes = sum(segment.size for segment in found.segments)
        self._flusher = flusher
        self._active = found.segments[-1]
        self._tail = TailCache(config.tail_cache_bytes, end, flusher.tails)
        self._pending: list[SegmentWrite] = []
        self._pending_bytes = 0
        self._unsynced: list[SegmentWrite] = []
        self._unsynced_bytes = 0
        self.job: FlushJob | None = None
        self._sync_wanted = False
        self._waiting_readers = 0
        self._epochs_unsaved = True
        self.first_file = ""
        """An empty file that a job which syncs names (`syncs_names`) makes before that, if it is not there."""
        self._marked_clean = found.clean and (found.marked or not end)
        """The files say that the log was closed where it ends; so they do where there never were any."""
        self._names_unsynced = True
        self._recovery_position = found.recovery_position
        self._log_start_unsaved = False
        self._removals: list[Segment] = []
        self.transactions = TransactionIndex.recover(self)

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        config: LogConfig,
        flusher: Flusher,
        *,
        wall_clock_ms: Callable[[], int],
    ) -> PartitionLog:
        """Open the log in `directory`, making it when it is missing; recovers as `recovery.py` says.

        Raises OSError.
        """
        return cls(files, directory, config, flusher, wall_clock_ms, recover(files, directory, config, wall_clock_ms()))

    def _first_epoch(self, clean: bool) -> int:
        """In which epoch a log that was just opened is."""
        if not clean:
            self.epochs.begin(self.epochs.latest + 1 if self.epochs.entries else 0, self.log_end_offset)
        elif not self.epochs.entries:
            self.epochs.begin(0, self.log_end_offset)
        return self.epochs.latest

    def configure(self, config: LogConfig) -> None:
        """Other settings from now on; what is there already goes by them with the next look. What was promised under
        the old ones stays promised.
        """
        self.take_config(config)
        if config.fsync == "commit" and self.flushed_offset < self.high_watermark:
            self.request_interval_sync()

    def take_config(self, config: LogConfig) -> None:
        """These are the settings now; who waits for what was held is told."""
        before, self.config = self.config, config
        if before.held and not config.held:
            for listener in tuple(self.listeners):
                listener(self)

    # ---- durability

    def request_sync(self) -> None:
        """Somebody waits for `committed_offset` to reach what is appended now: the flusher gets it, with all that is
        appended until the event loop comes round.
        """
        if self.committed_offset < self.log_end_offset:
            self._sync_wanted = self._sync_wanted or self.config.fsync == "commit"
            self._flusher.enlist(self)

    def reader_waits(self, count: int) -> None:
        """So many readers more, or less, wait at the high watermark. While there are any, each job syncs what it
        writes, and what is there already is synced now.
        """
        self._waiting_readers += count
        if count > 0 and self.high_watermark < self.log_end_offset:
            self.request_sync()

    def request_interval_sync(self) -> None:
        """The flusher's timer for fsync="interval"."""
        if self.flushed_offset < self.log_end_offset:
            self._sync_wanted = True
            self._flusher.submit(self)

    # ---- the flusher's side

    def take_job(self, *, closing: bool = False, aside: bool = False) -> FlushJob | None:
        """What the flusher has to do now; None when there is nothing, or a job is under way.

        With `closing` everything is synced, and the recovery point moves to the end, unless all of that is so since the
        log was opened. With `aside` a full segment may be left to a job of its own, which is `self.closing` from the
        completion of this one on.
        """
        closing = closing and not self._is_at_rest()
        if self.job is not None or self.closed or self.cutting or self._waits_for_closing():
            return None
        sync_wanted = self._sync_wanted or (self._waiting_readers > 0 and self.config.fsync == "commit")
        unflushed = self.flushed_offset < self.log_end_offset
        sync = (sync_wanted and unflushed) or (closing and (unflushed or self._names_unsynced))
        replacement, removals, kept = None, self._removals, list[Segment]()
        if self.closing is None:
            replacement = self.take_offer()
        else:
            sync, removals, kept = False, kept, removals
        if not (self._pending or sync or closing or self._log_start_unsaved or removals or replacement or self.error):
            return None
        writes = self._pending
        if self.error is not None:
            # The page cache cannot be trusted after a failed fsync: write everything that is not durable once more.
            writes = self._unsynced + writes
            sync = sync or self.config.fsync != "never"
            self._unsynced = []
            self._unsynced_bytes = 0
        active, transactions = self._active, self.transactions
        advance = sync and active.size - self._recovery_position >= self.config.recovery_bytes
        self.job = FlushJob(
            log=self,
            files=self.files,
            directory=self.directory,
            writes=writes,
            written_before=self._unsynced,
            active=active,
            active_bytes=active.size,
            end_offset=self.log_end_offset,
            size=self._pending_bytes,
            sync=sync,
            sync_names=sync and self._names_unsynced,
            aside=aside and not sync and self._may_close_aside(writes),
            recovery_point=RecoveryPoint.at_end_of(active, self.log_end_offset, self.segments)
            if advance or closing
            else None,
            log_start=self.log_start_offset if self._log_start_unsaved else None,
            removals=removals,
            epochs=self.epochs.encode() if self._epochs_unsaved and writes else None,
            first_file=self.first_file,
            clean_epochs=self._clean_epochs() if closing and (writes or not self._marked_clean) else None,
            begun=transactions.begun(self.epochs.latest)
            if transactions is not None and not transactions.is_saved
            else None,
            transactions=transactions.encode(self)
            if transactions is not None and (advance or closing or replacement)
            else None,
            replacement=replacement,
        )
        self._pending = []
        self._pending_bytes = 0
        self._sync_wanted = self._sync_wanted and self.closing is not None
        self._log_start_unsaved = False
        if writes:
            self._epochs_unsaved = self._marked_clean = False
        self._removals = kept
        return self.job

    @property
    def syncs_names(self) -> bool:
        """Before the next job writes anything, the names that are in the directory by now are durable."""
        return self._epochs_unsaved

    def _is_at_rest(self) -> bool:
        """Nothing has changed since a clean stop."""
        return (
            self._marked_clean
            and not (self._pending or self._removals or self._log_start_unsaved or self.damaged)
            and self.error is None
            and self.flushed_offset == self.log_end_offset
            and self._recovery_position == self._active.size
            and (self._active.index is None or self._active.index.is_saved)
        )

    def _clean_epochs(self) -> bytes:
        self.epochs.trim(self.log_start_offset)
        return self.epochs.encode(self.log_end_offset)

    def complete(self, job: FlushJob) -> None:
        """Take the result of a job that is finished; on the event loop. Calls the listeners."""
        if job.applied:
            return
        job.applied = True
        if job is self.closing:
            self._closed(job)
        else:
            self._completed(job)
        for listener in tuple(self.listeners):
            listener(self)

    def _completed(self, job: FlushJob) -> None:
        self.job = None
        if job.shortened and job.log_start is not None:
            self.durable_start_offset = job.log_start
        if job.replacement is not None:
            self.put_in_place(job.replacement)
            self._flusher.enlist(self)
        error = job.error or job.undone
        if error is not None:
            self._job_failed(job, error)
        else:
            self._job_succeeded(job)

    def _job_failed(self, job: FlushJob, error: OSError) -> None:
        self._pending = job.writes + self._pending
        self._pending_bytes += job.size
        self._sync_wanted = self._sync_wanted or job.sync
        self._log_start_unsaved = self._log_start_unsaved or (job.log_start is not None and not job.shortened)
        self._epochs_unsaved = self._epochs_unsaved or job.epochs is not None
        if not job.shortened:
            self._removals = job.removals + self._removals
        self._refuse_appends(error)

    def sync_failed(self, error: OSError) -> None:
        """So did one of no job: what is not known to be durable is written again, and synced, by the next job."""
        if self.flushed_offset < self.log_end_offset and not self.closed:
            self._sync_wanted = True
            self._refuse_appends(error)
            self._flusher.retry_later(self)
            for listener in tuple(self.listeners):
                listener(self)

    def _refuse_appends(self, error: OSError) -> None:
        if self.error is None:
            logger.error("%s: the disk refuses, appends are refused until it recovers: %s", self.directory, error)
        self.error = error

    def _job_succeeded(self, job: FlushJob) -> None:
        for write in job.writes:
            segment = write.segment
            segment.written_bytes = max(segment.written_bytes, write.position + write.size)
            if write.closing is not None:
                self._is_full(job, write)
        self.written_offset = job.end_offset
        self._flusher.unflushed_bytes -= job.size
        if job.begun is not None and self.transactions is not None:
            self.transactions.is_saved = True
        if job.sync:
            self.flushed_offset = job.end_offset
            self._unsynced = []
            self._unsynced_bytes = 0
            if job.sync_names:
                self._names_unsynced = job.active is not self._active
        elif self.config.fsync != "never":
            self._unsynced += job.writes
            self._unsynced_bytes += job.size
            if self._unsynced_bytes > self.config.unsynced_bytes_max:
                self._sync_wanted = True
        if job.recovery_point is not None and job.active is self._active:
            self._recovery_position = job.active_bytes
        if job.clean_epochs is not None:
            self._marked_clean = self._epochs_unsaved = True
        self._promise()
        if self.error is not None:
            logger.warning("%s: the disk takes writes again", self.directory)
            self.error = None

    @property
    def local_committed(self) -> int:
        """What `fsync` promises that this disk will keep."""
        return self.flushed_offset if self.config.fsync == "commit" else self.written_offset

    def _promise(self) -> None:
        self.high_watermark = self.committed_offset = max(self.local_committed, self.high_watermark)

    @property
    def stable_offset(self) -> int:
        """Readers of committed records see what is below: no transaction is open there. Of a log that is held nobody
        sees anything.
        """
        if self.config.held:
            return self.log_start_offset
        if self.transactions is None:
            return self.high_watermark
        return max(self.transactions.stable_offset(self.high_watermark), self.log_start_offset)

    async def wait_written(self, offset: int) -> None:
        """Wait until `written_offset` reaches `offset`. Raises LogUnavailable when the disk refuses."""
        await self._flusher.wait_written(self, offset)

    async def wait_committed(self, offset: int) -> None:
        """Wait until `committed_offset` reaches `offset`. Raises LogUnavailable when the disk refuses."""
        await self._flusher.wait_committed(self, offset)

    # ---- shrinking

    def delete_prefix(self, before_offset: int) -> None:
        """Advance the log start offset, at most to the high watermark; whole segments below it are dropped.

        The active segment is never dropped. The files go in the flusher's thread, after the new start is durable.
        """
        retention.delete_prefix(self, before_offset)

    def drop_segments(self, before_offset: int) -> None:
        """The log starts at `before_offset` now: whole segments before it go with the next job."""
        self.log_start_offset = before_offset
        self._log_start_unsaved = True
        count = bisect_right(self.segments, before_offset, key=_base_offset) - 1
        dropped = self.segments[:count]
        del self.segments[:count]
        for segment in dropped:
            self.size_bytes -= segment.size
        self._removals += dropped
        self._flusher.enlist(self)

    async def delete_records(self, before_offset: int) -> int:
        """`delete_prefix`, durable when it returns: the log start offset then. -1 stands for the high watermark.

        Raises OffsetOutOfRange above the high watermark, LogUnavailable when the disk refuses; the records may be gone
        all the same then.
        """
        return await retention.delete_records(self, self._flusher, before_offset)

    def apply_retention(self, now_ms: int, needed_from: int | None = None) -> None:
        """Drop what `retention_ms` and `retention_bytes` no longer keep, below `needed_from`. Raises OSError."""
        retention.apply(self, now_ms, needed_from)

    async def truncate(self, end_offset: int) -> None:
        """Cut the log to `end_offset`: batches that reach beyond it go. For followers of a leader.

        Waits for what is under way and cuts in a thread; appends are refused meanwhile. Readers have seen what is below
        the high watermark: raises BelowHighWatermark for that. Raises OSError, LogUnavailable while `error` is set.
        """
        await truncation.truncate(self, self._flusher, end_offset)

    def shorten(self, cut: truncation.Cut) -> None:
        """Take over what a truncation left. Nothing is under way, and nothing is pending."""
        self.cuts += 1
        self.segments = [segment for segment in self.segments if segment.base_offset < cut.segment.base_offset]
        self.segments.append(cut.segment)
        self._active = active = cut.segment
        active.index = cut.index
        active.size = active.written_bytes = cut.position
        active.max_timestamp_ms, active.max_timestamp_last = cut.max_timestamp_ms, cut.max_timestamp_last
        self.size_bytes = sum(segment.size for segment in self.segments)
        end = max(cut.next_offset, self.high_watermark)  # in a gap
        self.log_end_offset = self.written_offset = self.flushed_offset = self._skipped_to = end
        self._recovery_position = cut.position
        self._unsynced = []
        self._unsynced_bytes = 0
        self._names_unsynced = True
        self._tail.clear()
        self._tail = TailCache(self.config.tail_cache_bytes, end, self._flusher.tails)
        self.epochs.cut(end)
        self._after_cut()
        self._epochs_unsaved = True
        self._marked_clean = False

    def _after_cut(self) -> None:
        self.committed_offset = self.log_end_offset
        if self.epochs.latest < self.leader_epoch or not self.epochs.entries:
            self.epochs.begin(self.leader_epoch, self.log_end_offset)

    def flush_blocking(self, *, closing: bool = False) -> None:
        """Write and sync everything now, in this thread; for start-up, tools and `close`. Then look at `error`."""
        self._sync_wanted, ending = True, closing
        self._flusher.withdraw(self)
        while (job := self.take_job(closing=ending)) is not None:
            execute(job)
            self.complete(job)
            self._flusher.withdraw(self)  # again: listeners append, and hand it over
            ending = closing and bool(self._pending)
            if self.error is not None:
                self._flusher.retry_later(self)
                break

    def closing_job(self) -> FlushJob | None:
        """All that `close` has to do first, for who executes and completes it before; waits for a job under way."""
        self._sync_wanted = True
        self._flusher.withdraw(self)
        return self.take_job(closing=True)

    def close(self, *, keep: bool = True) -> None:
        """Write, sync and close; blocks. The next start finds the recovery point at the end and scans nothing. What a
        disk refuses is lost, and logged. Without `keep` nothing is written any more: the files are to go.
        """
        if self.closed:
            return
        if keep:
            self.flush_blocking(closing=True)
        else:
            self._flusher.withdraw(self)
        self.closed = True
        self._tail.clear()
        self.drop_offer()
        if keep and self.error is not None:
            lost = self.log_end_offset - self.committed_offset
            logger.error("%s: closed with %d offsets not made durable: %s", self.directory, lost, self.error)
        self._flusher.unflushed_bytes -= self._pending_bytes
        self._pending = []
        self._pending_bytes = 0
        for segment in self.segments:
            segment.close_file()
