"""Where a home partition finds a message again: in memory, or in its log.

Queues name messages by the offset they had first of all; here is looked up where they lie now (`moves.py`). What is
read from the log does not know what its messages asked for, but for times to live (`read_slabs.py`), and of what was
moved not even these: who has to know asks the partition's `facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from core_log.partition_log import PartitionLog
from routing.config import BrokerConfig
from routing.queues.fact_columns import FactColumns
from routing.queues.homes.cold_chunks import ColdChunks
from routing.queues.homes.cold_reads import ColdReads
from routing.queues.homes.moves import Moves
from routing.queues.homes.scattered import Scattered
from routing.queues.slab_cache import CachedSlab, SlabCache
from routing.queues.waiting import waiting_between

if TYPE_CHECKING:
    from routing.queues.queue import Queue

_FEW = 4
"""Of a slab few messages are left when it once had at least so many times more."""


class StoredMessages:
    """See the module."""

    def __init__(
        self,
        log: PartitionLog,
        config: BrokerConfig,
        cache: SlabCache,
        moves: Moves,
        reads: ColdReads,
        facts: FactColumns,
    ) -> None:
        self._cache = cache
        self._moves = moves
        self._reads = reads
        self._cold = ColdChunks(log, config, reads, cache.find, facts)
        self._scattered = Scattered(log, reads, facts)

    def find(self, offset: int) -> CachedSlab | None:
        """The slab that holds `offset`, if it is in memory."""
        if offset < self._moves.before:
            run = self._moves.run_of(offset)
            if run is not None:
                return self._find_moved(offset, *run)
        return self._at(offset)

    def _at(self, location: int) -> CachedSlab | None:
        return self._cache.find(location) or self._scattered.find(location) or self._cold.find(location)

    def _find_moved(self, offset: int, first: int, count: int, location: int) -> CachedSlab | None:
        entry = self._at(location + offset - first)
        if entry is None:
            return None
        start, stop = max(entry.first, location), min(entry.end, location + count)
        return CachedSlab(first + start - location, entry.slab.part(start - entry.first, stop - entry.first), 0)

    def load(self, offset: int, queue: Queue) -> None:
        """Read what `offset` begins from the log; the queue is pumped again when it is here."""
        self._reads.wanted = True
        self._cold.load(self._moves.location(offset), queue, offset)

    async def load_now(self, offset: int, queue: Queue) -> None:
        """As `load`, for one who can wait; afterwards `find` knows the offset, or the message is given up."""
        await self._cold.load_now(self._moves.location(offset), queue, offset)

    def awaits(self, queue: Queue) -> bool:
        """A queue wants what is not in memory: whether `load_scattered` was called for it and is not done."""
        self._reads.wanted = True
        return self._scattered.is_reading_for(queue)

    def load_scattered(self, offsets: list[int], queue: Queue) -> bool:
        """As `load`, for messages far apart; False if the first has to be asked for with `load`."""
        if self._moves:
            offsets = [self._moves.location(offset) for offset in offsets]
        return self._scattered.load(offsets, queue)

    def load_ahead(self, soon: Callable[[], list[int]], queue: Queue) -> None:
        """As `load_scattered`, for messages that will be wanted soon; who they are is asked if it is worth it."""
        if self._scattered.reads_ahead(queue):
            offsets = [offset for offset in soon() if self.find(offset) is None]
            if offsets:
                self._scattered.load_ahead([self._moves.location(offset) for offset in offsets], queue)

    def keep_waiting(self, entry: CachedSlab) -> None:
        """A slab leaves memory: of one in which only few messages are left these stay, one by one."""
        if entry.queues and entry.live * _FEW <= entry.end - entry.first and entry.first >= self._moves.before:
            offsets = waiting_between(entry.queues, entry.first, entry.end)
            if offsets:
                self._scattered.keep(entry, offsets)

    def halve_kept(self, times: int) -> None:
        """Keep half as much of what was read one by one, so many times over."""
        self._scattered.halve(times)

    async def read_scattered(self, offsets: Sequence[int]) -> None:
        """As `load_scattered`, for one who can wait; `find` knows them then, but for what the log refuses to give or
        what is too much at once.
        """
        await self._scattered.read([self._moves.location(offset) for offset in offsets])
