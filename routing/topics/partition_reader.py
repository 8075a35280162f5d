"""Reading one partition of a topic for those who give its records out: streams, and queues that are views of a topic.

1. Whole batches are read, from memory or off the loop, decoded once and shared by all who read near the same place
   (`stream_cache.py`); there is one reader of a partition, as long as anybody wants it.
2. What readers may see ends at `end`, of whatever log the partition has: this broker's or, in a cluster, one that is
   read elsewhere. A log that comes in its place and has not so much yet is read when it has.
3. What a producer has written so that nobody can decode it is passed by itself, not with what is before it. Where a log
   is damaged is said once. Of a replica whoever leads it is asked for what cannot be read here; what he
   cannot read either is lost, and readers are told where it goes on.
4. Whoever reads is told when there may be more (`listeners`), and when what it has asked the disk for is there.
5. What nobody waits for is synced when a reader waits for it. Whoever leads a log knows his own readers: where what a
   replica has got is not committed soon, he is told that there are readers here, until nothing comes for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import trio

from core_log.absent_log import AbsentLog
from core_log.cold_reader import in_thread
from core_log.committed import committed
from core_log.errors import CorruptBatch, Damaged, LogUnavailable, OffsetOutOfRange
from core_log.expiry import unexpired
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from core_log.whole_batches import readable_behind
from routing.config import BrokerConfig
from routing.errors import StorageUnavailable
from routing.topics.offset_store import Positions
from routing.topics.stream_cache import Chunk, LogChunks, StreamCache
from routing.topics.stream_records import StreamReader, StreamSlab
from routing.topics.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_READ_SHARE = 8
"""Of a consumer's share of the cache this part is read at once: messages take several times their bytes there."""
_READ_BYTES_MIN = 16 << 10

_COMMITTED_WITHIN_S = 0.05
"""What somebody waits for is committed by then, as a rule."""

Spawn = Callable[[Callable[..., Coroutine[Any, Any, None]], Any], None]
Done = Callable[[Damaged | None], None]
"""Told that what was asked for is there, or that it cannot be read."""


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
        self._readers: dict[TopicPartition, PartitionReader] = {}

    def reader(self, partition: TopicPartition, listener: Callable[[], None]) -> PartitionReader:
        """The reader of a partition, which tells `listener` of what is new until that leaves it."""
        found = self._readers.get(partition)
        if found is None:
            found = self._readers[partition] = PartitionReader(partition, self)
        found.listeners.append(listener)
        return found

    def forget(self, reader: PartitionReader) -> None:
        """Nobody wants it any more."""
        self._readers.pop(reader.partition, None)

    def read_bytes(self) -> int:
        """How much to read at once, so that consumers at many places do not push each other out of the cache."""
        share = self.config.stream_cache_bytes // (_READ_SHARE * max(self.consumers, 1))
        return min(self.config.stream_read_bytes, max(share, _READ_BYTES_MIN))


