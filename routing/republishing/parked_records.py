"""What takes records out of the queue in which they wait, and appends them to their topic.

1. Each body of such a queue is a batch of one record, its routing key the number of the partition that it is for.
2. A record is settled in its queue when it is committed in its log: a crash in between appends it twice, none is lost.
3. `Releaser` appends what the queue gives out at once: what is due. `GroupReleaser` appends no more than a group is to
   have before itself, so that what comes later may still overtake. How far the group has come is looked at each 50 ms,
   while it is less than half of that ahead. What was appended before this process, or by another, is not counted.
4. What a partition does not take now is tried again later, with what is behind it there; others do not wait for that,
   as long as it is less than is given out at once.
5. What is larger than the topic takes by now is a dead letter (`TOPIC.dlq`), and holds up nobody.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import trio

from core_log.errors import BatchTooLarge, LogError
from core_log.partition_log import PartitionLog
from core_log.record_batch import iterate_records
from routing.errors import BrokerError, StorageUnavailable
from routing.message import Slab
from routing.property_editors import NEUTRAL
from routing.queues.packed_ranges import pack, unpack, without
from routing.republishing.dead_letter_topics import SUFFIX, bury
from routing.session import Consumer, Outcome, Session
from routing.topics.single_records import append_anywhere
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition

if TYPE_CHECKING:
    from routing.broker import Broker

logger = logging.getLogger(__name__)

FOLLOW_S = 0.05
_RETRY_S = 1.0
_PREFETCH = 1000


class Releaser:
    """The consumer of a queue of a topic, and the sink of its session."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.gone = False
        self._consumer: Consumer | None = None
        self._session: Session = broker.session(self, protocol=NEUTRAL, owner=self)

    async def begin(self, queue: str) -> None:
        """Consume. Raises BrokerError."""
        self._session.set_prefetch(_PREFETCH, per_session=False)
        try:
            self._consumer = await self._session.consume(queue, tag="records", no_ack=False)
        except BaseException:
            self.cancelled(None)
            raise

    # --- the sink ----------------------------------------------------------------------

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """See `DeliverySink`."""
        topic: Topic | None = self._broker.topics.get(self._topic)
        last_id = first_id + stop - start - 1
        if topic is None:
            self._later(lambda: self._settle(first_id, last_id, Outcome.ACK), 0)
            return
        ends: dict[PartitionLog, int] = {}
        large: list[tuple[int, TopicPartition, bytes]] = []
        waiting: list[tuple[int, int]] = []
        refusals: dict[str, Exception] = {}
        for index in range(start, stop):
            number, key, batch = first_id + index - start, slab.key_of(index), slab.bodies[index]
            if key in refusals:
                waiting.append((number, 1))  # behind what was refused, as before
                continue
            try:
                partition = topic.partitions[int(key)]
                log, end = self._append(partition, batch)
            except BatchTooLarge:
                large.append((number, partition, batch))
            except (LogError, BrokerError, LookupError, ValueError) as error:
                refusals[key] = error
                waiting.append((number, 1))
            else:
                ends[log] = end
        if waiting:
            key, refused = next(iter(refusals.items()))
            text = "%d records of %d partitions of topic %s wait; of partition %s: %s"
            logger.warning(text, len(waiting), len(refusals), self._topic, key, refused)
            self._later(partial(self._requeue, pack(waiting)), _RETRY_S)
        if large:
            self._broker.spawn(self._bury, large)
        if not ends:
            return

        apart = [*waiting, *((number, 1) for number, _, _ in large)]

        def done(error: StorageUnavailable | None) -> None:
            for first, count in unpack(without(pack([(first_id, last_id - first_id + 1)]), apart)):
                if error is None:
                    self._settle(first, first + count - 1, Outcome.ACK)
                else:
                    self._later(partial(self._settle, first, first + count - 1, Outcome.REQUEUE), _RETRY_S)

        self._broker.commits.when_committed(list(ends.items()), done)

    def _append(self, partition: TopicPartition, batch: bytes) -> tuple[PartitionLog, int]:
        return append_anywhere(partition, batch)

    async def _bury(self, large: Iterable[tuple[int, TopicPartition, bytes]]) -> None:
        """Rule 5, of records with what they were delivered as."""
        for number, partition, batch in large:
            try:
                (record,) = iterate_records(batch)
                await bury(self._broker, partition, [(record, {"reason": "size"})])
            except (LogError, BrokerError, ValueError) as error:
                logger.warning("a record of topic %s that is too large for it now waits: %s", self._topic, error)
                self._later(partial(self._settle, number, number, Outcome.REQUEUE), _RETRY_S)
                continue
            logger.warning(
                "a record of %d bytes that waited is too large for topic %s now; it is in %s%s",
                len(batch), self._topic, self._topic, SUFFIX,
            )  # fmt: skip
            self._later(partial(self._settle, number, number, Outcome.ACK), 0)

    def _later(self, call: Callable[[], None], wait_s: float) -> None:
        self._broker.timers.at(trio.current_time() + wait_s, call)

    def _requeue(self, numbers: array[int]) -> None:
        for first, count in unpack(numbers):
            self._settle(first, first + count - 1, Outcome.REQUEUE)

    def _settle(self, first_id: int, last_id: int, outcome: Outcome) -> None:
        if not self._session.closed and not self.gone:
            self._session.settle(first_id, last_id, outcome)

    def cancelled(self, consumer: Consumer | None) -> None:
        """See `DeliverySink`."""
        self.gone = True
        self._later(self._session.close, 0)

    def confirm(self, up_to: int) -> None:
        """See `DeliverySink`."""

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """See `DeliverySink`."""

    def returned(self, slab: Slab, reason: str) -> None:
        """See `DeliverySink`."""

    def writable(self) -> bool:
        """See `DeliverySink`."""
        return True


