"""One partition of a topic: a log, what waits to be sealed into it, and who may append what.

Batches come in two ways: whole, from partitioned producers (`append`, the same bytes are stored), and as records of
slabs (`append_records`), which become records of the batch that is sealed when the turn ends.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio

from core_log.absent_log import AbsentLog
from core_log.admission import Admitted, admit
from core_log.batch_header import BatchHeader, parse_header
from core_log.errors import CorruptBatch, LogError, LogUnavailable, OutOfOrderSequence, ProducerFenced
from core_log.files import BytesLike
from core_log.partition_log import LogConfig, PartitionLog
from core_log.producer_states import ProducerStates
from core_log.wall_clock import wall_clock_ms
from routing.commits import storage_error
from routing.errors import StorageUnavailable, TimedOut
from routing.runs import Run
from routing.topics.known_ids import KnownIds
from routing.topics.leadership import Forward, Leadership
from routing.topics.leases import Leases, lease_clock_ms
from routing.topics.producers import Producers
from routing.topics.sealing import cover, write

logger = logging.getLogger(__name__)

_LATEST_TIMEOUT_S = 5.0
_LOOK_S = 0.01
Check = Callable[[], Awaitable[None]]


class TopicPartition:
    """One partition: its log, and the slabs waiting to be sealed into it."""

    __slots__ = (
        "_learn", "_mark_dirty", "_open", "_segments", "behind", "elsewhere", "forward", "index", "known", "leadership",
        "leases", "log", "next_offset", "producers", "taken", "topic_name",
    )  # fmt: skip

    def __init__(
        self,
        topic_name: str,
        index: int,
        log: PartitionLog,
        mark_dirty: Callable[[TopicPartition], None],
        leadership: Leadership | None = None,
        learn: Callable[[TopicPartition], None] = lambda partition: None,
    ) -> None:
        """`learn` has `known` read what it has to, and a turn end then."""
        self.topic_name = topic_name
        self.index = index
        self.leadership = leadership
        """Of one that other brokers may have; None: it is this broker's alone."""
        self.forward: Forward | None = None
        """To its leader, where that is another broker."""
        self.behind: Forward | None = None
        """What waits for whoever leads, though that is this broker now, or still: what is routed comes behind it."""
        self.elsewhere: Callable[[], Forward] | None = None
        """Where what is routed waits while this broker may not append, whoever leads."""
        self.log = log
        self.taken: list[Callable[[], None]] = []
        """Called when it has another log."""
        self.next_offset = log.log_end_offset
        self.producers = Producers(log)
        self.leases = Leases()
        self.known: KnownIds | None = KnownIds(log) if log.config.deduplication_window_ms else None
        """The ids of its records, where one is to be there once."""
        self._learn = learn
        self._mark_dirty = mark_dirty
        self._open: list[Run] = []
        self._segments = len(log.segments)
        log.listeners.append(self._log_advanced)

    @property
    def leader_epoch(self) -> int:
        """In which it is, for all that is known here."""
        return self.log.leader_epoch if self.leadership is None else self.leadership.epoch

    def append(self, batch: bytes | bytearray | memoryview) -> int:
        """Append a validated record batch as it is; its base offset. Raises LogUnavailable, BatchTooLarge."""
        if self._open:
            self.seal()
            if self._open:
                raise LogUnavailable(f"{self.log.directory}: what came before waits")
        base_offset = self.log.append(batch)
        self.next_offset = self.log.log_end_offset
        if self.known is not None:
            self.known.appended()
        return base_offset

    def append_new(self, batch: BytesLike) -> int:
        """`append` without the records that are there already, where that matters; where it begins. Raises as `append`
        does, and CorruptBatch; LogUnavailable as well while it is not known which are there.
        """
        known = self.known
        if known is None:
            return self.append(batch)
        if not known.are_known():
            self._learn(self)
            raise LogUnavailable(f"{self.log.directory}: the ids of its records are being read")
        return self._append_left(known, parse_header(batch), batch)

    def _append_left(self, known: KnownIds, header: BatchHeader, batch: BytesLike) -> int:
        self.seal()  # in their order
        left = known.left_of(header, batch)
        try:
            return self.append(left)
        except LogError:
            known.take_back()
            raise

    def append_run(self, headers: Sequence[BatchHeader], batches: Sequence[BytesLike]) -> list[int]:
        """Append validated batches of no transaction, all or none; their base offsets. The log `takes_next` the first,
        and each `follows` the one before it. Raises as `append` does.
        """
        if self._open:
            self.seal()
        found = self.log.append_run(headers, batches)
        self.next_offset = self.log.log_end_offset
        if headers[0].producer_id >= 0:
            for header, base_offset in zip(headers, found, strict=True):
                self.producers.note(header, base_offset)
        return found

    def admit(self, headers: Sequence[BatchHeader], batches: Sequence[BytesLike]) -> Admitted:
        """Validated batches of a client as they are to be appended. Raises InvalidRecord, InvalidTimestamp,
        CorruptBatch.
        """
        log = self.log
        return admit(log.config, headers, batches, log.wall_clock_ms())

    async def append_once(
        self, headers: Sequence[BatchHeader], batches: Sequence[BytesLike], check: Check | None = None
    ) -> tuple[int, int]:
        """Append validated batches, idempotent producers' unless they are there already: the base offset of the first,
        and the offset behind the last. `check` raises if there is no transaction that they may be a part of: asked
        where none is open yet. Raises as `append` does, and OutOfOrderSequence, ProducerFenced,
        CorruptBatch; NotLeader if another broker leads it since that was looked at.
        """
        if check is None and any(header.is_transactional for header in headers):
            raise CorruptBatch("a batch of a transaction, and of none that is under way")
        states = await self._states()
        if check is not None:
            states = await self._joined(headers[0], check)
        if self.leadership is not None and (refused := self.leadership.refusal()) is not None:
            raise refused
        base_offset, end = -1, -1
        for header, batch in zip(headers, batches, strict=True):
            known = states.check(header) if header.producer_id >= 0 else None
            if known is not None:
                first, end = known.base_offset, known.next_offset
            else:
                first = self.append(batch) if self.known is None else self._append_left(self.known, header, batch)
                end = self.log.log_end_offset
                if header.producer_id >= 0:
                    self.producers.note(header, first)
            base_offset = first if base_offset < 0 else base_offset
        return base_offset, end

    async def _states(self) -> ProducerStates:
        """What is known of producers, as soon as the ids of records are known as well. Raises LogUnavailable."""
        while True:
            states = await self.producers.states()
            if self.known is None or self.known.are_known():
                return states
            await self.known.read()

    async def takes_next(self, header: BatchHeader) -> bool:
        """Whether an idempotent producer's batch of no transaction is to be appended. Raises LogUnavailable."""
        try:
            return await self.is_new(header)
        except (OutOfOrderSequence, ProducerFenced):
            return False

    async def is_new(self, header: BatchHeader) -> bool:
        """Whether an idempotent producer's batch is to be appended, or is there. Raises OutOfOrderSequence,
        ProducerFenced, LogUnavailable.
        """
        return (await self.producers.states()).check(header) is None

    async def require_known(self, header: BatchHeader) -> None:
        """Raises OutOfOrderSequence if no batch is known of a producer that has had others before this one;
        LogUnavailable.
        """
        if header.base_sequence > 0 and not (await self.producers.states()).has_batch(header.producer_id):
            raise OutOfOrderSequence(f"sequence {header.base_sequence} of producer {header.producer_id} instead of 0")

    async def append_marker(self, marker: BytesLike, coordinator_epoch: int, check: Callable[[], None]) -> int:
        """Append the end of a producer's transaction; the offset behind it. `check` is called when nothing suspends any
        more, and raises if this is not led here. Raises as `append` does, and ProducerFenced, CoordinatorFenced.
        """
        states = await self._states()
        check()
        header = parse_header(marker)
        states.check_marker(header, coordinator_epoch)
        self.producers.note_marker(header, coordinator_epoch, self.append(marker))
        if self.known is not None:
            self.known.end_transaction(marker, header.producer_id)
        return self.log.log_end_offset

    async def _joined(self, header: BatchHeader, check: Check) -> ProducerStates:
        """Return when a batch of a transaction may be appended at once: none was ended while that was looked at."""
        while True:
            log = self.log
            before = (log.leader_epoch, log.transactions.markers if log.transactions is not None else 0)
            opened = log.transactions.open.get(header.producer_id) if log.transactions is not None else None
            if opened is None or opened.producer_epoch != header.producer_epoch:
                await check()
            states = await self._states()
            after = (log.leader_epoch, log.transactions.markers if log.transactions is not None else 0)
            if log is self.log and before == after:
                return states

    def append_records(
        self, keys: bytes | list[bytes], header_blocks: bytes | list[bytes], bodies: list[bytes], body_bytes: int
    ) -> int:
        """Add records to the open batch; the offset behind the last."""
        self._open.append(Run(self.next_offset, keys, header_blocks, bodies, body_bytes))
        self.next_offset += len(bodies)
        self._mark_dirty(self)
        return self.next_offset

    def route_records(
        self, keys: bytes | list[bytes], header_blocks: bytes | list[bytes], bodies: list[bytes], body_bytes: int
    ) -> tuple[PartitionLog, int]:
        """`append_records` wherever the partition is led; the log, and how far it has to get."""
        if self.behind is not None and not self.behind.has_waiting and self.error() is None:
            self.behind = None
        forward = self.forward or self.behind
        if forward is not None:
            return forward.append_records(keys, header_blocks, bodies, body_bytes)
        return self.log, self.append_records(keys, header_blocks, bodies, body_bytes)

    def seal(self) -> None:
        """Make batches of the open slabs and hand them to the log; while it refuses they stay."""
        log = self.log
        if not self._open or log.error is not None:
            return
        if log.closed:
            self._open.clear()  # of a transaction that was decided on as the topic was deleted
            return
        if self.known is not None:
            self._seal_new(self.known)
        else:
            write(log, self._open)
            self._open.clear()

    def _seal_new(self, known: KnownIds) -> None:
        """`seal` without the records that are there already; what is to be known before is asked for."""
        if not known.are_known():
            self._learn(self)
            return
        try:
            write(self.log, known.left_of_runs(self._open))
            cover(self.log, self.next_offset)
        except LogError:
            known.take_back()
            raise
        known.appended()
        self._open.clear()

    def finish(self) -> bool:
        """`seal` before it is handed over; whether that is all."""
        self.seal()
        return not self._open

    async def latest(self) -> int:
        """The offset behind all that was appended before the question, though nobody may have asked for its sync yet.

        Raises StorageUnavailable if it is not known who has it, or as long as its leader may know of less than others
        have read.
        """
        log = self.log
        with suppress(LogUnavailable), trio.move_on_after(_LATEST_TIMEOUT_S):
            await log.wait_committed(log.log_end_offset)
        if self.leadership is not None:
            refused = self.leadership.refusal() or self.leadership.unknown_end()
            if refused is not None:
                raise refused
        return log.high_watermark

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after a time, of all that were appended before the question.

        Raises as `latest` does, CorruptBatch and OSError.
        """
        log = self.log
        found = await log.offset_for_timestamp_cold(timestamp_ms)
        if found is None and log.high_watermark < log.log_end_offset:
            await self.latest()
            found = await log.offset_for_timestamp_cold(timestamp_ms)
        return found

    async def delete_records(self, before_offset: int, *, followed_by_s: float = math.inf) -> int:
        """Have the partition start at an offset (-1: the high watermark), durably and on all replicas in sync; where it
        starts then. To be bounded in time by the caller, who may not be told though the records are gone.

        Raises OffsetOutOfRange above the high watermark, StorageUnavailable where another broker leads or the disk
        refuses, TimedOut when others have not followed by that time of trio's clock.
        """
        if self.leadership is not None and (refused := self.leadership.refusal()) is not None:
            raise refused
        try:
            start = await self.log.delete_records(before_offset)
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from None
        while self.leadership is not None and self.leadership.low_watermark() < start:
            if (refused := self.leadership.refusal()) is not None:
                raise refused
            if trio.current_time() >= followed_by_s:
                what = f"partition {self.index} of topic '{self.topic_name}'"
                raise TimedOut(f"not all replicas of {what} have followed yet")
            await trio.sleep(_LOOK_S)  # followers say where they start with the next position
        return start

    def take_log(self, log: PartitionLog) -> None:
        """It has a log of its own now."""
        self.log = log
        self.producers = Producers(log)
        self.known = KnownIds(log) if log.config.deduplication_window_ms else None
        self.next_offset = log.log_end_offset
        self._segments = len(log.segments)
        log.listeners.append(self._log_advanced)
        for listener in self.taken:
            listener()

    @property
    def is_here(self) -> bool:
        """Whether this broker has a replica of it."""
        return not isinstance(self.log, AbsentLog)

    async def ends(self) -> tuple[int, int]:
        """Where it begins, and the offset behind all that can be read: what its leader says, wherever that is. Raises
        StorageUnavailable.
        """
        if self.forward is not None:
            try:
                return await self.forward.ends()
            except StorageUnavailable:
                if self.forward is not None:
                    raise
        return self.log.log_start_offset, self.next_offset

    def configure(self, settings: LogConfig) -> None:
        """Its log goes by these settings now; ids are known from now on, where they were not."""
        self.log.configure(settings)
        if not settings.deduplication_window_ms:
            self.known = None
        elif self.known is None:
            self.known = KnownIds(self.log)
            self.known.begin()
        else:
            self.known.follow()
        self.apply_retention()

    @property
    def is_held_up(self) -> bool:
        """A lot waits until it is known which of it is there already."""
        if self.known is None or not self._open or self.known.are_known():
            return False
        return sum(run.body_bytes for run in self._open) > self.log.config.unsynced_bytes_max

    def follow_log(self) -> None:
        """What comes next is behind what its log has, also of what another leader had appended; what is open already
        has its offsets.
        """
        if not self._open:
            self.next_offset = self.log.log_end_offset

    def drop_open(self) -> None:
        """What was not sealed yet cannot be any more."""
        self._open.clear()

    def drop_forwards(self) -> list[PartitionLog]:
        """The topic is deleted: see `Forward.drop`."""
        return [forward.drop() for forward in (self.forward, self.behind) if forward is not None]

    def error(self) -> StorageUnavailable | None:
        """Why it cannot take messages that are to be committed now."""
        leadership = self.leadership
        if leadership is not None:
            refused = leadership.refusal() or leadership.shortage()
            if refused is not None:
                return refused
        return storage_error(self.log) if self.log.error is not None else None

    def wait(self) -> bool:
        """Have what is routed wait where it may not be appended now; whether it may."""
        if self.is_held_up:
            return False
        if (self.forward or self).error() is None:
            return True
        if self.forward is not None:
            return False
        if self.behind is None and self.elsewhere is not None:
            self.behind = self.elsewhere()
        return self.behind is not None and self.behind.error() is None

    def _log_advanced(self, log: PartitionLog) -> None:
        if self.leadership is not None:
            self.follow_log()
        if self._open and log.error is None:
            self._mark_dirty(self)
        if len(log.segments) != self._segments:
            self._segments_changed(log)

    def _segments_changed(self, log: PartitionLog) -> None:
        """A segment is full: what is beyond the log's limit in bytes goes now, however fast it grows."""
        if 0 <= log.config.retention_bytes < log.size_bytes:
            self.apply_retention()
        self._segments = len(log.segments)

    def apply_retention(self) -> None:
        """Drop what the log need not keep, unless another leader does; the next look comes with the housekeeping."""
        if self.leadership is not None and self.leadership.refusal() is not None:
            return
        try:
            now_ms, log = lease_clock_ms(), self.log
            needed = self.leases.needed_from(now_ms, log.directory, log.log_start_offset, log.high_watermark)
            log.apply_retention(wall_clock_ms(), needed)
        except OSError as error:
            logger.warning("cannot apply the retention of %s now: %s", self.log.directory, error)
