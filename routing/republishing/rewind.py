"""Having a queue give out again what was taken from it: copies of what its history holds (`queues/history.py`).

Copies stand at the end of the line, in the order of the originals, with the header `x-replayed`. They are not retained
again. What waits in the queue, or is with a consumer, does not come twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import trio

from routing.errors import LimitExceeded, NotFound, PreconditionFailed
from routing.message import Properties, Slab
from routing.property_editors import editable, editor_of
from routing.queues.offset_set import Range
from routing.queues.runs_of import runs_of
from routing.queues.waiting import live_ranges
from routing.topology.route import Route

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue

HEADER = "x-replayed"
_PART_MAX = 500
"""Messages that are copied in one turn."""


class Rewound(NamedTuple):
    """How many messages came again, how many more there are, and the offset of the last."""

    replayed: int
    left: int
    last: int


async def rewind(
    broker: Broker, queue: Queue, since_ms: int, *, after: int, before: int | None, limit: int, dry_run: bool
) -> Rewound:
    """Publish again to `queue` what was published since a time and is settled, of the offsets between `after` and
    `before`, at most `limit` messages.

    Raises PreconditionFailed (nothing is retained), LimitExceeded, StorageUnavailable, NotFound (the queue is gone).
    """
    ranges = [
        (max(first, after + 1), min(first + count, before or first + count) - max(first, after + 1))
        for first, count in _settled_since(broker, queue, since_ms)
    ]
    ranges = [(first, count) for first, count in ranges if count > 0]
    total = sum(count for _, count in ranges)
    if dry_run:
        return Rewound(0, total, after)
    route = Route([queue], [], retained=False)
    done, last = 0, after
    for first, count in ranges:
        while count and done < limit:
            number = await _replay(broker, queue, route, first, min(count, limit - done, _PART_MAX))
            first, count, done = first + number, count - number, done + number
            last = first - 1
    await _committed(broker, route)
    return Rewound(done, total - done, last)


def _settled_since(broker: Broker, queue: Queue, since_ms: int) -> list[Range]:
    history = queue.history
    if history is None:
        raise PreconditionFailed(f"queue '{queue.name}' in vhost '{queue.vhost}' retains nothing")
    facts = queue.partition.facts
    found = [
        (run.first, len(run.facts))
        for first, count in sorted(live_ranges(history))
        for run in facts.between(first, count)
        if run.timestamp_ms >= since_ms
    ]
    return list(_without(found, sorted([*live_ranges(queue), *_with_consumers(broker, queue)])))


def _without(have: list[Range], gone: list[Range]) -> Iterator[Range]:
    """What is left of ranges without others; both rise, and neither overlap among themselves."""
    index = 0
    for first, count in have:
        at, end = first, first + count
        while index < len(gone) and gone[index][0] + gone[index][1] <= at:
            index += 1
        number = index
        while number < len(gone) and gone[number][0] < end:
            gone_first, gone_count = gone[number]
            if gone_first > at:
                yield at, gone_first - at
            at = max(at, gone_first + gone_count)
            number += 1
        if at < end:
            yield at, end - at


def _with_consumers(broker: Broker, queue: Queue) -> Iterator[Range]:
    for session in broker.sessions:
        taken = () if session.transaction is None else [entry for entry, _ in session.transaction.taken]
        for entry in (*session.unsettled, *taken):
            if entry.queue is queue:
                yield from runs_of(entry.offsets_of(entry.first, entry.end))


async def _replay(broker: Broker, queue: Queue, route: Route, first: int, count: int) -> int:
    """Publish some messages from `first` on, within a slab; how many are dealt with."""
    partition = queue.partition
    if queue.deleted or queue.history is None:
        raise NotFound(f"no queue '{queue.name}' in vhost '{queue.vhost}'")
    entry = partition.find(first)
    if entry is None:
        await partition.load_now(first, queue.history)
        entry = partition.find(first)
        if entry is None:
            return 1
    stop = min(entry.end, first + count)
    slab = _marked(entry.slab.part(first - entry.first, stop - entry.first))
    failed = route.error()
    if failed is not None:
        raise failed
    if route.guarded and route.room(slab.bodies) < len(slab.bodies):
        raise LimitExceeded(f"queue '{queue.name}' in vhost '{queue.vhost}' is full")
    route.deliver(slab)
    broker.end_turn()
    await broker.flusher.wait_for_room()
    await trio.lowlevel.checkpoint()
    return stop - first


def _marked(slab: Slab) -> Slab:
    properties = slab.properties
    protocol, raws = editable(properties, slab.raws, len(slab.bodies))
    editor = editor_of(protocol)
    assert editor is not None
    header = editor.encode({HEADER: True})
    marked = [editor.edit(raw, header, (HEADER,)) for raw in ([properties.raw] if raws is None else raws)]
    common = Properties(protocol, marked[0], persistent=properties.persistent, facts=properties.facts)
    return Slab(
        slab.exchange, slab.routing_key, common, slab.bodies, slab.size,
        keys=slab.keys, raws=None if raws is None else marked, facts=slab.facts,
    )  # fmt: skip


async def _committed(broker: Broker, route: Route) -> None:
    """Wait until everything is safe. Raises StorageUnavailable."""
    broker.end_turn()
    broker.want_turn()  # followers are asked to sync then
    await broker.commits.committed([(home.log, home.next_offset) for home in route.durable_homes])
