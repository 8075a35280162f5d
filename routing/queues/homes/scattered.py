"""Messages that follow each other in line but lie far apart in the log: read one by one, many at a time.

Those that the operating system has in memory are read on the event loop, some 10 us each, but only a few in each
stretch of time: a thread that wants the interpreter as well has every system call of the loop wait for it. All others
are read in a thread.

What was read is kept until newer ones need the room, a large message for a moment; so are the few messages that are
left of a slab that leaves memory before they were given out: with priorities the lowest wait long, one here and one
there. A queue has one read under way. Offsets that the log does not hold are remembered, so that nobody asks for ever:
`ColdChunks` says what is to become of them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from core_log.cold_reader import in_thread
from core_log.errors import CorruptBatch, OffsetOutOfRange
from core_log.partition_log import PartitionLog
from core_log.record_decoder import RecordRun
from core_log.record_reader import KnownPlaces, read_cached_records, read_records
from routing.message import Slab
from routing.queues.fact_columns import FactColumns
from routing.queues.homes.cold_reads import ColdReads
from routing.queues.homes.home_records import SlabReader
from routing.queues.homes.read_slabs import with_lives
from routing.queues.slab_cache import CachedSlab

if TYPE_CHECKING:
    from routing.queues.queue import Queue

logger = logging.getLogger(__name__)

_READ_BYTES_MAX = 1 << 20
_KEPT_BYTES_MAX = 8 << 20
_ONE_BYTES = 300
"""What a message that is kept by itself costs in memory beyond its body."""
_NOT_THERE_MAX = 1024
_AT_ONCE_MAX = 64
"""So many are read on the event loop in one go,"""
_AT_ONCE_BYTES = 128 << 10
_STRETCH_S = 0.004
_STRETCH_MAX = 256
"""and so many in one stretch of time."""
_COLD_MAX = 4096
"""After a message that was not in memory so many are read ahead before it is tried again whether they are."""


class Scattered:
    """See the module."""

    def __init__(self, log: PartitionLog, reads: ColdReads, facts: FactColumns) -> None:
        self._log = log
        self._facts = facts
        self._reads = reads
        self._kept: OrderedDict[int, CachedSlab] = OrderedDict()
        self._kept_bytes, self._kept_bytes_max = 0, _KEPT_BYTES_MAX
        self._reading: set[Queue] = set()
        self._not_there: set[int] = set()
        self._reader = SlabReader()
        self._said = ""
        """What was wrong when something could not be read."""
        self._stretch_s = 0.0
        """When the stretch began,"""
        self._stretch_left = 0
        """and how many messages may still be read in it."""
        self._cold = 0
        self._known = KnownPlaces()

    def find(self, offset: int) -> CachedSlab | None:
        """The message at `offset`, if it was read and is still here."""
        return self._kept.get(offset)

    def is_reading_for(self, queue: Queue) -> bool:
        """It will be pumped again."""
        return queue in self._reading

    def load(self, offsets: list[int], queue: Queue) -> bool:
        """Read these, of which the first is wanted now, unless the queue has a read under way; it is pumped again.

        False: the first cannot be read.
        """
        if offsets[0] in self._not_there:
            return False
        if queue in self._reading:
            return True
        if self._read_at_once(offsets):
            queue.wake()
            return True
        self._read_for(queue, offsets)
        return True

    def reads_ahead(self, queue: Queue) -> bool:
        """Whether a queue should have read what it will want soon: else it takes no time to read it then."""
        return self._cold > 0 and queue not in self._reading

    def load_ahead(self, offsets: list[int], queue: Queue) -> None:
        """Read these for a queue that `reads_ahead`. Now and then it is tried whether they are in memory: they are not
        wanted yet, so nobody waits where they are not.
        """
        self._cold -= len(offsets)
        if self._cold <= 0 and not self._read_cached(sorted(offsets[:_AT_ONCE_MAX])):
            self._cold = _COLD_MAX
        self._read_for(queue, offsets)

    def _read_for(self, queue: Queue, offsets: list[int]) -> None:
        missing = [offset for offset in offsets if offset not in self._kept]
        if missing:
            self._reading.add(queue)
            self._reads.start(self._load, (missing, queue))

    def _read_at_once(self, offsets: list[int]) -> bool:
        """Read some of these if no disk has to be waited for; whether the first is there now."""
        now_s = perf_counter()
        if now_s > self._stretch_s + _STRETCH_S:
            self._stretch_s, self._stretch_left = now_s, _STRETCH_MAX
        if self._cold > 0 or self._stretch_left <= 0:
            return False
        few = offsets[: min(_AT_ONCE_MAX, self._stretch_left)]
        wanted = sorted({offset for offset in few if offset not in self._kept})
        self._stretch_left -= len(wanted)
        all_there = self._read_cached(wanted)
        if offsets[0] in self._kept:
            return True
        if not all_there:
            self._cold = _COLD_MAX
        return False

    def _read_cached(self, rising: list[int]) -> bool:
        """Read of these what comes before the first for which a disk has to be waited for; whether there is none
        among as many as are read in one go.
        """
        try:
            runs = read_cached_records(self._log, rising, _AT_ONCE_BYTES, self._known)
        except (OSError, CorruptBatch, OffsetOutOfRange):
            return False  # the thread says what is wrong
        for run in runs:
            self._hold(with_lives(self._reader.one(run), self._facts))
        return len(runs) == len(rising) or sum(len(run.values[0] or b"") for run in runs) >= _AT_ONCE_BYTES

    async def _load(self, wanted: tuple[list[int], Queue]) -> None:
        offsets, queue = wanted
        runs = await self.read(offsets)
        for few in (_AT_ONCE_MAX, 1):  # what lies before the first may be more than is kept
            if offsets[0] not in self._kept and runs and runs[-1].first_offset < offsets[0]:
                runs = await self.read(offsets[:few])
        # It may lie behind the bytes that are read at once: those before it are not wanted the next time.
        if offsets[0] not in self._kept and (not runs or runs[-1].first_offset >= offsets[0]):
            if len(self._not_there) >= _NOT_THERE_MAX:
                self._not_there.clear()
            self._not_there.add(offsets[0])
        self._reading.discard(queue)
        queue.wake()

    async def read(self, offsets: Sequence[int]) -> list[RecordRun]:
        """Read and keep these, as many as are read at once, the lowest first."""
        rising = sorted(set(offsets))
        try:
            runs = await in_thread(lambda: read_records(self._log, rising, _READ_BYTES_MAX, self._known))
        except (OSError, CorruptBatch, OffsetOutOfRange) as error:
            if str(error) != self._said:
                self._said = str(error)
                logger.warning("cannot read single messages of %s: %s", self._log.directory, error)
            runs = []
        for run in runs:
            self._hold(with_lives(self._reader.one(run), self._facts))
        return runs

    def keep(self, entry: CachedSlab, offsets: Sequence[int]) -> None:
        """Keep these messages, in rising order, of a slab that leaves memory."""
        slab, first = entry.slab, entry.first
        for offset in offsets:
            place = offset - first
            body, raws, facts = slab.bodies[place], slab.raws, slab.facts
            raw, fact = None if raws is None else [raws[place]], None if facts is None else [facts[place]]
            one = Slab(slab.exchange, slab.key_of(place), slab.properties, [body], len(body), raws=raw, facts=fact)
            self._hold(CachedSlab(offset, one, 0))

    def halve(self, times: int) -> None:
        """Keep half of what is kept otherwise, so many times over."""
        self._kept_bytes_max = _KEPT_BYTES_MAX >> times
        self._make_room()

    def _make_room(self) -> None:
        while self._kept_bytes > self._kept_bytes_max and self._kept:
            self._kept_bytes -= self._kept.popitem(last=False)[1].bytes

    def _hold(self, entry: CachedSlab) -> None:
        kept = self._kept
        self._make_room()
        if entry.first not in kept:
            entry.bytes = entry.slab.size + _ONE_BYTES
            kept[entry.first] = entry
            self._kept_bytes += entry.bytes
            if entry.bytes > self._kept_bytes_max:
                self._reads.let_go_soon(partial(self._let_go, entry.first))

    def _let_go(self, offset: int) -> None:
        entry = self._kept.pop(offset, None)
        if entry is not None:
            self._kept_bytes -= entry.bytes
