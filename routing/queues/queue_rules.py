"""What a queue does beyond holding messages: priorities, times to live, delays, and its own end.

`Queue` asks here only where settings or messages call for it.

1. `sort_in` looks at what came in this turn and still waits: it goes to the line of its priority, and its time to live
   begins to be watched.
2. One alarm a queue, at the earliest of its times; it works in bites and sets itself again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from routing.facts import DELAYED_FROM, TTL_MASK, delay_ms_of, priority_of, ttl_ms_of
from routing.message import Slab
from routing.queues.arrivals import Arrival, deadline_ms_of, is_mortal, overlaps, shortest_life
from routing.queues.death_history import EXPIRED
from routing.queues.message_sizes import MessageSizes, in_memory
from routing.queues.offset_set import Range
from routing.queues.priority_sort import sort_in
from routing.queues.settlement import unpack_sizes
from routing.queues.timing import Timing

if TYPE_CHECKING:
    from delay.timer_service import Timer
    from routing.queues.host import QueueHost
    from routing.queues.queue import Queue
    from routing.queues.returns import Returns

_NEVER = 1 << 62
_SPACING_MS = 2
"""Alarms of a queue that has done all that was due are so far apart: what becomes due in between comes together."""

COME_AGAIN_S = 10.0
"""For so long a queue whose consumers another broker has lives on without them when that one's link is lost, or its
home has another leader: they are about to come again."""

_SLAB_MIN = 8
"""Fewer messages than that are not worth an entry of their own."""


class QueueRules:
    """See the module."""

    __slots__ = (
        "_again", "_alarm", "_alarm_ms", "_host", "_living_on", "_of", "_used_ms", "late", "sizes", "timing",
    )  # fmt: skip

    def __init__(self, queue: Queue, host: QueueHost) -> None:
        self._of = ref(queue)
        self._host = host
        self.timing: Timing | None = None
        self._alarm: Timer | None = None
        self._alarm_ms = _NEVER
        self._again: set[int] = set()
        """Messages that were given back and are watched once more."""
        self._living_on: frozenset[int] = frozenset()
        """Messages that do not expire, since they have been delivered; those that are gone stay until others come."""
        self._used_ms = 0
        self.late: list[tuple[int, int]] = []
        """(due time, offset) of what became due while nothing ran."""
        self.sizes: MessageSizes | None = None

    @property
    def _queue(self) -> Queue:
        """It has this, and is to be gone when nobody else has it."""
        queue = self._of()
        assert queue is not None, "these are a queue's that is gone"
        return queue

    def changed(self) -> None:
        """The queue's settings are new."""
        settings = self._queue.settings
        if settings.max_length_bytes is not None:
            self.sizes = self.sizes or self._sizes()
        else:
            self.sizes = None
        if settings.expires_ms:
            self.used()
        if settings.consumer_timeout_ms:
            self._host.impatient.add(self._queue)

    def _sizes(self, known: Iterable[tuple[int, bytes]] = ()) -> MessageSizes:
        waiting = [part for line in self._queue.lines() for part in line.ranges()]
        partition = self._queue.partition
        columns = {first: unpack_sizes(packed) for first, packed in known}
        return MessageSizes(waiting, partition.mean_bytes, columns or in_memory(partition.find, waiting))

    def restored(self, sizes: Iterable[tuple[int, bytes]]) -> None:
        """The queue has taken over what a start found: what became due meanwhile comes in the order of its times."""
        late, self.late = self.late, []
        if late:
            late.sort()
            self.need_timing().delay([due_ms for due_ms, _ in late], [offset for _, offset in late])
            self.arm()
        if self.sizes is not None:
            self.sizes = self._sizes(sizes)

    def stop(self) -> None:
        """The queue is deleted."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_ms, self.timing = None, _NEVER, None

    @property
    def timed(self) -> bool:
        """Messages of the queue may have a time to live."""
        return self.timing is not None or self._queue.settings.message_ttl_ms is not None

    def catch_up(self) -> None:
        """What came in this turn obeys the settings and goes to consumers that wait for it, and what is over goes:
        somebody asks for messages, or counts.
        """
        queue = self._queue
        if queue.awake or queue.fresh or queue.settings.limited:
            queue.partition.look_again()
            queue.pump()
        if self.timing is not None:
            self.look(self._host.now_ms())

    def lets_give_out(self) -> bool:
        """What is over goes before anybody is given anything. While more is over than a bite nobody is: the alarm does
        the others, and wakes the queue then.
        """
        now_ms = self._host.now_ms()
        if now_ms < self._alarm_ms:
            return True
        self.look(now_ms)
        return not self._is_late(now_ms)

    def _is_late(self, now_ms: int) -> bool:
        """More is due than was done at once, as after a start."""
        due_ms = None if self.timing is None else self.timing.next_ms()
        return due_ms is not None and due_ms <= now_ms

    # --- alarms ------------------------------------------------------------------------

    def used(self) -> None:
        """Somebody declared it, looked for it or took from it: it lives on for `expires_ms`."""
        self._live_on(max(self._used_ms, self._host.now_ms()))

    def consumer_gone(self) -> None:
        """Somebody stopped consuming: the same."""
        self._live_on(self._host.now_ms())

    def consumers_lost(self) -> None:
        """Those that it may have at other brokers are not known here: it lives on for `COME_AGAIN_S` at least."""
        come_again_ms = round(COME_AGAIN_S * 1000)
        self._live_on(self._host.now_ms() + max(come_again_ms - self._queue.settings.expires_ms, 0))

    def _live_on(self, used_ms: int) -> None:
        expires_ms = self._queue.settings.expires_ms
        if expires_ms and not self._queue.deleted:
            self._used_ms = used_ms
            self._wake_at(used_ms + expires_ms)

    def _wake_at(self, due_ms: int) -> None:
        if due_ms < self._alarm_ms:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_ms = due_ms
            self._alarm = self._host.at_ms(due_ms, self._ring)

    def arm(self, rang_ms: int = 0) -> None:
        due_ms = None if self.timing is None else self.timing.next_ms()
        if due_ms is not None:
            self._wake_at(due_ms if due_ms <= rang_ms else max(due_ms, rang_ms + _SPACING_MS))

    def _ring(self) -> None:
        queue = self._of()
        self._alarm, self._alarm_ms = None, _NEVER
        if queue is None or queue.deleted:
            return
        now_ms = self._host.now_ms()
        self.look(now_ms)
        if not self._is_late(now_ms):
            queue.wake()
        expires_ms = queue.settings.expires_ms
        if expires_ms and not queue.consumers:
            if now_ms >= self._used_ms + expires_ms:
                self._host.unused(queue)
                return
            self._wake_at(self._used_ms + expires_ms)
        self.arm(now_ms)

    def look(self, now_ms: int) -> None:
        """Do what is due: a bite of it."""
        timing, queue = self.timing, self._queue
        if timing is None:
            return
        due = timing.due(now_ms)
        lifeless = self._become_due(timing, due) if due else []
        if due and queue.turns.consumers:
            self._read_ahead(timing, now_ms)
        self._drop_expired(timing, now_ms)
        if lifeless:
            if queue.turns.consumers and not queue.partition.suspended and not self._is_late(now_ms):
                queue.give_out()
            timing.expire_at([now_ms] * len(lifeless), lifeless)
            self._drop_expired(timing, now_ms)
        timing.sweep(queue.message_count, self._present)

    def _drop_expired(self, timing: Timing, now_ms: int) -> None:
        for first, end in timing.opened(now_ms):
            self._open_slab(first, end)
        expired = timing.expired(now_ms)
        if expired:
            self._again.difference_update(expired)
            if self._living_on:
                expired = [offset for offset in expired if offset not in self._living_on]
            self._expire(sorted(offset for line in self._queue.lines() for offset in line.discard(expired)))

    def _present(self, offsets: list[int]) -> set[int]:
        self._again.clear()
        return {offset for line in self._queue.lines() for offset in line.present(offsets)}

    def _expire(self, offsets: list[int]) -> None:
        if offsets:
            self.forget_sizes(offsets)
            self._queue.outstanding += len(offsets)
            self._queue.bury(offsets, EXPIRED)

    # --- messages in -------------------------------------------------------------------

    def need_timing(self) -> Timing:
        if self.timing is None:
            self.timing = Timing(self._host.now_ms())
        return self.timing

    def delay(self, arrival: Arrival) -> list[Range]:
        """Hold back those messages of a slab that have a delay; the ranges of the others."""
        first, count, time_ms, facts = arrival.first, arrival.count, arrival.time_ms, arrival.facts
        timing = self.need_timing()
        if isinstance(facts, int):
            timing.delay([time_ms + delay_ms_of(facts)] * count, range(first, first + count))
            self.arm()
            return []
        held = [index for index, fact in enumerate(facts) if fact >= DELAYED_FROM]
        timing.delay([time_ms + delay_ms_of(facts[index]) for index in held], [first + index for index in held])
        self.arm()
        rest, at = [], 0
        for index in [*held, count]:
            if index > at:
                rest.append((first + at, index - at))
            at = index + 1
        return rest

    def _become_due(self, timing: Timing, offsets: list[int]) -> list[int]:
        """Delayed messages stand at the end of the line now, and begin to live; those that live for no time: somebody
        has them now, or nobody.
        """
        queue = self._queue
        position = queue.partition.next_offset
        ttl_ms = queue.settings.message_ttl_ms
        deadlines, mortal, lifeless = [], [], []
        if queue.returns is not None and queue.returns.tries:
            again = [offset for offset in offsets if offset in queue.returns.tries]
            offsets = [offset for offset in offsets if offset not in queue.returns.tries]
            queue.outstanding += len(again)
            queue.stand_again(again)
        facts_of, line = queue.store.facts.of, queue.line
        for offset in offsets:
            facts, came_ms = facts_of(offset) or (0, 0)
            if queue.levels is not None:
                line = queue.levels.at(priority_of(facts))
            line.due.append((position, offset))
            mortal_too = came_ms and (ttl_ms is not None or facts >> 9 & TTL_MASK)
            deadline_ms = deadline_ms_of(facts, came_ms, ttl_ms) if mortal_too else None
            if deadline_ms is None:
                continue
            if deadline_ms == came_ms + delay_ms_of(facts):
                lifeless.append(offset)
                continue
            deadlines.append(deadline_ms)
            mortal.append(offset)
        if mortal:
            timing.expire_at(deadlines, mortal)
        self.came_back(offsets)
        queue.wake()
        return lifeless

    def _read_ahead(self, timing: Timing, now_ms: int) -> None:
        """Have messages read before they are due: then it takes no time to give them out."""
        partition = self._queue.partition
        if self._queue.store is partition:
            partition.load_ahead(lambda: timing.soon(now_ms), self._queue)

    def hold(self, due_ms: Sequence[int], offsets: Sequence[int]) -> None:
        """Messages that were given back and must not go out again before their time."""
        self.need_timing().delay(due_ms, offsets)
        self.arm()

    def restore_returns(self, returns: Returns, state: dict[int, Any]) -> None:
        """What came back before a stop stands where it stood, or waits on."""
        queue, present = self._queue, self._take_out(sorted(state))
        returns.restore(state, present)
        now_ms = self._host.now_ms()
        waiting = [offset for offset in present if returns.tries[offset].due_ms > now_ms]
        if waiting:
            self.hold([returns.tries[offset].due_ms for offset in waiting], waiting)
        again = sorted(set(present).difference(waiting))
        queue.outstanding += len(again)
        queue.stand_again(again)

    def take_out(self, offsets: Sequence[int]) -> list[int]:
        """Remove those of the rising `offsets` that wait, in line or for their time, and are not to be tried again
        later; rising.
        """
        returns, now_ms = self._queue.returns, self._host.now_ms()
        if returns is not None:
            offsets = [one for one in offsets if one not in returns.tries or returns.tries[one].due_ms <= now_ms]
        return sorted(self._take_out(offsets))

    def _take_out(self, offsets: Sequence[int]) -> list[int]:
        """Remove those of the rising `offsets` that wait, in line or for their time."""
        present = [offset for line in self._queue.lines() for offset in line.discard(offsets)]
        self.forget_sizes(present)
        if len(present) < len(offsets):
            present += self._take_held(set(offsets).difference(present))
        return present

    def _take_held(self, sought: Collection[int]) -> list[int]:
        """Remove those of them that wait for their time."""
        held = [offset for _, offset in self.delayed() if offset in sought]
        for offset in held:
            self.need_timing().withdraw(offset)
        return held

    def sort_in(self) -> None:
        """Look at what came in this turn and still waits; see rule 1."""
        queue = self._queue
        fresh, queue.fresh = queue.fresh, []
        levels = queue.levels
        if levels is None:
            waiting_from, waiting = queue.line.ready.head()
            parts = [
                (arrival, max(arrival.first, waiting_from), arrival.first + arrival.count)
                for arrival in fresh
                if waiting and arrival.first + arrival.count > waiting_from
            ]
        else:
            parts = list(overlaps(fresh, list(levels.fresh.ready.ranges())))
            levels.fresh.ready.clear()
            for arrival, first, end in parts:
                sort_in(levels, arrival, first, end)
        if self.timing is None:
            if queue.settings.message_ttl_ms is None and not any(map(is_mortal, fresh)):
                return
            self.need_timing()
        for arrival, first, end in parts:
            self.watch(arrival, first, end)
        timing, now_ms = self.need_timing(), self._host.now_ms()
        if (timing.next_ms() or _NEVER) <= now_ms:  # a time to live of 0: nobody is to find it here
            self._drop_expired(timing, now_ms)
        self.arm()

    def watch(self, arrival: Arrival, first: int, end: int) -> None:
        """Messages [first, end) of an arrival may expire."""
        facts, queue_ttl_ms, count = arrival.facts, self._queue.settings.message_ttl_ms, end - first
        if isinstance(facts, int):
            if facts >= DELAYED_FROM:
                return
            if ttl_ms_of(facts) is None:
                if queue_ttl_ms is not None:
                    alone = self._queue.levels is None and self._queue.groups is None
                    waiting_from = self._queue.line.ready.head()[0] if alone else 0
                    deadline_ms = arrival.time_ms + queue_ttl_ms
                    self.need_timing().expire_in_order(deadline_ms, first, end, waiting_from=waiting_from)
                return
        shortest = shortest_life(arrival, first, end)
        if queue_ttl_ms is not None:
            shortest = min(shortest or queue_ttl_ms + 1, queue_ttl_ms + 1)
        if shortest and count >= _SLAB_MIN:
            self.need_timing().expire_slab(arrival.time_ms + shortest - 1, first, end)
        elif shortest:
            self._watch_each(range(first, end), arrival.at, arrival.time_ms)

    def _watch_each(self, offsets: Iterable[int], facts_of: Callable[[int], int], came_ms: int) -> None:
        ttl_ms = self._queue.settings.message_ttl_ms
        deadlines, mortal = [], []
        for offset in offsets:
            facts = facts_of(offset)
            deadline_ms = None if facts >= DELAYED_FROM else deadline_ms_of(facts, came_ms, ttl_ms)
            if deadline_ms is not None:
                deadlines.append(deadline_ms)
                mortal.append(offset)
        self.need_timing().expire_at(deadlines, mortal)

    def _open_slab(self, first: int, end: int) -> None:
        """The first of messages [first, end) expire about now: watch each that still waits. What was delayed is
        watched since it is due.
        """
        ttl_ms, facts_of = self._queue.settings.message_ttl_ms, self._queue.store.facts.of
        deadlines, mortal = [], []
        for line in self._queue.lines():
            for offset in line.between(first, end):
                known = facts_of(offset)
                if known is not None and known[0] < DELAYED_FROM:
                    deadline_ms = deadline_ms_of(*known, ttl_ms)
                    if deadline_ms is not None:
                        deadlines.append(deadline_ms)
                        mortal.append(offset)
        self.need_timing().expire_at(deadlines, mortal)

    def live_on(self, offsets: Sequence[int]) -> None:
        """Messages given back do not expire any more (`keep-delivered`)."""
        if self.timed:
            before = sorted(self._living_on)
            self._living_on = frozenset(offsets).union(*(line.present(before) for line in self._queue.lines()))

    def still_alive(self, offsets: Sequence[int]) -> Sequence[int]:
        """Those of the messages given back whose time is not over; the others die."""
        if not self.timed:
            return offsets
        now_ms, ttl_ms, facts = self._host.now_ms(), self._queue.settings.message_ttl_ms, self._queue.store.facts
        alive, dead, deadlines, mortal = [], [], [], []
        for offset in offsets:
            known = None if offset in self._living_on else facts.of(offset)
            deadline_ms = None if known is None else deadline_ms_of(*known, ttl_ms)
            if deadline_ms is not None and deadline_ms <= now_ms:
                dead.append(offset)
                continue
            if deadline_ms is not None and offset not in self._again:
                deadlines.append(deadline_ms)
                mortal.append(offset)
            alive.append(offset)
        if mortal:
            self._again.update(mortal)
            self.need_timing().expire_at(deadlines, mortal)
            self.arm()
        if dead:
            self._queue.outstanding += len(dead)
            self._queue.bury(dead, EXPIRED)
        return alive

    # --- delayed messages --------------------------------------------------------------

    @property
    def delayed_count(self) -> int:
        """How many messages wait for their time."""
        return 0 if self.timing is None else self.timing.pending

    def delayed(self) -> Iterable[tuple[int, int]]:
        """(due time in ms, offset) of every delayed message."""
        return () if self.timing is None else self.timing.delayed()

    def cancel_delayed(self, offset: int) -> bool:
        """Give up a delayed message; False if it is not there."""
        if not self._take_held([offset]):
            return False
        self._queue.outstanding += 1
        self._queue.settle(offset, 1)
        return True

    # --- sizes -------------------------------------------------------------------------

    def measure(self, first: int, slab: Slab) -> None:
        """Note the sizes of new messages; only where they count."""
        assert self.sizes is not None
        column = array("I", map(len, slab.bodies))
        self.sizes.note(first, column)
        self._queue.partition.note_sizes(self._queue.id, first, column)

    def came(self, ranges: Iterable[Range]) -> None:
        """Messages stand in line that were measured; only where sizes count."""
        assert self.sizes is not None
        for first, count in ranges:
            self.sizes.come(first, count)

    def gone(self, first: int, count: int) -> None:
        """Messages left the line."""
        if self.sizes is not None:
            self.sizes.leave(first, count)

    def came_back(self, offsets: Sequence[int]) -> None:
        """Messages stand in line again."""
        if self.sizes is not None:
            for offset in offsets:
                self.sizes.come(offset, 1)

    def forget_sizes(self, offsets: Sequence[int]) -> None:
        """Messages left the line, one here and one there."""
        if self.sizes is not None:
            for offset in offsets:
                self.sizes.leave(offset, 1)
