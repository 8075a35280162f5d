"""A stream: a topic of one partition that is declared and consumed like a queue, and keeps what was consumed.

1. Each consumer has a cursor of its own. Acknowledging gives it credit and takes nothing away; nothing can be returned.
2. Whole batches are read, from memory or off the loop, decoded once and shared by all who read near the same place
   (`stream_cache.py`). A run of messages is handed over at once; nothing is done for single ones.
3. Whoever changes something that may allow a delivery calls `wake`; the broker pumps the woken streams when the turn
   ends. A consumer that waits for the disk, or takes nothing, is passed by.
4. Consumers see what is below the high watermark, of whatever log the partition has: this broker's or, in a cluster,
   one that is read elsewhere. A log that comes in its place and has not so much yet is read when it has. Who was
   overtaken by retention goes on where the log begins now.
5. The position of a consumer that asked for it is kept under its tag with the group offsets: the first offset that it
   has not acknowledged, noted a moment after it moved and when the consumer goes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import trio

from core_log.errors import CorruptBatch, LogError, LogUnavailable, OffsetOutOfRange
from core_log.partition_log import PartitionLog
from routing.config import BrokerConfig
from routing.errors import LimitExceeded, NotFound, NotImplementedYet, PreconditionFailed, StorageUnavailable
from routing.topics.offset_store import Committed, Partition, Positions
from routing.topics.stream_cache import Chunk, LogChunks, StreamCache
from routing.topics.stream_records import StreamReader
from routing.topics.stream_settings import ConsumerSettings, Origin, Start, consumer_settings, told_config

if TYPE_CHECKING:
    from routing.session import Consumer
    from routing.topics.topic import Topic

logger = logging.getLogger(__name__)

_GROUP_PREFIX = "millrace.stream."
"""Before a consumer tag: the group whose offset says how far it has come."""

_READ_SHARE = 8
"""Of a consumer's share of the cache this part is read at once: messages take several times their bytes there."""
_READ_BYTES_MIN = 16 << 10

_FROM_THE_END = frozenset({Origin.NEXT, Origin.LAST, Origin.END})

Spawn = Callable[[Callable[..., Coroutine[Any, Any, None]], Any], None]


class StreamHost:
    """What all streams of a broker share. `turn` ends a turn, `runnable` has a stream pumped when one ends."""

    def __init__(
        self,
        config: BrokerConfig,
        offsets: Positions,
        *,
        runnable: Callable[[Any], None],
        spawn: Spawn,
        turn: Callable[[], None],
    ) -> None:
        self.config = config
        self.offsets = offsets
        self.runnable = runnable
        self.spawn = spawn
        self.turn = turn
        self.cache = StreamCache(config.stream_cache_bytes)
        self.consumers = 0

    def read_bytes(self) -> int:
        """How much to read at once, so that consumers at many places do not push each other out of the cache."""
        share = self.config.stream_cache_bytes // (_READ_SHARE * max(self.consumers, 1))
        return min(self.config.stream_read_bytes, max(share, _READ_BYTES_MIN))


class _Cursor:
    """Where a consumer stands: `offset` comes next. `tracked` is the position last noted, -1 where none is kept."""

    __slots__ = ("consumer", "group", "offset", "tracked", "waiting")

    def __init__(self, consumer: Consumer, offset: int, group: str) -> None:
        self.consumer = consumer
        self.offset = offset
        self.group = group
        self.tracked = offset if group else -1
        self.waiting = False
        """For the disk."""


