"""Records that become visible later, in topics that allow it (`millrace.delay.enable`).

A producer says so by a header: `x-delay`, ms from now, or `deliver-at`, ms since 1970. A log has no place for what is
not there yet, so:

1. Such a record is taken out of its batch, which is appended without it: its offsets and sequence numbers stay, as in a
   log that was compacted. It is parked as a delayed message of a durable queue, and only when that is safe is the batch
   appended: what was confirmed is in the log or parked. What an idempotent producer sends again is parked once.
2. When it is due it is appended to the partition it was sent to, as a batch of its own, and its parked copy settled
   when that is committed. A crash in between appends it twice; it is never lost.
3. The queue is an ordinary one, `millrace.delayed.TOPIC` in the virtual host `/`: `millrace delayed` lists and cancels.
   It goes with its topic. In a cluster one broker at a time works on it.
4. Only in such topics is a batch looked into, and there only if it is compressed or has the name of such a header.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from core_log.batch_header import BatchHeader
from core_log.compaction.rewrite import left_of
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import InvalidRecord, LogError
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, iterate_records
from core_log.record_fields import decode_fields
from routing.commits import storage_errors
from routing.deduplication import put
from routing.errors import BrokerError, StorageUnavailable
from routing.facts import DELAY_MS_MAX, pack
from routing.message import NeutralProperties, Properties, Slab
from routing.property_editors import NEUTRAL, to_neutral_raw
from routing.session import Consumer, Outcome, Session
from routing.topics.topic import Topic, TopicPartition
from routing.topology.catalog import DEFAULT_VHOST
from routing.topology.removal import DELAYED_PREFIX
from routing.topology.route import Route

if TYPE_CHECKING:
    from routing.broker import Broker

logger = logging.getLogger(__name__)

DELAY, DELIVER_AT = "x-delay", "deliver-at"
_NAMES = (DELAY.encode(), DELIVER_AT.encode())
_DIGITS_MAX = 15
_LOOK_S = 1.0
_RETRY_S = 1.0
_PREFETCH = 1000
_ARGUMENTS = {"x-single-active-consumer": True, "x-deduplication-window-ms": 3_600_000}


class Parked(NamedTuple):
    """A record that is to wait, as a batch of its own; `name` is the same when it is sent again to its partition, if it
    has one.
    """

    delay_ms: int
    name: str | None
    batch: bytes


def divide(header: BatchHeader, batch: BytesLike, now_ms: int) -> tuple[BytesLike, list[Parked]]:
    """A producer's batch without those of its records that are to wait, and these. Raises InvalidRecord,
    CorruptBatch.
    """
    data = bytes(batch)
    if not header.compression and not any(name in data for name in _NAMES):
        return batch, []
    parked: list[Parked] = []
    flags = bytearray()
    for index, record in enumerate(iterate_records(data)):
        said = ((name, value) for name, value in record.headers if name in (DELAY, DELIVER_AT))
        delay_ms = next((_delay_ms(name, value, now_ms) for name, value in said), 0)
        flags.append(delay_ms <= 0)
        if delay_ms > 0:
            name = None
            if header.producer_id >= 0:
                name = f"{header.producer_id}.{header.producer_epoch}.{header.base_sequence}.{index}"
            single = BatchBuilder(0, 0, record.timestamp_ms)
            single.add(0, record.key, record.value, record.headers)
            parked.append(Parked(delay_ms, name, single.build()))
    if not parked:
        return batch, []
    if header.is_transactional:
        raise InvalidRecord("a record that is delivered later cannot be part of a transaction")
    return left_of(header, data, bytes(flags), DECOMPRESSED_BYTES_MAX), parked


def _delay_ms(name: str, value: bytes | None, now_ms: int) -> int:
    text = (value or b"").decode("ascii", "replace")
    if not text.removeprefix("-").isdecimal() or len(text) > _DIGITS_MAX:
        raise InvalidRecord(f"header {name}={text[:_DIGITS_MAX]!r} is not a number of milliseconds")
    delay_ms = int(text) - (now_ms if name == DELIVER_AT else 0)
    if delay_ms > DELAY_MS_MAX:
        raise InvalidRecord(f"header {name}={text} is more than {DELAY_MS_MAX} ms from now")
    return delay_ms


class DelayedRecords:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._workers: dict[str, _Worker] = {}
        self._making = trio.Lock()
        broker.spawn(self._run)

    async def park(
        self, partition: TopicPartition, headers: Sequence[BatchHeader], batches: Sequence[BytesLike]
    ) -> Sequence[BytesLike]:
        """A producer's validated batches without what is to wait, which is safe when this returns. Raises
        InvalidRecord, CorruptBatch, BrokerError.
        """
        log = partition.log
        left: list[BytesLike] = []
        parked: list[Parked] = []
        for header, batch in zip(headers, batches, strict=True):
            rest, found = divide(header, batch, log.wall_clock_ms())
            left.append(rest)
            parked += found
        if parked:
            await self._park(partition, parked)
        return left

    async def _park(self, partition: TopicPartition, parked: list[Parked]) -> None:
        broker, name = self._broker, DELAYED_PREFIX + partition.topic_name
        vhost = broker.topology.vhost(DEFAULT_VHOST)
        if name not in vhost.queues:
            async with self._making:
                await broker.declare_queue(name, durable=True, arguments=_ARGUMENTS)
        await self._work(name, partition.topic_name)
        queue = vhost.queues[name]
        route = Route([queue], [], delayed=True)
        failed = route.error()
        if failed is not None:
            raise failed
        common = Properties(NEUTRAL, b"", persistent=True)
        named = [one.name and f"{one.name}.{partition.index}" for one in parked]  # sequences are a partition's own
        raws = [to_neutral_raw(NeutralProperties(persistent=True, message_id=name)) for name in named]
        slab = Slab(
            "", str(partition.index), common, [one.batch for one in parked], raws=raws,
            facts=[pack(True, delay_ms=one.delay_ms) for one in parked],
        )  # fmt: skip
        with storage_errors():
            targets = put(route, slab, broker.clock.now_ms)
        broker.end_turn()  # it is appended, so that its sync can be asked for
        broker.want_turn()  # followers are asked to sync then
        await broker.commits.committed(targets)

    async def _run(self) -> None:
        """Work on what was parked before this process, or by others."""
        while True:
            queues = self._broker.topology.vhost(DEFAULT_VHOST).queues
            for topic in list(self._broker.topics) if any(one.startswith(DELAYED_PREFIX) for one in queues) else ():
                if DELAYED_PREFIX + topic in queues:
                    try:
                        await self._work(DELAYED_PREFIX + topic, topic)
                    except BrokerError as error:
                        logger.warning("delayed records of topic %s wait: %s", topic, error)
            await trio.sleep(_LOOK_S)

    async def _work(self, queue: str, topic: str) -> None:
        worker = self._workers.get(queue)
        if worker is None or worker.gone:
            worker = self._workers[queue] = _Worker(self._broker, topic)
            await worker.begin(queue)


class _Worker:
    """Appends what has become due in one topic: the consumer of its queue, and the sink of its session."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.gone = False
        self._session: Session = broker.session(self, protocol=NEUTRAL, owner=self)

    async def begin(self, queue: str) -> None:
        self._session.set_prefetch(_PREFETCH, per_session=False)
        try:
            await self._session.consume(queue, tag="delayed", no_ack=False)
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
        try:
            ends: dict[PartitionLog, int] = {}
            for index in range(start, stop):
                log, end = append_anywhere(topic.partitions[int(slab.key_of(index))], slab.bodies[index])
                ends[log] = end
        except (LogError, BrokerError, LookupError, ValueError) as error:
            logger.warning("delayed records of topic %s wait: %s", self._topic, error)
            self._later(lambda: self._settle(first_id, last_id, Outcome.REQUEUE), _RETRY_S)
            return

        def done(error: StorageUnavailable | None) -> None:
            if error is None:
                self._settle(first_id, last_id, Outcome.ACK)
            else:
                self._later(lambda: self._settle(first_id, last_id, Outcome.REQUEUE), _RETRY_S)

        self._broker.commits.when_committed(list(ends.items()), done)

    def _later(self, call: Callable[[], None], wait_s: float) -> None:
        self._broker.timers.at(trio.current_time() + wait_s, call)

    def _settle(self, first_id: int, last_id: int, outcome: Outcome) -> None:
        if not self._session.closed and not self.gone:
            self._session.settle(first_id, last_id, outcome)

    def cancelled(self, consumer: Consumer | None) -> None:
        """See `DeliverySink`."""
        self.gone = True
        self._later(self._session.close, 0)

    def confirm(self, up_to: int) -> None:
        """See `DeliverySink`."""

    def refuse(self, first: int, last: int) -> None:
        """See `DeliverySink`."""

    def returned(self, slab: Slab, reason: str) -> None:
        """See `DeliverySink`."""

    def writable(self) -> bool:
        """See `DeliverySink`."""
        return True


def append_anywhere(partition: TopicPartition, batch: bytes) -> tuple[PartitionLog, int]:
    """Append a batch of one record wherever the partition is led: its log, and how far it has to get."""
    refused = (partition.forward or partition).error()
    if refused is not None:
        raise refused
    if partition.forward is None:
        partition.append(batch)
        return partition.log, partition.log.log_end_offset
    fields = decode_fields(batch)
    return partition.route_records(
        fields.keys[0] or b"", fields.header_blocks[0], [fields.values[0] or b""], len(fields.values[0] or b"")
    )
