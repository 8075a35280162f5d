"""A hashed hierarchical timing wheel: when is which key due, for millions of keys.

A timer is a pair of integers (deadline_ms, key). Time is cut into *ticks* of `tick_ms`; level 0 has one slot for each
of the next ticks, a slot of level 1 stands for a whole turn of level 0, and so on; beyond the top level lie the *far*
timers. A slot is one `array('q')` of deadline, key, deadline, key, ...: 16 bytes a timer and no object per timer.

    level 0   | t | t+1 | ... |              one tick a slot
    level 1   |  `slots` ticks  |  ... |     moved down ("cascaded") when its first tick begins
    far       | all the rest                 looked at when the top level begins a turn that holds one of them

1. A timer is never early, and late by at most a tick: it is due at the end of the tick its deadline lies in.
2. Timers of one tick come out in the order they were added.
3. A large slot of level 2 or above begins to be moved while the one before it lasts, bit by bit with what `advance` has
   left to do: else the hundred thousands of timers of a minute would move at once, and what is due then would wait.
4. `advance` is pure (no clock) and works in bounded bites: with a `limit` it touches at most so many timers, be it to
   return them or to move them down. While a slot is half moved, new timers queue up behind it, which keeps rule 2.
5. Empty slots cost nothing: one bit mask a level finds the next occupied one, however far away.
6. Cancelling is lazy: the key is remembered and dropped when its slot comes up. When more than half of all timers are
   cancelled, all slots are swept, so memory follows the number of live timers.
7. A key is in the wheel at most once, and only keys that are in the wheel may be cancelled. The wheel does not check.
8. Slots take memory while they hold timers: an empty wheel is below a kilobyte, so there may be thousands of wheels.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress

from delay.ahead import Ahead

_SWEEP_MIN = 1024  # below this many cancelled keys a sweep is not worth it
_BITE = 1 << 15  # timers that are looked at together where all of them are
_FEW = 24  # fewer timers than this are not worth preparing for

_LARGE, _AHEAD = 4096, 1024  # a slot with fewer timers is moved at once; so many are moved ahead together


class TimingWheel:
    """Integer timers on a wheel of `levels` levels with `slots` (a power of two) slots each; `now_ms` is its start."""

    __slots__ = (
        "_ahead_tick", "_aheads", "_bits", "_cancelled", "_far", "_far_tick_min", "_mask", "_moving", "_occupied",
        "_position", "_slots", "_stored", "_tick", "_tick_ms",
    )  # fmt: skip

    def __init__(self, tick_ms: int = 10, slots: int = 256, levels: int = 4, now_ms: int = 0) -> None:
        """Raises ValueError when a size is not positive or `slots` is no power of two."""
        if tick_ms < 1 or levels < 1 or slots < 2 or slots & (slots - 1):
            raise ValueError(f"no such wheel: tick_ms={tick_ms}, slots={slots}, levels={levels}")
        self._tick_ms = tick_ms
        self._bits = slots.bit_length() - 1
        self._mask = slots - 1
        # All before this tick is done. A timer's level is the highest digit (base `slots`) where its tick differs.
        self._tick = now_ms // tick_ms
        self._slots: list[dict[int, array[int]]] = [{} for _ in range(levels)]
        self._occupied = [0] * levels
        self._far: array[int] = array("q")
        self._far_tick_min = 0
        self._moving: array[int] | None = None  # the slot being cascaded
        self._aheads: dict[int, Ahead] = {}  # by level; in its place is a slot for what comes later
        self._ahead_tick = 0  # when to go on with them, if there are any
        self._position = 0  # how much of the slot being moved, or of the slot being returned, is done
        self._stored = 0
        self._cancelled: set[int] = set()

    def __len__(self) -> int:
        """How many timers are waiting, cancelled ones left out."""
        return self._stored - len(self._cancelled)

    def add(self, deadline_ms: int, key: int) -> None:
        """Wait for `deadline_ms`; a deadline in the past is due at once. Raises OverflowError beyond 64 bits."""
        if self._cancelled and key in self._cancelled:
            self._sweep()
        if self._moving is not None:
            self._moving.extend((deadline_ms, key))
        else:
            self._place(deadline_ms, key)
        self._stored += 1

    def _place(self, deadline_ms: int, key: int) -> None:
        tick = -(-deadline_ms // self._tick_ms)
        current = self._tick
        if tick <= current:
            tick = current
            level = 0
        else:
            level = ((tick ^ current).bit_length() - 1) // self._bits
            if level >= len(self._slots):
                if not self._far or tick < self._far_tick_min:
                    self._far_tick_min = tick
                self._far.extend((deadline_ms, key))
                return
        index = (tick >> (level * self._bits)) & self._mask
        slots = self._slots[level]
        slot = slots.get(index)
        if slot is None:
            slots[index] = array("q", (deadline_ms, key))
            self._occupied[level] |= 1 << index
        else:
            slot.append(deadline_ms)
            slot.append(key)

    def add_many(self, deadlines_ms: Sequence[int], keys: Sequence[int]) -> None:
        """`add` for each pair, for less. Raises OverflowError beyond 64 bits and ValueError when the lengths differ;
        then nothing was added."""
        pairs = _interleaved(array("q", deadlines_ms), array("q", keys))
        if not pairs:
            return
        if self._cancelled and not self._cancelled.isdisjoint(keys):
            self._sweep()
        self._stored += len(keys)
        if self._moving is not None:
            self._moving.extend(pairs)
            return
        lowest, highest = min(deadlines_ms), max(deadlines_ms)
        slot = self._slot_of(lowest)
        if slot is not None and slot is self._slot_of(highest):
            slot.extend(pairs)
            return
        self._place_many(deadlines_ms, keys)

    def _slot_of(self, deadline_ms: int) -> array[int] | None:
        """The slot a timer would go to, when it holds one already."""
        tick = max(-(-deadline_ms // self._tick_ms), self._tick)
        level = max((tick ^ self._tick).bit_length() - 1, 0) // self._bits
        if level >= len(self._slots):
            return None
        return self._slots[level].get((tick >> (level * self._bits)) & self._mask)

    def _place_many(self, deadlines_ms: Sequence[int], keys: Sequence[int]) -> None:
        """`_place` for each pair, with all that is the same for all of them worked out once."""
        if len(keys) < _FEW:
            for deadline_ms, key in zip(deadlines_ms, keys):
                self._place(deadline_ms, key)
            return
        tick_ms, current, mask, bits = self._tick_ms, self._tick, self._mask, self._bits
        round_up = tick_ms - 1
        near = len(self._slots) * bits
        # By the highest bit where a tick differs from the current one: how far to shift it, and where its slots are.
        shifts = [max(bit - 1, 0) // bits * bits for bit in range(near + 1)]
        tables = [self._slots[shift // bits] for shift in shifts]
        for deadline_ms, key in zip(deadlines_ms, keys):
            tick = (deadline_ms + round_up) // tick_ms
            if tick < current:
                tick = current
            bit = (tick ^ current).bit_length()
            if bit <= near:
                slot = tables[bit].get(tick >> shifts[bit] & mask)
                if slot is not None:
                    slot.append(deadline_ms)
                    slot.append(key)
                    continue
            self._place(deadline_ms, key)

    def cancel(self, key: int) -> None:
        """Forget a waiting key; see rules 6 and 7."""
        self._cancelled.add(key)
        if len(self._cancelled) >= self._stored:
            self._clear()
        elif len(self._cancelled) > _SWEEP_MIN and len(self._cancelled) * 2 > self._stored:
            self._sweep()

    def next_due_ms(self) -> int | None:
        """When `advance` has something to do next: never after the earliest deadline's tick, but perhaps before it,
        when timers have to move down a level. None: nothing is waiting."""
        tick, _ = self._next_event()
        if tick is not None and self._aheads:
            tick = min(tick, max(self._ahead_tick, self._tick))
        return None if tick is None else tick * self._tick_ms

    def advance(self, now_ms: int, limit: int | None = None) -> list[int]:
        """Keys that are due at `now_ms`, the earliest first, having touched at most `limit` timers.

        With a limit an answer shorter than it does not mean that all is done: `next_due_ms() <= now_ms` tells.
        """
        target = now_ms // self._tick_ms
        budget = 1 << 60 if limit is None else limit
        due: list[int] = []
        while budget > 0:
            tick, level = self._next_event()
            if tick is None or tick > target:
                self._tick = max(self._tick, target)
                if self._aheads or any(self._occupied[2:]):
                    self._look_ahead(budget)
                break
            self._tick = tick
            budget -= self._return_slot(due, budget) if level == 0 else self._cascade(level, budget)
        return due

    def _next_event(self) -> tuple[int | None, int]:
        """The next tick that has work, and the level where: 0 returns timers, above it a slot moves down."""
        current = self._tick
        if self._moving is not None:
            return current, len(self._slots)
        for level, occupied in enumerate(self._occupied):
            if occupied:
                shift = level * self._bits
                position = current >> shift
                index = position & self._mask
                # Occupied slots lie ahead: what lies behind was returned or moved when its tick was passed.
                ahead = occupied >> index
                skip = (ahead & -ahead).bit_length() - 1
                return (position + skip) << shift, level
        if self._far:
            shift = len(self._slots) * self._bits
            return self._far_tick_min >> shift << shift, len(self._slots)
        return None, 0

    def _return_slot(self, due: list[int], budget: int) -> int:
        """Move up to `budget` keys of the current tick's slot to `due`; returns how many timers were touched."""
        index = self._tick & self._mask
        slot = self._slots[0][index]
        start, stop = self._position, min(len(slot), self._position + 2 * budget)
        keys = slot[start + 1 : stop : 2].tolist()
        if stop == len(slot):
            self._vacate(0, index)
            self._position = 0
        else:
            self._position = stop
        self._stored -= len(keys)
        touched = len(keys)
        if self._cancelled:
            cancelled = self._cancelled.intersection(keys)
            if cancelled:
                self._cancelled -= cancelled
                keys = [key for key in keys if key not in cancelled]
        due.extend(keys)
        return touched

    def _cascade(self, level: int, budget: int) -> int:
        """Move up to `budget` timers of the slot that begins now to lower levels; returns how many were touched."""
        moving = self._moving
        if moving is None:
            if level == len(self._slots):
                moving, self._far = self._far, array("q")
            else:
                index = (self._tick >> (level * self._bits)) & self._mask
                moving = self._vacate(level, index)
                ahead = self._aheads.get(level)
                if ahead is not None and ahead.begin == self._tick:
                    moving = self._arrive(level) + moving
            self._moving = moving
        start, stop = self._position, min(len(moving), self._position + 2 * budget)
        self._place_many(*self._waiting(moving, start, stop))
        if stop == len(moving):
            self._moving = None
            self._position = 0
        else:
            self._position = stop
        return (stop - start) // 2

    def _waiting(self, slot: array[int], start: int, stop: int) -> tuple[list[int], list[int]]:
        """Deadlines and keys in a part of a slot that is moved; the cancelled ones are forgotten."""
        part = slot[start:stop].tolist()
        deadlines_ms, keys = part[::2], part[1::2]
        cancelled = self._cancelled.intersection(keys) if self._cancelled else None
        if cancelled:
            self._cancelled -= cancelled
            self._stored -= len(cancelled)
            waiting = [key not in cancelled for key in keys]
            deadlines_ms, keys = list(compress(deadlines_ms, waiting)), list(compress(keys, waiting))
        return deadlines_ms, keys

    def _look_ahead(self, limit: int) -> None:
        """Move some timers of the large slots that begin next, at most `limit`; see rule 3."""
        self._ahead_tick = 1 << 62
        for level in range(2, len(self._slots)):
            ahead = self._aheads.get(level) or self._begin_ahead(level)
            if ahead is None or not ahead.left:
                continue
            left, ticks = ahead.left, max((ahead.begin - self._tick) * 3 // 4, 1)
            count = min(left * (self._tick - ahead.tick) // ticks, left, limit)
            if count:
                ahead.tick = self._tick
                limit -= count
                pairs = self._waiting(ahead.source, *ahead.pass_over(count))
                ahead.place(*pairs, (level - 1) * self._bits, self._mask, self._tick_ms)
            if ahead.left:
                self._ahead_tick = min(self._ahead_tick, self._tick + max(ticks * _AHEAD // ahead.left, 1))

    def _begin_ahead(self, level: int) -> Ahead | None:
        position = self._tick >> level * self._bits
        index = (position & self._mask) + 1
        slot = self._slots[level].get(index)  # none beyond the last: that is a higher level's
        if slot is None or len(slot) < 2 * _LARGE:
            return None
        self._slots[level][index] = array("q")
        return self._aheads.setdefault(level, Ahead(slot, position + 1 << level * self._bits, self._tick))

    def _arrive(self, level: int) -> array[int]:
        """The slot that was moved ahead begins: what it has become takes its place. What is to be moved yet, first."""
        ahead = self._aheads.pop(level)
        ahead.trim()
        first = ahead.slots.pop(0, array("q"))
        self._slots[level - 1] = ahead.slots  # there is nothing: all of the turn before is over
        self._occupied[level - 1] = sum(1 << index for index in ahead.slots)
        return first + ahead.source

    def _vacate(self, level: int, index: int) -> array[int]:
        """Take a slot out of the wheel."""
        slots = self._slots[level]
        slot = slots.pop(index)
        self._occupied[level] &= ~(1 << index)
        if not slots:
            slots.clear()  # gives the memory of the table back
        return slot

    def timers(self) -> Iterator[tuple[int, int]]:
        """All that wait as (deadline_ms, key), those of one tick in the order they were added, else in no order.

        The wheel must not be changed before the iteration is over.
        """
        begin = self._position
        for slot in self._arrays():
            # What is done of a slot is still in it, if that is the slot being moved, or else the one being returned.
            start = begin if slot is self._half_done() else 0
            while start < len(slot):
                pairs = slot[start : start + 2 * _BITE].tolist()
                start += 2 * _BITE
                for pair in zip(pairs[::2], pairs[1::2]):
                    if pair[1] not in self._cancelled:
                        yield pair

    def between(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """Some keys that will be due after `after_ms` and until `until_ms`, the earliest first, at most `limit`; they
        wait on. Not all: only the current turns of the two lowest levels are looked at, and what was moved ahead.
        """
        tick_ms, current, mask, bits = self._tick_ms, self._tick, self._mask, self._bits
        start, stop = max(after_ms // tick_ms, current) + 1, until_ms // tick_ms + 1
        turn = (current | mask) + 1
        found: list[int] = []
        for tick in range(start, min(stop, turn)):
            slot = self._slots[0].get(tick & mask)
            if slot is not None:
                found += slot[1::2]
        if stop > turn and len(self._slots) > 1:
            slots, ahead = self._slots[1], self._aheads.get(2)
            if turn >> 2 * bits != current >> 2 * bits:
                slots = ahead.slots if ahead is not None and ahead.begin == turn else {}
            slot = slots.get(turn >> bits & mask, array("q"))
            after, until = (start - 1) * tick_ms, (stop - 1) * tick_ms
            later = [pair for pair in zip(slot[::2], slot[1::2]) if after < pair[0] <= until]
            found += [key for _, key in sorted(later)]
        if self._cancelled:
            found = [key for key in found if key not in self._cancelled]
        return found[:limit]

    def keep(self, survives: Callable[[list[int]], Iterable[int]]) -> None:
        """Drop all timers that `survives`, called with rising keys, some at a time, does not answer with.

        It must not change the wheel. What it raises comes out here, with the wheel whole and some timers dropped.
        """
        self._rebuild(survives)

    def _sweep(self) -> None:
        """Drop all cancelled timers now."""
        self._rebuild(None)

    def _half_done(self) -> array[int] | None:
        """The slot that `_position` speaks of."""
        if self._moving is not None:
            return self._moving
        return self._slots[0].get(self._tick & self._mask) if self._position else None

    def _arrays(self) -> Iterator[array[int]]:
        """Everything that holds timers; where two hold timers of one tick, the one with the earlier added first."""
        for ahead in self._aheads.values():
            ahead.trim()
            yield from ahead.slots.values()
            yield ahead.source
        for slots in self._slots:
            yield from slots.values()
        yield self._far
        if self._moving is not None:
            yield self._moving

    def _rebuild(self, survives: Callable[[list[int]], Iterable[int]] | None) -> None:
        half_done = self._half_done()
        if half_done is not None:
            del half_done[: self._position]
            self._position = 0
        bite: list[tuple[array[int], int, int]] = []
        room = 2 * _BITE
        try:
            for slot in self._arrays():
                # From behind, so that what was dropped already moves nothing that is still to be looked at.
                stop = len(slot)
                while stop:
                    start = max(0, stop - room)
                    bite.append((slot, start, stop))
                    room -= stop - start
                    stop = start
                    if not room:
                        self._filter(bite, survives)
                        bite.clear()
                        room = 2 * _BITE
            self._filter(bite, survives)
        finally:
            self._forget_empty()

    def _filter(
        self, bite: list[tuple[array[int], int, int]], survives: Callable[[list[int]], Iterable[int]] | None
    ) -> None:
        """Drop from parts of slots what is cancelled, and what does not survive."""
        keys: list[int] = []
        for slot, start, stop in bite:
            keys += slot[start + 1 : stop : 2]
        gone = cancelled = self._cancelled.intersection(keys)
        if survives is not None:
            waiting = set(keys) - cancelled
            gone = cancelled.union(waiting.difference(survives(sorted(waiting))))
        if not gone:
            return
        self._cancelled -= cancelled
        self._stored -= len(gone)
        for slot, start, stop in bite:
            if stop - start == 2:
                if slot[start + 1] in gone:
                    del slot[start:stop]
                continue
            part = slot[start:stop].tolist()
            stays = [key not in gone for key in part[1::2]]
            if True not in stays:
                del slot[start:stop]
            elif False in stays:
                slot[start:stop] = _interleaved(
                    array("q", compress(part[::2], stays)), array("q", compress(part[1::2], stays))
                )

    def _forget_empty(self) -> None:
        if not self._stored:
            self._clear()
        for level, slots in enumerate(self._slots):
            ahead = self._aheads.get(level)
            kept = -1 if ahead is None else ahead.begin >> level * self._bits & self._mask
            for index in [index for index, slot in slots.items() if not slot and index != kept]:
                self._vacate(level, index)
        for ahead in self._aheads.values():
            ahead.slots = {index: slot for index, slot in ahead.slots.items() if slot}
        if not self._moving:
            self._moving = None

    def _clear(self) -> None:
        """Nothing live is left: let go of all memory, and of all wake-ups."""
        for slots in self._slots:
            slots.clear()
        self._aheads.clear()
        self._occupied = [0] * len(self._occupied)
        self._far = array("q")
        self._moving = None
        self._position = self._stored = 0
        self._cancelled.clear()


def _interleaved(deadlines_ms: array[int], keys: array[int]) -> array[int]:
    """Deadline, key, deadline, key, ...; raises ValueError when there are not as many of both."""
    if len(deadlines_ms) != len(keys):
        raise ValueError(f"{len(deadlines_ms)} deadlines for {len(keys)} keys")
    pairs = array("q", bytes(16 * len(keys)))
    pairs[::2] = deadlines_ms
    pairs[1::2] = keys
    return pairs
