"""What a log knows of idempotent producers: whose batch comes next, and which of the last ones it has already.

1. A batch of an idempotent producer has its id, its epoch and the sequence number of its first record. In one epoch
   numbers go on without gaps, and from 2^31 - 1 to 0; a new epoch begins with 0.
2. The last five batches of a producer are remembered, so that one that is sent again is answered with where it lies.
   Clients have no more than five on the way.
3. A producer that nothing is known of may begin with any number: what was known may have gone with the records.
4. The end of a transaction, a marker, is taken from its producer's epoch or a later one, and from the coordinator that
   told of an end last or a later one: one that comes late, of a coordinator that is none any more, must not end the
   transaction after it.
5. All of it can be worked out from the headers of batches and from markers; `offset` says up to where that was done.

https://cwiki.apache.org/confluence/display/KAFKA/KIP-98+-+Exactly+Once+Delivery+and+Transactional+Messaging
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from core_log.batch_header import BatchHeader
from core_log.errors import CoordinatorFenced, OutOfOrderSequence, ProducerFenced

REMEMBERED = 5
_SEQUENCES = 1 << 31
_VERSION = 2
_WITHOUT_COORDINATORS = 1
_NO_COORDINATOR = -1


class Written(NamedTuple):
    """A batch that is in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int


class ActiveProducer(NamedTuple):
    """One that is remembered."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_ms: int
    coordinator_epoch: int
    """Of the last marker; -1: there was none."""


class _Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_ms")

    def __init__(self, epoch: int, last_ms: int, coordinator_epoch: int = _NO_COORDINATOR) -> None:
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_ms = last_ms
        self.batches: deque[Written] = deque(maxlen=REMEMBERED)


class ProducerStates:
    """See the module."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def has_batch(self, producer_id: int) -> bool:
        """Whether the batch that this producer sent last is known."""
        producer = self._producers.get(producer_id)
        return producer is not None and bool(producer.batches)

    def active(self) -> Iterator[ActiveProducer]:
        """All of them."""
        for key, producer in self._producers.items():
            last_sequence = producer.batches[-1].last_sequence if producer.batches else -1
            yield ActiveProducer(key, producer.epoch, last_sequence, producer.last_ms, producer.coordinator_epoch)

    def check(self, header: BatchHeader) -> Written | None:
        """Whether a batch of an idempotent producer may be appended: None; or that it is there already.

        Raises OutOfOrderSequence, ProducerFenced.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise ProducerFenced(f"producer {header.producer_id} is in epoch {producer.epoch} already")
        first, last = header.base_sequence, _last_sequence(header)
        if header.producer_epoch > producer.epoch:
            if first != 0:
                raise OutOfOrderSequence(f"epoch {header.producer_epoch} begins with sequence {first}")
            return None
        for written in producer.batches:
            if (written.first_sequence, written.last_sequence) == (first, last):
                return written
        if producer.batches:
            expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCES
            if first != expected:
                raise OutOfOrderSequence(f"sequence {first} of producer {header.producer_id} instead of {expected}")
        return None

    def note(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """A batch of an idempotent producer is in the log."""
        producer = self._in_epoch(header, now_ms)
        next_offset = base_offset + header.last_offset_delta + 1
        producer.batches.append(Written(header.base_sequence, _last_sequence(header), base_offset, next_offset))
        self.offset = max(self.offset, next_offset)

    def check_marker(self, header: BatchHeader, coordinator_epoch: int) -> None:
        """Whether a marker may be appended. Raises ProducerFenced, CoordinatorFenced."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise ProducerFenced(f"producer {header.producer_id} is in epoch {producer.epoch} already")
        if coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                f"a coordinator in epoch {producer.coordinator_epoch} has ended a transaction of producer "
                f"{header.producer_id} already"
            )

    def note_marker(self, header: BatchHeader, coordinator_epoch: int, base_offset: int, now_ms: int) -> None:
        """A marker is in the log."""
        self._in_epoch(header, now_ms).coordinator_epoch = coordinator_epoch
        self.offset = max(self.offset, base_offset + header.last_offset_delta + 1)

    def _in_epoch(self, header: BatchHeader, now_ms: int) -> _Producer:
        """The producer of a batch, whose epoch that is from now on."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            ended_by = _NO_COORDINATOR if producer is None else producer.coordinator_epoch
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, now_ms, ended_by)
        producer.last_ms = now_ms
        return producer

    def forget(self, before_ms: int) -> None:
        """Producers that have sent nothing since then."""
        for producer_id in [key for key, producer in self._producers.items() if producer.last_ms < before_ms]:
            del self._producers[producer_id]

    def encode(self, epoch: int) -> bytes:
        """For a file; `epoch` is the log's at `offset`."""
        producers = [
            (key, producer.epoch, producer.last_ms, list(producer.batches), producer.coordinator_epoch)
            for key, producer in self._producers.items()
        ]
        return msgpack.packb((_VERSION, self.offset, epoch, producers))  # type: ignore[no-any-return]

    @classmethod
    def decode(cls, content: bytes) -> tuple[ProducerStates, int]:
        """The inverse of `encode`. Raises ValueError."""
        try:
            fields: Any = msgpack.unpackb(content)
            version, offset, epoch, producers = fields
            if version not in (_VERSION, _WITHOUT_COORDINATORS):
                raise ValueError(f"version {version} of producer states")
            found = cls(offset)
            for key, producer_epoch, last_ms, batches, *ended_by in producers:
                producer = found._producers[key] = _Producer(producer_epoch, last_ms, *ended_by)
                producer.batches.extend(Written(*batch) for batch in batches)
        except (TypeError, msgpack.UnpackException) as error:
            raise ValueError(f"no producer states: {error}") from None
        return found, epoch


def follows(header: BatchHeader, before: BatchHeader) -> bool:
    """Whether a batch is the next one of the producer of the one before it, or both are of none."""
    if header.producer_id < 0 or before.producer_id < 0:
        return header.producer_id < 0 and before.producer_id < 0
    expected = (_last_sequence(before) + 1) % _SEQUENCES
    return (header.producer_id, header.producer_epoch, header.base_sequence) == (
        before.producer_id,
        before.producer_epoch,
        expected,
    )


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES
