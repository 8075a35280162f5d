"""What a producer has taken and not had answered: batches, by topic and partition, and the fate of their records.

Batches of an idempotent producer are numbered when they are built, partition by partition (`sequences.py`).
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from core_log.batch_header import with_producer
from protocols.native.clients.either_loop import EventOnEitherLoop
from protocols.native.clients.link import Link
from protocols.native.clients.partitioner import KeyPartitions
from protocols.native.clients.records import RecordMetadata, SentBatch
from protocols.native.clients.sequences import Sequences
from protocols.native.errors import MillraceError

logger = logging.getLogger("protocols.native.clients.producer")

OnDelivered = Callable[[RecordMetadata | None, MillraceError | None], None]


class Batch(SentBatch):
    """A batch that tasks wait for."""

    __slots__ = ("_done", "created_at", "data", "observed", "sequence", "watchers")

    def __init__(self, timestamp_ms: int, created_at: float, sequence: int) -> None:
        super().__init__(timestamp_ms)
        self.created_at = created_at
        self.sequence = sequence
        self.data: bytes | None = None
        self.observed = False
        """Somebody was told of the error."""
        self.watchers: list[tuple[int, int, OnDelivered]] | None = None
        """(partition, index, whom to tell) of records with interceptors."""
        self._done: EventOnEitherLoop | None = None

    def finish(self, base_offset: int, error: MillraceError | None) -> None:
        super().finish(base_offset, error)
        self.data = None
        if self.watchers is not None:
            self._tell(self.watchers)
        if self._done is not None:
            self._done.set()

    def _tell(self, watchers: list[tuple[int, int, OnDelivered]]) -> None:
        for partition, index, on_delivered in watchers:
            try:
                on_delivered(None if self.error is not None else self.metadata(partition, index), self.error)
            except Exception:
                logger.exception("an interceptor failed")

    async def wait(self) -> None:
        if not self.finished:
            if self._done is None:
                self._done = EventOnEitherLoop()
            await self._done.wait()


class Delivery:
    """The fate of one record: await it for its `RecordMetadata`, or the error that kept it from being stored."""

    __slots__ = ("_batch", "_index", "_partition")

    def __init__(self, batch: Batch, index: int, partition: int) -> None:
        self._batch = batch
        self._index = index
        self._partition = partition

    def watch(self, on_delivered: OnDelivered) -> None:
        """Have a function called with where the record lies, or the error, before anybody else is told."""
        watchers = self._batch.watchers
        if watchers is None:
            watchers = self._batch.watchers = []
        watchers.append((self._partition, self._index, on_delivered))

    @property
    def done(self) -> bool:
        """Whether awaiting it returns at once."""
        return self._batch.finished

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        batch = self._batch
        if not batch.finished:
            yield from batch.wait().__await__()
        if batch.error is not None:
            batch.observed = True
            raise batch.error
        return batch.metadata(self._partition, self._index)


class Waiting:
    """What waits for one partition, in order: refused batches, full ones, the open one; and what is under way."""

    __slots__ = (
        "failed", "in_flight", "index", "link", "open", "ready", "recovering", "refusals", "refused_epoch", "renumber",
        "resume_at", "round", "sequences", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, index: int, producer_id: int, epoch: int = 0) -> None:
        """`producer_id` -1: its batches have no numbers."""
        self.topic = topic
        self.index = index
        self.sequences = Sequences(producer_id, epoch)
        self.renumber = False
        """A batch is missing before one that was refused."""
        self.open: Batch | None = None
        self.ready: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.failed: list[Batch] = []
        self.recovering = False
        self.resume_at = 0.0
        self.refusals = self.refused_epoch = 0
        """How often it was tried in vain since a broker said that it does not lead, and the epoch known at the last."""
        self.round = 0
        self.link: Link | None = None
        """By which what is under way was sent."""

    def put_back(self) -> None:
        """What failed is to be sent again, in its old order, before all else."""
        self.failed.sort(key=lambda failed: failed.sequence)
        self.ready.extendleft(reversed(self.failed))
        self.failed.clear()
        self.round += 1
        if self.renumber:
            self._renumber()

    def _renumber(self) -> None:
        """What was refused as a batch before it is missing is not in the log, nor is anything behind it."""
        self.renumber = False
        self.sequences.renew()
        for batch in self.ready:
            if batch.data is not None:
                batch.data = with_producer(batch.data, self.sequences.stamp(batch.count))

    def unsent(self) -> list[Batch]:
        """Take out all that is not under way."""
        found = [*self.failed, *self.ready, *([self.open] if self.open is not None else [])]
        self.failed.clear()
        self.ready.clear()
        self.open = None
        self.recovering = bool(self.in_flight) and self.recovering
        return found

    def batches(self) -> list[Batch]:
        """All that is not finished."""
        rest = [self.open] if self.open is not None else []
        return [*self.in_flight, *self.failed, *self.ready, *rest]


class TopicWaiting:
    """The partitions of a topic, and where records without a key go now."""

    __slots__ = ("_epoch", "_producer_id", "keys", "partitions", "sticky", "sticky_bytes_left")

    def __init__(self, name: str, count: int, producer_id: int, epoch: int = 0) -> None:
        self._producer_id = producer_id
        self._epoch = epoch
        self.partitions = [Waiting(name, index, producer_id, epoch) for index in range(count)]
        self.keys = KeyPartitions(count)
        self.sticky = self.partitions[random.randrange(count)]
        self.sticky_bytes_left = 0

    def resize(self, count: int) -> None:
        """It has so many partitions now: what follows goes by their number."""
        known = len(self.partitions)
        if count == known:
            return
        name = self.partitions[0].topic
        del self.partitions[count:]
        self.partitions += [Waiting(name, index, self._producer_id, self._epoch) for index in range(known, count)]
        self.keys = KeyPartitions(count)
        if self.sticky.index >= count:
            self.sticky = self.partitions[0]

    def number_anew(self, producer_id: int, epoch: int) -> None:
        """The numbers of all partitions begin anew, in this epoch."""
        self._producer_id, self._epoch = producer_id, epoch
        for waiting in self.partitions:
            waiting.sequences = Sequences(producer_id, epoch)

    def move_on(self, batch_bytes: int) -> None:
        """The next `batch_bytes` of records without a key go to the next partition."""
        self.sticky = self.partitions[(self.sticky.index + 1) % len(self.partitions)]
        self.sticky_bytes_left = batch_bytes
