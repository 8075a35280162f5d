"""A hashed hierarchical timing wheel: when is which key due, for millions of keys.

A timer is a pair of integers (deadline_ms, key). Time is cut into *ticks* of `tick_ms`; level 0 has one slot for each
of the next ticks, a slot of level 1 stands for a whole turn of level 0, and so on; beyond the top level lie the *far*
timers. A slot is one `array('q')` of deadline, key, deadline, key, ...: 16 bytes a timer and no object per timer.

    level 0   | t | t+1 | ... |              one tick a slot
    level 1   |  `slots` ticks  |  ... |     moved down ("cascaded") when its first tick begins
    far       | all the rest                 looked at when the top level begins a turn that holds one of them

1. A timer is never early, and late by at most a tick: it is due at the end of the tick its deadline lies in.
2. Timers of one tick come out in the order they were added.
3. `advance` is pure (no clock) and works in bounded bites: with a `limit` it touches at most so many timers, be it to
   return them or to move them down. While a slot is half moved, new timers queue up behind it, which keeps rule 2.
4. Empty slots cost nothing: one bit mask a level finds the next occupied one, however far away.
5. Cancelling is lazy: the key is remembered and dropped when its slot comes up. When more than half of all timers are
   cancelled, all slots are swept, so memory follows the number of live timers.
6. A key is in the wheel at most once, and only keys that are in the wheel may be cancelled. The wheel does not check.
"""

from __future__ import annotations

from array import array

_SWEEP_MIN = 1024  # below this many cancelled keys a sweep is not worth it


class TimingWheel:
    """Integer timers on a wheel of `levels` levels with `slots` (a power of two) slots each; `now_ms` is its start."""

    def __init__(self, tick_ms: int = 10, slots: int = 256, levels: int = 4, now_ms: int = 0) -> None:
        """Raises ValueError when a size is not positive or `slots` is no power of two."""
        if tick_ms < 1 or levels < 1 or slots < 2 or slots & (slots - 1):
            raise ValueError(f"no such wheel: tick_ms={tick_ms}, slots={slots}, levels={levels}")
        self._tick_ms = tick_ms
        self._bits = slots.bit_length() - 1
        self._mask = slots - 1
        # All before this tick is done. A timer's level is the highest digit (base `slots`) where its tick differs.
        self._tick = now_ms // tick_ms
        self._slots: list[list[array[int] | None]] = [[None] * slots for _ in range(levels)]
        self._occupied = [0] * levels
        self._far: array[int] = array("q")
        self._far_tick_min = 0
        self._moving: array[int] | None = None  # the slot being cascaded
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
        slot = slots[index]
        if slot is None:
            slots[index] = array("q", (deadline_ms, key))
            self._occupied[level] |= 1 << index
        else:
            slot.append(deadline_ms)
            slot.append(key)

    def cancel(self, key: int) -> None:
        """Forget a waiting key; see rules 5 and 6."""
        self._cancelled.add(key)
        if len(self._cancelled) >= self._stored:
            self._clear()
        elif len(self._cancelled) > _SWEEP_MIN and len(self._cancelled) * 2 > self._stored:
            self._sweep()

    def next_due_ms(self) -> int | None:
        """When `advance` has something to do next: never after the earliest deadline's tick, but perhaps before it,
        when timers have to move down a level. None: nothing is waiting."""
        tick, _ = self._next_event()
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
        assert slot is not None
        start, stop = self._position, min(len(slot), self._position + 2 * budget)
        keys = slot[start + 1 : stop : 2].tolist()
        if stop == len(slot):
            self._slots[0][index] = None
            self._occupied[0] &= ~(1 << index)
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
                slot = self._slots[level][index]
                assert slot is not None
                moving = slot
                self._slots[level][index] = None
                self._occupied[level] &= ~(1 << index)
            self._moving = moving
        start, stop = self._position, min(len(moving), self._position + 2 * budget)
        part = moving[start:stop].tolist()
        place, cancelled = self._place, self._cancelled
        for deadline_ms, key in zip(part[::2], part[1::2]):
            if cancelled and key in cancelled:
                cancelled.remove(key)
                self._stored -= 1
            else:
                place(deadline_ms, key)
        if stop == len(moving):
            self._moving = None
            self._position = 0
        else:
            self._position = stop
        return (stop - start) // 2

    def _sweep(self) -> None:
        """Drop all cancelled timers now."""
        position = self._position
        if self._moving is not None:
            self._moving = self._without_cancelled(self._moving, position)
        elif position:
            index = self._tick & self._mask
            slot = self._slots[0][index]
            assert slot is not None
            self._slots[0][index] = slot[position:]
        self._position = 0
        stored = len(self._moving or ()) // 2
        for level, slots in enumerate(self._slots):
            for index, slot in enumerate(slots):
                if slot is not None:
                    kept = self._without_cancelled(slot, 0)
                    stored += len(kept) // 2
                    slots[index] = kept or None
                    if not kept:
                        self._occupied[level] &= ~(1 << index)
        self._far = self._without_cancelled(self._far, 0)
        self._stored = stored + len(self._far) // 2
        self._cancelled.clear()

    def _without_cancelled(self, slot: array[int], position: int) -> array[int]:
        kept: array[int] = array("q")
        pairs = slot[position:].tolist()
        cancelled = self._cancelled
        for deadline_ms, key in zip(pairs[::2], pairs[1::2]):
            if key not in cancelled:
                kept.append(deadline_ms)
                kept.append(key)
        return kept

    def _clear(self) -> None:
        """Nothing live is left: let go of all memory, and of all wake-ups."""
        for slots in self._slots:
            slots[:] = [None] * len(slots)
        self._occupied = [0] * len(self._occupied)
        self._far = array("q")
        self._moving = None
        self._position = self._stored = 0
        self._cancelled.clear()
