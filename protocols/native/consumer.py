"""The consumer: fetches ahead of the application, decodes batch by batch, and remembers how far it was read.

1. One task for each broker keeps one fetch under way for all partitions that it leads and whose read-ahead is below
   `prefetch_bytes`; what comes waits as undecoded batches. A batch is decoded when the application gets to it.
2. The *position* of a partition is the offset of the next record the application will get. `commit` stores positions:
   what was handed out counts as consumed.
3. `seek` and `assign` start a new generation of the partition: whatever was under way for the old one is thrown away.
4. A topic that was assigned as a whole is read as a whole: partitions that it gets later are read from their beginning,
   or from where the group committed.
5. When another leader epoch has begun, a partition is read on only if what was read is still in its log: else the log
   was cut, which is said, and reading goes on where the log has other records, or with reset "error" ends.
6. A lost connection is made again and fetching goes on where it was. Errors that waiting does not cure come out of the
   iteration.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Self

import trio

from protocols.native import wire
from protocols.native.client import LinkConfig, Service, list_offsets
from protocols.native.errors import (
    ConnectionLost,
    ErrorCode,
    LogTruncated,
    MillraceError,
    NotLeader,
    error_from_wire,
)
from protocols.native.link import Link
from protocols.native.records import ConsumerRecord, batch_records, offset_after, split_batches
from protocols.native.truncation import LastBatch, cut_at, last_of

logger = logging.getLogger(__name__)

Partition = tuple[str, int]
"""Topic and partition number."""

OffsetReset = Literal["earliest", "latest", "error"]


class _Position:
    """Where a partition is read."""

    __slots__ = ("buffered_bytes", "epoch", "fetch_offset", "generation", "last", "offset", "partition", "topic")

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self.topic = topic
        self.partition = partition
        self.generation = 0
        self.move(offset)

    def move(self, offset: int) -> None:
        """Read from `offset` on; forget what was under way."""
        self.offset = offset
        self.fetch_offset = offset
        self.epoch = wire.NO_EPOCH
        """The leader epoch in which what was read is known to be in the log."""
        self.last: LastBatch | None = None
        """The last that was fetched."""
        self.buffered_bytes = 0
        self.generation += 1


class _Fetched:
    """A batch that waits for the application."""

    __slots__ = ("batch", "generation", "position")

    def __init__(self, position: _Position, batch: memoryview) -> None:
        self.position = position
        self.generation = position.generation
        self.batch = batch


class Consumer(Service):
    """`async with Consumer("host:port", group="g") as consumer`; see the module's rules.

    `auto_offset_reset` says where to begin in a partition the group never committed, or whose offset is gone: "latest",
    "earliest" or "error". `fetch_min_bytes`, `fetch_max_wait_ms`: when the broker answers a fetch. `fetch_max_bytes`
    and `partition_max_bytes`: how much one answer holds, in all and of each partition. `prefetch_bytes`: how much of a
    partition is read ahead.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        group: str | None = None,
        *,
        auto_offset_reset: OffsetReset = "latest",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 16 << 20,
        partition_max_bytes: int = 1 << 20,
        prefetch_bytes: int = 2 << 20,
        link: LinkConfig | None = None,
    ) -> None:
        super().__init__(server, link or LinkConfig())
        if auto_offset_reset not in ("earliest", "latest", "error"):
            raise ValueError(f"auto_offset_reset is 'earliest', 'latest' or 'error', not {auto_offset_reset!r}")
        self._group = group
        self._reset: OffsetReset = auto_offset_reset
        self._fetch_min_bytes = fetch_min_bytes
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._fetch_max_bytes = fetch_max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._prefetch_bytes = prefetch_bytes
        self._positions: dict[Partition, _Position] = {}
        self._whole: set[str] = set()
        """Topics of which all partitions are read."""
        self._grown = trio.Event()
        self._fetched: deque[_Fetched] = deque()
        self._arrived = trio.Event()
        self._fetch_wanted = trio.Event()
        self._fetches: dict[Link, trio.CancelScope | None] = {}
        self._failure: MillraceError | None = None
        self._records: list[ConsumerRecord] = []
        self._next = 0
        self._current: _Fetched | None = None

    def _start(self) -> None:
        self._nursery.start_soon(self._fetch_ahead)
        self._nursery.start_soon(self._take_up)

    # Where to read

    async def assign(self, what: str | Partition | Iterable[str | Partition]) -> None:
        """Read these and nothing else: topics (all their partitions) and (topic, partition)s.

        With a group, reading begins where it committed. Raises UnknownTopic, OffsetOutOfRange (reset "error").
        """
        partitions: list[Partition] = []
        whole: set[str] = set()
        for item in [what] if isinstance(what, str) or _is_partition(what) else what:
            if isinstance(item, str):
                numbers = await self._leaders.partitions(item, create_missing=False)
                partitions += [(item, number) for number in numbers]
                whole.add(item)
            else:
                partitions.append(item)  # type: ignore[arg-type]
        committed = await self.committed(partitions)
        missing = [partition for partition in partitions if partition not in committed]
        starts = committed | await self._reset_offsets(missing)
        self._positions = {key: _Position(*key, starts[key]) for key in partitions}
        self._whole = whole
        self._fetched.clear()
        self._forget_current()
        self._restart()

    async def _take_up(self) -> None:
        """Read the partitions that topics get, until cancelled."""
        while True:
            await self._grown.wait()
            self._grown = trio.Event()
            positions = self._positions
            new = self._not_read()
            if not new:
                continue
            try:
                starts: dict[Partition, int | None] = {**await self.committed(new)}
                rest = [key for key in new if key not in starts]
                starts |= dict(zip(rest, await list_offsets(self._leaders, rest, "earliest")))
            except MillraceError as error:
                await self._note_error(error)
                continue  # the leaders will be asked again, and this
            if self._positions is positions:
                positions |= {key: _Position(*key, starts[key] or 0) for key in new}
                self._look_again()

    def _not_read(self) -> list[Partition]:
        """Partitions of topics that are read as a whole."""
        counts = self._leaders.counts
        known = ((topic, number) for topic in self._whole for number in range(counts.get(topic, 0)))
        return [key for key in known if key not in self._positions]

    async def _reset_offsets(self, partitions: list[Partition]) -> dict[Partition, int]:
        if not partitions:
            return {}
        if self._reset == "error":
            raise error_from_wire((ErrorCode.OFFSET_OUT_OF_RANGE, False, f"no committed offset for {partitions}"))
        offsets = await list_offsets(self._leaders, partitions, self._reset)
        return {key: offset or 0 for key, offset in zip(partitions, offsets)}

    @property
    def assignment(self) -> list[Partition]:
        """What is read."""
        return list(self._positions)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record the application will get. Raises KeyError when it is not assigned."""
        position = self._positions[topic, partition]
        current = self._current
        if current is not None and current.position is position and current.generation == position.generation:
            return self._records[self._next].offset if self._next < len(self._records) else offset_after(current.batch)
        return position.offset

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`. Raises KeyError when the partition is not assigned."""
        self._seek({(topic, partition): offset})
        await trio.lowlevel.checkpoint()

    async def seek_to_beginning(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record there is, in these or all assigned partitions."""
        await self._seek_to("earliest", partitions)

    async def seek_to_end(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at what will be written next, in these or all assigned partitions."""
        await self._seek_to("latest", partitions)

    async def seek_to_time(self, timestamp_ms: int, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record not before a time; at the end where there is none that young."""
        await self._seek_to(timestamp_ms, partitions)

    async def _seek_to(
        self, which: Literal["earliest", "latest"] | int, partitions: Iterable[Partition] | None
    ) -> None:
        keys = list(self._positions if partitions is None else partitions)
        if not keys:
            return
        offsets = await list_offsets(self._leaders, keys, which)
        if None in offsets:
            latest = await list_offsets(self._leaders, keys, "latest")
            offsets = [end if offset is None else offset for offset, end in zip(offsets, latest)]
        self._seek({key: offset or 0 for key, offset in zip(keys, offsets)})

    def _seek(self, offsets: Mapping[Partition, int]) -> None:
        for key, offset in offsets.items():
            position = self._positions[key]
            position.move(offset)
            if self._current is not None and self._current.position is position:
                self._forget_current()
        self._restart()

    def _forget_current(self) -> None:
        self._current, self._records, self._next = None, [], 0

    # Groups

    async def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        """Store positions, or `offsets`, for the group; returns when they are durable. Raises ValueError without a
        group.
        """
        if self._group is None:
            raise ValueError("a consumer without a group cannot commit")
        if offsets is None:
            offsets = {key: self.position(*key) for key in self._positions}
        if offsets:
            entries = [(topic, partition, offset, "") for (topic, partition), offset in offsets.items()]
            await self._link.call(wire.CommitOffsets(0, self._group, entries), wire.CommitOffsetsReply)

    async def committed(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """What the group committed, of these or of all; empty without a group."""
        if self._group is None:
            return {}
        request = wire.FetchOffsets(0, self._group, None if partitions is None else list(partitions))
        reply = await self._link.call(request, wire.FetchOffsetsReply)
        return {(topic, partition): offset for topic, partition, offset, _ in reply.entries}

    # Records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record; waits for ever."""
        index = self._next
        if index >= len(self._records):
            await self._advance()
            index = 0
        self._next = index + 1
        return self._records[index]

    async def fetch(self, max_records: int = 500) -> list[ConsumerRecord]:
        """1 to `max_records` records: what there is, or else the next to come. Waits for ever."""
        if self._next >= len(self._records):
            await self._advance()
        result: list[ConsumerRecord] = []
        while True:
            taken = self._records[self._next : self._next + max_records - len(result)]
            self._next += len(taken)
            result += taken
            if len(result) >= max_records or not self._decode_next():
                return result

    async def _advance(self) -> None:
        """Wait for the next batch that holds records, and make it the current one."""
        await trio.lowlevel.checkpoint()
        while not self._decode_next():
            if self._failure is not None:
                failure, self._failure = self._failure, None
                self._look_again()
                raise failure
            broken = self._leaders.failure
            if broken is not None:
                raise broken
            self._arrived = trio.Event()
            await self._arrived.wait()

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
            position.buffered_bytes -= len(fetched.batch)
            self._look_again()
            self._records = batch_records(position.topic, position.partition, fetched.batch, position.offset)
            self._next = 0
            self._current = fetched
            if self._records:
                return True

    def _leave_current(self) -> None:
        """All of the current batch was handed out."""
        current = self._current
        if current is not None:
            if current.generation == current.position.generation:
                current.position.offset = offset_after(current.batch)
            self._forget_current()

    # Fetching

    def _restart(self) -> None:
        """The partitions to fetch have changed."""
        self._look_again()
        for scope in self._fetches.values():
            if scope is not None:
                scope.cancel()

    def _look_again(self) -> None:
        wanted, self._fetch_wanted = self._fetch_wanted, trio.Event()
        wanted.set()

    async def _fetch_ahead(self) -> None:
        """Have a task for each broker that leads something of what is read."""
        self._leaders.on_change = self._leaders_changed
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
                wanted = [p for p in led if p.buffered_bytes < self._prefetch_bytes]
                if not wanted or self._failure is not None:
                    await changed.wait()
                    continue
                doubtful = [p for p in wanted if self._is_doubtful(link, p)]
                if doubtful:
                    await self._validate(link, doubtful)
                else:
                    await self._fetch_once(link, wanted)
        finally:
            del self._fetches[link]

    def _is_doubtful(self, link: Link, position: _Position) -> bool:
        """Whether another leader may lack what was read of a partition."""
        epoch = self._leaders.epoch_of(link, position.topic, position.partition)
        if position.last is None:
            position.epoch = epoch
        return position.epoch != epoch != wire.NO_EPOCH

    async def _validate(self, link: Link, doubtful: list[_Position]) -> None:
        """Rule 5."""
        asked = [
            (p, p.generation, p.last, self._leaders.epoch_of(link, p.topic, p.partition)) for p in doubtful if p.last
        ]
        entries = [(p.topic, p.partition, epoch, last.epoch) for p, _, last, epoch in asked]
        try:
            reply = await link.request(wire.OffsetsForEpochs(0, entries), wire.OffsetsForEpochsReply)
        except MillraceError as error:
            if isinstance(error, ConnectionLost):
                self._leaders.stale((p.topic, p.partition) for p in doubtful)
            await self._note_error(error)
            return
        for (position, generation, last, epoch), (refused, end_epoch, end_offset) in zip(asked, reply.entries):
            if generation != position.generation:
                continue
            if refused is not None:
                await self._refused(position, error_from_wire(refused))
                continue
            offset = cut_at(last, end_epoch, end_offset)
            if offset is None:
                position.epoch = epoch
            else:
                self._cut(position, offset)

    def _cut(self, position: _Position, offset: int) -> None:
        """The log has other records, or none, from an offset on. What was not handed out yet is forgotten."""
        read_to = self.position(position.topic, position.partition)
        self._seek({(position.topic, position.partition): min(offset, read_to)})
        if read_to > offset:
            truncated = LogTruncated(position.topic, position.partition, offset, read_to)
            if self._reset == "error":
                self._failure = truncated
                self._arrived.set()
            else:
                logger.warning("%s; going on at %d", truncated, offset)

    async def _fetch_once(self, link: Link, wanted: list[_Position]) -> None:
        generations = [position.generation for position in wanted]
        entries = [
            wire.FetchEntry(p.topic, p.partition, p.fetch_offset, self._partition_max_bytes, p.epoch) for p in wanted
        ]
        request = wire.Fetch(0, self._fetch_max_wait_ms, self._fetch_min_bytes, self._fetch_max_bytes, entries)
        reply: wire.FetchReply | None = None
        with trio.CancelScope() as self._fetches[link]:
            try:
                reply = await link.request(request, wire.FetchReply, wait_ms=self._fetch_max_wait_ms)
            except MillraceError as error:
                if isinstance(error, ConnectionLost):
                    self._leaders.stale((p.topic, p.partition) for p in wanted)
                await self._note_error(error)
        self._fetches[link] = None
        if reply is not None:
            for position, generation, fetched in zip(wanted, generations, reply.entries):
                if generation == position.generation:
                    await self._take(position, fetched)

    async def _take(self, position: _Position, fetched: wire.FetchedPartition) -> None:
        """Queue what came for a partition."""
        if fetched.error is not None:
            generation = position.generation
            error = error_from_wire(fetched.error)
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE and self._reset != "error":
                try:
                    key = (position.topic, position.partition)
                    offset = (await self._reset_offsets([key]))[key]
                except MillraceError as problem:
                    error = problem
                else:
                    if generation == position.generation:
                        position.move(offset)
                    return
            await self._refused(position, error)
            return
        try:
            batches = split_batches(fetched.records)
        except MillraceError as error:
            await self._note_error(error)
            return
        if batches:
            self._fetched += [_Fetched(position, batch) for batch in batches]
            position.buffered_bytes += len(fetched.records)
            position.last = last_of(batches)
            position.fetch_offset = position.last.next_offset
            self._arrived.set()

    async def _refused(self, position: _Position, error: MillraceError) -> None:
        """What a broker said of a partition."""
        if isinstance(error, NotLeader):
            self._leaders.stale([(position.topic, position.partition)])
        else:
            await self._note_error(error)

    async def _note_error(self, error: MillraceError) -> None:
        """Wait a moment after what passes; hand the rest to the application."""
        if error.retriable:
            await trio.sleep(self._link.config.reconnect_backoff_ms / 1000)
        else:
            self._failure = error
            self._arrived.set()

    def _leaders_changed(self) -> None:
        if self._whole and self._not_read():
            self._grown.set()
        self._arrived.set()
        self._look_again()


def _is_partition(what: object) -> bool:
    return isinstance(what, tuple) and len(what) == 2 and isinstance(what[0], str) and isinstance(what[1], int)
