"""Records that become visible later, or by their priority, in topics that allow it (`millrace.delay.enable`,
`millrace.priority.group`).

A producer says so by a header: `x-delay`, ms from now, `deliver-at`, ms since 1970, or `x-priority`, 0 to 9. A log has
no place for what is not there yet, and one order, so:

1. Such a record is taken out of its batch, which is appended without it: its offsets and sequence numbers stay, as in a
   log that was compacted. It is parked as a delayed message of a durable queue, and only when that is safe is the batch
   appended: what was confirmed is in the log or parked. What an idempotent producer sends again is parked once.
2. When it is due it is appended to the partition it was sent to, as a batch of its own (`parked_records.py`), which is
   not compressed: one that were too large then is refused.
3. The queue is an ordinary one, `millrace.delayed.TOPIC` in the virtual host `/`: `millrace delayed` lists and cancels.
   It goes with its topic. In a cluster one broker at a time works on it. Where priorities count, all records of a
   partition wait in one of its own, `millrace.waiting.TOPIC.PARTITION`, and a group makes room for them as it goes on.
4. Only in such topics is a batch looked into; for delays alone only if it is compressed or has the name of such a
   header.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from core_log.batch_header import BatchHeader
from core_log.compaction.rewrite import left_of
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import BatchTooLarge, InvalidRecord
from core_log.files import BytesLike
from core_log.record_batch import BatchBuilder, Record, iterate_records
from core_log.threads import in_thread
from routing.commits import storage_errors
from routing.errors import BrokerError, NotFound
from routing.facts import DELAY_MS_MAX, pack
from routing.message import NeutralProperties, Properties, Slab
from routing.property_editors import NEUTRAL, to_neutral_raw
from routing.publishing.deduplication import put
from routing.republishing.parked_records import FOLLOW_S, GroupReleaser, Releaser, led_here
from routing.topics.topic_partition import TopicPartition
from routing.topology.catalog import DEFAULT_VHOST
from routing.topology.parked import DELAYED_PREFIX, WAITING_PREFIX, parked_for
from routing.topology.route import Route

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.homes.queue_partition import QueuePartition

logger = logging.getLogger(__name__)

DELAY, DELIVER_AT, PRIORITY = "x-delay", "deliver-at", "x-priority"
PRIORITY_MAX = 9
_NAMES = (DELAY.encode(), DELIVER_AT.encode())
_DIGITS_MAX = 15
_LOOK_S = 1.0
_AT_ONCE = 1000
"""Records; with more, others have their turn meanwhile."""
_ARGUMENTS = {"x-single-active-consumer": True, "x-deduplication-window-ms": 3_600_000}


class Parked(NamedTuple):
    """A record that is to wait, as a batch of its own; `name` is the same when it is sent again to its partition, if it
    has one.
    """

    delay_ms: int
    priority: int
    name: str | None
    batch: bytes


def divide(
    header: BatchHeader, batch: BytesLike, now_ms: int, *, delays: bool = True, priorities: bool = False
) -> tuple[BytesLike, list[Parked]]:
    """A producer's batch without those of its records that are to wait, and these: those that ask for it, or with
    `priorities` all. Raises InvalidRecord, CorruptBatch.
    """
    data = bytes(batch)
    if not priorities and not header.compression and not any(name in data for name in _NAMES):
        return batch, []
    parked: list[Parked] = []
    flags = bytearray()
    for index, record in enumerate(iterate_records(data)):
        said = ((name, value) for name, value in record.headers if delays and name in (DELAY, DELIVER_AT))
        delay_ms = next((_delay_ms(name, value, now_ms) for name, value in said), 0)
        waits = priorities or delay_ms > 0
        flags.append(not waits)
        if waits:
            name = None
            if header.producer_id >= 0:
                name = f"{header.producer_id}.{header.producer_epoch}.{header.base_sequence}.{index}"
            parked.append(_parked(record, max(delay_ms, 0), name, priorities=priorities))
    if not parked:
        return batch, []
    if header.is_transactional:
        raise InvalidRecord("a record that waits for its time or turn cannot be part of a transaction")
    return left_of(header, data, bytes(flags), DECOMPRESSED_BYTES_MAX), parked


def _parked(record: Record, delay_ms: int, name: str | None, *, priorities: bool) -> Parked:
    """Raises InvalidRecord."""
    single = BatchBuilder(0, 0, record.timestamp_ms)
    single.add(0, record.key, record.value, record.headers)
    asked = (value for name, value in record.headers if priorities and name == PRIORITY)
    return Parked(delay_ms, next(map(_priority, asked), 0), name, single.build())


def _require_room(partition: TopicPartition, parked: list[Parked]) -> None:
    """What is appended when it is due is not compressed, and would hold up all others. Raises BatchTooLarge."""
    largest, most_bytes = max((len(one.batch) for one in parked), default=0), partition.log.config.message_bytes_max
    if largest > most_bytes:
        raise BatchTooLarge(f"a record that waits takes {largest} bytes, uncompressed; the limit is {most_bytes}")


def _is_there(broker: Broker, partition: TopicPartition) -> bool:
    """Whether the topic is that of this partition still, and not one that was made anew."""
    topic = broker.topics.get(partition.topic_name)
    return topic is not None and topic.partitions[partition.index : partition.index + 1] == [partition]


def _delay_ms(name: str, value: bytes | None, now_ms: int) -> int:
    text = (value or b"").decode("ascii", "replace")
    if not text.removeprefix("-").isdecimal() or len(text) > _DIGITS_MAX:
        raise InvalidRecord(f"header {name}={text[:_DIGITS_MAX]!r} is not a number of milliseconds")
    delay_ms = int(text) - (now_ms if name == DELIVER_AT else 0)
    if delay_ms > DELAY_MS_MAX:
        raise InvalidRecord(f"header {name}={text} is more than {DELAY_MS_MAX} ms from now")
    return delay_ms


def _priority(value: bytes | None) -> int:
    text = (value or b"").decode("ascii", "replace")
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise InvalidRecord(f"header {PRIORITY}={text[:_DIGITS_MAX]!r} is not a number from 0 to {PRIORITY_MAX}")
    return min(int(text), PRIORITY_MAX)


class DelayedRecords:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._releasers: dict[str, Releaser] = {}
        self._making = trio.Lock()
        self._followed = trio.Event()
        broker.spawn(self._run)
        broker.spawn(self._follow)

    async def park(
        self, partition: TopicPartition, headers: Sequence[BatchHeader], batches: Sequence[BytesLike]
    ) -> Sequence[BytesLike]:
        """A producer's validated batches without what is to wait, which is safe when this returns; of one that its
        sequence or epoch forbids nothing waits. Raises InvalidRecord, CorruptBatch, BatchTooLarge, BrokerError,
        OutOfOrderSequence, ProducerFenced, LogUnavailable.
        """
        log, config = partition.log, partition.log.config
        by_turn = bool(config.priority_group)
        left: list[BytesLike] = []
        parked: list[Parked] = []
        for header, batch in zip(headers, batches, strict=True):
            work = partial(divide, header, batch, log.wall_clock_ms(), delays=config.delays, priorities=by_turn)
            rest, found = work() if header.record_count <= _AT_ONCE else await in_thread(work)
            left.append(rest)
            parked += found
        _require_room(partition, parked)
        if parked and headers[0].producer_id >= 0:
            await partition.is_new(headers[0])
        for at in range(0, len(parked), _AT_ONCE):
            await self._park(partition, parked[at : at + _AT_ONCE], by_turn)
        return left

    async def put_off(self, partition: TopicPartition, record: Record, delay_ms: int, name: str) -> None:
        """Have a record appended to a partition in so many ms, behind what is there; safe when this returns. Within the
        hour nothing is put off twice under one name. Raises BatchTooLarge, BrokerError.
        """
        by_turn = bool(partition.log.config.priority_group)
        try:
            parked = _parked(record, delay_ms, name, priorities=by_turn)
        except InvalidRecord:  # it is in the log for all that, so another door has put it there
            parked = _parked(record, delay_ms, name, priorities=False)
        _require_room(partition, [parked])
        await self._park(partition, [parked], by_turn)

    def under_way(self, home: QueuePartition) -> int:
        """How many records that a home gave out are not known to be in their topics. Of those that wait for their turn
        only what is appended here: another broker may keep what it has no room for.
        """
        vhost = self._broker.topology.vhost(DEFAULT_VHOST)
        queues = [
            vhost.queues[name] for name in vhost.parked if name.startswith(DELAYED_PREFIX) or name in self._releasers
        ]
        return sum(queue.outstanding for queue in queues if queue.partition is home)

    async def _park(self, partition: TopicPartition, parked: list[Parked], by_turn: bool) -> None:
        broker, name, arguments = self._broker, DELAYED_PREFIX + partition.topic_name, _ARGUMENTS
        if by_turn:
            name = f"{WAITING_PREFIX}{partition.topic_name}.{partition.index}"
            arguments = _ARGUMENTS | {"x-max-priority": PRIORITY_MAX}
        vhost = broker.topology.vhost(DEFAULT_VHOST)
        if name not in vhost.queues:
            async with self._making:
                await broker.declare_queue(name, durable=True, arguments=arguments)
        await self._work(name)
        queue = vhost.queues.get(name)
        if queue is None or not _is_there(broker, partition):
            raise NotFound(f"no topic '{partition.topic_name}' with what is to wait: it was deleted meanwhile")
        route = Route([queue], [], delayed=True)
        failed = route.error()
        if failed is not None:
            raise failed
        common = Properties(NEUTRAL, b"", persistent=True)
        named = [one.name and f"{one.name}.{partition.index}" for one in parked]  # sequences are a partition's own
        raws = [to_neutral_raw(NeutralProperties(persistent=True, message_id=name)) for name in named]
        slab = Slab(
            "", str(partition.index), common, [one.batch for one in parked], raws=raws,
            facts=[pack(True, one.priority, delay_ms=one.delay_ms) for one in parked],
        )  # fmt: skip
        with storage_errors():
            targets = put(route, slab, broker.clock.now_ms)
        broker.end_turn()  # it is appended, so that its sync can be asked for
        broker.want_turn()  # followers are asked to sync then
        await broker.commits.committed(targets)

    async def _run(self) -> None:
        """Work on what was parked before this process, or by others."""
        while True:
            parked = self._broker.topology.vhost(DEFAULT_VHOST).parked
            for name in sorted(parked):
                if parked_for(name) not in self._broker.topics:
                    continue
                try:
                    await self._work(name)
                except BrokerError as error:
                    logger.warning("the records in queue %s wait: %s", name, error)
            for name in [one for one, releaser in self._releasers.items() if releaser.gone and one not in parked]:
                del self._releasers[name]
            await trio.sleep(_LOOK_S)

    async def _follow(self) -> None:
        while True:
            await self._followed.wait()
            followers = [one for one in self._releasers.values() if isinstance(one, GroupReleaser) and not one.gone]
            for one in followers:
                one.follow()
            if not followers:
                self._followed = trio.Event()
            await trio.sleep(FOLLOW_S)

    async def _work(self, queue: str) -> None:
        releaser, topic = self._releasers.get(queue), parked_for(queue)
        if topic is None or (releaser is not None and not releaser.gone):
            return
        if queue.startswith(WAITING_PREFIX):
            index = int(queue.rpartition(".")[2])
            if topic not in self._broker.topics or led_here(self._broker.topics[topic], index) is None:
                return
            releaser = GroupReleaser(self._broker, topic, index)
            self._followed.set()
        else:
            releaser = Releaser(self._broker, topic)
        self._releasers[queue] = releaser
        await releaser.begin(queue)
