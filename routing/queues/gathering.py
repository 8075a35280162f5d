"""Collecting messages that follow each other in line but not in the log into one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from routing.message import Properties, Slab

if TYPE_CHECKING:
    from routing.queues.queue import Queue


def gather(queue: Queue, limit: int) -> tuple[Slab, list[int], bool] | None:
    """Take up to `limit` messages that are in memory off the queue's front: a slab of them, the offset of each, and
    whether they are redelivered. None: the first is not in memory.

    It ends early where the exchange, the protocol, the persistence or the redelivered flag changes.
    """
    first, count, redelivered = queue.head()
    found = queue.partition.find(first) if count else None
    if found is None:
        return None
    run = Gathered(queue, found.slab)
    goes_on = True
    while goes_on and len(run.offsets) < limit:
        line = queue.next_line()
        if not line.count:
            break
        if redelivered or not line.simple or line.ready.head()[0] < queue.redelivered_before:
            first, count, again = queue.head()
            if again != redelivered:
                break
            count = min(count, limit - len(run.offsets))
            queue.take(count)
            taken: Sequence[int] = range(first, first + count)
        else:
            taken = line.ready.take(limit - len(run.offsets))
            queue.taken(taken)
        fitting = run.add(taken)
        if fitting < len(taken):
            queue.not_taken(taken[fitting:], redelivered)
            goes_on = False
    if not run.offsets:
        return None
    return run.slab(), run.offsets, redelivered


class Gathered:
    """Messages of a queue that go together."""

    def __init__(self, queue: Queue, like: Slab) -> None:
        self.offsets: list[int] = []
        self._queue = queue
        self._exchange = like.exchange
        self._common: Properties = like.properties
        self._keys: list[str] = []
        self._raws: list[bytes] = []
        self._bodies: list[bytes] = []

    def add(self, offsets: Sequence[int]) -> int:
        """Add those before the first that does not fit, or is not in memory; how many."""
        find = self._queue.partition.find
        keys, raws, bodies = self._keys, self._raws, self._bodies
        start = end = 0
        for at, offset in enumerate(offsets):
            if not start <= offset < end:
                entry = find(offset)
                if entry is None or not self._fits(entry.slab):
                    offsets = offsets[:at]
                    break
                start, end = entry.first, entry.end
                slab = entry.slab
                slab_bodies, slab_keys, slab_raws = slab.bodies, slab.keys, slab.raws
                key, raw = slab.routing_key, slab.properties.raw
            index = offset - start
            bodies.append(slab_bodies[index])
            keys.append(key if slab_keys is None else slab_keys[index])
            raws.append(raw if slab_raws is None else slab_raws[index])
        self.offsets += offsets
        return len(offsets)

    def _fits(self, slab: Slab) -> bool:
        common, other = self._common, slab.properties
        return (
            slab.exchange == self._exchange
            and other.protocol == common.protocol
            and other.persistent == common.persistent
        )

    def slab(self) -> Slab:
        """What was added."""
        keys = self._keys
        same_key = keys.count(keys[0]) == len(keys)
        return Slab(
            self._exchange,
            keys[0],
            self._common,
            self._bodies,
            keys=None if same_key else keys,
            raws=self._raws,
        )
