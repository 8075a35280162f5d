"""Rebuilding the queues of a home partition after a start, and the checkpoint that keeps it short.

A checkpoint says what was live in each queue when the log ended at `offset`. Replay begins there (or at the log's
start) and reads the rest: batches add to the queues of their destination sets, SETTLED records take away. What a batch
brings is in its directory (`directory.py`); where there is none its records are decoded. Definitions may stand anywhere
in the log, so sets are resolved at the end.

After a clean stop the checkpoint is the whole truth. After a crash nobody knows which messages were delivered since,
so all that come back are marked redelivered.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgpack

from core_log.checkpoint import load, save
from core_log.files import Files
from core_log.partition_log import PartitionLog
from core_log.record_batch import decode_runs, iterate_records, parse_header
from routing.queues.destination_sets import Definition
from routing.queues.directory import DIRECTORY_BIT, Directory, directory_of, each_of
from routing.queues.fact_columns import FactColumns
from routing.queues.home_records import set_id_of
from routing.queues.offset_set import Range, subtract
from routing.queues.queue import Queue
from routing.queues.queue_partition import QueuePartition
from routing.queues.settlement import DESTINATIONS_KEY, SETTLED_KEY, decode_destinations, decode_settled

logger = logging.getLogger(__name__)

_READ_BYTES = 4 << 20


def snapshot(partition: QueuePartition, outstanding: Iterable[tuple[Queue, int, int]], *, clean: bool) -> bytes:
    """The checkpoint of a sealed partition as it is now; `outstanding` is what sessions hold of its queues."""
    returned: dict[int, list[Range]] = defaultdict(list)
    for queue, first, count in outstanding:
        if queue.partition is partition and not queue.deleted:
            returned[queue.id].append((first, count))
    queues = {}
    for queue in partition.queues.values():
        ready, back = queue.waiting_ranges()
        queues[queue.id] = [ready, [*back, *returned[queue.id]], queue.redelivered_before]
    state = {
        "offset": partition.next_offset,
        "clean": clean,
        "next_set_id": partition.sets.next_id,
        "sets": {definition.id: definition.queue_ids for definition in partition.sets.definitions.values()},
        "queues": queues,
    }
    return msgpack.packb(state)  # type: ignore[no-any-return]


def checkpoint_path(partition: QueuePartition) -> str:
    """Where a partition's checkpoint lies."""
    return f"{partition.log.directory}/checkpoint"


def save_checkpoint(files: Files, partition: QueuePartition, state: bytes) -> None:
    """Write a checkpoint; what it speaks of must be durable in the log."""
    save(files, checkpoint_path(partition), state)


def _load(files: Files, partition: QueuePartition) -> dict[str, Any] | None:
    data = load(files, checkpoint_path(partition))
    if data is None:
        return None
    state: dict[str, Any] = msgpack.unpackb(data, strict_map_key=False)
    log = partition.log
    if not log.log_start_offset <= state["offset"] <= log.log_end_offset:
        logger.warning("%s: the checkpoint is not of this log, replaying all of it", log.directory)
        return None
    return state


