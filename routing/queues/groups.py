"""Messages of one key go to one consumer at a time (`x-group-by`): order by key with any number of workers.

Only a queue that is told so has this.

1. A key is held by a consumer from its first unsettled message to its last. Meanwhile what else there is of the key
   goes to that consumer, if it has credit, or waits.
2. Messages are looked at in the order of the line and set aside, in a line of their own (`aside`), with their offsets
   by key. What is older than anything set aside, because it was given back, is looked at before anything is given out.
   So every key keeps its order, and nobody waits behind a key that is held.
3. Keys that nobody holds are shared out among consumers first, those that were found or let go first before others;
   then holders get more of their own. So no consumer is idle while a key is free.
4. At most `_aside_max` messages are set aside: a key with more of them than that in a row can hide those behind it.
5. Messages without the header have no key, and no order to keep.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from routing.message import Slab
from routing.property_editors import editor_of
from routing.queues.gathering import Gathered, load
from routing.queues.line import Line

if TYPE_CHECKING:
    from routing.consumer import Consumer
    from routing.queues.queue import Queue

ROUTING_KEY = "routing-key"
"""Told to group by the routing key; every other word is the name of a header."""

_BITE = 512
_INDEXED_MIN = 1024
_READ_MAX = 1024

Key = str | None


class _Hold:
    """Who holds a key (None after a get), and how many unsettled messages of it there are."""

    __slots__ = ("consumer", "count")

    def __init__(self, consumer: Consumer | None) -> None:
        self.consumer = consumer
        self.count = 0


class Groups:
    """See the module. `by` is what messages are grouped by."""

    __slots__ = (
        "_again", "_aside_max", "_free", "_held", "_indexed", "_key_of", "_looked_before", "_queue", "_theirs",
        "_waiting", "aside", "by",
    )  # fmt: skip

    def __init__(self, queue: Queue, by: str, aside_max: int) -> None:
        self.by = by
        self.aside = Line()
        """What was looked at and is not given out yet."""
        self._queue = queue
        self._aside_max = aside_max
        self._waiting: dict[Key, deque[int]] = {}
        """Rising offsets that were set aside; some may have gone since."""
        self._indexed = 0
        self._again: set[int] = set()
        """Offsets set aside that were delivered before."""
        self._free: dict[Key, None] = {}
        self._held: dict[str, _Hold] = {}
        self._theirs: dict[Consumer | None, dict[str, None]] = {}
        """Keys they hold of which more is set aside."""
        self._key_of: dict[int, str] = {}
        """Of what is delivered and not settled."""
        self._looked_before = 0

    # --- giving out --------------------------------------------------------------------

    def deliver(self) -> None:
        """Give out what consumers with credit may have."""
        while any(consumer.credit() > 0 for consumer in self._queue.consumers):
            looked, unread = self._look_ahead()
            first, count, _ = self._queue.head()
            if unread:
                load(self._queue, first, count)
            if count and first < self._looked_before:
                if unread:
                    return
                continue
            shared = self._share_out()
            if shared is None or not (shared or looked):
                return

    def _look_ahead(self) -> tuple[int, bool]:
        """Set aside what comes next in line, as much as is needed; how many, and whether the next has to be read."""
        queue, looked = self._queue, 0
        while looked < _BITE:
            first, count, again = queue.head()
            if not count:
                break
            if first >= self._looked_before and (self._free or self.aside.count >= self._aside_max):
                break
            entry = queue.partition.find(first)
            if entry is None:
                return looked, True
            start = first - entry.first
            count = min(count, entry.end - first, _BITE)
            self._set_aside(first, self._keys(entry.slab, start, start + count), again)
            looked += count
        return looked, False

    def _set_aside(self, first: int, keys: list[Key], again: bool) -> None:
        count, waiting = len(keys), self._waiting
        self._queue.line.take(count)
        self.aside.placed.add(first, count, redelivered=again)
        if again:
            self._again.update(range(first, first + count))
        self._looked_before = max(self._looked_before, first + count)
        self._indexed += count
        for offset, key in enumerate(keys, first):
            offsets = waiting.get(key)
            if offsets is not None and offset > offsets[-1]:
                offsets.append(offset)
            else:
                self._index(offset, key)
        if self._indexed > _INDEXED_MIN and self._indexed > 2 * self.aside.count:
            self._forget_gone()

    def _index(self, offset: int, key: Key) -> None:
        offsets = self._waiting.get(key)
        if offsets is not None:
            insort(offsets, offset)
            return
        self._waiting[key] = deque((offset,))
        hold = self._held.get(key) if key is not None else None
        if hold is None or key is None:
            self._free[key] = None
        else:
            self._theirs.setdefault(hold.consumer, {})[key] = None

    def _keys(self, slab: Slab, start: int, stop: int) -> list[Key]:
        if self.by == ROUTING_KEY:
            if slab.keys is None:
                return [slab.routing_key] * (stop - start)
            return list(slab.keys[start:stop])
        properties, name = slab.properties, self.by
        editor = editor_of(properties.protocol)
        raws = [properties.raw] if slab.raws is None else slab.raws[start:stop]
        if editor is not None:
            found = [editor.headers(raw, (name,)).get(name) for raw in raws]
        else:
            at = range(start, start + len(raws))
            found = [slab.properties_of(index).neutral.headers.get(name) for index in at]
        keys = [None if value is None else str(value) for value in found]
        return keys * (stop - start) if slab.raws is None else keys

    def _share_out(self) -> bool | None:
        """Give out what is set aside; whether anything was. None: something has to be read again first."""
        turns, done = self._queue.turns, False
        while self._free:
            consumer, credit = turns.choose(self.aside.count)
            if consumer is None:
                break
            keys = list(islice(self._free, -(-len(self._free) // len(turns.consumers))))
            each = -(-credit // len(keys))
            given = self._hand_over(consumer, [(key, each) for key in keys], credit)
            if given is None:
                return None
            done = done or given
        for consumer in [one for one in turns.consumers if one in self._theirs]:
            credit = consumer.credit()
            if credit > 0:
                own = [(key, credit) for key in self._theirs[consumer]]
                given = self._hand_over(consumer, own, credit)
                if given is None:
                    return None
                done = done or given
        return done

    def _hand_over(self, consumer: Consumer, wanted: Iterable[tuple[Key, int]], credit: int) -> bool | None:
        """Give a consumer up to `credit` messages, so many of each key; False if there was nothing to pick from. None:
        see `_share_out`.
        """
        queue, indexed = self._queue, self._indexed
        keys: dict[int, Key] = {}
        for key, most in wanted:
            keys.update(dict.fromkeys(self._pick(key, min(most, credit - len(keys))), key))
            if len(keys) >= credit:
                break
        left = sorted(self.aside.discard(sorted(keys)))  # some may have expired, or been dropped
        while left:
            again = left[0] in self._again
            alike = left if not self._again else self._alike(left, again)
            entry = queue.partition.find(left[0])
            if entry is None:
                self._put_back(left, keys)
                break
            run = Gathered(queue, entry.slab)
            count = run.add(alike)
            self._again.difference_update(run.offsets)
            self._hold(consumer, run.offsets, keys)
            queue.taken(run.offsets)
            slab = run.slab()
            if again and queue.returns is not None:
                slab = queue.returns.marked(slab, run.offsets)
            consumer.session.hand_over_scattered(consumer, queue, slab, run.offsets, again)
            left = left[count:]
        self._note_held(keys.values())
        return None if left else self._indexed < indexed

    def _alike(self, offsets: list[int], again: bool) -> list[int]:
        """The first of them, as long as they agree in whether they were delivered before."""
        return list(takewhile(lambda offset: (offset in self._again) == again, offsets))

    def _put_back(self, offsets: list[int], keys: dict[int, Key]) -> None:
        """These were forgotten by the cache since they were looked at: have them read."""
        queue = self._queue
        for offset in offsets:
            self.aside.placed.add(offset, 1, redelivered=offset in self._again)
            self._index(offset, keys[offset])
        self._indexed += len(offsets)
        # They are next, whoever's turn it is by then: what others want would be read in their place, and they again.
        self._free = {key: None for offset in offsets if (key := keys[offset]) in self._free} | self._free
        if not queue.partition.load_scattered(offsets[:_READ_MAX], queue):
            queue.partition.load(offsets[0], queue)

    def _pick(self, key: Key, most: int) -> list[int]:
        """The first of a key, which are looked for no more; they are still to be taken from what is set aside."""
        offsets = self._waiting.get(key)
        if offsets is None:
            return []
        picked = [offsets.popleft() for _ in range(min(most, len(offsets)))]
        self._indexed -= len(picked)
        if not offsets:
            self._drop(key)
        return picked

    def _drop(self, key: Key) -> None:
        """Nothing of a key is set aside any more."""
        del self._waiting[key]
        self._free.pop(key, None)
        hold = self._held.get(key) if key is not None else None
        if hold is not None and key is not None:
            self._not_theirs(hold.consumer, key)

    def _not_theirs(self, consumer: Consumer | None, key: str) -> None:
        theirs = self._theirs.get(consumer)
        if theirs is not None:
            theirs.pop(key, None)
            if not theirs:
                del self._theirs[consumer]

    def _hold(self, consumer: Consumer | None, offsets: list[int], keys: dict[int, Key]) -> None:
        for offset in offsets:
            key = keys[offset]
            if key is None:
                continue
            self._key_of[offset] = key
            hold = self._held.get(key)
            if hold is None:
                hold = self._held[key] = _Hold(consumer)
            hold.count += 1

    def _note_held(self, keys: Iterable[Key]) -> None:
        """These were shared out: those that are held now are not free."""
        for key in set(keys):
            hold = self._held.get(key) if key is not None else None
            if hold is not None and key is not None and key in self._waiting:
                self._free.pop(key, None)
                self._theirs.setdefault(hold.consumer, {})[key] = None

    # --- single messages ---------------------------------------------------------------

    def first(self) -> tuple[int, int, bool]:
        """As `Queue.head`, for one who takes a single message: of a key that is free, or what has to be read first."""
        while True:
            while self._look_ahead()[0]:
                pass
            first, count, again = self._queue.head()
            if count and (first < self._looked_before or not self._free) and self._queue.partition.find(first) is None:
                return first, 1, again
            if not self._free:
                return 0, 0, False
            key = next(iter(self._free))
            offset = self._waiting[key][0]
            if self.aside.present([offset]):
                return offset, 1, offset in self._again
            self._pick(key, 1)  # it has gone: what follows may be of no key that was found yet

    def take_first(self) -> None:
        """Take what `first` said: it is delivered now."""
        key = next(iter(self._free))
        offsets = self.aside.discard(self._pick(key, 1))
        self._again.difference_update(offsets)
        self._queue.taken(offsets)
        self._hold(None, offsets, dict.fromkeys(offsets, key))
        self._note_held([key])

    # --- messages back -----------------------------------------------------------------

    def release(self, offsets: Iterable[int]) -> None:
        """Deliveries are settled or given back: their keys may be free now."""
        key_of, freed = self._key_of, False
        for offset in offsets:
            key = key_of.pop(offset, None)
            if key is None:
                continue
            hold = self._held[key]
            hold.count -= 1
            if not hold.count:
                del self._held[key]
                self._not_theirs(hold.consumer, key)
                if key in self._waiting:
                    self._free[key] = None
                    freed = True
        if freed:
            self._queue.wake()

    def give_up(self, offset: int) -> bool:
        """The log does not hold a message any more; whether it was set aside."""
        found = self.aside.discard([offset])
        if found:
            self._queue.taken(found)
            self._queue.settle(offset, 1)
        return bool(found)

    def disband(self) -> None:
        """All that is set aside stands in line again."""
        line = self._queue.line
        for redelivered in (False, True):
            for first, count in list(self.aside.placed.ranges_of(redelivered=redelivered)):
                line.placed.add(first, count, redelivered=redelivered)
        self.aside.clear()
        self._waiting.clear()
        self._free.clear()
        self._theirs.clear()
        self._again.clear()
        self._indexed = self._looked_before = 0

    def _forget_gone(self) -> None:
        """Messages expired or were dropped while they were set aside."""
        for key, offsets in list(self._waiting.items()):
            there = set(self.aside.present(list(offsets)))
            self._indexed -= len(offsets) - len(there)
            if there:
                self._waiting[key] = deque(sorted(there))
            else:
                self._drop(key)
        self._again.intersection_update(self.aside.present(sorted(self._again)))
