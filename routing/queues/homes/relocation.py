"""Stragglers: few live messages in an old part of a home partition's log that keep all of it on disk.

They are written again at the log's end, so that the old part can be deleted. Clients, queues and sessions do not notice
(`moves.py`), whether a message waits, is delayed or is delivered and not acknowledged.

1. A part is worth it when at most a quarter of it is live: what is written again frees at least three times as much, so
   all the writing again there ever is adds a third at most. A queue whose backlog *is* the partition is left alone.
2. What is live, and where, comes from the checkpoint that is made for the purpose (`standby.py`), in a thread, as does
   reading the messages. Back on the loop, what was settled since is left out.
3. The old part goes when the copies are durable (`QueuePartition.delete_dead_prefix`). A crash in between finds both,
   under one name: they are the same message.
4. While a deleted queue has deliveries that nobody settled, the partition stays as it is: they are counted where they
   lay when the queue was deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import trio

from core_log.errors import LogUnavailable
from core_log.partition_log import PartitionLog
from core_log.record_batch import parse_header
from routing.message import Slab
from routing.queues.fact_columns import Columns, to_columns
from routing.queues.homes.home_records import SlabReader
from routing.queues.homes.standby import Standby
from routing.queues.packed_ranges import Range, merged, pack, unpack, without
from routing.queues.settlement import RECEIVED_KEY, SETTLED_KEY, decode_settled

if TYPE_CHECKING:
    from routing.queues.homes.queue_partition import QueuePartition

_LIVE_SHARE = 4
"""One in so many messages may be live."""
_PASS_BYTES = 16 << 20
"""Written again in one pass at most, but for the last message, and no more than a segment, which is small on a small
disk: it has to find room while publishers are blocked, on a full one no more than half of the reserve has. The next
pass goes on."""
_TURN_BYTES = 256 << 10
"""One batch, and what a turn has time for."""
_TURN_MESSAGES = 1024
_READ_BYTES = 1 << 20


class Straggler(NamedTuple):
    """Messages that lie together, known by consecutive offsets from `offset` on, and wanted by the same queues."""

    offset: int
    queue_ids: tuple[int, ...]
    slab: Slab
    facts: Columns | None
    published_ms: int


class _Run(NamedTuple):
    """Live messages at consecutive locations; `offset` is what the first is known by."""

    location: int
    count: int  # type: ignore[assignment]
    offset: int
    queue_ids: tuple[int, ...]


def end_of_stragglers(partition: QueuePartition) -> int:
    """Before which offset of the log it is worth to write again what is live; 0: nowhere."""
    log = partition.log
    pinned = partition.status.pinned_bytes
    if len(log.segments) < 2 or log.error is not None or pinned < log.config.segment_bytes or partition.holds_deleted:
        return 0
    first_live = partition.first_live_offset
    end = live = span = size_bytes = dead_bytes = 0
    for segment, following in pairwise(log.segments):
        if following.base_offset <= first_live:
            continue  # goes as it is
        count = following.base_offset - segment.base_offset
        live += min(count, partition.live.between(segment.base_offset, following.base_offset))
        span += count
        size_bytes += segment.size
        if live * _LIVE_SHARE <= span:
            end, dead_bytes = following.base_offset, size_bytes * (span - live) // span
    worth_bytes = log.config.segment_bytes * (_LIVE_SHARE - 1) // _LIVE_SHARE  # no segment is full to the byte
    return end if dead_bytes >= worth_bytes and partition.searched_before < end else 0


# --- in a thread ---------------------------------------------------------------------------------------------------


def read_stragglers(log: PartitionLog, standby: Standby, before: int, room_bytes: int) -> list[Straggler]:
    """What is live and lies before an offset of the log, from its start on, as much as there is room for; blocks.

    Raises CorruptBatch, OffsetOutOfRange, OSError.
    """
    found: list[Straggler] = []
    reader = SlabReader()
    runs = _runs(standby, before)
    at = size = 0
    bytes_max = min(_PASS_BYTES, log.config.segment_bytes, room_bytes)
    while at < len(runs) and size < bytes_max:
        read_from = runs[at].location
        batches = log.read_blocking(read_from, _READ_BYTES, before=before)
        if not batches:
            break
        for batch in batches:
            header = parse_header(batch)
            if header.is_control or at == len(runs) or header.next_offset <= runs[at].location:
                continue
            for entry in reader.read(batch):
                while at < len(runs) and runs[at].location < entry.end:
                    if size >= bytes_max:
                        return found
                    run = runs[at]
                    start, stop = max(run.location, entry.first), min(run.location + run.count, entry.end)
                    if start < stop:
                        part = entry.slab.part(start - entry.first, stop - entry.first)
                        found += _with_facts(standby, run, run.offset + start - run.location, part)
                        size += _bytes_of(part)
                    if run.location + run.count > entry.end:
                        left = entry.end - run.location
                        runs[at] = _Run(entry.end, run.count - left, run.offset + left, run.queue_ids)
                        break
                    at += 1
        if at < len(runs) and runs[at].location <= read_from < header.next_offset:
            at += 1  # the log does not hold it where it should
    return found


def _with_facts(standby: Standby, run: _Run, offset: int, slab: Slab) -> Iterator[Straggler]:
    at, count = 0, len(slab.bodies)
    for known in standby.facts.between(offset, count):
        start = known.first - offset
        if start > at:
            yield Straggler(offset + at, run.queue_ids, slab.part(at, start), None, 0)
        at = start + len(known.facts)
        part = slab.part(start, at)
        yield Straggler(known.first, run.queue_ids, part, to_columns(known.facts), known.timestamp_ms)
    if at < count:
        yield Straggler(offset + at, run.queue_ids, slab.part(at, count), None, 0)


def _runs(standby: Standby, before: int) -> list[_Run]:
    """What is live before an offset of the log, cut where the queues that want it change."""
    moves = standby.moves
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    """By location: queues that want what follows (their id, and what it is known by), or no more (their id, -1)."""
    for queue_id, packed in standby.live.items():
        for first, count in unpack(packed):
            if first >= before and first >= moves.before:
                break
            for start, number, location in moves.pieces(first, count):
                stop = min(location + number, before)
                if location < stop:
                    changes[stop].append((queue_id, -1))
                    changes[location].append((queue_id, start))
    runs: list[_Run] = []
    wanting: dict[int, None] = {}
    known_by = 0
    for location, following in pairwise(sorted(changes)):
        for queue_id, start in sorted(changes[location], key=lambda change: change[1]):
            if start < 0:
                wanting.pop(queue_id)
            else:
                wanting[queue_id] = None
                known_by = start
        if wanting:
            runs.append(_Run(location, following - location, known_by, tuple(sorted(wanting))))
        known_by += following - location
    return runs


# --- on the loop ---------------------------------------------------------------------------------------------------


class _Gone:
    """What was settled or received since the checkpoint, by queue id: from the journal, and what is not yet written."""

    def __init__(self, partition: QueuePartition) -> None:
        self._partition = partition
        self._journal = partition.journal
        self._seen = 0
        self._ranges: dict[int, list[Range]] = defaultdict(list)

    def cut_out(self, stragglers: Iterable[Straggler]) -> list[Straggler]:
        """What of them is still wanted by all that wanted it. What only some still want is for the next time."""
        settled = self._settled()
        left: list[Straggler] = []
        for one in stragglers:
            if any(queue_id not in self._partition.queues for queue_id in one.queue_ids):
                continue
            first, count = one.offset, len(one.slab.bodies)
            gone = [
                part for queue_id in one.queue_ids for part in _overlapping(settled.get(queue_id, []), first, count)
            ]
            if gone:
                left += [_part(one, *part) for part in unpack(without(pack([(first, count)]), gone))]
            else:
                left.append(one)
        return left

    def _settled(self) -> dict[int, list[Range]]:
        """By queue, sorted."""
        entries = self._journal.entries
        for entry in entries[self._seen :]:
            if entry.key in (SETTLED_KEY, RECEIVED_KEY):
                for queue_id, first, count in decode_settled(entry.value):
                    self._ranges[queue_id].append((first, count))
        self._seen = len(entries)
        ranges = {queue_id: list(parts) for queue_id, parts in self._ranges.items()}
        unsealed = self._partition.unsealed
        for queue_id, first, count in (*unsealed.settled, *unsealed.received):
            ranges.setdefault(queue_id, []).append((first, count))
        return {queue_id: merged(parts) for queue_id, parts in ranges.items()}

    @property
    def complete(self) -> bool:
        """Nothing was dropped from the journal, and nothing in the partition forbids to go on."""
        partition = self._partition
        return partition.journal is self._journal and not self._journal.overflowed and not partition.holds_deleted


def _overlapping(ranges: list[Range], first: int, count: int) -> list[Range]:
    at = max(bisect_right(ranges, (first, 1 << 62)) - 1, 0)
    return [part for part in ranges[at : bisect_right(ranges, (first + count, 0))] if sum(part) > first]


def _part(one: Straggler, first: int, count: int) -> Straggler:
    start = first - one.offset
    stop = start + count
    facts = one.facts
    if facts is not None:
        facts = facts[0][start:stop], None if facts[1] is None else facts[1][start:stop]
    return one._replace(offset=first, slab=one.slab.part(start, stop), facts=facts)


def _bytes_of(slab: Slab) -> int:
    """About as much as its records take."""
    count = len(slab.bodies)
    keys = len(slab.routing_key) * count if slab.keys is None else sum(map(len, slab.keys))
    raws = len(slab.properties.raw) * count if slab.raws is None else sum(map(len, slab.raws))
    return slab.size + keys + raws


async def relocate(partition: QueuePartition, stragglers: list[Straggler], stopped: Callable[[], bool]) -> int:
    """Write messages again, a bite a turn, until `stopped`; how many.

    The checkpoint they come from is the partition's last.
    """
    gone = _Gone(partition)
    at = moved = 0
    while at < len(stragglers) and gone.complete and not stopped() and partition.log.error is None:
        start, size, count = at, 0, 0
        while at < len(stragglers) and size < _TURN_BYTES and count < _TURN_MESSAGES:
            size += _bytes_of(stragglers[at].slab)
            count += len(stragglers[at].slab.bodies)
            at += 1
        bite = gone.cut_out(stragglers[start:at])
        if bite:
            try:
                partition.relocate(bite)
            except LogUnavailable:
                break
            moved += sum(len(one.slab.bodies) for one in bite)
        await trio.lowlevel.checkpoint()
    return moved