class PartitionReader:
    """See the module. Made by `StreamHost.reader`."""

    def __init__(self, partition: TopicPartition, host: StreamHost) -> None:
        self.partition = partition
        self.log: PartitionLog = partition.log
        self.listeners: list[Callable[[], None]] = []
        self._host = host
        self._decoder = StreamReader()
        self._chunks = LogChunks(host.cache)
        self._loading: dict[int, list[Done]] = {}
        self._damaged: set[int] = set()
        """Where this broker's log cannot be read, which was said."""
        self._waiting = 0
        self._is_asking = False
        self._closed = False
        self.log.listeners.append(self._log_advanced)
        partition.taken.append(self._log_taken)

    @property
    def start(self) -> int:
        """Where it begins."""
        return self.log.log_start_offset

    @property
    def end(self) -> int:
        """The offset behind all that readers may see: of transactions what is committed."""
        return self.log.stable_offset

    @property
    def is_behind(self) -> bool:
        """Whether there may be more than `end`: readers elsewhere have seen it, or nobody has waited for it yet."""
        leadership = self.partition.leadership
        if self.partition.forward is not None or self.log.high_watermark < self.partition.next_offset:
            return True
        return leadership is not None and leadership.unknown_end() is not None

    async def told_end(self) -> int:
        """`end` as whoever leads it knows it once all that was published before is committed. Raises
        StorageUnavailable.
        """
        self._host.turn()  # it is appended, or on its way
        if self.partition.forward is not None:
            return (await self.partition.forward.ends())[1]
        await self.partition.latest()
        return self.end

    def find_end(self, done: Callable[[int], None]) -> None:
        """Tell `done` an offset behind all that readers anywhere have seen: at once, or as soon as its leader says it.
        Who has just begun to lead knows less of it as committed than who led before.
        """
        if self.partition.forward is None:
            done(self.log.log_end_offset)
        else:
            self._host.spawn(self._find_end, done)

    async def _find_end(self, done: Callable[[int], None]) -> None:
        while not self._closed:
            with suppress(StorageUnavailable):
                return done(await self.told_end())
            await trio.sleep(self._host.config.flush_retry_interval_ms / 1000)

    def waits(self, count: int) -> None:
        """So many more (or less) wait at the end: what comes is synced, whoever appended it."""
        self._waiting += count
        self.log.reader_waits(count)
        self._look_at_end()

    def _look_at_end(self) -> None:
        """Rule 5."""
        log, is_led_elsewhere = self.log, self.partition.forward is not None and self.partition.is_here
        if self._waiting > 0 and is_led_elsewhere and log.high_watermark < log.log_end_offset and not self._is_asking:
            self._is_asking = True
            self._host.spawn(self._have_committed, log)

    async def _have_committed(self, log: PartitionLog) -> None:
        wanted = log.log_end_offset
        await trio.sleep(_COMMITTED_WITHIN_S)
        with suppress(StorageUnavailable, CorruptBatch):
            while self._waiting > 0 and log is self.log and log.high_watermark < wanted:
                forward = self.partition.forward
                if forward is None:
                    break
                wanted = max(await forward.committed(wanted), log.log_end_offset) + 1
        self._is_asking = False
        self._look_at_end()

    def leave(self, listener: Callable[[], None]) -> None:
        """`listener` is not told any more; the last who leaves ends the reader."""
        self.listeners.remove(listener)
        if self.listeners:
            return
        self._closed = True
        self._host.forget(self)
        self.partition.taken.remove(self._log_taken)
        for log in {self.log, self.partition.log}:
            if self._log_advanced in log.listeners:
                log.listeners.remove(self._log_advanced)
        self._chunks.clear()

    # --- another log -------------------------------------------------------------------

    def _log_taken(self) -> None:
        """The partition has another log."""
        log, before = self.partition.log, self.log
        log.config = before.config
        log.listeners.append(self._log_advanced)
        if before.closed or log.high_watermark >= before.high_watermark:
            self._go_on_with(log)

    def _go_on_with(self, log: PartitionLog) -> None:
        before, self.log = self.log, log
        if self._log_advanced in before.listeners:
            before.listeners.remove(self._log_advanced)
        before.reader_waits(-self._waiting)
        log.reader_waits(self._waiting)
        self._tell()
        self._look_at_end()

    def _log_advanced(self, log: PartitionLog) -> None:
        if log is not self.log:
            if log is self.partition.log and log.high_watermark >= self.log.high_watermark:
                self._go_on_with(log)
            return
        self._tell()
        self._look_at_end()

    def _tell(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    # --- reading -----------------------------------------------------------------------

    def slab_at(self, offset: int) -> StreamSlab | int | None:
        """The slab that holds `offset` or, in a gap, the next one near it; an offset before which there is nothing;
        None when the disk has to be asked (`load`).
        """
        chunk = self.chunk_at(offset)
        if chunk is None:
            return None
        slab = chunk.slab_at(offset)
        return chunk.end if slab is None else slab

    def chunk_at(self, offset: int) -> Chunk | None:
        """The chunk that holds `offset`, if it is in memory or can be made of what is."""
        found = self._chunks.find(offset) or self._read(offset)
        if found is not None and not found.read_ahead:
            found.read_ahead = True
            self._read_ahead(found.end)
        return found

    def _read(self, offset: int) -> Chunk | None:
        limit = self._limit(offset)
        if limit <= offset:
            return None  # not for readers yet: there may be something, once the log that came in its place has it
        try:
            batches = self.log.read(offset, self._host.read_bytes(), before=limit)
            return None if batches is None else self._decode(offset, limit, _visible(self.log, batches))
        except (CorruptBatch, OffsetOutOfRange):
            return None  # who reads from the disk finds out, and says so

    def _limit(self, offset: int) -> int:
        """Up to where to read from an offset on: if there is nothing, this is where it goes on."""
        there = self._chunks.first_after(offset)
        return self.end if there is None else min(there, self.end)

    def _decode(self, offset: int, limit: int, batches: Sequence[Any]) -> Chunk:
        slabs, end = self._decoder.read(batches)
        if not batches:
            end = limit
        first = min(offset, slabs[0].first_offset) if slabs else offset
        chunk = Chunk(first, max(end, offset + 1), slabs)
        self._chunks.add(chunk)
        return chunk

    def load(self, offset: int, done: Done) -> None:
        """Have what `offset` begins read from the disk; `done` is told, and a turn ends."""
        waiting = self._loading.get(offset)
        if waiting is not None:
            waiting.append(done)
        else:
            self._load_soon(offset, [done])

    def _read_ahead(self, offset: int) -> None:
        """Read what comes next from the disk while this is handed out, if it is only there."""
        if offset >= self.end or offset in self._loading or self._chunks.find(offset) is not None:
            return
        with suppress(OffsetOutOfRange):
            if self.log.read(offset, 1) is None:
                self._load_soon(offset, [])

    def _load_soon(self, offset: int, waiting: list[Done]) -> None:
        self._loading[offset] = waiting
        self._host.spawn(self._load, offset)

    async def _load(self, offset: int) -> None:
        error: Damaged | None = None
        pause_s = self._host.config.flush_retry_interval_ms / 1000
        while not self._closed:
            log = self.log
            limit = self._limit(offset)
            if limit <= offset:
                break  # as in `_read`
            try:
                batches = await self._batches(log, offset, limit, self._host.read_bytes())
                if not self._closed:
                    self._decode(offset, limit, _visible(log, batches))
                break
            except (OffsetOutOfRange, LogUnavailable):
                break  # retention was faster, or the log is gone
            except Damaged as problem:
                # What was written cannot be decoded: all copies are like that.
                error = problem
                break
            except (CorruptBatch, FileNotFoundError) as problem:
                if log is not self.log:
                    continue  # there is another one now
                if log.is_whole_elsewhere:
                    await trio.sleep(pause_s)
                    continue
                error = Damaged(str(problem), await self._behind(log, offset, limit))
                break
            except (OSError, StorageUnavailable):
                # Not lost: the disk may recover, as it may for writes. The log says it, where it is led.
                await trio.sleep(pause_s)
        for done in self._loading.pop(offset):
            done(error)
        self._host.turn()

    async def _batches(self, log: PartitionLog, offset: int, limit: int, size_bytes: int) -> list[BytesLike]:
        """From this broker's log or, if that is damaged and led elsewhere, from its leader."""
        try:
            return await log.read_cold(offset, size_bytes, before=limit)
        except (CorruptBatch, FileNotFoundError) as problem:
            if offset not in self._damaged:
                self._damaged.add(offset)
                logger.error("cannot read %s at %d: %s", log.directory, offset, problem)
            forward = self.partition.forward
            if forward is None or isinstance(log, AbsentLog):
                raise
            return await forward.read(offset, limit, size_bytes)

    async def _behind(self, log: PartitionLog, offset: int, limit: int) -> int:
        """The first offset from which on a damaged log can be read again. Waits while the disk refuses."""
        while not self._closed:
            try:
                return await in_thread(lambda: readable_behind(log, offset, limit))
            except OSError:
                await trio.sleep(self._host.config.flush_retry_interval_ms / 1000)
        return limit


def _visible(log: PartitionLog, batches: Sequence[BytesLike]) -> Sequence[BytesLike]:
    """What readers may see now. What was decoded stays for as long as the cache has it, though its time is up."""
    return unexpired(log, committed(log, batches))
