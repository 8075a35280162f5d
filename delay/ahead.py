"""A large slot of a timing wheel that is moved down before it begins, bit by bit (`timing_wheel.py`, rule 3)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class Ahead:
    """What is still in the slot, and the slots of the level below that it becomes."""

    __slots__ = ("begin", "position", "slots", "source", "tick")

    def __init__(self, source: array[int], begin: int, tick: int) -> None:
        self.source = source
        self.position = 0
        self.slots: dict[int, array[int]] = {}
        self.begin = begin
        """Its first tick."""
        self.tick = tick
        """When it was looked at last."""

    @property
    def left(self) -> int:
        """How many timers are still to be moved."""
        return (len(self.source) - self.position) // 2

    def pass_over(self, count: int) -> tuple[int, int]:
        """Where the next `count` timers, or all that are left, begin and end in `source`: they are to be placed now."""
        start = self.position
        self.position = min(len(self.source), start + 2 * count)
        return start, self.position

    def place(self, deadlines_ms: Sequence[int], keys: Sequence[int], shift: int, mask: int, tick_ms: int) -> None:
        """Put timers into the slots that they will be in; these are told by the bits of a tick above `shift`."""
        slots = self.slots
        for deadline_ms, key in zip(deadlines_ms, keys):
            index = -(-deadline_ms // tick_ms) >> shift & mask
            slot = slots.get(index)
            if slot is None:
                slots[index] = array("q", (deadline_ms, key))
            else:
                slot.append(deadline_ms)
                slot.append(key)
        if not self.left:
            self.trim()

    def trim(self) -> None:
        """Forget what was moved."""
        del self.source[: self.position]
        self.position = 0
