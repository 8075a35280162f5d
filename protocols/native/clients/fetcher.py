"""Fetching for a consumer: ahead of the application, batch by batch, from the leaders of its partitions.

1. One task for each broker keeps one fetch under way for all partitions that it leads, that are not paused and whose
   read-ahead is below `prefetch_bytes`; what comes waits as undecoded batches. A batch is decoded when the application
   gets to it.
2. A move of a position starts a new generation of it: whatever was under way for the old one is thrown away.
3. When another leader epoch has begun, a partition is read on only if what was read is still in its log: else the log
   was cut, which is said, and reading goes on where the log has other records, or with reset "error" ends.
4. A partition may be asked for by two links for a while, when another leads it or the same broker is reached by another
   link. What does not begin where it is read on by then, or was asked for in another epoch, is thrown away.
5. A member of a group may get partitions of which nobody knows where to begin (reset "error"): they are `NOWHERE` until
   the application seeks, and whoever asks for records until then is told so.
6. A topic that was deleted and made again is read from its beginning: that what was read is gone is said as in rule 3.
   A partition that is not there is waited for, as Kafka's clients do; that a topic is gone is said once.
7. A lost connection is made again and fetching goes on where it was. Errors that waiting does not cure come out of
   whoever asks for records.
8. A broker fills an answer in the order in which partitions were asked for. So those come last that had something last:
   else what there is more of than fits would be read to its end, or for ever, before the others.
9. A fetch of partitions that all had nothing last waits. It ends early when another partition of the same broker is
   wanted again: what was read ahead of that is used up in a moment, and the application would wait for the idle ones.
10. When records that are to be read next are not there any more, reading goes on elsewhere (`auto_offset_reset`) once
    what was read ahead is used up. That is no move: whoever works on what was handed out goes on with it.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Literal

import trio
from msgspec import Struct

from protocols.native import wire
from protocols.native.clients.client import LinkConfig, Service
from protocols.native.clients.either_loop import on_either_loop
from protocols.native.clients.group_bytes import Partition as Partition
from protocols.native.clients.hooks import OnRecords
from protocols.native.clients.link import Link
from protocols.native.clients.listed_offsets import list_offsets
from protocols.native.clients.positions import Fetched, Position
from protocols.native.clients.records import ConsumerRecord, batch_records, checked_offset, split_batches
from protocols.native.clients.truncation import cut_at, last_of
from protocols.native.errors import (
    GONE,
    ConnectionLost,
    ErrorCode,
    LogTruncated,
    MillraceError,
    NotLeader,
    error_from_wire,
)

logger = logging.getLogger("protocols.native.clients.consumer")

OffsetReset = Literal["earliest", "latest", "error"]
NOWHERE = -1
"""An offset that is none: rule 5."""
_turn_of = attrgetter("turn")
_ENDED_MAX = 64
"""Fetches that brokers still have wait, and answer to nobody: rule 9."""


class FetchLimits(Struct, frozen=True):
    """When brokers answer a fetch and how much they send; see `Consumer`."""

    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    partition_max_bytes: int
    prefetch_bytes: int


class Fetcher(Service):
    """What `Consumer` is built on; see the module."""

    def __init__(
        self,
        server: str | Sequence[str],
        reset: OffsetReset,
        limits: FetchLimits,
        on_records: OnRecords | None,
        link: LinkConfig,
    ) -> None:
        super().__init__(server, link)
        self._reset: OffsetReset = reset
        self._fetch_limits = limits
        self._on_records = on_records
        """Looks at each batch's records before the application gets them."""
        self._positions: dict[Partition, Position] = {}
        self._fetched: deque[Fetched] = deque()
        self._arrived = trio.Event()
        self._fetch_wanted = trio.Event()
        self._fetches: dict[Link, trio.CancelScope | None] = {}
        self._idle_fetches: dict[Link, trio.CancelScope] = {}
        """Rule 9: those of `_fetches` that wait."""
        self._failure: MillraceError | None = None
        self._nowhere: set[Partition] = set()
        """Rule 5."""
        self._turns = 0
        """Rule 8: how often there was something."""
        self._missing: set[Position] = set()
        self._told_gone: set[str] = set()
        """Rule 6: partitions that are not there, and topics."""
        self._records: list[ConsumerRecord] = []
        self._next = 0
        self._current: Fetched | None = None
        self._on_cut: list[Callable[[Partition, int], None]] = []
        """Told where the log of a partition was cut, or of what was read of it."""
        self._waiting = False
        """Somebody asks for records, and there are none."""
        self._between: Callable[[], Awaitable[None]] | None = None
        """What a member of a group does between batches, while nobody has records under way."""

    def _start(self) -> None:
        self._nursery.start_soon(self._fetch_ahead)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record the application will get. Raises KeyError when it is not assigned."""
        position = self._positions[topic, partition]
        current = self._current
        if current is not None and current.position is position and current.generation == position.generation:
            return self._records[self._next].offset if self._next < len(self._records) else current.end_offset
        return position.offset

    async def _reset_offsets(self, partitions: list[Partition]) -> dict[Partition, int]:
        if not partitions:
            return {}
        if self._reset == "error":
            raise _no_committed_offset(partitions)
        offsets = await list_offsets(self._leaders, partitions, self._reset)
        return {key: offset or 0 for key, offset in zip(partitions, offsets)}

    def _seek(self, offsets: Mapping[Partition, int]) -> None:
        moved = [(self._positions[key], checked_offset(offset)) for key, offset in offsets.items()]
        for position, offset in moved:
            position.move(offset)
            self._nowhere.discard((position.topic, position.partition))
            if self._current is not None and self._current.position is position:
                self._forget_current()
        self._restart()

    def _set_positions(self, starts: Mapping[Partition, int]) -> None:
        """Read these and nothing else. What is read already goes on."""
        before, self._positions = self._positions, {}
        for key, start in starts.items():
            kept = before.pop(key, None)
            self._positions[key] = Position(*key, start) if kept is None else kept
        for dropped in before.values():
            dropped.generation += 1
        self._nowhere = {key for key, position in self._positions.items() if position.offset == NOWHERE}
        read = set(self._positions.values())
        self._missing &= read
        self._fetched = deque(fetched for fetched in self._fetched if fetched.position in read)
        if self._current is not None and self._current.position not in read:
            self._forget_current()
        self._restart()

    def _forget_current(self) -> None:
        self._current, self._records, self._next = None, [], 0

    # Records

    @on_either_loop
    async def _advance(self, until: float = math.inf) -> bool:
        """Wait for the next batch that holds records, and make it the current one; False when there is none by then."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._between is not None:
                await self._between()
            if self._nowhere:
                raise _no_committed_offset(sorted(self._nowhere))
            if self._next < len(self._records) or self._decode_next():  # another task may wait as well
                return True
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._look_again()
                raise failure
            broken = self._leaders.failure
            if broken is not None:
                raise broken
            self._arrived = trio.Event() if self._arrived.is_set() else self._arrived
            self._waiting = True
            try:
                with trio.move_on_at(until) as timer:
                    await self._arrived.wait()
            finally:
                self._waiting = False
            if timer.cancelled_caught:
                return False

    def _decode_next(self) -> bool:
        """Make the next batch that holds records the current one; False if none is here."""
        while True:
            self._leave_current()
            if not self._fetched:
                return False
            fetched = self._fetched.popleft()
            position = fetched.position
            if fetched.generation != position.generation:
                continue
            if position.paused:
                position.parked.append(fetched)
                continue
            fetched.left = None
            try:
                records = batch_records(position.topic, position.partition, fetched.batch, position.offset)
                if self._on_records is not None and records:
                    records, fetched.left = self._on_records(records)
            except BaseException:  # it comes again: nothing is passed over that nobody was told of
                self._fetched.appendleft(fetched)
                raise
            if fetched.left is None:
                left = position.buffered_bytes - len(fetched.batch)
                if left < self._fetch_limits.prefetch_bytes <= position.buffered_bytes:
                    self._end_idle_fetch(position)
                position.buffered_bytes = left
                self._look_again()
            else:
                self._fetched.appendleft(fetched)
            self._records = records
            self._next = 0
            self._current = fetched
            if self._records:
                return True

    def _leave_current(self) -> None:
        """All of the current batch was handed out."""
        current = self._current
        if current is not None:
            if current.generation == current.position.generation:
                current.position.offset = current.end_offset
            self._forget_current()
            if current.position.out_of_range:
                self._look_again()

    def _put_back(self) -> None:
        """What is left of the current batch comes again: whoever asks next does not get it at once."""
        current = self._current
        if current is None or self._next >= len(self._records):
            return
        position = current.position
        if current.generation == position.generation:
            position.offset = self._records[self._next].offset
            if current.left is None:
                position.buffered_bytes += len(current.batch)
                self._fetched.appendleft(current)
        self._forget_current()

    def _set_paused(self, keys: Iterable[Partition], paused: bool) -> None:
        for key in keys:
            position = self._positions[key]
            position.paused = paused
            if paused and self._current is not None and self._current.position is position:
                self._put_back()
            if not paused:
                self._fetched.extendleft(reversed(position.parked))
                position.parked = []
                self._end_idle_fetch(position)
        self._arrived.set()
        self._look_again()

    # Fetching

    def _restart(self) -> None:
        """The partitions to fetch have changed."""
        self._look_again()
        for scope in self._fetches.values():
            if scope is not None:
                scope.cancel()

    def _end_idle_fetch(self, position: Position) -> None:
        """Rule 9."""
        link = self._leaders.link_to(position.topic, position.partition)
        scope = None if link is None else self._idle_fetches.get(link)
        if link is None or scope is None:
            return
        if link.requests_in_flight < min(_ENDED_MAX, link.limits["requests_in_flight_max"] // 2):
            scope.cancel()

    def _look_again(self) -> None:
        wanted, self._fetch_wanted = self._fetch_wanted, trio.Event()
        wanted.set()

    async def _fetch_ahead(self) -> None:
        """Have a task for each broker that leads something of what is read."""
        self._leaders.on_change = self._leaders_changed
        self._leaders.on_made_again = self._made_again
        async with trio.open_nursery() as nursery:
            while True:
                changed = self._fetch_wanted
                for key in self._positions:
                    link = self._leaders.link_to(*key)
                    if link is not None and link not in self._fetches:
                        self._fetches[link] = None
                        nursery.start_soon(self._fetch_from, link)
                await changed.wait()

    async def _fetch_from(self, link: Link) -> None:
        """Keep a fetch under way to one broker as long as it is a leader that is connected."""
        try:
            while True:
                changed = self._fetch_wanted
                led = [p for p in self._positions.values() if self._leaders.link_to(p.topic, p.partition) is link]
                if not led:
                    return
                wanted = [p for p in led if p.buffered_bytes < self._fetch_limits.prefetch_bytes and not p.paused]
                wanted = [p for p in wanted if p.offset != NOWHERE] if self._nowhere else wanted
                wanted = [p for p in wanted if p not in self._missing] if self._missing else wanted
                wanted = [p for p in wanted if not (p.out_of_range and self._is_ahead(p))]
                if not wanted or self._failure is not None:
                    await changed.wait()
                    continue
                wanted.sort(key=_turn_of)
                doubtful = [p for p in wanted if self._is_doubtful(link, p)]
                if doubtful:
                    await self._validate(link, doubtful)
                else:
                    await self._fetch_once(link, wanted)
        finally:
            del self._fetches[link]
            self._idle_fetches.pop(link, None)

    def _is_ahead(self, position: Position) -> bool:
        """Rule 10: whether something that was read is still to be handed out, or was not left yet."""
        return position.buffered_bytes > 0 or (self._current is not None and self._current.position is position)

    def _is_doubtful(self, link: Link, position: Position) -> bool:
        """Whether another leader may lack what was read of a partition."""
        epoch = self._leaders.epoch_of(link, position.topic, position.partition)
        if position.last is None:
            position.epoch = epoch
        return position.epoch != epoch != wire.NO_EPOCH

    async def _validate(self, link: Link, doubtful: list[Position]) -> None:
        """Rule 3."""
        asked = [(p, p.asked, p.last, self._leaders.epoch_of(link, p.topic, p.partition)) for p in doubtful if p.last]
        entries = [(p.topic, p.partition, epoch, last.epoch) for p, _, last, epoch in asked]
        try:
            reply = await link.request(wire.OffsetsForEpochs(0, entries), wire.OffsetsForEpochsReply)
        except MillraceError as error:
            if isinstance(error, ConnectionLost):
                self._leaders.stale((p.topic, p.partition) for p in doubtful)
            await self._note_error(error)
            return
        for (position, about, last, epoch), (refused, end_epoch, end_offset) in zip(asked, reply.entries):
            if about != position.asked:
                continue
            if refused is not None:
                await self._refused(position, error_from_wire(refused))
                continue
            offset = cut_at(last, end_epoch, end_offset)
            if offset is None:
                position.epoch = epoch
            else:
                self._cut(position, offset)

    def _cut(self, position: Position, offset: int, *, made_again: bool = False) -> None:
        """The log has other records, or none, from an offset on. What was not handed out yet is forgotten."""
        read_to = self.position(position.topic, position.partition)
        key, go_on_at = (position.topic, position.partition), min(offset, read_to)
        self._seek({key: go_on_at})
        for tell in self._on_cut:
            tell(key, go_on_at)
        if read_to > offset:
            truncated = LogTruncated(position.topic, position.partition, offset, read_to, made_again=made_again)
            if self._reset == "error":
                self._failure = truncated
                self._arrived.set()
            else:
                logger.warning("%s; going on at %d", truncated, offset)

    async def _fetch_once(self, link: Link, wanted: list[Position]) -> None:
        asked = [position.asked for position in wanted]
        entries = [
            wire.FetchEntry(p.topic, p.partition, p.fetch_offset, self._fetch_limits.partition_max_bytes, p.epoch)
            for p in wanted
        ]
        request = wire.Fetch(
            0, self._fetch_limits.max_wait_ms, self._fetch_limits.min_bytes, self._fetch_limits.max_bytes, entries
        )
        reply: wire.FetchReply | None = None
        with trio.CancelScope() as scope:
            self._fetches[link] = scope
            if all(position.idle for position in wanted):
                self._idle_fetches[link] = scope
            try:
                reply = await link.request(request, wire.FetchReply, wait_ms=self._fetch_limits.max_wait_ms)
            except MillraceError as error:
                if isinstance(error, ConnectionLost):
                    self._leaders.stale((p.topic, p.partition) for p in wanted)
                await self._note_error(error)
        self._fetches[link] = None
        self._idle_fetches.pop(link, None)
        if reply is not None:
            for position, about, fetched in zip(wanted, asked, reply.entries):
                if about == position.asked:
                    await self._take(position, fetched)

    async def _take(self, position: Position, fetched: wire.FetchedPartition) -> None:
        """Queue what came for a partition."""
        if not self._leaders.is_of(position.topic, fetched.topic_id):
            return
        if fetched.error is not None:
            asked = position.asked
            error = error_from_wire(fetched.error)
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE and self._reset != "error":
                try:
                    key = (position.topic, position.partition)
                    await self._leaders.partitions(position.topic, create_missing=False)  # it may be another one
                    if asked != position.asked:
                        return
                    if self._is_ahead(position):
                        position.out_of_range = True
                        return
                    offset = (await self._reset_offsets([key]))[key]
                except MillraceError as problem:
                    error = problem
                else:
                    if asked == position.asked:
                        position.go_on_at(offset)
                    return
            await self._refused(position, error)
            return
        try:
            batches = split_batches(fetched.records)
        except MillraceError as error:
            await self._note_error(error)
            return
        position.idle, position.out_of_range = not batches, False
        if batches:
            self._fetched += [Fetched(position, batch) for batch in batches]
            self._turns += 1
            position.turn = self._turns
            position.buffered_bytes += len(fetched.records)
            position.last = last_of(batches)
            position.fetch_offset = position.last.next_offset
            self._arrived.set()

    async def _refused(self, position: Position, error: MillraceError) -> None:
        """What a broker said of a partition."""
        if isinstance(error, NotLeader):
            self._leaders.stale([(position.topic, position.partition)])
        elif error.code in GONE:
            self._miss(position, error)
        else:
            await self._note_error(error)

    def _miss(self, position: Position, error: MillraceError) -> None:
        """It is not there: rule 6."""
        self._missing.add(position)
        self._leaders.stale([(position.topic, position.partition)])
        if error.code != ErrorCode.UNKNOWN_TOPIC:
            logger.warning("%s; it is read when it has one", error)
        elif position.topic not in self._told_gone:
            self._told_gone.add(position.topic)
            self._failure = error
            self._arrived.set()

    def _made_again(self, topic: str) -> None:
        """A topic is another one: rule 6."""
        for position in list(self._positions.values()):
            if position.topic == topic and position.offset != NOWHERE:
                self._cut(position, 0, made_again=True)

    async def _note_error(self, error: MillraceError) -> None:
        """Wait a moment after what passes; hand the rest to the application."""
        if error.retriable:
            await trio.sleep(self._link.config.reconnect_backoff_ms / 1000)
        else:
            self._failure = error
            self._arrived.set()

    def _leaders_changed(self) -> None:
        for position in list(self._missing):
            leaders, topic = self._leaders, position.topic
            if topic not in leaders.absent and position.partition < leaders.counts.get(topic, 0):
                self._missing.discard(position)
                self._told_gone.discard(topic)
        self._arrived.set()
        self._look_again()


def _no_committed_offset(partitions: list[Partition]) -> MillraceError:
    named = ", ".join(f"partition {partition} of topic '{topic}'" for topic, partition in partitions)
    return error_from_wire((ErrorCode.OFFSET_OUT_OF_RANGE, False, f"no committed offset for {named}"))