class _Replay:
    """What reading the log brought to light; `set_ids`, `firsts` and `counts` are parallel, an item a slab."""

    def __init__(self, facts: FactColumns) -> None:
        self.definitions: dict[int, tuple[tuple[int, ...], int]] = {}
        self.set_ids: list[int] = []
        self.firsts: list[int] = []
        self.counts: list[int] = []
        self.settled: dict[int, list[Range]] = defaultdict(list)
        self._facts = facts
        self._open: Directory | None = None
        self._open_end = 0
        self._open_ms = 0

    def read(self, partition: QueuePartition, offset: int) -> None:
        log = partition.log
        while offset < log.log_end_offset:
            for batch in log.read_blocking(offset, _READ_BYTES, before=log.log_end_offset):
                header = parse_header(batch)
                if header.is_control:
                    self._close(header.base_offset)
                    self._control(batch)
                elif header.attributes & DIRECTORY_BIT:
                    self._close(header.base_offset)
                    self._open = directory = directory_of(batch, header)
                    self._open_end = directory.firsts[-1] + directory.counts[-1] if directory.firsts else 0
                    self._open_ms = header.base_timestamp_ms
                elif header.base_offset >= self._open_end:
                    for run in decode_runs(batch, with_values=False):
                        self.set_ids.append(set_id_of(run.header_block))
                        self.firsts.append(run.first_offset)
                        self.counts.append(run.count)
                offset = header.next_offset
        self._close(log.log_end_offset)

    def _close(self, end: int) -> None:
        """The open directory speaks of nothing at or behind `end`."""
        directory, self._open = self._open, None
        if directory is None:
            return
        slabs = len(directory.firsts) if self._open_end <= end else bisect_left(directory.firsts, end)
        self.set_ids += directory.set_ids[:slabs]
        self.firsts += directory.firsts[:slabs]
        self.counts += directory.counts[:slabs]
        if slabs and self._open_end > end:
            self.counts[-1] = min(self.counts[-1], end - self.firsts[-1])
        if directory.facts is not None:
            for index, columns in enumerate(directory.facts[:slabs]):
                if columns is not None:
                    first, count = directory.firsts[index], directory.counts[index]
                    self._facts.add(first, each_of(columns, min(count, end - first)), self._open_ms)

    def distribute(self, log: PartitionLog) -> dict[int, list[Range]]:
        """What was put into each queue, by its id, in the log's order."""
        into: dict[int, list[Range]] = defaultdict(list)
        appends: dict[int, list[Callable[[Range], None]]] = {}
        start = log.log_start_offset
        for set_id, first, count in zip(self.set_ids, self.firsts, self.counts):
            if first < start:
                first, count = start, first + count - start
                if count <= 0:
                    continue
            targets = appends.get(set_id)
            if targets is None:
                if set_id not in self.definitions:
                    logger.error("%s: offsets %d to %d name no queue", log.directory, first, first + count - 1)
                    continue
                targets = appends[set_id] = [into[queue_id].append for queue_id in self.definitions[set_id][0]]
            for append in targets:
                append((first, count))
        return into

    def _control(self, batch: Any) -> None:
        for record in iterate_records(batch):
            value = bytes(record.value or b"")
            if record.key == DESTINATIONS_KEY:
                set_id, queue_ids = decode_destinations(value)
                self.definitions[set_id] = (queue_ids, record.offset)
            elif record.key == SETTLED_KEY:
                for queue_id, first, count in decode_settled(value):
                    self.settled[queue_id].append((first, count))


def restore(files: Files, partition: QueuePartition) -> int:
    """Fill the partition's queues (already registered in `partition.queues`) from checkpoint and log.

    Returns the highest queue id that the log knows, 0 for none: the catalog may not have become durable in time.
    """
    log = partition.log
    state = _load(files, partition)
    start = state["offset"] if state else log.log_start_offset
    found = _Replay(partition.facts)
    if state:
        found.definitions = {set_id: (tuple(ids), 0) for set_id, ids in state["sets"].items()}
    found.read(partition, start)
    clean = bool(state and state["clean"] and start == log.log_end_offset)
    if state and clean:
        save_checkpoint(files, partition, msgpack.packb(state | {"clean": False}))
    highest = max(chain(found.set_ids, found.definitions), default=0)
    partition.sets.next_id = max(highest + 1, state["next_set_id"] if state else 1)
    live = found.distribute(log)
    for queue in partition.queues.values():
        ready, returned, redelivered_before = state["queues"].get(queue.id, ([], [], 0)) if state else ([], [], 0)
        if clean:
            queue.restore(ready, returned, redelivered_before)
        else:
            earlier = sorted([(first, count) for first, count in [*ready, *returned]])
            left = subtract([*earlier, *live.get(queue.id, ())], found.settled.get(queue.id, ()))
            queue.restore(left, (), log.log_end_offset)
        partition.restore(queue.live_ranges())
    partition.facts.keep(partition.live_blocks)
    for set_id, (queue_ids, offset) in found.definitions.items():
        if any(queue_id in partition.queues for queue_id in queue_ids):
            partition.sets.adopt(Definition(set_id, queue_ids, offset, log.log_end_offset))
    return max((queue_id for queue_ids, _ in found.definitions.values() for queue_id in queue_ids), default=0)