class Stream:
    """See the module. What sessions and the topology ask of a queue, a stream answers, too."""

    exclusive = False
    auto_delete = False
    durable = True
    owner = None
    formerly: Sequence[dict[str, Any]] = ()

    def __init__(self, name: str, vhost: str, topic: Topic, arguments: dict[str, Any], host: StreamHost) -> None:
        self.name = name
        self.vhost = vhost
        self.what = f"queue '{name}' in vhost '{vhost}'"
        """What errors call it."""
        self.topic = topic
        self.arguments = arguments
        self.consumers: list[Consumer] = []
        self.awake = False
        self.deleted = False
        self._host = host
        self._partition = topic.partitions[0]
        self._log: PartitionLog = self._partition.log
        self._cursors: dict[Consumer, _Cursor] = {}
        self._reader = StreamReader()
        self._chunks = LogChunks(host.cache)
        self._loading: dict[int, list[_Cursor]] = {}
        self._tracked = 0
        self._tracking_due = False
        self._seen_end = 0
        """How far its leader had it, when that was asked."""
        topic.say_source(True)
        self._log.listeners.append(self._log_advanced)
        self._partition.taken.append(self._log_taken)

    def apply_policy(self, definition: Mapping[str, Any]) -> None:
        """Live by what policies say from now on: segments that need not be kept any more go at once."""
        log = self._partition.log
        told = told_config(self.topic.config, self.arguments, definition, self._host.config)
        if told != log.config:
            log.config = told
            self._partition.apply_retention()

    @property
    def message_count(self) -> int:
        """Messages it holds, for all that is known here."""
        return max(self._partition.next_offset, self._seen_end) - self._log.log_start_offset

    async def refresh(self) -> None:
        """Ask its leader how far it is; without one what is here counts. Raises StorageUnavailable."""
        try:
            _, end = await self._partition.ends()
        except StorageUnavailable:
            if not self._partition.is_here:
                raise
            return
        self._seen_end = max(self._seen_end, end)

    @property
    def consumer_count(self) -> int:
        """How many there are."""
        return len(self.consumers)

    def close(self) -> None:
        """It is deleted, or only a topic from now on: its consumers are told."""
        self.deleted = True
        self.topic.say_source(False)
        self._partition.taken.remove(self._log_taken)
        for log in {self._log, self._partition.log}:
            if self._log_advanced in log.listeners:
                log.listeners.remove(self._log_advanced)
        consumers, self.consumers = self.consumers, []
        self._log.reader_waits(-len(consumers))
        self._host.consumers -= len(consumers)
        self._cursors.clear()
        for consumer in consumers:
            consumer.session.queue_gone(consumer)
        self._chunks.clear()

    def _log_taken(self) -> None:
        """The partition has another log."""
        log, before = self._partition.log, self._log
        log.config = before.config
        log.listeners.append(self._log_advanced)
        if before.closed or log.high_watermark >= before.high_watermark:
            self._go_on_with(log)

    def _go_on_with(self, log: PartitionLog) -> None:
        before, self._log = self._log, log
        if self._log_advanced in before.listeners:
            before.listeners.remove(self._log_advanced)
        before.reader_waits(-len(self.consumers))
        log.reader_waits(len(self.consumers))
        self.wake()

    def _log_advanced(self, log: PartitionLog) -> None:
        if log is not self._log:
            if log is self._partition.log and log.high_watermark >= self._log.high_watermark:
                self._go_on_with(log)
            return
        if self.consumers and not self.awake:
            self.wake()

    def wake(self) -> None:
        """Something changed that may allow a delivery."""
        if not self.awake and self.consumers:
            self.awake = True
            self._host.runnable(self)

    # --- consumers ---------------------------------------------------------------------

    def attach(self, consumer: Consumer, arguments: Mapping[str, Any]) -> Awaitable[None] | None:
        """Make it a consumer of this stream; in a cluster others are asked where it ends, and how far the consumer had
        come. Raises PreconditionFailed, NotImplementedYet, LimitExceeded, StorageUnavailable.
        """
        if not consumer.prefetch:
            raise PreconditionFailed(f"consumer prefetch count is not set for '{self.what}'")
        if consumer.no_ack:
            self.refuse("automatic acknowledgement")
        settings = consumer_settings(self.what, consumer.tag, arguments, time.time_ns() // 1_000_000)
        if self._partition.leadership is not None:
            return self._attach_shared(consumer, settings)
        group, known = _GROUP_PREFIX + consumer.tag, {}
        if settings.tracked:
            known = self._host.offsets.known(group, [self._place])
        self._begin(consumer, settings, known, self._partition.next_offset)
        return None

    async def _attach_shared(self, consumer: Consumer, settings: ConsumerSettings) -> None:
        known: dict[Partition, Committed] = {}
        if settings.tracked:
            known = await self._host.offsets.fetch(_GROUP_PREFIX + consumer.tag, [self._place])
        end = 0
        if settings.start.origin in _FROM_THE_END or not self._partition.is_here:
            _, end = await self._partition.ends()
        if self.deleted:
            raise NotFound(f"no {self.what}")
        self._begin(consumer, settings, known, end)

    @property
    def _place(self) -> Partition:
        return self.topic.name, 0

    def _begin(
        self, consumer: Consumer, settings: ConsumerSettings, known: dict[Partition, Committed], end: int
    ) -> None:
        start, group = settings.start, ""
        if settings.tracked:
            group = _GROUP_PREFIX + consumer.tag
            start = self._resume(known, start)
        cursor = _Cursor(consumer, self._offset_of(start, end), group)
        self._cursors[consumer] = cursor
        self.consumers.append(consumer)
        self._log.reader_waits(1)
        self._host.consumers += 1
        self._tracked += settings.tracked
        if start.origin is Origin.TIME:
            cursor.waiting = True
            self._host.spawn(self._find_time, (cursor, start.value))

    def _resume(self, known: dict[Partition, Committed], start: Start) -> Start:
        """Where a tracked consumer goes on."""
        place = self._place
        if known:
            return Start(Origin.OFFSET, known[place][0])
        limit = self._host.config.stream_tracked_consumers_max
        if self._host.offsets.count(place, _GROUP_PREFIX) >= limit:
            raise LimitExceeded(f"stream '{self.name}' keeps the positions of {limit} consumers already")
        return start

    def _offset_of(self, start: Start, end: int) -> int:
        first = self._log.log_start_offset
        if start.origin is Origin.OFFSET:
            return max(first, start.value)
        if start.origin is Origin.NEXT:
            return end
        if start.origin is Origin.FIRST or start.origin is Origin.TIME:
            return first
        return max(first, end - (1 if start.origin is Origin.LAST else start.value))

    async def _find_time(self, wanted: tuple[_Cursor, int]) -> None:
        cursor, timestamp_ms = wanted
        try:
            found = await self._log.offset_for_timestamp_cold(timestamp_ms)
        except (LogError, OSError) as error:
            self._fail([cursor], timestamp_ms, error)
        else:
            cursor.offset = found[0] if found is not None else self._log.high_watermark
            cursor.tracked = cursor.offset if cursor.group else -1
            cursor.waiting = False
            self.wake()
        self._host.turn()

    def detach(self, consumer: Consumer) -> None:
        """It consumes no more; before what it has unsettled is given back."""
        self.consumers.remove(consumer)
        self._log.reader_waits(-1)
        self._host.consumers -= 1
        cursor = self._cursors.pop(consumer)
        if cursor.group:
            self._tracked -= 1
            self._note([cursor])

    def settle(self, first: int, count: int) -> None:
        """Deliveries are acknowledged, which matters to those alone whose position is kept."""
        if self._tracked and not self._tracking_due:
            self._tracking_due = True
            self._host.spawn(self._track, self._host.config.stream_tracking_delay_ms / 1000)

    def give_back(self, first: int, count: int) -> None:
        """Deliveries were not acknowledged: they are where they were."""

    async def _track(self, delay_s: float) -> None:
        await trio.sleep(delay_s)
        self._tracking_due = False
        self._note(cursor for cursor in self._cursors.values() if cursor.group)

    def _note(self, cursors: Iterable[_Cursor]) -> None:
        """Write down how far these have come; while the log refuses, the next time."""
        if self.deleted:
            return
        place = self._place
        for cursor in cursors:
            position = cursor.consumer.session.first_unsettled(cursor.consumer)
            position = cursor.offset if position is None else position
            if position > cursor.tracked:
                try:
                    self._host.offsets.note(cursor.group, {place: (position, "")})
                except LogUnavailable as error:
                    logger.warning("the position of %s in %s is not kept now: %s", cursor.group, self.name, error)
                    return
                cursor.tracked = position

    def refuse(self, operation: str) -> NoReturn:
        """Raises NotImplementedYet, for what no stream can do."""
        raise NotImplementedYet(f"{operation} not supported by stream queues {self.what}")

    def check_deletion(self, *, if_unused: bool, if_empty: bool) -> None:
        """Raises PreconditionFailed."""
        if if_unused and self.consumers:
            raise PreconditionFailed(f"{self.what} in use")
        if if_empty and self.message_count:
            raise PreconditionFailed(f"{self.what} is not empty")

    # --- giving out --------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what can be delivered: to each consumer, as far as it has credit."""
        high = self._log.high_watermark
        for cursor in list(self._cursors.values()):
            if cursor.offset < high and not cursor.waiting:
                self._advance(cursor, high)

    def _advance(self, cursor: _Cursor, high: int) -> None:
        consumer = cursor.consumer
        cursor.offset = max(cursor.offset, self._log.log_start_offset)
        while cursor.offset < high:
            credit = consumer.credit()
            if credit <= 0:
                return
            chunk = self._chunks.find(cursor.offset) or self._read(cursor.offset)
            if chunk is None:
                self._wait(cursor)
                return
            slab = chunk.slab_at(cursor.offset)
            if slab is None:
                cursor.offset = chunk.end
                continue
            offset = max(cursor.offset, slab.first_offset)
            start = offset - slab.first_offset
            stop = min(start + credit, len(slab.bodies))
            cursor.offset = slab.first_offset + stop
            consumer.session.hand_over(consumer, slab, start, stop, offset, False)
            if not chunk.read_ahead:
                chunk.read_ahead = True
                self._read_ahead(chunk.end, high)

    # --- reading -----------------------------------------------------------------------

    def _read(self, offset: int) -> Chunk | None:
        """A chunk from memory; None when the disk has to be asked."""
        limit = self._limit(self._log, offset)
        try:
            batches = self._log.read(offset, self._host.read_bytes(), before=limit)
            return None if batches is None else self._decode(offset, limit, batches)
        except (CorruptBatch, OffsetOutOfRange):
            return None  # who reads from the disk finds out, and says so

    def _limit(self, log: PartitionLog, offset: int) -> int:
        """Up to where to read from an offset on: if there is nothing, this is where it goes on."""
        there = self._chunks.first_after(offset)
        return log.high_watermark if there is None else min(there, log.high_watermark)

    def _decode(self, offset: int, limit: int, batches: list[Any]) -> Chunk:
        slabs, end = self._reader.read(batches)
        if not batches:
            end = limit
        first = min(offset, slabs[0].first_offset) if slabs else offset
        chunk = Chunk(first, max(end, offset + 1), slabs)
        self._chunks.add(chunk)
        return chunk

    def _wait(self, cursor: _Cursor) -> None:
        """Have what the cursor needs read from the disk."""
        cursor.waiting = True
        waiting = self._loading.get(cursor.offset)
        if waiting is not None:
            waiting.append(cursor)
        else:
            self._load_soon(cursor.offset, [cursor])

    def _read_ahead(self, offset: int, high: int) -> None:
        """Read what comes next from the disk while this is handed out, if it is only there."""
        if offset >= high or offset in self._loading or self._chunks.find(offset) is not None:
            return
        with suppress(OffsetOutOfRange):
            if self._log.read(offset, 1) is None:
                self._load_soon(offset, [])

    def _load_soon(self, offset: int, waiting: list[_Cursor]) -> None:
        self._loading[offset] = waiting
        self._host.spawn(self._load, offset)

    async def _load(self, offset: int) -> None:
        config = self._host.config
        error: Exception | None = None
        while not self.deleted:
            log = self._log
            limit = self._limit(log, offset)
            try:
                batches = await log.read_cold(offset, self._host.read_bytes(), before=limit)
                if not self.deleted:
                    self._decode(offset, limit, batches)
                break
            except (OffsetOutOfRange, LogUnavailable):
                break  # retention was faster, or the log is gone
            except (CorruptBatch, FileNotFoundError) as problem:
                if log is not self._log:
                    continue  # there is another one now
                error = problem
                break
            except OSError as problem:
                # Not lost: the disk may recover, as it may for writes.
                logger.warning("cannot read %s at offset %d now: %s", log.directory, offset, problem)
                await trio.sleep(config.flush_retry_interval_ms / 1000)
        waiting = self._loading.pop(offset)
        for cursor in waiting:
            cursor.waiting = False
        if error is not None and not self.deleted:
            self._fail(waiting, offset, error)
        self.wake()
        self._host.turn()

    def _fail(self, cursors: list[_Cursor], offset: int, error: Exception) -> None:
        """What these need is damaged: they are told that they consume no more, rather than led past it unnoticed."""
        if cursors:
            logger.error("cannot read %s at %d: %s", self._log.directory, offset, error)
        for cursor in cursors:
            if cursor.consumer in self._cursors:
                self.detach(cursor.consumer)
                cursor.consumer.session.queue_gone(cursor.consumer)
