"""A producer and a consumer over `BlockingClient`, for scripts: everything happens in the caller's thread.

1. The producer sends when a batch is full, when `flush` is called and at the end of its block; each time it waits for
   the answer, so order is kept without further ado. Refused batches and lost connections are tried again until
   `delivery_timeout_ms`, and are stored once all the same, as with the trio client.
2. The consumer asks for more only when it has handed out what it had.
3. Both look every `metadata_max_age_ms` whether topics have more partitions: records with a key go by the new number
   then, and a topic that was assigned as a whole is read as a whole, its new partitions from their beginning.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal, Self

from core_log.batch_header import parse_header, with_producer
from core_log.wall_clock import wall_clock_ms
from protocols.native import wire
from protocols.native.clients.blocking import BlockingClient
from protocols.native.clients.failed_sends import FailedSink, tell_failed
from protocols.native.clients.hooks import (
    ConsumerInterceptor,
    Deserializer,
    Partitioner,
    ProducerHooks,
    ProducerInterceptor,
    ProducerRecord,
    Serializer,
    on_records_of,
)
from protocols.native.clients.partitioner import KeyPartitions
from protocols.native.clients.records import (
    BatchDraft,
    ConsumerRecord,
    Draft,
    Headers,
    RecordMetadata,
    as_bytes,
    batch_records,
    compression_of,
    offset_after,
    size_of,
    split_batches,
)
from protocols.native.clients.sequences import Sequences
from protocols.native.clients.truncation import LastBatch, cut_at, last_of
from protocols.native.errors import (
    ConnectionLost,
    DeliveryTimedOut,
    LogTruncated,
    MillraceError,
    OffsetOutOfRange,
    SequenceOutOfOrder,
    UnknownPartition,
    error_from_wire,
)

logger = logging.getLogger(__name__)

_RETRY_BACKOFF_S = 0.1


class _Closing:
    """A client of its own, closed at the end of the block."""

    def __init__(
        self,
        server: str | Sequence[str],
        timeout_s: float,
        metadata_max_age_ms: int,
        credentials: tuple[str, str] | None,
        tls: SSLContext | None,
    ) -> None:
        self.client = BlockingClient(server, timeout_s=timeout_s, credentials=credentials, tls=tls)
        self._metadata_max_age_s = metadata_max_age_ms / 1000
        self._looked_s = time.monotonic()

    def _grown(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions these have, where it is time to look and they can be asked about."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._metadata_max_age_s:
            return {}
        self._looked_s = now_s
        try:
            return {topic: len(numbers) for topic, numbers in self.client.metadata(list(topics)).items()}
        except MillraceError:
            return {}  # whoever needs them finds out what is wrong

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()


class BlockingProducer(_Closing):
    """`with BlockingProducer("host:port") as producer`; see the module. The parameters are those of `Producer`."""

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        acks: Literal["all", 0, 1, -1] = "all",
        batch_bytes: int = 256 << 10,
        compression: str | None = None,
        delivery_timeout_ms: int = 120_000,
        idempotent: bool = True,
        partitioner: Partitioner | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        failed_sink: FailedSink | None = None,
        metadata_max_age_ms: int = 10_000,
        timeout_s: float = 30,
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        super().__init__(server, timeout_s, metadata_max_age_ms, credentials, tls)
        self._hooks = ProducerHooks(partitioner, key_serializer, value_serializer, interceptors)
        if partitioner or key_serializer or value_serializer or interceptors:
            self.send = self._send_with_hooks  # type: ignore[method-assign]
        self._failed_sink = failed_sink
        self._acks = wire.ACKS_ALL if acks == "all" else acks
        self._idempotent = idempotent and self._acks != wire.ACKS_NONE
        self._producer_id: int | None = None
        self._sequences: dict[tuple[str, int], Sequences] = {}
        self._transactional_id: str | None = None
        self._attributes = 0
        self._batch_bytes = batch_bytes
        self._compression = compression_of(compression)
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._timeout_ms = int(timeout_s * 1000)
        self._topics: dict[str, KeyPartitions] = {}
        self._sticky: dict[str, int] = {}
        self._drafts: dict[tuple[str, int], BatchDraft] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.client.close()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Take a record; it is stored when `flush` has returned. Raises what `flush` does, and UnknownPartition."""
        value = None if value is None else as_bytes(value)
        key = None if key is None else as_bytes(key)
        known = self._topics.get(topic) or self._learn(topic)
        if partition is not None:
            if not 0 <= partition < known.partitions:
                raise UnknownPartition(f"topic {topic!r} has no partition {partition}, but {known.partitions}")
        elif key is not None:
            partition = known.partition(key)
        else:
            partition = self._sticky[topic]
        size = size_of(value, key, headers)
        draft = self._drafts.get((topic, partition))
        if draft is not None and draft.size + size > self._batch_bytes:
            self.flush()
            draft = None
        if draft is None:
            draft = self._drafts[topic, partition] = BatchDraft(wall_clock_ms())
        draft.add(value, key, headers, timestamp_ms, size)

    def _learn(self, topic: str) -> KeyPartitions:
        count = len(self.client.metadata([topic], create_missing=True)[topic])
        self._sticky[topic] = random.randrange(count)
        known = self._topics[topic] = KeyPartitions(count)
        return known

    def _send_with_hooks(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        hooks = self._hooks
        record = hooks.outgoing(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
        topic, value, key = record.topic, record.value, record.key
        try:
            known = self._topics.get(topic) or self._learn(topic)
            if record.partition is None and hooks.partitioner is not None:
                record.partition = hooks.partitioner(topic, key, value, known.partitions)
            if record.partition is not None and not 0 <= record.partition < known.partitions:
                raise UnknownPartition(f"topic {topic!r} has no partition {record.partition}, but {known.partitions}")
        except MillraceError as error:
            hooks.tell([None], error)
            raise
        BlockingProducer.send(self, topic, value, key, record.headers, record.partition, record.timestamp_ms)

    def _sequences_of(self, key: tuple[str, int]) -> Sequences:
        found = self._sequences.get(key)
        if found is None:
            found = self._sequences[key] = self._new_sequences()
        return found

    def _new_sequences(self) -> Sequences:
        if self._producer_id is None:
            self._producer_id = self.client.init_producer() if self._idempotent else -1
        return Sequences(self._producer_id)

    def _before_sending(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Batches for these are about to be sent."""

    def _renumbered(self, topic: str, partition: int, batch: bytes) -> tuple[str, int, bytes]:
        sequences = self._sequences[topic, partition]
        sequences.renew()
        return topic, partition, with_producer(batch, sequences.stamp(parse_header(batch).last_offset_delta + 1))

    def flush(self) -> None:
        """Send what was taken and wait for the answer.

        Raises DeliveryTimedOut, or the error of a batch that cannot be stored.
        """
        for topic, count in self._grown(self._topics).items():
            if count > self._topics[topic].partitions:
                self._topics[topic] = KeyPartitions(count)
        drafts, self._drafts = self._drafts, {}
        self._send(drafts)
        for topic, known in self._topics.items():
            self._sticky[topic] = (self._sticky[topic] + 1) % known.partitions

    def send_drafts(self, drafts: Mapping[tuple[str, int], Draft]) -> None:
        """Send batches by topic and partition, behind what was taken before, and wait for the answer.

        Raises what `flush` does.
        """
        if self._drafts:
            self.flush()
        self._send(drafts)

    def _send(self, drafts: Mapping[tuple[str, int], Draft]) -> None:
        if not self._hooks.interceptors:
            self._store(drafts, {})
            return
        stored: dict[tuple[str, int], int] = {}
        failure: MillraceError | None = None
        try:
            self._store(drafts, stored)
        except MillraceError as error:
            failure = error
            raise
        finally:
            for (topic, partition), draft in drafts.items():
                offset = stored.get((topic, partition))
                if not isinstance(draft, BatchDraft):
                    continue
                if offset is None:
                    self._hooks.tell([None] * draft.count, failure)
                    continue
                places = [
                    RecordMetadata(partition, -1 if offset < 0 else offset + index, draft.timestamp_of(index))
                    for index in range(draft.count)
                ]
                self._hooks.tell(places, None)

    def _store(self, drafts: Mapping[tuple[str, int], Draft], stored: dict[tuple[str, int], int]) -> None:
        """Send, and note at which offset what was stored; what was not is told of."""
        built: dict[tuple[str, int], bytes] = {}
        refused: dict[tuple[str, int], MillraceError] = {}
        try:
            self._before_sending(drafts)
            for key, draft in drafts.items():
                numbers = self._sequences_of(key).stamp(draft.count)
                built[key] = draft.build(self._compression, numbers, self._attributes)
            self._deliver([(*key, data) for key, data in built.items()], stored, refused)
        except MillraceError as error:
            for key, draft in drafts.items():
                if key not in stored and isinstance(draft, BatchDraft):
                    tell_failed(*key, built.get(key, draft), refused.get(key, error), self._failed_sink)
            raise

    def _deliver(
        self,
        waiting: list[tuple[str, int, bytes]],
        stored: dict[tuple[str, int], int],
        refused: dict[tuple[str, int], MillraceError],
    ) -> None:
        deadline = time.monotonic() + self._delivery_timeout_s
        failure: MillraceError | None = None
        while waiting:
            last: MillraceError
            try:
                results = self.client.try_produce(
                    waiting, acks=self._acks, timeout_ms=self._timeout_ms, transactional_id=self._transactional_id
                )
            except MillraceError as error:
                if not error.retriable:
                    raise
                last = error
            else:
                again = []
                for batch, (problem, offset) in zip(waiting, results):
                    if problem is None:
                        stored[batch[:2]] = offset
                        continue
                    last = error_from_wire(problem)
                    if isinstance(last, SequenceOutOfOrder):
                        again.append(self._renumbered(*batch))
                    elif last.retriable:
                        again.append(batch)
                    else:
                        failure = refused[batch[:2]] = last
                waiting = again
            if waiting:
                if time.monotonic() > deadline:
                    raise DeliveryTimedOut(f"not stored: {last}") from last
                # Rounds are of a connection: a new one may send again what the old one was refused.
                self.client.close()
                time.sleep(_RETRY_BACKOFF_S)
        if failure is not None:
            raise failure


class BlockingConsumer(_Closing):
    """`with BlockingConsumer("host:port", group="g") as consumer`; the parameters are those of `Consumer`."""

    def __init__(
        self,
        server: str | Sequence[str],
        group: str | None = None,
        *,
        auto_offset_reset: Literal["earliest", "latest", "error"] = "latest",
        fetch_max_bytes: int = 16 << 20,
        partition_max_bytes: int = 1 << 20,
        metadata_max_age_ms: int = 10_000,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        timeout_s: float = 30,
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        super().__init__(server, timeout_s, metadata_max_age_ms, credentials, tls)
        self._on_records = on_records_of(key_deserializer, value_deserializer, interceptors)
        self._interceptors = list(interceptors)
        self._group = group
        self._reset: Literal["earliest", "latest", "error"] = auto_offset_reset
        self._fetch_max_bytes = fetch_max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._whole: set[str] = set()
        self._epochs: dict[tuple[str, int], int] = {}
        """The leader epochs in which what was read is known to be in the logs."""
        self._last: dict[tuple[str, int], LastBatch] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._fetch_offsets: dict[tuple[str, int], int] = {}
        self._records: deque[ConsumerRecord] = deque()

    def assign(self, topics: str | Iterable[str | tuple[str, int]]) -> None:
        """Read these topics or (topic, partition)s, from where the group committed or as `auto_offset_reset` says."""
        partitions: list[tuple[str, int]] = []
        self._whole = set()
        for item in [topics] if isinstance(topics, str) else topics:
            if isinstance(item, str):
                partitions += [(item, number) for number in self.client.metadata([item])[item]]
                self._whole.add(item)
            else:
                partitions.append(item)
        committed = self._committed(partitions)
        self._positions = {key: committed[key] if key in committed else self._start(key) for key in partitions}
        self._fetch_offsets = dict(self._positions)
        self._last.clear()
        self._records.clear()

    def _committed(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return self.client.committed_offsets(self._group, partitions) if self._group is not None else {}

    def _take_up(self) -> None:
        """Read the partitions that topics got."""
        known = ((topic, number) for topic, count in self._grown(self._whole).items() for number in range(count))
        new = [key for key in known if key not in self._positions]
        committed = self._committed(new) if new else {}
        for key in new:
            start = committed[key] if key in committed else self.client.list_offsets(*key, "earliest") or 0
            self._positions[key] = self._fetch_offsets[key] = start

    def _start(self, partition: tuple[str, int]) -> int:
        if self._reset == "error":
            raise OffsetOutOfRange(f"no offset to begin at in {partition}")
        return self.client.list_offsets(*partition, self._reset) or 0

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`. Raises KeyError when the partition is not assigned."""
        key = (topic, partition)
        if key not in self._positions:
            raise KeyError(key)
        self._move(key, offset)

    def _move(self, key: tuple[str, int], offset: int) -> None:
        self._positions[key] = self._fetch_offsets[key] = offset
        self._last.pop(key, None)
        self._records = deque(record for record in self._records if (record.topic, record.partition) != key)

    def fetch(self, max_records: int = 500, *, timeout_ms: int = 500) -> list[ConsumerRecord]:
        """Up to `max_records` records; none when there are none within `timeout_ms`."""
        if not self._records and self._positions:
            self._fill(timeout_ms)
        taken = [self._records.popleft() for _ in range(min(max_records, len(self._records)))]
        for record in taken:
            self._positions[record.topic, record.partition] = record.offset + 1
        return taken

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """All records, for ever."""
        while True:
            yield from self.fetch(1, timeout_ms=5000)

    def commit(self) -> None:
        """Store, durably, how far the records handed out go. Raises ValueError without a group."""
        if self._group is None:
            raise ValueError("a consumer without a group cannot commit")
        self.client.commit_offsets(self._group, self._positions)
        for interceptor in self._interceptors:
            interceptor.on_commit(dict(self._positions))

    def _fill(self, timeout_ms: int) -> None:
        try:
            self._take_up()
            keys = self._validated()
            entries = [
                wire.FetchEntry(*key, self._fetch_offsets[key], self._partition_max_bytes, self._epochs[key])
                for key in keys
            ]
            if not entries:
                time.sleep(min(_RETRY_BACKOFF_S, timeout_ms / 1000))
                return
            results = self.client.fetch_many(entries, self._fetch_max_bytes, timeout_ms, 1)
        except ConnectionLost:
            time.sleep(min(_RETRY_BACKOFF_S, timeout_ms / 1000))
            return
        for key, fetched in zip(keys, results):
            if fetched.error is not None:
                error = error_from_wire(fetched.error)
                if error.retriable:
                    continue  # the next fetch may find another leader
                if not isinstance(error, OffsetOutOfRange) or self._reset == "error":
                    raise error
                self._move(key, self._start(key))
                continue
            batches = split_batches(fetched.records)
            for batch in batches:
                records = batch_records(*key, batch, self._fetch_offsets[key])
                self._records += records if self._on_records is None or not records else self._on_records(records)
                self._fetch_offsets[key] = offset_after(batch)
            if batches:
                self._last[key] = last_of(batches)

    def _validated(self) -> list[tuple[str, int]]:
        """The partitions that may be read on; see `Consumer`. Raises LogTruncated, with reset "error"."""
        keys = list(self._fetch_offsets)
        known = dict(zip(keys, self.client.leader_epochs(keys)))
        doubtful = [
            key for key in keys if key in self._last and known[key] not in (self._epochs.get(key), wire.NO_EPOCH)
        ]
        self._epochs |= {key: epoch for key, epoch in known.items() if key not in doubtful}
        if not doubtful:
            return keys
        asked = [(*key, known[key], self._last[key].epoch) for key in doubtful]
        for key, (error, epoch, end_offset) in zip(doubtful, self.client.offsets_for_epochs(asked)):
            if error is not None:
                keys.remove(key)
                if not error[1]:
                    raise error_from_wire(error)
                continue
            offset, read_to = cut_at(self._last[key], epoch, end_offset), self._positions[key]
            self._epochs[key] = known[key]
            if offset is None:
                continue
            self._move(key, min(offset, read_to))
            if read_to > offset:
                truncated = LogTruncated(*key, offset, read_to)
                if self._reset == "error":
                    raise truncated
                logger.warning("%s; going on at %d", truncated, offset)
        return keys
