"""Having a queue give out again what was taken from it: copies of what its history holds (`queues/history.py`).

Copies stand at the end of the line, in the order of the originals, with the header `x-replayed`. They are not retained
again. What waits in the queue, or is with a consumer, does not come twice. Once another broker leads the queue it is
said how far this has come, and the rest is asked of that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from routing.elsewhere import LOOK_S, SERVED_WITHIN_S, is_served
from routing.errors import LimitExceeded, PreconditionFailed, StorageUnavailable
from routing.message import Properties, Slab
from routing.property_editors import editable, editor_of
from routing.queues.offset_set import Range
from routing.queues.runs_of import runs_of
from routing.queues.waiting import live_ranges
from routing.topology.route import Route

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
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


class _Copies:
    """Waits until all is safe, at the next leader, too, if it is led elsewhere before that."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open = 0
        self._error: StorageUnavailable | None = None
        self._over = trio.Event()

    async def add(self, targets: Sequence[tuple[PartitionLog, int]]) -> None:
        """These logs have to get so far; return when there is room for more."""
        self._open += 1
        self._broker.end_turn()  # it is appended, so that its sync can be asked for
        self._broker.commits.when_committed(targets, self._done)
        await self._broker.flusher.wait_for_room()
        await trio.lowlevel.checkpoint()

    def _done(self, error: StorageUnavailable | None) -> None:
        self._open -= 1
        self._error = self._error or error
        self._over.set()

    async def committed(self) -> None:
        """Raises StorageUnavailable."""
        self._broker.want_turn()  # followers are asked to sync then
        while self._open:
            self._over = trio.Event()
            await self._over.wait()
        if self._error is not None:
            raise self._error


async def rewind(
    broker: Broker, queue: Queue, since_ms: int, *, after: int, before: int | None, limit: int, dry_run: bool
) -> Rewound:
    """Publish again to `queue` what was published since a time and is settled, of the offsets between `after` and
    `before`, at most `limit` messages, and no more once the queue is gone, or another broker's.

    Raises PreconditionFailed (nothing is retained), LimitExceeded, StorageUnavailable.
    """
    ranges = [
        (max(first, after + 1), min(first + count, before or first + count) - max(first, after + 1))
        for first, count in _settled_since(broker, queue, since_ms)
    ]
    ranges = [(first, count) for first, count in ranges if count > 0]
    total = sum(count for _, count in ranges)
    if dry_run:
        return Rewound(0, total, after)
    route, copies = Route([queue], [], retained=False), _Copies(broker)
    done, last = 0, after
    for first, count in ranges:
        while count and done < limit and await _takes(queue, route):
            number = await _replay(copies, queue, route, first, min(count, limit - done, _PART_MAX))
            first, count, done = first + number, count - number, done + number
            last = first - 1
    await copies.committed()
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


async def _takes(queue: Queue, route: Route) -> bool:
    """Wait until the queue takes copies here, as another broker may be about to lead it; False once that does. Raises
    StorageUnavailable.
    """
    until_s = trio.current_time() + SERVED_WITHIN_S
    while await is_served(queue):
        failed = route.error()
        if failed is None:
            return True
        if trio.current_time() >= until_s:
            raise failed
        await trio.sleep(LOOK_S)
    return False


async def _replay(copies: _Copies, queue: Queue, route: Route, first: int, count: int) -> int:
    """Publish some messages from `first` on, within a slab; how many are dealt with."""
    partition = queue.partition
    if queue.history is None:
        raise PreconditionFailed(f"queue '{queue.name}' in vhost '{queue.vhost}' retains nothing any more")
    entry = partition.find(first)
    if entry is None:
        await partition.load_now(first, queue.history)
        if not await _takes(queue, route):
            return 0
        entry = partition.find(first)
        if entry is None:
            return 1
    stop = min(entry.end, first + count)
    slab = _marked(entry.slab.part(first - entry.first, stop - entry.first))
    if route.guarded and route.room(slab.bodies) < len(slab.bodies):
        raise LimitExceeded(f"queue '{queue.name}' in vhost '{queue.vhost}' is full")
    await copies.add(route.deliver(slab))
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
