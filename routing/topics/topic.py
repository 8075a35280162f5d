"""A topic: partition logs read by cursors that do not consume.

Batches come in two ways: whole, from partitioned producers (`TopicPartition.append`, the same bytes are stored), and
as slabs routed by an exchange (`append_slab`), which become records of the batch that is sealed when the turn ends. A
record's key is the slab's routing key; keys choose the partition by murmur2, as Kafka's clients do, so one device or
one order stays in one partition whichever door it came through. The header `x-partition-key` goes before the routing
key.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import trio

from core_log.absent_log import AbsentLog
from core_log.admission import admit
from core_log.batch_header import BatchHeader, parse_header
from core_log.errors import CorruptBatch, LogError, LogUnavailable, OutOfOrderSequence, ProducerFenced
from core_log.files import BytesLike
from core_log.murmur2 import partition_of_key
from core_log.partition_log import LogConfig, PartitionLog
from core_log.producer_states import ProducerStates
from core_log.wall_clock import wall_clock_ms
from routing.commits import storage_error
from routing.errors import LimitExceeded, StorageUnavailable
from routing.message import NAME_ENCODING_ERRORS, Slab
from routing.runs import BATCH_HEADER_BYTES, RECORD_BYTES, Run
from routing.topics.columns import Column, RecordHeaders, longest
from routing.topics.known_ids import KnownIds
from routing.topics.leadership import Forward, Leadership
from routing.topics.leases import Leases
from routing.topics.producers import Producers
from routing.topics.sealing import cover, write

logger = logging.getLogger(__name__)

_KEYS_MAX = 65536
_LATEST_TIMEOUT_S = 5.0
_LOOK_S = 0.01
Check = Callable[[], Awaitable[None]]
PARTITION_KEY_HEADER = "x-partition-key"
_HEADER_BYTES = PARTITION_KEY_HEADER.encode()
"""Every protocol's property bytes have the names of headers as they are."""