class GroupReleaser(Releaser):
    """See the module; of one partition, at the broker that leads it."""

    def __init__(self, broker: Broker, topic: str, index: int) -> None:
        super().__init__(broker, topic)
        self._index = index
        self._ahead: deque[int] = deque()
        """The offsets of what was appended and the group has not got past."""
        self._asks = False
        self._stands = False
        """Nothing can be appended now."""

    @property
    def _partition(self) -> TopicPartition | None:
        """None where it is not led here any more. As long as too few are in sync, or the disk refuses, it still is."""
        topic = self._broker.topics.get(self._topic)
        return _led_by(topic, self._index) if topic is not None else None

    def writable(self) -> bool:
        """See `DeliverySink`; asked before each delivery, which is limited to what there is room for."""
        partition = self._partition
        if partition is None or self._consumer is None:
            return False
        self._stands = partition.error() is not None
        if self._stands:
            return False
        config = partition.log.config
        room = config.priority_ahead - len(self._ahead) if config.priority_group else _PREFETCH
        self._consumer.prefetch = self._consumer.outstanding + max(room, 1)
        return room > 0

    def _append(self, partition: TopicPartition, batch: bytes) -> tuple[PartitionLog, int]:
        log, end = append_anywhere(partition, batch)
        self._ahead.append(end - 1)
        return log, end

    def follow(self) -> None:
        """Make room for what the group has got past; leave when another broker leads."""
        partition = self._partition
        if partition is None:
            self._session.close()
            self.gone = True
            return
        if self._stands and partition.error() is None:
            self._go_on()
        config = partition.log.config
        if not config.priority_group:
            self._got_to(float("inf"))
        elif 2 * len(self._ahead) >= config.priority_ahead and not self._asks:
            self._asks = True
            self._broker.spawn(self._ask, config.priority_group)

    async def _ask(self, group: str) -> None:
        """Where the group is may be known by a broker that does not answer: the others' groups do not wait for that."""
        place = (self._topic, self._index)
        try:
            self._got_to((await self._broker.offsets.fetch(group, [place])).get(place, (0, ""))[0])
        except StorageUnavailable:
            pass  # it is asked again
        finally:
            self._asks = False

    def _got_to(self, offset: float) -> None:
        before = len(self._ahead)
        while self._ahead and self._ahead[0] < offset:
            self._ahead.popleft()
        if len(self._ahead) < before:
            self._go_on()

    def _go_on(self) -> None:
        if not self._session.closed:
            self._session.resume()
            self._broker.end_turn()


def led_here(topic: Topic, index: int) -> TopicPartition | None:
    """A partition, if there is one that this broker may append to."""
    partition = _led_by(topic, index)
    return partition if partition is not None and partition.error() is None else None


def _led_by(topic: Topic, index: int) -> TopicPartition | None:
    """A partition, if this broker leads it."""
    if index >= len(topic.partitions):
        return None
    partition = topic.partitions[index]
    leadership = partition.leadership
    may_lead = leadership is None or leadership.refusal() is None
    return partition if partition.forward is None and may_lead else None
