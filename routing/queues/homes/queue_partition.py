"""A home partition: one log and the queues that live on it.

A body is written once, with the id of the set of queues it goes to; each queue only notes the offsets. What queues
settle is noted in control batches of the same log (`settlement.py`), so replaying the log rebuilds the queues
(`replay.py`).

1. Offsets are given out when a slab is enqueued and written when the turn ends: `seal` makes one data batch of all
   that the turn brought, and one control batch of all that it settled. The first slab of a turn has an offset before it
   for the batch's directory (`directory.py`), which spares the next start from looking at messages.
2. A new destination set is rare. Its definition is appended at once, ahead of the slab that uses it.
3. Settlements alone are not worth a write: they wait a moment for others, or for the next messages.
4. Messages are delivered from memory (`SlabCache`, bounded in bytes once written), else from chunks read off the loop.
5. A transient partition is the same thing without promises: nothing is written until memory runs short, then the oldest
   slabs are spilled to a scratch log, under their own offsets. Its settlements are not logged.
6. Gaps between offsets are normal.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Unpack

from core_log.errors import LogUnavailable
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder
from routing.commits import storage_error
from routing.config import BrokerConfig
from routing.errors import StorageUnavailable
from routing.message import Slab
from routing.queues.arrivals import Arrival
from routing.queues.fact_columns import FactColumns
from routing.queues.homes.batches import BATCH_BYTES, OpenBatch, Placed, build_batches, keep_together
from routing.queues.homes.cold_reads import ColdReads
from routing.queues.homes.dead_prefix import delete_dead_prefix
from routing.queues.homes.destination_sets import SCRATCH_SET, Definition, DestinationSet, DestinationSets
from routing.queues.homes.directory import Move, each_of, encode_directory
from routing.queues.homes.home_status import HomeStatus
from routing.queues.homes.journal import Journal
from routing.queues.homes.live_counts import LiveCounts
from routing.queues.homes.moves import Moves
from routing.queues.homes.stored_messages import StoredMessages
from routing.queues.publish_numbers import PublishNumbers
from routing.queues.queue import Queue
from routing.queues.reservations import let_go
from routing.queues.runs_of import runs_of
from routing.queues.settlement import DESTINATIONS_KEY, Taken, encode_destinations
from routing.queues.slab_cache import SlabCache
from routing.queues.unsealed import Record, Unsealed
from routing.queues.view_queue import ViewQueue
from routing.queues.waiting import live_ranges

if TYPE_CHECKING:
    from routing.queues.homes.home import Declared, Home
    from routing.queues.homes.relocation import Straggler
    from routing.queues.host import QueueHost
    from routing.queues.retries import Tries

_ONE_BATCH = 1 << 40
_SETTLED_MAX = 4096
"""Ranges of settled messages that are written without waiting for more."""


class QueuePartition:
    """See the module. `index` is its stripe number, -1 for the transient one."""

    for_others = False
    instead: Home | None = None
    suspended = False
    """Nothing is given out now."""
    retired = False
    """Another broker leads it from now on."""

    def __init__(
        self,
        index: int,
        log: PartitionLog,
        config: BrokerConfig,
        *,
        reads: ColdReads,
        mark_dirty: Callable[[QueuePartition], None],
        now_ms: Callable[[], int],
        defer: Callable[[QueuePartition], None] | None = None,
    ) -> None:
        self.index = index
        self.log = log
        self.durable = index >= 0
        self.error: StorageUnavailable | None = None
        """Why nothing can be published now."""
        self.queues: dict[int, Queue] = {}
        self.next_offset = log.log_end_offset
        self.sets = DestinationSets()
        self.unchecked_bytes = 0
        """Appended since the last checkpoint."""
        self.checkpointed = 0
        """Up to this offset the saved checkpoint speaks."""
        self.checkpoint_wanted = False
        self.looked_behind: dict[bytes, int] = {}
        """By redo record, and of wills: where a start begins to look for what these say, which must not seem to be gone
        again.
        """
        self.deduplication_ids_max = config.deduplication_ids_max
        self.grouped_messages_max = config.grouped_messages_max
        self.journal = Journal(self.next_offset)
        self.replayed: bytes | None = None
        """The checkpoint that a start has worked out, to be saved when the log is durable."""
        self.moves = Moves()
        self.numbers = PublishNumbers()
        """Of publishes that may be said again."""
        self.moved_before = 0
        """What was written again lies below this offset."""
        self.searched_before = 0
        """Nothing that is live lies below this offset of the log, though blocks are too coarse to say so."""
        self._mark_dirty = mark_dirty
        self._defer = defer
        self._now_ms = now_ms
        self._settlements_due = defer is None
        self._open = OpenBatch()
        self.unsealed = Unsealed()
        self._cache = SlabCache()
        self._cache_bytes = config.stripe_cache_bytes if self.durable else config.transient_memory_bytes
        self._cache_bytes_max = self._cache_bytes
        self._deleted: list[Queue] = []
        self.facts = FactColumns()
        """Of messages that ask for something, and of all in queues that give them a time to live."""
        self.live = LiveCounts(self._cache, self.moves, self.facts, log.segments)
        stored = StoredMessages(log, config, self._cache, self.moves, reads, self.facts)
        self._halve_kept = stored.halve_kept
        self.find, self.load = stored.find, stored.load
        self.load_now, self.load_scattered, self.load_ahead = stored.load_now, stored.load_scattered, stored.load_ahead
        self.read_scattered, self.awaits = stored.read_scattered, stored.awaits
        self._keep_waiting = stored.keep_waiting
        self.pinned_warning_bytes = config.pinned_warning_bytes
        log.listeners.append(self._log_advanced)

    def make_queue(self, queue_id: int, name: str, host: QueueHost, **declared: Unpack[Declared]) -> Queue:
        """See `Home.make_queue`."""
        kind = ViewQueue if declared["settings"].view_of is not None else Queue
        queue = self.queues[queue_id] = kind(queue_id, name, self, host, **declared)
        return queue

    # --- messages in -------------------------------------------------------------------

    @property
    def refusal(self) -> StorageUnavailable | None:
        """Why nothing can be appended now, by anybody; an `error` may be for publishers alone."""
        return self.error

    def destination_set(self, queues: tuple[Queue, ...]) -> DestinationSet:
        """The set of exactly these queues, made on first use."""
        return self.sets.get(queues)

    def enqueue(self, slab: Slab, destinations: DestinationSet) -> int:
        """Give the slab its offsets and put them into the queues; returns the offset behind the last.

        Raises LogUnavailable if a new destination set cannot be defined because the log refuses writes.
        """
        definition = destinations.definition
        if self.durable:
            if definition.offset < 0:
                self.define(definition)
            if not self._open.slabs:
                self.next_offset += 1
        first, count = self.next_offset, len(slab.bodies)
        self.next_offset = end = first + count
        queues = destinations.queues
        self._cache.add(first, slab, len(queues), queues)
        if self.durable:
            definition.used_before = end
            self._open.slabs.append((first, slab, destinations))
            if slab.once is not None:
                self.numbers.note(*slab.once[:2])
        self.live.add(first, count, len(queues))
        self._mark_dirty(self)
        if destinations.plain and slab.plain:
            for queue in queues:
                queue.enqueue(first, count)
        else:
            self._admit(first, slab, destinations)
        return end

    def _admit(self, first: int, slab: Slab, destinations: DestinationSet) -> None:
        """Messages that ask for something, or queues that do."""
        arrival = self._arrived(first, slab, destinations)
        for queue in destinations.queues:
            queue.admit(arrival, delayed=slab.delayed)

    def _arrived(self, first: int, slab: Slab, destinations: DestinationSet) -> Arrival:
        """Note what has to be known of messages as long as they are there."""
        now_ms = self._now_ms()
        columns = destinations.columns_of(slab)
        if columns is not None:
            self._open.note_facts(delayed=slab.delayed)
            self.facts.add(first, each_of(columns, len(slab.bodies)), now_ms)
        for queue in destinations.queues:
            if queue.rules.sizes is not None:
                queue.rules.measure(first, slab)
        facts = slab.properties.facts if slab.facts is None else slab.facts
        words = None if columns is None or columns[1] is not None or slab.facts is None else columns[0]
        return Arrival(first, len(slab.bodies), now_ms, facts, words, slab.delayed)

    def held_for(self, queue: Queue) -> int:
        """Messages that were taken for a queue and are not in it yet."""
        return 0

    async def until_given(self, queue: Queue) -> bool:
        """Wait until what was taken for a queue is in it; False if nothing was, or it takes too long."""
        return False

    def held_bytes_for(self, queue: Queue) -> int:
        """The bytes of their bodies, for a queue that has a limit for them."""
        return 0

    def prepare(self, destinations: DestinationSet) -> None:
        """Define a set that is not defined yet, so that `enqueue` cannot be refused. Raises LogUnavailable."""
        if self.durable and destinations.definition.offset < 0:
            self.define(destinations.definition)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is enqueued within the block becomes one batch, however large; sets are prepared, the rest is sealed."""
        yield
        self._open.bytes_max = self.log.config.message_bytes_max
        with suppress(LogUnavailable):  # kept, as by `seal`
            self._seal_data()

    def define(self, definition: Definition) -> None:
        """Have the log say which queues a set is. Raises LogUnavailable."""
        self._seal_data()
        value = encode_destinations(definition.id, definition.queue_ids)
        definition.offset = self._append_control(DESTINATIONS_KEY, value)
        self.sets.adopt(definition)

    def restore(self, packed: array[int]) -> None:
        """Count messages that replay found to be live in one queue, as packed ranges."""
        self.moved_before = self.log.log_end_offset
        self.live.restore(packed)

    # --- messages out ------------------------------------------------------------------

    def look_again(self) -> None:
        """Have `suspended` be what holds now: for who gives something out before the turn ends."""

    def settle(self, queue_id: int, first: int, count: int) -> None:
        """One queue is done with these messages; the record of it joins the next batch."""
        self.live.release(first, count)
        if not self.durable:
            return
        settled = self.unsealed.settled
        if settled:
            last_id, last_first, last_count = settled[-1]
            if last_id == queue_id and last_first + last_count == first:
                settled[-1] = (queue_id, last_first, last_count + count)
                return
        settled.append((queue_id, first, count))
        self._mark_dirty(self)

    def settle_offsets(self, queue_id: int, offsets: list[int]) -> None:
        """As `settle`, for rising offsets that do not lie together."""
        self.live.release_offsets(offsets)
        if self.durable:
            self.unsealed.settled += [(queue_id, first, count) for first, count in runs_of(offsets)]
            self._mark_dirty(self)

    def note_taken(self, taken: Taken) -> None:
        """A view has taken records in; the record of it is written with settlements."""
        self.unsealed.take(taken)
        self._mark_dirty(self)

    def note_settled(self, queue_id: int, first: int, count: int) -> None:
        """A view is done with messages, of which nothing lies here."""
        self.unsealed.settled.append((queue_id, first, count))
        self._mark_dirty(self)

    def note_returns(self, queue_id: int, returns: Iterable[tuple[int, Tries]]) -> None:
        """Messages came back to one queue; the record of it is written with settlements."""
        if self.durable:
            self.unsealed.returned += [(queue_id, offset, tries.packed, tries.due_ms) for offset, tries in returns]
            self._mark_dirty(self)

    def note_seen(self, queue_id: int, now_ms: int, hashes: bytes) -> None:
        """Ids that are new to one queue; the record of it is written behind the messages of this turn."""
        if self.durable:
            self.unsealed.seen.append((queue_id, now_ms, hashes))
            self._mark_dirty(self)

    def note_sizes(self, queue_id: int, first: int, sizes: Sequence[int]) -> None:
        """Sizes of new messages of one queue; the record of them is written behind those."""
        if self.durable:
            self.unsealed.sizes.append((queue_id, first, sizes))

    def relocate(self, stragglers: Sequence[Straggler]) -> None:
        """Write messages again that lie far behind most others. To queues and sessions they stay what they are.
        Raises LogUnavailable; then nothing has changed.
        """
        self._seal_data()
        queues = self.queues
        sets = [self.destination_set(tuple(queues[queue_id] for queue_id in one.queue_ids)) for one in stragglers]
        for destinations in sets:
            if destinations.definition.offset < 0:
                self.define(destinations.definition)
        first = self.next_offset + 1
        slabs, entries = [], []
        for one, destinations in zip(stragglers, sets, strict=True):
            slabs.append((first, one.slab, destinations))
            entries.append((destinations.definition.id, len(one.slab.bodies)))
            first += len(one.slab.bodies)
        facts = [one.facts for one in stragglers]
        moves = [Move(one.offset, one.published_ms) for one in stragglers]
        self._append_data(slabs, encode_directory(entries, facts if any(facts) else None, moves), _ONE_BATCH)
        self.next_offset = self.moved_before = first
        for location, slab, destinations in slabs:
            copies = len(destinations.queues)
            destinations.definition.used_before = first
            self.live.add(location, len(slab.bodies), copies)
            self._cache.add(location, slab, copies)
        known = [list(self.moves.pieces(one.offset, len(one.slab.bodies))) for one in stragglers]
        self.moves.place(
            (one.offset, len(one.slab.bodies), location)
            for one, (location, _, _) in zip(stragglers, slabs, strict=True)
        )
        for pieces, destinations in zip(known, sets, strict=True):
            self.live.moved_away(pieces, len(destinations.queues))

    # --- the log -----------------------------------------------------------------------

    def seal(self) -> None:
        """Hand what the turn brought to the log, then keep memory within its bound."""
        self._cache.end_turn()
        if self.durable:
            if self.log.error is None:
                try:
                    unsealed = self.unsealed
                    due = self._settlements_due or bool(self._open.slabs) or len(unsealed.settled) >= _SETTLED_MAX
                    self._seal_data()
                    if unsealed.seen or unsealed.sizes:
                        self.append_controls(unsealed.notes())
                    waiting = unsealed.waits
                    if waiting and due:
                        self.append_controls(unsealed.settlements())
                        self._settlements_due = self._defer is None
                    elif waiting and self._defer is not None:
                        self._defer(self)
                except LogUnavailable:
                    pass  # kept; `_log_advanced` comes back to it when the log takes writes again
        elif self._cache.unspilled_bytes > self._cache_bytes_max:
            self._spill()
        if self._cache.bytes > self._cache_bytes_max:
            self._evict()

    def halve_cache(self, times: int) -> None:
        """Keep half as much in memory as is configured, so many times over, from the end of the turn on."""
        self._cache_bytes_max = self._cache_bytes >> times
        self._halve_kept(times)
        if self._cache.bytes > self._cache_bytes_max:
            self._mark_dirty(self)

    def append_controls(self, records: Iterable[Record]) -> None:
        """Write control records now. Raises LogUnavailable."""
        for key, value in records:
            self._append_control(key, value)

    def mark_dirty(self) -> None:
        """There is something to be written when the turn ends, or soon."""
        self._mark_dirty(self)

    def settlements_due(self) -> None:
        """They have waited long enough: write them when the turn ends."""
        self._settlements_due = True
        self._mark_dirty(self)

    def seal_all(self) -> None:
        """`seal`, and settlements do not wait for others."""
        self.settlements_due()
        self.seal()

    def _seal_data(self) -> None:
        opened = self._open
        if opened.slabs:
            self._append_data(opened.slabs, opened.directory(), opened.bytes_max)
            opened.clear()

    def _append_data(self, slabs: list[Placed], directory: bytes = b"", bytes_max: int = BATCH_BYTES) -> None:
        """Write slabs of consecutive offsets in batches of so many bytes, the directory at the offset before them."""
        now_ms = self._now_ms()
        runs = [destinations.records.run(first, slab) for first, slab, destinations in slabs]
        batches = build_batches(runs, directory, bytes_max, self.log.leader_epoch, now_ms)
        if len(batches) > 1 and directory:
            keep_together(self.log, batches)
        for base_offset, batch in batches:
            self._append(batch, base_offset)
        if directory:
            self.journal.add(None, batches[0][0], now_ms, directory)

    def _append(self, batch: bytes, base_offset: int) -> None:
        self.log.append(batch, base_offset=base_offset, let_in=True)
        self.unchecked_bytes += len(batch)
        self.live.follow(self.log.segments[-1], self.next_offset)

    def _append_control(self, key: bytes, value: bytes) -> int:
        offset, now_ms = self.next_offset, self._now_ms()
        builder = BatchBuilder(offset, self.log.leader_epoch, now_ms, control=True)
        builder.add(offset, key, value, [])
        self._append(builder.build(), offset)
        self.journal.add(key, offset, now_ms, value)
        self.next_offset = offset + 1
        return offset

    def _spill(self) -> None:
        """Write the oldest half of a transient partition's memory to its scratch log, to be dropped once written."""
        if self.log.error is not None:
            return
        goal = self._cache_bytes_max // 2
        batch: list[Placed] = []
        for entry in self._cache.entries():
            if self._cache.unspilled_bytes <= goal:
                break
            if not entry.spilled:
                self._cache.mark_spilled(entry)
                batch.append((entry.first, entry.slab, SCRATCH_SET))
        self._append_data(batch)

    def _evict(self) -> None:
        written, cache = self.log.written_offset, self._cache
        while cache.bytes > self._cache_bytes_max:
            entry = cache.oldest()
            if entry is None or entry.end > written or not (self.durable or entry.spilled):
                return
            self._keep_waiting(entry)
            cache.drop_oldest()

    def _log_advanced(self, log: PartitionLog) -> None:
        self.error = None if log.error is None else storage_error(log)
        if self._cache.bytes > self._cache_bytes_max:
            self._evict()
        if log.error is None and (self.unsealed.waits or self.unsealed.seen or self._open.slabs):
            self._mark_dirty(self)

    # --- housekeeping ------------------------------------------------------------------

    @property
    def holds_deleted(self) -> bool:
        """A deleted queue has deliveries that nobody has settled."""
        return any(queue.outstanding for queue in self._deleted)

    def remove(self, queue: Queue) -> None:
        """A queue is deleted: what waits in it is forgotten, what is delivered when it comes back."""
        self.queues.pop(queue.id, None)
        let_go(queue)
        for first, count in live_ranges(queue):
            queue.store.forget(first, count)
        if self.durable:
            self._deleted = [one for one in (*self._deleted, queue) if one.outstanding]

    @property
    def first_live_offset(self) -> int:
        """No queue needs anything below this offset (see `LiveCounts`), nor does a start."""
        return min((self.live.first(self.next_offset), *self.looked_behind.values()))

    @property
    def mean_bytes(self) -> int:
        """What a message takes on average, with all that is written for it."""
        return self.log.size_bytes // max(self.next_offset - self.log.log_start_offset, 1)

    @property
    def status(self) -> HomeStatus:
        """How much log there is, and how much of it only stays because something live lies before or within it."""
        log = self.log
        span = max(self.next_offset - log.log_start_offset, 1)
        live = sum(self.live.blocks.values())
        pinned_bytes = int(log.size_bytes * max(0.0, 1 - live / span))
        return HomeStatus(self.index, len(self.queues), live, log.size_bytes, pinned_bytes)

    def tidy(self) -> None:
        """Let go of what is only known about messages that are gone."""
        oldest = min(self.first_live_offset, self.moves.first)
        for queue in self.queues.values():
            if queue.rules.sizes is not None:
                queue.rules.sizes.tidy(oldest)

    def delete_dead_prefix(self) -> None:
        """Let the log drop whole segments that no queue needs; see `dead_prefix.py`."""
        delete_dead_prefix(self)

    def forget(self, first: int, count: int) -> None:
        """Messages of a deleted queue: no longer live, and no record needed."""
        self.live.release(first, count)
