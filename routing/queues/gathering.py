"""Collecting messages that follow each other in line but not in the log into one run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING

from routing.facts import pack, without_delay
from routing.message import Properties, Slab

if TYPE_CHECKING:
    from routing.queues.queue import Queue

SCATTERED_BELOW = 16
"""Runs shorter than this are collected with what comes after them."""
_AHEAD_MAX = 2048
"""So many messages that lie far apart are read at once."""
_DENSE = 8
"""Where every so many-th message is wanted, the log is read as a whole."""


def load(queue: Queue, first: int, count: int) -> None:
    """Have the first of what waits read: with its neighbours, or with those next in line if they lie far apart."""
    if queue.store.awaits(queue):
        return
    line = queue.next_line()
    if count < SCATTERED_BELOW and (queue.message_count > count or not line.simple):
        ahead = line.peek(_AHEAD_MAX)
        for lower in () if queue.levels is None else queue.levels.descending():
            if lower is not line and len(ahead) < _AHEAD_MAX:
                ahead += lower.peek(_AHEAD_MAX - len(ahead))
        far = not line.simple or max(ahead) - min(ahead) > _DENSE * len(ahead)
        if far and queue.store.load_scattered(ahead, queue):
            return
    queue.store.load(first, queue)


def skip_unreadable(queue: Queue, offset: int) -> None:
    """Give up on a message that the log does not hold any more; who may not lead it now gives nothing up."""
    if queue.partition.suspended:
        return
    first, count, _ = queue.head()
    if queue.groups is not None and queue.groups.give_up(offset):
        pass
    elif count and first == offset:
        queue.take(1)
        queue.settle(first, 1)
    queue.wake()


def gather(queue: Queue, limit: int) -> tuple[Slab, list[int], bool] | None:
    """Take up to `limit` messages that are in memory off the queue's front: a slab of them, the offset of each, and
    whether they are redelivered. None: the first is not in memory.

    It ends early where the exchange, the protocol, the persistence or the redelivered flag changes.
    """
    first, count, redelivered = queue.head()
    found = queue.store.find(first) if count else None
    if found is None:
        return None
    run = Gathered(queue, found.slab)
    left = limit
    while left:
        line = queue.next_line()
        ready = line.ready
        if line.due and (due := line.next_due(left)):
            due = list(takewhile(lambda offset: (offset < queue.redelivered_before) == redelivered, due))
            if not due:
                break
            fitting = run.add_each(due)
            line.take_due(fitting)
            queue.taken(due[:fitting])
            left -= fitting
            if fitting < len(due):
                break
            continue
        if redelivered or line.due or line.placed.count or ready.head()[0] < queue.redelivered_before:
            first, count, again = queue.head()
            if not count or again != redelivered:
                break
            count = min(count, left)
            queue.take(count)
            taken: Sequence[int] = range(first, first + count)
        else:
            taken = ready.take(left)
            if not taken:
                break
            queue.taken(taken)
        left -= len(taken)
        fitting = run.add(taken)
        if fitting < len(taken):
            queue.not_taken(taken[fitting:], redelivered)
            break
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
        self._key = like.routing_key
        self._keys: list[str] | None = None
        """Of each, once they differ."""
        self._raws: list[bytes] = []
        self._facts: list[int] | None = None
        """Of each, once one has a time to live."""
        self._bodies: list[bytes] = []

    def add(self, offsets: Sequence[int]) -> int:
        """Of rising offsets, add those before the first that does not fit, or is not in memory; how many."""
        find = self._queue.store.find
        at, count = 0, len(offsets)
        while at < count:
            entry = find(offsets[at])
            if entry is None or not self._fits(entry.slab):
                break
            slab, start = entry.slab, entry.first
            stop = bisect_left(offsets, entry.end, at)
            bodies, keys, raws = slab.bodies, slab.keys, slab.raws
            if self._keys is None and (keys is not None or slab.routing_key != self._key):
                self._keys = [self._key] * len(self._bodies)
            if stop - at == 1:
                place = offsets[at] - start
                self._bodies.append(bodies[place])
                self._raws.append(slab.properties.raw if raws is None else raws[place])
                if self._keys is not None:
                    self._keys.append(slab.routing_key if keys is None else keys[place])
            else:
                pick = itemgetter(*[offset - start for offset in offsets[at:stop]])
                self._bodies += pick(bodies)
                self._raws += repeat(slab.properties.raw, stop - at) if raws is None else pick(raws)
                if self._keys is not None:
                    self._keys += repeat(slab.routing_key, stop - at) if keys is None else pick(keys)
            if self._facts is not None or not slab.plain:
                self._note_facts(slab, [offset - start for offset in offsets[at:stop]])
            at = stop
        self.offsets += offsets[:at]
        return at

    def add_each(self, offsets: Sequence[int]) -> int:
        """As `add` for offsets in any order."""
        find, last, key = self._queue.store.find, self._common, self._key
        for at, offset in enumerate(offsets):
            entry = find(offset)
            if entry is None:
                return at
            slab, place = entry.slab, offset - entry.first
            if slab.properties is not last or slab.exchange != self._exchange:
                if not self._fits(slab):
                    return at
                last = slab.properties
            if self._keys is None and (slab.keys is not None or slab.routing_key != key):
                self._keys = [key] * len(self._bodies)
            if self._keys is not None:
                self._keys.append(slab.key_of(place))
            self._bodies.append(slab.bodies[place])
            self._raws.append(slab.properties.raw if slab.raws is None else slab.raws[place])
            if self._facts is not None or not slab.plain:
                self._note_facts(slab, [place])
            self.offsets.append(offset)
        return len(offsets)

    def _note_facts(self, slab: Slab, places: list[int]) -> None:
        """Messages of a slab were added, whose time to live is theirs alone; a delay is over."""
        if self._facts is None:
            self._facts = [pack(self._common.persistent)] * (len(self._bodies) - len(places))
        each = slab.facts
        facts = repeat(slab.properties.facts, len(places)) if each is None else [each[place] for place in places]
        self._facts += map(without_delay, facts)

    def _fits(self, slab: Slab) -> bool:
        common, other = self._common, slab.properties
        return (
            slab.exchange == self._exchange
            and other.protocol == common.protocol
            and other.persistent == common.persistent
        )

    def slab(self) -> Slab:
        """What was added."""
        key, keys = self._key, self._keys
        if keys is not None:
            key = keys[0]
            if keys.count(key) == len(keys):
                keys = None
        return Slab(self._exchange, key, self._common, self._bodies, keys=keys, raws=self._raws, facts=self._facts)
