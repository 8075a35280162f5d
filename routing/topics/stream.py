"""A stream: a topic of one partition that is declared and consumed like a queue, and keeps what was consumed.

1. Each consumer has a cursor of its own. Acknowledging gives it credit and takes nothing away; nothing can be returned.
2. A partition's reader has what they get, decoded once for all (`partition_reader.py`). A run of messages is handed
   over at once; nothing is done for single ones.
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
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import trio

from core_log.errors import LogError, LogUnavailable
from core_log.wall_clock import wall_clock_ms
from routing.errors import LimitExceeded, NotFound, NotImplementedYet, PreconditionFailed, StorageUnavailable
from routing.topics.offset_store import Committed, Partition
from routing.topics.partition_reader import StreamHost as StreamHost
from routing.topics.stream_filter import StreamFilter
from routing.topics.stream_settings import ConsumerSettings, Origin, Start, consumer_settings, told_config

if TYPE_CHECKING:
    from routing.session import Consumer
    from routing.topics.topic import Topic

logger = logging.getLogger(__name__)

_GROUP_PREFIX = "millrace.stream."
"""Before a consumer tag: the group whose offset says how far it has come."""

_LOOKED_AT_MAX = 10_000
"""Messages that one consumer does not want, before others have their turn."""
_FROM_THE_END = frozenset({Origin.NEXT, Origin.LAST, Origin.END})


class _Cursor:
    """Where a consumer stands: `offset` comes next. `tracked` is the position last noted, -1 where none is kept."""

    __slots__ = ("consumer", "filter", "group", "offset", "tracked", "waiting")

    def __init__(self, consumer: Consumer, offset: int, group: str, wanted: StreamFilter | None) -> None:
        self.consumer = consumer
        self.filter = wanted
        self.offset = offset
        self.group = group
        self.tracked = offset if group else -1
        self.waiting = False
        """For the disk, or its next turn."""


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
        self.consumers: dict[Consumer, None] = {}
        self.awake = False
        self.deleted = False
        self._host = host
        self._partition = topic.partitions[0]
        self._reader = host.reader(self._partition, self._advanced)
        self._cursors: dict[Consumer, _Cursor] = {}
        self._tracked = 0
        self._tracking_due = False
        self._seen_end = 0
        """How far its leader had it, when that was asked."""
        topic.say_source(True)

    def apply_policy(self, definition: Mapping[str, Any]) -> None:
        """Live by what policies say from now on: segments that need not be kept any more go at once."""
        log = self._partition.log
        told = told_config(self.topic.config, self.arguments, definition, self._host.config)
        if told != log.config:
            self._partition.configure(told)

    @property
    def message_count(self) -> int:
        """Messages it holds, for all that is known here."""
        return max(self._partition.next_offset, self._seen_end) - self._reader.start

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
        consumers, self.consumers = self.consumers, {}
        self._reader.waits(-len(consumers))
        self._host.consumers -= len(consumers)
        self._cursors.clear()
        for consumer in consumers:
            consumer.session.queue_gone(consumer)
        self._reader.leave(self._advanced)

    def _advanced(self) -> None:
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
        settings = consumer_settings(self.what, consumer.tag, arguments, wall_clock_ms())
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
        cursor = _Cursor(consumer, self._offset_of(start, end), group, settings.filter)
        self._cursors[consumer] = cursor
        self.consumers[consumer] = None
        self._reader.waits(1)
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
        first = self._reader.start
        if start.origin is Origin.OFFSET:
            return max(first, start.value)
        if start.origin is Origin.NEXT:
            return end
        if start.origin is Origin.FIRST or start.origin is Origin.TIME:
            return first
        return max(first, end - (1 if start.origin is Origin.LAST else start.value))

    async def _find_time(self, wanted: tuple[_Cursor, int]) -> None:
        cursor, timestamp_ms = wanted
        end = self._reader.end  # what comes while the log is searched is later than any time that was asked for
        try:
            found = await self._reader.log.offset_for_timestamp_cold(timestamp_ms)
        except (LogError, OSError) as error:
            logger.error("cannot find a time in %s: %s", self._reader.log.directory, error)
            self._loaded(cursor, error)
        else:
            cursor.offset = found[0] if found is not None else end
            cursor.tracked = cursor.offset if cursor.group else -1
            cursor.waiting = False
            self.wake()
        self._host.turn()

    def detach(self, consumer: Consumer) -> None:
        """It consumes no more; before what it has unsettled is given back."""
        del self.consumers[consumer]
        self._reader.waits(-1)
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
                    self._host.offsets.note(cursor.group, {place: Committed(position)})
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
        high = self._reader.end
        for cursor in list(self._cursors.values()):
            if cursor.offset < high and not cursor.waiting:
                self._advance(cursor, high)

    def _advance(self, cursor: _Cursor, high: int) -> None:
        consumer, wanted, looked_at = cursor.consumer, cursor.filter, 0
        cursor.offset = max(cursor.offset, self._reader.start)
        while cursor.offset < high:
            credit = consumer.credit()
            if credit <= 0:
                return
            slab = self._reader.slab_at(cursor.offset)
            if slab is None:
                cursor.waiting = True
                self._reader.load(cursor.offset, partial(self._loaded, cursor))
                return
            if isinstance(slab, int):
                cursor.offset = slab
                continue
            begin = start = max(cursor.offset - slab.first_offset, 0)
            stop = min(start + credit, len(slab.bodies))
            if wanted is not None:
                start, stop = wanted.stretch(slab, begin, credit)
                looked_at += stop - begin
            cursor.offset = slab.first_offset + stop
            if start < stop:
                consumer.session.hand_over(consumer, slab, start, stop, slab.first_offset + start, False)
            if looked_at >= _LOOKED_AT_MAX:
                cursor.waiting = True
                self._host.spawn(self._go_on, cursor)
                return

    async def _go_on(self, cursor: _Cursor) -> None:
        """When others have had their turn."""
        await trio.lowlevel.checkpoint()
        self._loaded(cursor, None)
        self._host.turn()

    def _loaded(self, cursor: _Cursor, error: Exception | None) -> None:
        """What it needs is here. Where that is damaged it is told that it consumes no more, rather than led past it
        unnoticed.
        """
        cursor.waiting = False
        if error is not None and cursor.consumer in self._cursors:
            self.detach(cursor.consumer)
            cursor.consumer.session.queue_gone(cursor.consumer)
        self.wake()
