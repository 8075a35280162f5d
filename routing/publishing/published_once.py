"""Messages that a writer publishes to an exchange in steps, each of which takes effect once.

1. A writer is a name, its steps have rising numbers. Which was its last is kept in the store of redo records, and
   changed by the very batch that decides on the step's messages (`transactions.py`): a step whose number is not above
   the last has taken effect, and takes none again, whoever asks, and after whatever crash.
2. Steps of one writer follow each other. A step is one transaction, and has its limit.
3. A commit that a crash cuts off is done again at the start (`transactions.py`). Then a step's messages are looked for
   in the logs behind where these ended, by a header that all of them have and no reader of messages is shown, and only
   what is missing is published.
4. What was said of a writer goes when it has not been heard of for as long as offsets of groups are kept.
5. Messages come as record batches; their properties are those of records of streams (`topics/stream_records.py`),
   their delay is the header `x-delay`. They are persistent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import trio

from core_log.batch_header import parse_header, validate
from core_log.errors import CorruptBatch, LogUnavailable
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from core_log.record_batch import encode_entries
from core_log.record_fields import decode_fields
from core_log.varint import read_varint, varint
from routing.errors import InvalidArgument, NotImplementedYet, StorageUnavailable
from routing.facts import pack
from routing.log_transactions.store import ONCE_PREFIX
from routing.message import NAME_ENCODING_ERRORS, Properties, Slab, register_record_encoder
from routing.publishing.deduplication import put
from routing.redo_records import Places, Published
from routing.topics.stream_records import RECORD_PROTOCOL, neutral_of
from routing.topology.route import Route

if TYPE_CHECKING:
    from core_log.keyed_store import KeyedStore
    from routing.access.grants import Grants
    from routing.broker import Broker
    from routing.consumer import Consumer
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.queue import Queue
    from routing.topics.topic import Topic

DELAY_HEADER = "x-delay"
MARKER_HEADER = "millrace.once"
_READ_BYTES = 1 << 20
DELAY_MS_MAX = (1 << 32) - 1
_STEP = struct.Struct(">QQ")
"""Number, and when in ms since 1970."""
_TIDY_ABOVE = 1000
_BLOCKS_MAX = 4096


class Step(NamedTuple):
    """What a commit of a step says besides its messages."""

    puts: list[tuple[bytes, bytes | None]]
    """Into the store of redo records."""
    marker: bytes
    """Stands in the headers of each of the messages, and nowhere else."""


class Writers:
    """What is known of them, in a store of redo records."""

    def __init__(self, store: KeyedStore, kept_ms: int) -> None:
        self._store = store
        self._kept_ms = kept_ms
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._tidy_at = _TIDY_ABOVE
        self._count = sum(1 for key, _ in store.items() if key.startswith(ONCE_PREFIX))

    def lock(self, writer: str) -> trio.Lock:
        """Who does a step of it holds this."""
        found = self._locks.get(writer)
        if found is None:
            found = self._locks[writer] = trio.Lock()
        return found

    def last(self, writer: str) -> int:
        """The number of its last step, -1 if there was none."""
        value = self._store.get(_key(writer))
        return -1 if value is None else int(_STEP.unpack(value)[0])

    def step(self, writer: str, number: int, now_ms: int) -> Step:
        """What is said with a step; of writers that are forgotten as well."""
        key = _key(writer)
        puts: list[tuple[bytes, bytes | None]] = []
        if self._store.get(key) is None:
            self._count += 1
            if self._count > self._tidy_at:
                gone = [one for one, value in self._store.items() if self._is_over(one, value, now_ms)]
                puts += [(one, None) for one in gone]
                self._count -= len(gone)
                self._tidy_at = max(2 * self._count, _TIDY_ABOVE)
        return Step([*puts, (key, _STEP.pack(number, now_ms))], _marker(writer, number))

    def _is_over(self, key: bytes, value: bytes, now_ms: int) -> bool:
        return key.startswith(ONCE_PREFIX) and int(_STEP.unpack(value)[1]) + self._kept_ms <= now_ms


async def publish_once(
    broker: Broker, grants: Grants, exchange: str, writer: str, number: int, batches: Sequence[BytesLike]
) -> int:
    """Publish the records of batches as step `number` of a writer; how many there were, or -1 where that is done.

    Raises NotFound, AccessRefused, LimitExceeded, InvalidArgument (damaged batches), StorageUnavailable,
    NotImplementedYet (in a cluster).
    """
    writers = broker.transactions.writers
    if writers is None:
        raise NotImplementedYet("brokers of a cluster do not publish steps of writers")
    async with writers.lock(writer):
        if writers.last(writer) >= number:
            return -1
        slabs = _slabs(exchange, batches, _marker(writer, number))
        for slab in slabs:
            grants.require_publish(exchange, slab.keys or (slab.routing_key,))
        session = broker.session(_Sink(), protocol="administration", owner=None, vhost=grants.vhost)
        try:
            session.begin()
            for slab in slabs:
                session.publish(slab)
            transaction, session.transaction = session.transaction, None
            assert transaction is not None
            step = writers.step(writer, number, broker.clock.now_ms())
            with trio.CancelScope(shield=True):
                await broker.transactions.commit(session, transaction, step)
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error
        finally:
            session.close()
            broker.end_turn()
    return sum(map(len, slabs))


def _slabs(exchange: str, batches: Iterable[BytesLike], marker: bytes) -> list[Slab]:
    common = Properties(RECORD_PROTOCOL, b"", persistent=True)
    facts_of: dict[bytes, int] = {}
    found = []
    try:
        for batch in batches:
            header = validate(batch)
            if header.is_control:
                raise CorruptBatch("a control batch")
            fields = decode_fields(batch)
            blocks = fields.header_blocks
            keys = [(key or b"").decode("utf-8", NAME_ENCODING_ERRORS) for key in fields.keys]
            if max(len(key or b"") for key in fields.keys) > 255:
                raise InvalidArgument("a routing key has at most 255 bytes")
            facts = []
            for block in blocks:
                known = facts_of.get(block)
                if known is None:
                    if len(facts_of) >= _BLOCKS_MAX:
                        facts_of.clear()
                    known = facts_of[block] = _facts(block)
                facts.append(known)
            bodies = [value or b"" for value in fields.values]
            raws = [_marked(block, marker) for block in blocks]
            found.append(Slab(exchange, keys[0], common, bodies, keys=keys, raws=raws, facts=facts))
    except CorruptBatch as error:
        raise InvalidArgument(f"no batch of records: {error}") from None
    return found


def _marker(writer: str, number: int) -> bytes:
    """A header, as it stands in records: readers of messages leave it out."""
    digest = sha256(writer.encode("utf-8", "surrogateescape")).digest()[:16]
    return encode_entries([(MARKER_HEADER, digest + number.to_bytes(8, "big"))])


def _marked(block: bytes, marker: bytes) -> bytes:
    count, at = read_varint(block, 0, len(block))
    return varint(count + 1) + marker + block[at:]


def written(log: PartitionLog, since: int, marker: bytes) -> int:
    """How many messages of a step a log has, from an offset on; blocks. Raises CorruptBatch, OSError."""
    if log.log_start_offset > since:
        return 1 << 40  # so much was done since that they are there, or gone again
    found, end = 0, log.log_end_offset
    while since < end:
        batches = log.read_blocking(since, _READ_BYTES, before=end)
        if not batches:
            break
        for batch in batches:
            header = parse_header(batch)
            since = header.next_offset
            if header.record_count and not header.is_control and (header.compression or marker in bytes(batch)):
                found += sum(marker in block for block in decode_fields(batch).header_blocks)
    return found


class Redo:
    """What a crash has left undone of steps that were decided: each log gets what it has not.

    A log got a step's messages in their order, so it is the first ones that it has.
    """

    def __init__(
        self,
        queues: Mapping[int, Queue],
        homes: Mapping[int, QueuePartition],
        topics: Mapping[str, Topic],
        now_ms: Callable[[], int],
    ) -> None:
        self._queues = queues
        self._homes = homes
        self._topics = topics
        self._now_ms = now_ms

    def do(self, publishes: Iterable[Published], places: Places) -> dict[PartitionLog, None]:
        """Publish what is missing of a step; the logs that got some. Raises LogUnavailable, CorruptBatch, OSError."""
        logs: dict[PartitionLog, None] = {}
        there = {
            index: written(self._homes[index].log, since, places.marker)
            for index, since in places.homes
            if index in self._homes
        }
        in_topics = {
            (name, index): written(self._topics[name].partitions[index].log, since, places.marker)
            for name, index, since in places.topics
            if name in self._topics and index < len(self._topics[name].partitions)
        }
        for slab, queue_ids, names, delayed in publishes:
            by_home: dict[int, list[Queue]] = {}
            for queue in (self._queues[queue_id] for queue_id in queue_ids if queue_id in self._queues):
                by_home.setdefault(queue.partition.index, []).append(queue)
            for index, queues in by_home.items():
                skipped = min(there.get(index, 0), len(slab))
                there[index] = there.get(index, 0) - skipped
                if skipped < len(slab):
                    logs |= self._put(Route(queues, [], delayed=delayed), slab.part(skipped, len(slab)))
            for topic in (self._topics[name] for name in names if name in self._topics):
                for index in range(len(slab)):
                    place = topic.name, topic.place(topic.key_of(slab, index))[1].index
                    if in_topics.get(place, 0):
                        in_topics[place] -= 1
                    else:
                        logs |= self._put(Route([], [topic]), slab.part(index, index + 1))
        return logs

    def _put(self, route: Route, slab: Slab) -> dict[PartitionLog, None]:
        route.remembering = [queue for queue in route.queues if queue.seen is not None]
        logs = dict.fromkeys(log for log, _ in put(route, slab, self._now_ms))
        for topic in route.topics:
            for partition in topic.partitions:
                partition.seal()
        return logs


def _facts(block: bytes) -> int:
    neutral = neutral_of(block)
    delay = neutral.headers.get(DELAY_HEADER)
    delay_ms = 0
    if delay is not None:
        if not isinstance(delay, str) or not delay.isascii() or not delay.isdigit() or int(delay) > DELAY_MS_MAX:
            raise InvalidArgument(f"{DELAY_HEADER} is a number of milliseconds up to {DELAY_MS_MAX}, not {delay!r}")
        delay_ms = int(delay)
    return pack(True, neutral.priority or 0, neutral.expiration_ms, delay_ms)


def _key(writer: str) -> bytes:
    return ONCE_PREFIX + writer.encode("utf-8", "surrogateescape")


class _Sink:
    """Of a session that nobody listens to."""

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Nothing is consumed."""

    def confirm(self, up_to: int) -> None:
        """The commit says it."""

    def refuse(self, first: int, last: int) -> None:
        """The commit says it."""

    def returned(self, slab: Slab, reason: str) -> None:
        """Nothing is mandatory."""

    def cancelled(self, consumer: Consumer) -> None:
        """Nothing is consumed."""

    def writable(self) -> bool:
        """See `DeliverySink`."""
        return True


def _entries(block: bytes) -> tuple[int, bytes]:
    count, at = read_varint(block, 0, len(block))
    return count, block[at:]


register_record_encoder(RECORD_PROTOCOL, _entries)
