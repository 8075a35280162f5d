"""A producer over `BlockingClient`, for scripts: everything happens in the caller's thread.

It sends when a batch is full, when `flush` is called and at the end of its block; each time it waits for the answer, so
order is kept without further ado. Refused batches and lost connections are tried again until `delivery_timeout_ms`, and
are stored once all the same, as with the trio client. What an interrupted call (Ctrl-C) had under way is sent first by
the next one, under the numbers that it had.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from ssl import SSLContext
from types import TracebackType
from typing import Any

from core_log.batch_header import parse_header, with_producer
from core_log.wall_clock import wall_clock_ms
from protocols.native import wire
from protocols.native.clients.blocking import KnownTopic
from protocols.native.clients.blocking_user import ClientUser
from protocols.native.clients.failed_sends import FailedSink, tell_failed
from protocols.native.clients.forks import tell_when_forked
from protocols.native.clients.hooks import Partitioner, ProducerHooks, ProducerInterceptor, ProducerRecord, Serializer
from protocols.native.clients.partitioner import KeyPartitions
from protocols.native.clients.records import (
    Acks,
    Draft,
    Headers,
    RecordMetadata,
    SentBatch,
    acks_of,
    as_bytes,
    as_headers,
    as_time,
    compression_of,
    size_of,
)
from protocols.native.clients.sequences import Sequences
from protocols.native.clients.topic_ids import TopicIds
from protocols.native.errors import (
    ConnectionLost,
    DeliveryTimedOut,
    MillraceError,
    SequenceOutOfOrder,
    UnknownPartition,
    error_from_wire,
)

_RETRY_BACKOFF_S = 0.1


class BlockingDelivery:
    """The fate of one record."""

    __slots__ = ("_draft", "_index", "_partition", "_producer")

    def __init__(self, producer: BlockingProducer, draft: SentBatch, index: int, partition: int) -> None:
        self._producer = producer
        self._draft = draft
        self._index = index
        self._partition = partition

    @property
    def done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        return self._draft.finished

    def result(self) -> RecordMetadata:
        """Where the record lies. Sends all that the producer has taken, if the record was not sent yet.

        Raises the error that kept it from being stored. ConnectionLost if nobody will send it any more: it was taken
        before the process forked.
        """
        draft = self._draft
        if not draft.finished:
            self._producer._flush_for(draft)
        if draft.error is not None:
            raise draft.error
        if not draft.finished:
            raise ConnectionLost("the record is not this producer's to send any more")
        return draft.metadata(self._partition, self._index)


class BlockingProducer(ClientUser):
    """`with BlockingProducer("host:port") as producer`; see the module. The parameters are those of `Producer`, and of
    `BlockingClient`. A broker that stands still is waited for until `timeout_s` after `delivery_timeout_ms`, at most.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        acks: Acks = "all",
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
        patience_s: float = 0,
    ) -> None:
        super().__init__(server, timeout_s, metadata_max_age_ms, credentials, tls, patience_s)
        self._hooks = ProducerHooks(partitioner, key_serializer, value_serializer, interceptors)
        if partitioner or key_serializer or value_serializer or interceptors:
            self.send = self._send_with_hooks  # type: ignore[method-assign]
        self._failed_sink = failed_sink
        self._acks = acks_of(acks)
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
        self._ids = TopicIds()
        self._sticky: dict[str, int] = {}
        self._drafts: dict[tuple[str, int], SentBatch] = {}
        self._left: tuple[dict[tuple[str, int], Draft], dict[tuple[str, int], bytes]] = {}, {}
        """What is under way, or was when a call was interrupted, and the batches that were made of it. Nothing is taken
        out before it is known what became of it: a signal may come between any two steps.
        """
        self._untold: MillraceError | None = None
        tell_when_forked(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.forked()
        tell_when_forked(self)

    def forked(self) -> None:
        """See `forks.py`: what was taken is the parent's to send."""
        self._drafts, self._left, self._sequences, self._producer_id = {}, ({}, {}), {}, None
        self._untold = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
            else:
                self._give_up()
        finally:
            self.client.close()

    def __del__(self) -> None:
        if getattr(self, "_drafts", None) or getattr(self, "_left", ({},))[0]:
            self._give_up()  # the program ends, or has let go of it, without `flush`

    def _give_up(self) -> None:
        """Tell of what was taken and is not sent any more."""
        closed = ConnectionLost("the producer was closed")
        (left, built), self._left = self._left, ({}, {})
        drafts, self._drafts = self._drafts, {}
        for key, draft in (*left.items(), *drafts.items()):
            if isinstance(draft, SentBatch):
                draft.finish(-1, closed)
                self._hooks.tell([None] * draft.count, closed)
                sent = built.get(key, draft) if draft is left.get(key) else draft
                tell_failed(*key, sent, closed, self._failed_sink)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BlockingDelivery:
        """Take a record; it is stored when `flush` has returned, or `result()` of what this returns, which says where.
        Raises what `flush` does, and UnknownPartition; TypeError and ValueError for what cannot be stored.
        """
        value = None if value is None else as_bytes(value)
        key = None if key is None else as_bytes(key)
        headers = None if headers is None else as_headers(headers)
        timestamp_ms = None if timestamp_ms is None else as_time(timestamp_ms)
        known = self._topics.get(topic) or self._learn(topic)
        if partition is not None:
            partition = index(partition)
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
            draft = self._drafts[topic, partition] = SentBatch(wall_clock_ms())
        delivery = BlockingDelivery(self, draft, draft.count, partition)
        draft.add(value, key, headers, timestamp_ms, size)  # last: who is interrupted before it has sent nothing
        return delivery

    def _learn(self, topic: str) -> KeyPartitions:
        return self._know(topic, self.client.topics([topic], create_missing=True)[topic])

    def _know(self, topic: str, found: KnownTopic) -> KeyPartitions:
        count = len(found.partitions)
        self._sticky[topic] = random.randrange(count)
        known = self._topics[topic] = KeyPartitions(count)
        self._ids.note(topic, found.id)
        return known

    def _send_with_hooks(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BlockingDelivery:
        hooks = self._hooks
        record = hooks.outgoing(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
        topic, value, key = record.topic, record.value, record.key
        try:
            known = self._topics.get(topic) or self._learn(topic)
            if record.partition is None and hooks.partitioner is not None:
                record.partition = hooks.partitioner(topic, key, value, known.partitions)
            if record.partition is not None and not 0 <= record.partition < known.partitions:
                raise UnknownPartition(f"topic {topic!r} has no partition {record.partition}, but {known.partitions}")
            return BlockingProducer.send(self, topic, value, key, record.headers, record.partition, record.timestamp_ms)
        except MillraceError as error:  # also of records before this one, for which there has to be room
            hooks.tell([None], error)
            raise

    def _sequences_of(self, key: tuple[str, int]) -> Sequences:
        found = self._sequences.get(key)
        if found is None:
            found = self._sequences[key] = self._new_sequences()
        return found

    def _new_sequences(self) -> Sequences:
        return Sequences(-1 if self._producer_id is None else self._producer_id)

    def _take_producer_id(self, deadline: float) -> None:
        while self._producer_id is None and self._idempotent:
            try:
                self._producer_id = self.client.init_producer()
            except MillraceError as error:
                if not error.retriable:
                    raise
                self._pause(error, deadline)

    def _pause(self, error: MillraceError, deadline: float) -> None:
        """Before what was refused or lost is tried again. Raises DeliveryTimedOut."""
        if time.monotonic() > deadline:
            raise DeliveryTimedOut(f"not stored: {error}") from error
        # Rounds are of a connection: a new one may send again what the old one was refused.
        self.client.close()
        time.sleep(_RETRY_BACKOFF_S)

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
        for topic, found in self._looked_up(self._topics).items():
            if self._ids.is_former(topic, found.id):
                continue
            # Fewer are those of a topic that was made again; else who says so is behind.
            if len(found.partitions) > self._topics[topic].partitions or self._ids.is_another(topic, found.id):
                self._know(topic, found)
        self._send_left()
        self._left, self._drafts = (self._drafts, {}), {}  # type: ignore[assignment]
        self._send_left()
        for topic, known in self._topics.items():
            self._sticky[topic] = (self._sticky[topic] + 1) % known.partitions
        untold, self._untold = self._untold, None
        if untold is not None:
            raise untold

    def _flush_for(self, draft: SentBatch) -> None:
        """`flush`, where the error of other records is left to who calls that next."""
        try:
            self.flush()
        except MillraceError as error:
            if not draft.finished:
                raise
            if draft.error is None:
                self._untold = error

    def send_drafts(self, drafts: Mapping[tuple[str, int], Draft]) -> None:
        """Send batches by topic and partition, behind what was taken before, and wait for the answer.

        Raises what `flush` does.
        """
        if self._drafts or self._left[0]:
            self.flush()
        self._left = dict(drafts), {}
        self._send_left()

    def _send_left(self) -> None:
        if self._left[0]:
            self._send(*self._left)

    def _send(self, drafts: Mapping[tuple[str, int], Draft], built: dict[tuple[str, int], bytes]) -> None:
        """Send what is under way; some batches may be `built` already."""
        stored: dict[tuple[str, int], int] = {}
        try:
            self._store(drafts, built, stored)
        except MillraceError as error:
            _finish(drafts, stored, error)
            self._left = {}, {}
            self._tell(drafts)
            raise
        except BaseException:  # what a signal's handler raised: Ctrl-C, SystemExit, a time that is up
            sent = {key: drafts[key] for key in stored}
            _finish(sent, stored, None)
            left = {key: draft for key, draft in drafts.items() if key not in stored}
            self._left = left, {key: built[key] for key in left if key in built}
            self._tell(sent)
            raise
        _finish(drafts, stored, None)
        self._left = {}, {}
        self._tell(drafts)

    def _tell(self, drafts: Mapping[tuple[str, int], Draft]) -> None:
        if not self._hooks.interceptors:
            return
        for (_, partition), draft in drafts.items():
            if isinstance(draft, SentBatch):
                places = [None if draft.error else draft.metadata(partition, index) for index in range(draft.count)]
                self._hooks.tell(places, draft.error)

    def _store(
        self,
        drafts: Mapping[tuple[str, int], Draft],
        built: dict[tuple[str, int], bytes],
        stored: dict[tuple[str, int], int],
    ) -> None:
        """Send, and note at which offset what was stored; what was not is told of."""
        refused: dict[tuple[str, int], MillraceError] = {}
        deadline = time.monotonic() + self._delivery_timeout_s
        try:
            self._take_producer_id(deadline)
            self._before_sending(drafts)
            for key, draft in drafts.items():
                if key not in built:
                    numbers = self._sequences_of(key).stamp(draft.count)
                    built[key] = draft.build(self._compression, numbers, self._attributes)
            self._deliver(built, stored, refused, deadline)
        except MillraceError as error:
            for key, draft in drafts.items():
                if key not in stored and isinstance(draft, SentBatch):
                    tell_failed(*key, built.get(key, draft), refused.get(key, error), self._failed_sink)
            raise

    def _deliver(
        self,
        built: dict[tuple[str, int], bytes],
        stored: dict[tuple[str, int], int],
        refused: dict[tuple[str, int], MillraceError],
        deadline: float,
    ) -> None:
        failure: MillraceError | None = None
        waiting = [(*key, data) for key, data in built.items()]
        while waiting:
            last: MillraceError
            left_ms = max(int((deadline - time.monotonic()) * 1000), 1)
            try:
                results = self.client.try_produce(
                    waiting,
                    acks=self._acks,
                    timeout_ms=min(self._timeout_ms, left_ms),
                    transactional_id=self._transactional_id,
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
                        renumbered = self._renumbered(*batch)
                        built[batch[:2]] = renumbered[2]
                        again.append(renumbered)
                    elif last.retriable:
                        again.append(batch)
                    else:
                        failure = refused[batch[:2]] = last
                        if isinstance(last, UnknownPartition):  # the topic was made again, with fewer
                            self._looked_s = -math.inf
                waiting = again
            if waiting:
                self._pause(last, deadline)
        if failure is not None:
            raise failure


def _finish(
    drafts: Mapping[tuple[str, int], Draft], stored: Mapping[tuple[str, int], int], failure: MillraceError | None
) -> None:
    for key, draft in drafts.items():
        if isinstance(draft, SentBatch):
            if key in stored:
                draft.finish(stored[key], None)
            else:
                draft.finish(-1, failure)
