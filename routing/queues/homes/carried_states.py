"""What queues know of messages beside where they lie, written into the log again for a replica that comes late.

The records of ids that were seen go with the log's start, and so do those of sizes and returns of messages that were
moved: who follows from the beginning, and who leads, has them in checkpoints. A replica that begins where the log
begins now has only the log. So its leader writes them once more, a record at a time; who has them already learns
nothing new. What stands in the log still is not repeated.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from routing.queues import reservations
from routing.queues.publish_numbers import encode_epochs, encode_numbers
from routing.queues.settlement import (
    EPOCHS_KEY,
    NUMBERED_KEY,
    RECEIVED_KEY,
    RETURNED_KEY,
    SEEN_KEY,
    SIZES_KEY,
    encode_returned,
    encode_seen,
    encode_settled,
    encode_sizes,
)

if TYPE_CHECKING:
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.queue import Queue

_PLACES = 1 << 15
"""So many places of a table of ids are looked at for one record, of 256 KiB at most."""
_RETURNS = 1 << 13
_SIZES = 1 << 16


def carried_states(partition: QueuePartition) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of control records, for all queues of a home."""
    start = partition.log.log_start_offset
    if partition.numbers.epochs:
        yield EPOCHS_KEY, encode_epochs(partition.numbers.epochs.items())
    for publisher, taken in list(partition.numbers.by_publisher.items()):
        yield NUMBERED_KEY, encode_numbers([(publisher, sorted(taken))])
    for queue in list(partition.queues.values()):
        yield from _ids(queue)
        yield from _sizes(queue, start)
        yield from _returns(queue, start)
        if queue.held is not None and queue.held.count:
            yield RECEIVED_KEY, encode_settled([(queue.id, *one) for one in queue.held.ranges()])
        yield from reservations.records(queue)


def _ids(queue: Queue) -> Iterator[tuple[bytes, bytes]]:
    if queue.seen is None:
        return
    for seen_ms, _, data in list(queue.seen.dump(queue.host.now_ms())):
        for first in range(0, len(data), 8 * _PLACES):
            places = array("Q", data[first : first + 8 * _PLACES])
            known = array("Q", [one for one in places if one])
            if known:
                yield SEEN_KEY, encode_seen([(queue.id, seen_ms, known.tobytes())])


def _sizes(queue: Queue, start: int) -> Iterator[tuple[bytes, bytes]]:
    if queue.rules.sizes is None:
        return
    found: list[tuple[int, int, array[int]]] = []
    count = 0
    for first, column in queue.rules.sizes.dump():
        if first < start:
            found.append((queue.id, first, column))
            count += len(column)
            if count >= _SIZES:
                yield SIZES_KEY, encode_sizes(found)
                found, count = [], 0
    if found:
        yield SIZES_KEY, encode_sizes(found)


def _returns(queue: Queue, start: int) -> Iterator[tuple[bytes, bytes]]:
    if queue.returns is None:
        return
    tries = queue.returns.tries
    offsets = [offset for offset in tries if offset < start]
    for first in range(0, len(offsets), _RETURNS):  # what is known by then: more may have come back, or be settled
        there = [(offset, tries[offset]) for offset in offsets[first : first + _RETURNS] if offset in tries]
        if there:
            yield RETURNED_KEY, encode_returned([(queue.id, offset, one.packed, one.due_ms) for offset, one in there])
