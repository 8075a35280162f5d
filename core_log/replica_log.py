"""A partition log of which other brokers have replicas: what changes when a disk is not the only one that must keep it.

1. `local_committed` is what this disk keeps by the log's `fsync` rule, and what the replica reports to its leader. What
   is *committed*, to confirms, readers and deliveries alike, is the high watermark, and that is the role's to move
   (`replication/`): it never falls, but by an unclean election, and never passes `local_committed`.
2. Epochs are given out by the metadata: `begin_epoch`. A stop of any kind begins none.
3. A follower's bytes are its leader's: `append_replica` changes nothing in a batch and takes the gaps as they are. Its
   epochs are the leader's as well: one begins where the log ended before its first batch, not where that is.
4. Followers read what is appended, written or not (`read_replica`): all disks work at the same time.
5. `sync_before` is up to where somebody waits. The leader tells its followers, so that what nobody waits for costs no
   fsync anywhere.
6. The watermark is saved now and then for readers after a start (`high_watermarks.py`). No truncation goes by it
   (KIP-101), but a log that ends below it has lost what `fsync="commit"` had promised: it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core_log import cold_reader, truncation
from core_log.appendable_log import APPEND_FIELDS, COPY_BYTES_MAX
from core_log.batch_header import HEADER_BYTES, LENGTH_START, MAGIC, TRANSACTIONAL_BIT, BatchHeader
from core_log.errors import CorruptBatch
from core_log.files import BytesLike, Files
from core_log.flusher import Flusher
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.recovery import epochs_of_batches, recover


class ReplicaLog(PartitionLog):
    """See the module. Made by `open_replica`."""

    _sync_before = 0
    news: dict[ReplicaLog, None] | None = None
    """Where it notes that there is something to tell a follower or leader; whoever does that empties it."""
    on_cut: Callable[[int], None] | None = None
    """Called with the new end when records are cut off; with -1 when all are, of which the leader may have some."""
    on_known: Callable[[int], None] | None = None
    """Called with how far the leader has committed what is in this log, where this disk does not keep all of that."""
    on_hand_over: Callable[[], bool] | None = None
    """Called before its leader hands over: what was taken for it is to be appended now, and is committed first. Whether
    that is all: False if there is something to wait for, though not for long.
    """
    on_lost: Callable[[], None] | None = None
    """Called before records are cut off that may have been committed: others may stand at their offsets later."""
    needed_from: int | None = None
    """Somebody has yet to note what stands behind this: until then nothing goes because it has gone at the leader."""
    leader_start = 0
    """Where the leader's log begins."""

    @classmethod
    def open_replica(
        cls,
        files: Files,
        directory: str,
        config: LogConfig,
        flusher: Flusher,
        *,
        wall_clock_ms: Callable[[], int],
        high_watermark: int = 0,
        on_damage: Callable[[], None] = lambda: None,
    ) -> ReplicaLog:
        """`open`, with the high watermark that was saved last; `on_damage` as for `recover`. Raises OSError."""
        found = recover(files, directory, config, wall_clock_ms(), on_damage)
        if not found.marked:
            found.epochs = epochs_of_batches(files, found.segments)
        log = cls(files, directory, config, flusher, wall_clock_ms, found)
        if high_watermark > log.log_end_offset and config.fsync == "commit":
            log.damaged = True
        log.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        log.committed_offset = log.high_watermark
        return log

    def _first_epoch(self, clean: bool) -> int:
        self.epochs.cut(self.log_end_offset)
        self.epochs.trim(self.log_start_offset)
        if self.log_start_offset == self.log_end_offset:
            self.epochs.entries.clear()  # a crash in `restart_at` leaves what is true of other records
        return self.epochs.latest

    def _after_cut(self) -> None:
        self.leader_epoch = self.epochs.latest
        if self.on_cut is not None:
            self.on_cut(self.log_end_offset)

    def begin_epoch(self, epoch: int) -> None:
        """Lead from here on: appends carry `epoch`. Raises ValueError unless it is above all in the log."""
        self.epochs.begin(epoch, self.log_end_offset)
        self.leader_epoch = epoch
        self._epochs_unsaved = True

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch; -1 when there is none. All before the log start was committed everywhere."""
        end = self.log_end_offset
        if self.log_start_offset == end:
            return -1
        for epoch, first in reversed(self.epochs.entries):
            if first < end:
                return epoch
        return -1

    def append_replica(self, batch: BytesLike) -> int:
        """Append a leader's whole batch as it is, at its own offset; returns the log end offset.

        The CRC is not checked, and there is no limit but the leader's. The batch must not be changed afterwards. Raises
        LogUnavailable as `append` does, CorruptBatch when the length is wrong or offset or epoch is below the log's.
        """
        if self.error is not None or self.closed or self.truncating:
            self._refuse()
        size = len(batch)
        if size < HEADER_BYTES:
            raise CorruptBatch(f"{size} bytes are no batch")
        base_offset, length, epoch, magic, attributes, last_delta, max_timestamp_ms = APPEND_FIELDS.unpack_from(batch)
        if length + LENGTH_START != size or magic != MAGIC or last_delta < 0:
            raise CorruptBatch(f"batch length {length}, magic {magic}, last offset delta {last_delta} in {size} bytes")
        self.epochs.cut(self.log_end_offset)  # in which it led, and wrote nothing
        entries = self.epochs.entries
        if base_offset < self.log_end_offset or (entries and epoch < self.epochs.latest):
            end = f"a log that ends at {self.log_end_offset} in epoch {self.epochs.latest}"
            raise CorruptBatch(f"offset {base_offset}, epoch {epoch} for {end}")
        if attributes & TRANSACTIONAL_BIT:
            self._note_transaction(batch, base_offset)
        if not entries or epoch > self.epochs.latest:
            self.epochs.begin(epoch, self.log_end_offset)  # the gap before its first batch is its own
            self.leader_epoch = epoch
            self._epochs_unsaved = True
        if size <= COPY_BYTES_MAX and type(batch) is not bytes:
            batch = bytes(batch)
        next_offset: int = base_offset + last_delta + 1
        segment = self._active
        if segment.is_full(size, next_offset, self.config, self.wall_clock_ms):
            segment = self.roll(base_offset)
        write = self._write_to(segment)
        write.buffers.append(batch)
        self._tail.add(batch, size, next_offset)
        segment.note(base_offset, next_offset, size, max_timestamp_ms)
        self._appended(write, size, next_offset)
        return next_offset

    def append(self, batch: BytesLike, *, base_offset: int | None = None, let_in: bool = False) -> int:
        """See `PartitionLog.append`."""
        base_offset = super().append(batch, base_offset=base_offset, let_in=let_in)
        if self.news is not None:
            self.news[self] = None
        return base_offset

    def append_run(self, headers: Sequence[BatchHeader], batches: Sequence[BytesLike]) -> list[int]:
        """See `AppendableLog.append_run`."""
        found = super().append_run(headers, batches)
        if self.news is not None:
            self.news[self] = None
        return found

    def skip_to(self, offset: int) -> None:
        """The leader's log has nothing from the end of this one up to `offset`: that is the end here, too.

        A segment begins there, so that a start finds the same end.
        """
        if offset > self.log_end_offset and not (self.truncating or self.closed or self.error is not None):
            self.roll(offset)
            self.log_end_offset = self._skipped_to = offset

    # ---- what is committed

    def _promise(self) -> None:
        """The role does."""

    def advance_high_watermark(self, offset: int) -> None:
        """All that count have what is below `offset`: it is committed as far as it is here. Calls the listeners."""
        offset = min(offset, self.local_committed)
        if offset > self.high_watermark:
            self.high_watermark = self.committed_offset = offset
            for listener in tuple(self.listeners):
                listener(self)

    def follow_start(self, offset: int) -> None:
        """The leader's log begins there, and this one as well, as soon as `needed_from` allows it."""
        has_moved, self.leader_start = offset > self.leader_start, max(self.leader_start, offset)
        if self.needed_from is None or self.leader_start <= self.needed_from:
            self.delete_prefix(self.leader_start)
        elif has_moved:
            for listener in tuple(self.listeners):
                listener(self)

    def request_sync(self) -> None:
        """See `PartitionLog.request_sync`; the followers are to sync as well."""
        self._sync_before = self.log_end_offset
        if self.news is not None:
            self.news[self] = None
        self.sync_to(self.log_end_offset)

    def write_on(self) -> None:
        """What the disk has not got yet it may get now."""
        if self.written_offset < self.log_end_offset and self.job is None:
            self._flusher.enlist(self)

    def sync_to(self, offset: int) -> None:
        """Somebody, maybe at the leader, waits for what is below `offset`."""
        if self.local_committed < min(offset, self.log_end_offset):
            super().request_sync()

    @property
    def sync_before(self) -> int:
        """Up to where somebody here waits."""
        return self.log_end_offset if self._waiting_readers else self._sync_before

    # ---- for followers

    def read_replica(self, offset: int, max_bytes: int) -> list[BytesLike] | None:
        """`read` up to the log end offset, unwritten batches included; None: not in memory, use `read_replica_cold`,
        which answers with nothing when it is not written either.

        Raises OffsetOutOfRange.
        """
        self._check_offset(offset)
        return [] if offset >= self.log_end_offset else self._tail.read(offset, max_bytes, self.log_end_offset)

    async def read_replica_cold(self, offset: int, max_bytes: int) -> list[BytesLike]:
        """`read_replica` from the disk, in a thread. Raises OffsetOutOfRange, CorruptBatch, OSError."""
        return await cold_reader.in_thread(lambda: self.read_blocking(offset, max_bytes, unsynced=True))

    async def restart_at(self, offset: int) -> None:
        """Drop everything and go on, empty, at `offset`: the leader has nothing before it any more.

        Waits for what is under way and works in a thread; appends are refused meanwhile. Raises OSError, LogUnavailable
        while `error` is set.
        """
        if self.on_lost is not None and self.log_start_offset < self.log_end_offset and offset < self.log_end_offset:
            self.on_lost()  # the leader has other records there, since an unclean election
        await truncation.restart(self, self._flusher, offset)

    async def truncate_committed(self, end_offset: int) -> None:
        """`truncate`, also below the high watermark, which falls: after an unclean election what was committed is not
        in the leader's log any more. Raises OSError, LogUnavailable while `error` is set.
        """
        if self.on_lost is not None:
            self.on_lost()
        await truncation.truncate(self, self._flusher, end_offset, committed=True)

    def started_anew(self, cut: truncation.Cut) -> None:
        """Take over what `restart_at` left."""
        self.segments = []
        self.log_start_offset = self.durable_start_offset = cut.next_offset
        self._log_start_unsaved = False
        self._removals = []
        if self.on_cut is not None:
            self.on_cut(-1)
        self.epochs.entries.clear()
        self.high_watermark = self.committed_offset = cut.next_offset
        self.shorten(cut)
        self.damaged = self.unreadable = False