class TopicPartition:
    """One partition: its log, and the slabs waiting to be sealed into it."""

    __slots__ = (
        "_learn", "_mark_dirty", "_open", "_segments", "forward", "index", "known", "leadership", "leases", "log",
        "next_offset", "producers", "taken", "topic_name",
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

    def admit(self, headers: Sequence[BatchHeader], batches: Sequence[BytesLike]) -> tuple[Sequence[BytesLike], int]:
        """Validated batches of a client as they are to be appended, and the time that they have got; -1: their own.
        Raises InvalidRecord, InvalidTimestamp, CorruptBatch.
        """
        log = self.log
        return admit(log.config, headers, batches, log.wall_clock_ms())

    async def append_once(
        self, headers: Sequence[BatchHeader], batches: Sequence[BytesLike], check: Check | None = None
    ) -> tuple[int, int]:
        """Append validated batches, idempotent producers' unless they are there already: the base offset of the first,
        and the offset behind the last. `check` raises if there is no transaction that they may be a part of: asked
        where none is open yet. Raises as `append` does, and OutOfOrderSequence, ProducerFenced,
        CorruptBatch.
        """
        if check is None and any(header.is_transactional for header in headers):
            raise CorruptBatch("a batch of a transaction, and of none that is under way")
        states = await self._states()
        if check is not None:
            states = await self._joined(headers[0], check)
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
        states = await self.producers.states()
        try:
            return states.check(header) is None
        except (OutOfOrderSequence, ProducerFenced):
            return False

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
        if self.forward is not None:
            return self.forward.append_records(keys, header_blocks, bodies, body_bytes)
        return self.log, self.append_records(keys, header_blocks, bodies, body_bytes)

    def seal(self) -> None:
        """Make batches of the open slabs and hand them to the log; while it refuses they stay."""
        log = self.log
        if not self._open or log.error is not None:
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

    async def latest(self) -> int:
        """The offset behind all that was appended before the question, though nobody may have asked for its sync yet.

        Raises StorageUnavailable if it is not known who has it.
        """
        log = self.log
        with suppress(LogUnavailable), trio.move_on_after(_LATEST_TIMEOUT_S):
            await log.wait_committed(log.log_end_offset)
        refused = self.leadership.refusal() if self.leadership is not None else None
        if refused is not None:
            raise refused
        return log.high_watermark

    async def delete_records(self, before_offset: int) -> int:
        """Have the partition start at an offset (-1: the high watermark), durably and on all replicas in sync; where it
        starts then. To be bounded in time by the caller, who may not be told though the records are gone.

        Raises OffsetOutOfRange above the high watermark, StorageUnavailable where another broker leads or the disk
        refuses.
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
            return await self.forward.ends()
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

    def drop_open(self) -> None:
        """What was not sealed yet cannot be any more."""
        self._open.clear()

    def error(self) -> StorageUnavailable | None:
        """Why it cannot take messages that are to be committed now."""
        leadership = self.leadership
        if leadership is not None:
            refused = leadership.refusal() or leadership.shortage()
            if refused is not None:
                return refused
        return storage_error(self.log) if self.log.error is not None else None

    def _log_advanced(self, log: PartitionLog) -> None:
        if self.leadership is not None and not self._open:
            self.next_offset = log.log_end_offset  # also of what another leader had appended
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
            now_ms, log = wall_clock_ms(), self.log
            needed = self.leases.needed_from(now_ms, log.directory, log.log_start_offset, log.high_watermark)
            log.apply_retention(now_ms, needed)
        except OSError as error:
            logger.warning("cannot apply the retention of %s now: %s", self.log.directory, error)


class Topic:
    """A named set of partitions; `config` is as given when it was created, or altered."""

    __slots__ = (
        "_headers", "_partition_of_key", "config", "id", "is_stream", "is_viewed", "name", "partitions", "uid",
    )  # fmt: skip

    def __init__(
        self, name: str, config: dict[str, str], partitions: list[TopicPartition], topic_id: bytes, uid: str = ""
    ) -> None:
        self.name = name
        self.id = topic_id
        """16 bytes that no other topic ever has, also one that is made again (`topic_ids.py`)."""
        self.uid = uid
        """Of one that brokers share, in the names of its logs; no other topic ever has it."""
        self.config = config
        self.partitions = partitions
        self.is_stream = False
        """Its records say where they came from, for those who consume them like a queue (`stream.py`)."""
        self.is_viewed = False
        self._headers = RecordHeaders()
        self._partition_of_key: dict[str, tuple[bytes, TopicPartition]] = {}

    def record(self, partitions: int) -> dict[str, Any]:
        """What the catalog says of it if it has that many partitions, but for a stream's declaration."""
        said = {"partitions": partitions, "config": self.config, "id": self.id}
        return said | {"uid": self.uid} if self.uid else said

    def add_partitions(self, partitions: list[TopicPartition]) -> None:
        """It has these as well, behind those that it has. What follows goes by the new number, as with Kafka."""
        self.partitions += partitions
        self._partition_of_key.clear()

    def configure(self, settings: LogConfig, config: dict[str, str]) -> None:
        """It is configured so from now on, and its logs go by these settings; what need not be kept any more goes."""
        self.config = config
        for partition in self.partitions:
            partition.configure(settings.of_partition(partition.index))

    def say_source(self, say: bool) -> None:
        """Begin or end to be a stream."""
        self.is_stream = say
        self._headers.say_source(say or self.is_viewed)

    def view(self, viewed: bool) -> None:
        """Begin or end to be what queues are views of: as with streams, these give out what was published."""
        self.is_viewed = viewed
        self._headers.say_source(viewed or self.is_stream)

    def error(self) -> StorageUnavailable | None:
        """Why a partition cannot take messages now."""
        for partition in self.partitions:
            if partition.log.error is not None or partition.leadership is not None:
                failed = (partition.forward or partition).error()
                if failed is not None:
                    return failed
            if partition.known is not None and partition.is_held_up:
                return StorageUnavailable(f"the ids of the records of topic '{self.name}' are being read")
        return None

    def require_room(self, slab: Slab) -> None:
        """Raises LimitExceeded if a message of a slab is too large for a batch of this topic."""
        limit = self.partitions[0].log.config.message_bytes_max - BATCH_HEADER_BYTES
        for column in self.columns(slab):
            around = RECORD_BYTES + longest(column.keys) + longest(column.header_blocks)
            if max(map(len, column.bodies), default=0) + around <= limit:
                continue
            largest = max(map(column.record_bytes, range(len(column.bodies))))
            if largest > limit:
                raise LimitExceeded(
                    f"a message of {largest} bytes with its key and headers is larger than topic '{self.name}' takes "
                    f"({limit})"
                )

    def append_slab(self, slab: Slab) -> list[tuple[PartitionLog, int]]:
        """Append a routed slab, each message to the partition of its key; the logs, and the offsets behind the last."""
        return [
            partition.route_records(keys, blocks, bodies, body_bytes)
            for partition, keys, blocks, bodies, body_bytes in self.columns(slab)
        ]

    def columns(self, slab: Slab) -> list[Column]:
        """The records of a slab for each partition, worked out once."""
        memo = slab.wire = {} if slab.wire is None else slab.wire
        columns: list[Column] | None = memo.get(self)
        if columns is None:
            columns = memo[self] = self._work_out(slab)
        return columns

    def _work_out(self, slab: Slab) -> list[Column]:
        blocks = self._headers.blocks(slab)
        if slab.keys is None and (slab.raws is None or not self._names_keys(slab.raws)):
            key, partition = self.place(self.key_of(slab, 0))
            return [Column(partition, key, blocks, slab.bodies, slab.size)]
        names = self.key_of if self._names_keys(slab.raws or [slab.properties.raw]) else Slab.key_of
        places = [self.place(names(slab, index)) for index in range(len(slab.bodies))]
        if len(self.partitions) == 1:
            return [Column(self.partitions[0], [key for key, _ in places], blocks, slab.bodies, slab.size)]
        found: dict[TopicPartition, tuple[list[bytes], list[bytes], list[bytes]]] = {}
        for index, (key, partition) in enumerate(places):
            column = found.setdefault(partition, ([], [], []))
            column[0].append(key)
            column[1].append(blocks if isinstance(blocks, bytes) else blocks[index])
            column[2].append(slab.bodies[index])
        return [Column(partition, *column, sum(map(len, column[2]))) for partition, column in found.items()]

    # --- keys --------------------------------------------------------------------------

    def _names_keys(self, raws: list[bytes]) -> bool:
        """Whether a message may name a key of its own."""
        return not self.is_stream and any(_HEADER_BYTES in raw for raw in raws)

    def key_of(self, slab: Slab, index: int) -> str:
        """The key of one record; that of a stream is always the routing key."""
        raw = slab.properties.raw if slab.raws is None else slab.raws[index]
        if not self.is_stream and _HEADER_BYTES in raw:
            chosen = slab.properties_of(index).neutral.headers.get(PARTITION_KEY_HEADER)
            if isinstance(chosen, str):
                return chosen
        return slab.key_of(index)

    def place(self, key: str) -> tuple[bytes, TopicPartition]:
        """A key as it stands in records, and the partition that it is in."""
        found = self._partition_of_key.get(key)
        if found is None:
            if len(self._partition_of_key) >= _KEYS_MAX:
                self._partition_of_key.clear()
            encoded = key.encode("utf-8", NAME_ENCODING_ERRORS)
            partition = self.partitions[partition_of_key(encoded, len(self.partitions))]
            found = self._partition_of_key[key] = (encoded, partition)
        return found
