"""What is live on a home partition, worked out from its log alone.

A `Standby` says for each queue which messages are live where the log ends at `offset`, for those that were moved where
they lie (`moves.py`), and what the messages ask for. It is fed directories, settlements and definitions, from the log
(`read`, or `apply` batch by batch as they are committed: see `standby_feed.py`) or from the journal of what was
appended (`follow`), and `fold` takes one from the other. Sets are resolved then: a definition may stand behind what it
is needed for, when it was written again for the log's start to go. An id that stands for other queues from some point
on (who gave it did not know of the first ones, none of whose messages was left) gets another name before.

A checkpoint is a standby, encoded. The next one is the last one and what was appended since: nobody has to stop the
queues and look at them, and what a thread works on here is nobody else's. A start makes its queues from the same.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from core_log.errors import CorruptBatch, OffsetOutOfRange
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from core_log.record_batch import decode_runs, iterate_records, parse_header
from core_log.whole_batches import readable_behind
from routing.queues.fact_columns import BLOCK_BITS, Columns, FactColumns
from routing.queues.homes.directory import DIRECTORY_BIT, Directory, decode_directory, directory_of, each_of
from routing.queues.homes.home_records import set_id_of
from routing.queues.homes.journal import Journal
from routing.queues.homes.moves import MovedRun, Moves
from routing.queues.packed_ranges import (
    COUNT_BITS,
    COUNT_MASK,
    Range,
    by_blocks,
    merged,
    pack,
    pack_all,
    rising,
    unpack,
    without,
)
from routing.queues.publish_numbers import PublishNumbers, decode_epochs, decode_numbers
from routing.queues.queue_state import StateChanges
from routing.queues.settlement import (
    DESTINATIONS_KEY,
    EPOCHS_KEY,
    NUMBERED_KEY,
    RECEIVED_KEY,
    RELEASED_KEY,
    SETTLED_KEY,
    decode_destinations,
    packed_settled,
)

logger = logging.getLogger(__name__)

_READ_BYTES = 4 << 20


class Standby:
    """See the module."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.sets: dict[int, tuple[tuple[int, ...], int]] = {}
        """The queues of each destination set, and where the log says so; no queues: see `_needed_sets`."""
        self.next_set_id = 1
        self.live: dict[int, array[int]] = {}
        """Packed ranges, by queue id."""
        self.states: dict[int, Any] = {}
        """What queues want to remember besides, by queue id."""
        self.numbers = PublishNumbers()
        self._changes = StateChanges()
        self.facts = FactColumns()
        self.moves = Moves()
        # parallel, an item a slab that was not folded yet
        self._set_ids: list[int] = []
        self._renamed = 0
        """The last of the other names of ids, which are negative."""
        self._firsts: list[int] = []
        self._counts: list[int] = []
        self._moved: list[MovedRun] = []
        self._moved_facts: list[tuple[int, Columns, int]] = []
        self._settled: dict[int, array[int]] = defaultdict(_no_ranges)
        self._settled_count = 0
        self._open: Directory | None = None
        self._open_end = 0
        self._open_ms = 0

    # --- being fed ---------------------------------------------------------------------

    def read(self, log: PartitionLog, end: int) -> None:
        """Apply the log from `offset` up to `end`; blocks. What goes meanwhile, as no queue needs it, is left out, and
        with a line what is damaged: what was settled there comes again.

        Raises OffsetOutOfRange, OSError.
        """
        while self.offset < end:
            self.offset = max(self.offset, log.log_start_offset)
            try:
                batches = log.read_blocking(self.offset, _READ_BYTES, before=end)
            except OffsetOutOfRange:
                if log.log_start_offset <= self.offset:
                    raise
                continue
            except (CorruptBatch, FileNotFoundError) as error:
                self.leave_out(log, readable_behind(log, self.offset, end), error)
                continue
            if not batches:
                break
            for batch in batches:
                self.apply(batch)
        self.finish(end)

    def leave_out(self, log: PartitionLog, behind: int, error: Exception) -> None:
        """Go on behind what cannot be read, which is said."""
        text = "%s: offsets %d to %d cannot be read, what they say of messages is lost: %s"
        logger.error(text, log.directory, self.offset, behind - 1, error)
        self.offset = behind

    def apply(self, batch: BytesLike) -> None:
        """Apply the log's next batch. Raises CorruptBatch."""
        header = parse_header(batch)
        if header.is_control:
            self._close(header.base_offset)
            for record in iterate_records(batch):
                self._control(record.key, record.offset, bytes(record.value or b""))
        elif header.attributes & DIRECTORY_BIT:
            self._close(header.base_offset)
            self._begin(directory_of(batch, header), header.base_timestamp_ms)
        elif header.base_offset >= self._open_end:
            for run in decode_runs(batch, with_values=False):
                self._set_ids.append(set_id_of(run.header_block))
                self._firsts.append(run.first_offset)
                self._counts.append(run.count)
        self.offset = header.next_offset
        if self.offset >= self._open_end:
            self._close(self.offset)

    def finish(self, end: int) -> None:
        """The log ends here: what a directory says of messages behind it is not true."""
        self.offset = end
        self._close(end)

    @property
    def is_whole(self) -> bool:
        """No directory speaks of messages that are still to come, so that it can be written down as it is."""
        return self._open is None

    @property
    def unfolded(self) -> int:
        """Slabs and settlements that wait for `fold`, about."""
        return len(self._set_ids) + self._settled_count

    @property
    def queue_ids(self) -> set[int]:
        """All queues that the log names."""
        return set(self.live).union(self.states, self._changes.views.queue_ids, *(ids for ids, _ in self.sets.values()))

    def follow(self, journal: Journal, end: int) -> None:
        """Apply all that was appended up to `end`; what is already known to be gone does no harm."""
        for key, offset, timestamp_ms, value in journal:
            if key is None:
                self._begin(decode_directory(value, offset + 1), timestamp_ms)
                self._close(end)
            else:
                self._control(key, offset, value)
        self.offset = end

    def _control(self, key: bytes | None, offset: int, value: bytes) -> None:
        if key == DESTINATIONS_KEY:
            set_id, queue_ids = decode_destinations(value)
            known = self.sets.get(set_id)
            if known is not None and known[0] != queue_ids:
                self._rename(set_id)
            self.sets[set_id] = (queue_ids, offset)
        elif key in (SETTLED_KEY, RECEIVED_KEY):
            for queue_id, packed in packed_settled(value):
                self._settled[queue_id] += packed
                self._settled_count += len(packed)
            if key == RECEIVED_KEY:
                self._changes.control(key, value)
        elif key == RELEASED_KEY:
            for publisher, numbers in decode_numbers(value):
                self.numbers.release(publisher, numbers)
        elif key == NUMBERED_KEY:
            for publisher, numbers in decode_numbers(value):
                self.numbers.note(publisher, numbers)
        elif key == EPOCHS_KEY:
            for publisher, epoch in decode_epochs(value):
                self.numbers.begin(publisher, epoch)
        else:
            self._changes.control(key, value)

    def _rename(self, set_id: int) -> None:
        """An id stands for something else from here on."""
        self._renamed -= 1
        self.sets[self._renamed] = self.sets[set_id]
        self._set_ids = [self._renamed if one == set_id else one for one in self._set_ids]

    def _begin(self, directory: Directory, timestamp_ms: int) -> None:
        if directory.firsts:
            self._open = directory
            self._open_end = directory.firsts[-1] + directory.counts[-1]
            self._open_ms = timestamp_ms

    def _close(self, end: int) -> None:
        """The open directory speaks of nothing at or behind `end`."""
        directory, self._open = self._open, None
        if directory is None:
            return
        slabs = len(directory.firsts) if self._open_end <= end else bisect_left(directory.firsts, end)
        if not slabs:
            return
        self._set_ids += directory.set_ids[:slabs]
        self._firsts += directory.firsts[:slabs]
        self._counts += directory.counts[:slabs]
        if self._open_end > end:
            self._counts[-1] = min(self._counts[-1], end - self._firsts[-1])
        if directory.each is not None:
            number = self._firsts[-1] + self._counts[-1] - directory.firsts[0]
            self.facts.add(directory.firsts[0], each_of(directory.each, number), self._open_ms)
        elif directory.facts is not None or directory.moves is not None:
            self._close_columns(directory, slabs)
        if directory.numbers is not None:
            for one, count in zip(directory.numbers[:slabs], self._counts[-slabs:]):
                if one is not None:
                    self.numbers.note(one[0], one[1][:count])

    def _close_columns(self, directory: Directory, slabs: int) -> None:
        """Facts and moves of the slabs that were just noted."""
        for index in range(slabs):
            first, count = self._firsts[index - slabs], self._counts[index - slabs]
            columns = None if directory.facts is None else directory.facts[index]
            if directory.moves is not None:
                known_by, published_ms = directory.moves[index]
                self._firsts[index - slabs] = known_by
                self._moved.append((known_by, count, first))
                if columns is not None:
                    self._moved_facts.append((known_by, each_of(columns, count), published_ms))
            elif columns is not None:
                self.facts.add(first, each_of(columns, count), self._open_ms)

    # --- taking one from the other ------------------------------------------------------

    @property
    def is_defined(self) -> bool:
        """Whether all sets are that messages name: `fold` may be called before the end."""
        return self.sets.keys() >= set(self._set_ids)

    def fold(self, queue_ids: Collection[int], start: int, *, seen_since_ms: int = 0) -> None:
        """Work out `live` for these queues; nothing below `start`, where the log begins, is. For `seen_since_ms` see
        `StateChanges.fold`.
        """
        self.next_set_id = max(self.next_set_id, max(self._set_ids, default=0) + 1, max(self.sets, default=0) + 1)
        added = self._distribute()
        self.moves.place(self._moved)
        self.facts.insert(self._moved_facts)
        below = [(0, start)]
        if self.moves:
            below = list(unpack(without(pack(below), [(first, count) for first, count, _ in self.moves.all()])))
        live: dict[int, array[int]] = {}
        settled = {queue_id: list(rising(packed)) for queue_id, packed in self._settled.items()}
        for queue_id in queue_ids:
            packed = self.live.get(queue_id) or array("Q")
            new = added.get(queue_id, [])
            if self._moved:
                packed = packed_of([*unpack(packed), *unpack(array("Q", new))])
            else:
                packed += pack_all(new)
            holes = settled.get(queue_id, [])
            if packed and packed[0] >> COUNT_BITS < start:
                holes = [*holes, *below]
            live[queue_id] = without(packed, holes) if holes else packed
        self.live = live
        self.states = self._changes.fold(self.states, live, settled, seen_since_ms=seen_since_ms)
        spent = (self._set_ids, self._firsts, self._counts, self._moved, self._moved_facts, self._settled)
        for fed in spent:
            fed.clear()
        self._settled_count = 0
        self.sets = self._needed_sets(frozenset(queue_ids), start)
        if self.facts or self.moves:
            blocks = self._live_blocks()
            self.facts.keep(blocks)
            self.moves.keep(blocks)

    def _needed_sets(self, queue_ids: Collection[int], start: int) -> dict[int, tuple[tuple[int, ...], int]]:
        """Those that messages may name from here on. Where all queues have gone these are for nobody, and their set is
        one of no queues until the log begins behind this point.
        """
        needed = {}
        for set_id, (ids, offset) in self.sets.items():
            if set_id < 0 or not (ids or offset >= start):
                continue
            needed[set_id] = (ids, offset) if not ids or any(one in queue_ids for one in ids) else ((), self.offset)
        return needed

    def _distribute(self) -> dict[int, list[int]]:
        """What was put into each queue, by its id, in the log's order, as packed ranges."""
        into: dict[int, list[int]] = defaultdict(list)
        appends: dict[int, list[Callable[[int], None]]] = {}
        nameless: list[Range] = []
        for set_id, first, count in zip(self._set_ids, self._firsts, self._counts):
            targets = appends.get(set_id)
            if targets is None:
                if set_id not in self.sets:
                    nameless.append((first, count))
                    continue
                targets = appends[set_id] = [into[queue_id].append for queue_id in self.sets[set_id][0]]
            if count > COUNT_MASK:
                for one in pack([(first, count)]):
                    for append in targets:
                        append(one)
                continue
            for append in targets:
                append(first << COUNT_BITS | count - 1)
        if nameless:
            last, lost = nameless[-1], sum(count for _, count in nameless)
            logger.error("%d messages, offsets %d to %d, name no queue", lost, nameless[0][0], sum(last) - 1)
        return into

    def _live_blocks(self) -> set[int]:
        blocks: set[int] = set()
        for packed in self.live.values():
            blocks.update(number for number, _ in by_blocks(packed, BLOCK_BITS))
        return blocks


def _no_ranges() -> array[int]:
    return array("Q")


def packed_of(ranges: Iterable[Range]) -> array[int]:
    """Ranges in any order as packed ones."""
    return pack(merged(ranges))
