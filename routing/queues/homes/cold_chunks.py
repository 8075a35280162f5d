"""Messages of a home partition that are no longer in memory: chunks of the log, read off the loop.

1. A chunk holds every slab of [first, end) that the log has there. Once one is handed out the next is read ahead.
2. Few chunks are kept, the oldest goes first. One with a large message is read when it is wanted, and goes soon after;
   beside others it stays only where there is room for so many bytes.
3. What the log does not hold where it should is lost and said so, once for each stretch that cannot be read; what the
   disk refuses now is asked for again. What lies before the log's start was of no use to any queue when it went: who
   reads ahead, or leads no more, misses nothing of it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from core_log.errors import CorruptBatch, OffsetOutOfRange
from core_log.partition_log import PartitionLog
from core_log.record_batch import parse_header
from core_log.threads import in_thread
from core_log.whole_batches import readable_behind
from routing.config import BrokerConfig
from routing.queues.fact_columns import FactColumns
from routing.queues.gathering import skip_unreadable
from routing.queues.homes.cold_reads import ColdReads
from routing.queues.homes.home_records import SlabReader
from routing.queues.homes.read_slabs import with_lives
from routing.queues.slab_cache import CachedSlab

if TYPE_CHECKING:
    from routing.queues.queue import Queue

logger = logging.getLogger(__name__)

_CHUNKS_MAX = 8
_LARGE = 4
"""So many times what is read at once: a chunk that is larger is one of a large message."""


class ColdChunk:
    """Slabs read back from the log: everything in [first, end)."""

    __slots__ = ("bytes", "damaged", "end", "entries", "first", "firsts", "read_ahead")

    def __init__(
        self, first: int, end: int, entries: list[CachedSlab], size: int = 0, *, damaged: bool = False
    ) -> None:
        self.bytes = size
        """In the log."""
        self.damaged = damaged
        """Nothing of it can be read, which was said."""
        self.first = first
        self.end = end
        self.entries = entries
        self.firsts = [entry.first for entry in entries]
        self.read_ahead = False

    def find(self, offset: int) -> CachedSlab | None:
        """The slab that holds `offset`."""
        index = bisect_right(self.firsts, offset) - 1
        if index >= 0 and offset < self.entries[index].end:
            return self.entries[index]
        return None


class ColdChunks:
    """See the module. `cached` tells whether an offset is in memory elsewhere."""

    def __init__(
        self,
        log: PartitionLog,
        config: BrokerConfig,
        reads: ColdReads,
        cached: Callable[[int], object],
        facts: FactColumns,
    ) -> None:
        self._log = log
        self._facts = facts
        self._config = config
        self._large_bytes = _LARGE * config.cold_read_bytes
        self._reads = reads
        self._cached = cached
        self._chunks: list[ColdChunk] = []
        self._loading: dict[int, set[Queue]] = {}
        self._reader = SlabReader()

    def find(self, offset: int) -> CachedSlab | None:
        """The slab that holds `offset`, if it is here."""
        for chunk in self._chunks:
            if chunk.first <= offset < chunk.end:
                if not chunk.read_ahead:
                    self._read_ahead(chunk)
                return chunk.find(offset)
        return None

    def _read_ahead(self, chunk: ColdChunk) -> None:
        chunk.read_ahead = True
        end = chunk.end
        if (
            chunk.bytes > self._large_bytes
            or end >= self._log.written_offset
            or self._cached(end)
            or end in self._loading
        ):
            return
        if not any(other.first <= end < other.end for other in self._chunks):
            self._loading[end] = set()
            self._reads.start(self._load, end)

    def load(self, offset: int, queue: Queue, known_by: int) -> None:
        """Read what `offset` begins from the log; the queue is pumped again when it is here.

        To the queue the message is `known_by` another offset if it was moved (`moves.py`).
        """
        here = [chunk for chunk in self._chunks if chunk.first <= offset < chunk.end]
        if here:
            # The log was read there and does not hold the message: damage, not a reason to ask for ever.
            if not here[0].damaged and not queue.partition.suspended:
                logger.error("offset %d of %s cannot be read: message lost", offset, self._log.directory)
            skip_unreadable(queue, known_by)
            return
        waiting = self._loading.get(offset)
        if waiting is None:
            self._loading[offset] = {queue}
            self._reads.start(self._load, offset)
        else:
            waiting.add(queue)

    async def load_now(self, offset: int, queue: Queue, known_by: int) -> None:
        """As `load`, for one who can wait; afterwards `find` knows the offset, or the message is given up."""
        if any(chunk.first <= offset < chunk.end for chunk in self._chunks):
            self.load(offset, queue, known_by)
        else:
            self._loading.setdefault(offset, set())
            try:
                await self._load(offset)
                self._reads.end_turn()
            except trio.Cancelled:
                # Whoever asked is gone; queues that wait for the same are not.
                if self._loading.get(offset):
                    self._reads.start(self._load, offset)
                else:
                    self._loading.pop(offset, None)
                raise

    async def _load(self, offset: int) -> None:
        chunk = await self.read(offset)
        self._keep(chunk)
        for queue in self._loading.pop(offset, ()):
            queue.wake()

    def _keep(self, chunk: ColdChunk) -> None:
        chunks, most = self._chunks, _CHUNKS_MAX * self._large_bytes
        chunks.append(chunk)
        held = sum(one.bytes for one in chunks)
        while len(chunks) > _CHUNKS_MAX or (held > most and len(chunks) > 1):
            held -= chunks.pop(0).bytes
        if chunk.bytes > self._large_bytes:
            self._reads.let_go_soon(lambda: self._let_go(chunk))

    def _let_go(self, chunk: ColdChunk) -> None:
        if chunk in self._chunks:
            self._chunks.remove(chunk)

    async def read(self, offset: int) -> ColdChunk:
        """What the log holds from `offset` on, as much as is read at once; waits while the disk refuses, and where the
        files are damaged until somebody leads who has the messages.
        """
        log, waited = self._log, False
        while True:
            try:
                try:
                    # A queue may deliver what is not synced yet: its own restart settles what became of it.
                    batches = await log.read_cold(offset, self._config.cold_read_bytes, unsynced=True)
                    return self._decode(offset, batches)
                except (FileNotFoundError, CorruptBatch, OffsetOutOfRange) as error:
                    if offset < log.log_start_offset:
                        return ColdChunk(offset, log.log_start_offset, [])
                    if not log.is_whole_elsewhere:
                        return await self._damaged(offset, error)
                    if not waited:
                        logger.error("cannot read %s at offset %d: %s", log.directory, offset, error)
                    waited = True
                    await trio.sleep(self._config.flush_retry_interval_ms / 1000)
            except OSError:
                # Not lost: the disk may recover, as it may for writes. The log says it.
                await trio.sleep(self._config.flush_retry_interval_ms / 1000)

    async def _damaged(self, offset: int, error: Exception) -> ColdChunk:
        """What cannot be read, which is said. Raises OSError."""
        log = self._log
        behind = max(await in_thread(readable_behind, log, offset, log.written_offset), offset + 1)
        text = "cannot read %s at offset %d, what it holds up to offset %d is lost: %s"
        logger.error(text, log.directory, offset, behind - 1, error)
        return ColdChunk(offset, behind, [], damaged=True)

    def _decode(self, offset: int, batches: list[Any]) -> ColdChunk:
        entries: list[CachedSlab] = []
        end = offset + 1
        for batch in batches:
            header = parse_header(batch)
            end = max(end, header.next_offset)
            if not header.is_control:
                entries += self._reader.read(batch)
        size = sum(map(len, batches))
        return ColdChunk(offset, end, [with_lives(entry, self._facts) for entry in entries], size)
