"""The slabs of a home partition that are in memory, by offset.

Slabs enter at the end in offset order and leave when every queue has settled all of their messages, or from the front
when there are too many bytes. Finding one is a bisection; entering and leaving cost about half a microsecond each,
whatever the slab's length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from routing.message import Slab

if TYPE_CHECKING:
    from routing.queues.queue import Queue

_MESSAGE_OVERHEAD_BYTES = 64
"""What a small body costs in memory beyond its length: the bytes object's header and its place in a list."""

_SLAB_OVERHEAD_BYTES = 512
"""What a slab and its entry cost beside its messages: with one message in each that is nearly all."""

_PLACES_SPARE = 512
"""Empty places are closed when they are the greater part of more than so many."""


class CachedSlab:
    """A slab with its place in the log; `live` counts messages not yet settled, once for every queue that has them."""

    __slots__ = ("bytes", "end", "first", "live", "queues", "slab", "spilled")

    def __init__(self, first: int, slab: Slab, live: int, queues: Sequence[Queue] = ()) -> None:
        self.first = first
        self.end = first + len(slab.bodies)
        self.slab = slab
        self.live = live
        self.bytes = _SLAB_OVERHEAD_BYTES + slab.size + _MESSAGE_OVERHEAD_BYTES * len(slab.bodies)
        self.spilled = False
        self.queues = queues
        """Those that got it, where that is known."""


class SlabCache:
    """Cached slabs in offset order; `bytes` is what they hold, `unspilled_bytes` the part that is nowhere else."""

    __slots__ = ("_entries", "_firsts", "_head", "_held", "_new", "bytes", "unspilled_bytes")

    def __init__(self) -> None:
        self._entries: list[CachedSlab | None] = []
        self._firsts: list[int] = []
        self._head = 0
        self._held = 0
        self._new: list[Slab] = []
        """Of this turn."""
        self.bytes = 0
        self.unspilled_bytes = 0

    def add(self, first: int, slab: Slab, copies: int, queues: Sequence[Queue] = ()) -> CachedSlab:
        """Enter a slab at its first offset, beyond all others; `copies` queues will settle each message once."""
        entry = CachedSlab(first, slab, len(slab.bodies) * copies, queues)
        self._entries.append(entry)
        self._firsts.append(first)
        self._new.append(slab)
        self._held += 1
        self.bytes += entry.bytes
        self.unspilled_bytes += entry.bytes
        return entry

    def end_turn(self) -> None:
        """What came in this turn was given to all who waited for it. What adapters keep with it, as the bytes it came
        in, may be many times as large, and is not counted: who gets it later has it made again.
        """
        for slab in self._new:
            slab.wire = None
        self._new.clear()

    def find(self, offset: int) -> CachedSlab | None:
        """The slab that holds `offset`, if it is here."""
        index = bisect_right(self._firsts, offset, self._head) - 1
        if index < self._head:
            return None
        entry = self._entries[index]
        return entry if entry is not None and offset < entry.end else None

    def release(self, first: int, count: int) -> None:
        """Note that one queue has settled `count` messages from `first`; slabs nobody wants any more leave."""
        end = first + count
        index = max(bisect_right(self._firsts, first, self._head) - 1, self._head)
        entries = self._entries
        while index < len(entries):
            entry = entries[index]
            if entry is not None and entry.end > first:
                if entry.first >= end:
                    break
                entry.live -= min(end, entry.end) - max(first, entry.first)
                if entry.live <= 0:
                    self._remove(index, entry)
                if entry.end >= end:
                    break
            index += 1
        if len(entries) > _PLACES_SPARE and self._held * 2 < len(entries):
            self._tidy()

    def release_offsets(self, offsets: list[int]) -> None:
        """As `release`, for one queue's rising offsets that do not lie together."""
        firsts, entries = self._firsts, self._entries
        at, count = 0, len(offsets)
        while at < count and firsts:
            index = bisect_right(firsts, offsets[at], self._head) - 1
            entry = entries[index] if index >= self._head else None
            if entry is None or offsets[at] >= entry.end:
                at += 1
                continue
            stop = bisect_left(offsets, entry.end, at)
            entry.live -= stop - at
            at = stop
            if entry.live <= 0:
                self._remove(index, entry)
        if len(entries) > _PLACES_SPARE and self._held * 2 < len(entries):
            self._tidy()

    def entries(self) -> list[CachedSlab]:
        """All slabs in offset order."""
        return [entry for entry in self._entries[self._head :] if entry is not None]

    def mark_spilled(self, entry: CachedSlab) -> None:
        """The slab is on its way to the scratch log."""
        entry.spilled = True
        self.unspilled_bytes -= entry.bytes

    def oldest(self) -> CachedSlab | None:
        """The first slab."""
        while self._head < len(self._entries):
            entry = self._entries[self._head]
            if entry is not None:
                return entry
            self._head += 1
        return None

    def drop_oldest(self) -> None:
        """Forget the first slab."""
        entry = self.oldest()
        if entry is not None:
            self._remove(self._head, entry)
            if len(self._entries) > _PLACES_SPARE and self._held * 2 < len(self._entries):
                self._tidy()

    def _remove(self, index: int, entry: CachedSlab) -> None:
        """Empty a place. Places never move here: `release` is on its way through them."""
        self.bytes -= entry.bytes
        if not entry.spilled:
            self.unspilled_bytes -= entry.bytes
        self._entries[index] = None
        self._held -= 1
        if not self._held:
            self._entries.clear()
            self._firsts.clear()
            self._head = 0
        elif index == self._head:
            entries, head = self._entries, index + 1
            while entries[head] is None:
                head += 1
            self._head = head

    def _tidy(self) -> None:
        """Close the empty places, wherever they are: one slab that stays may have many behind it that went."""
        self._entries[:] = [entry for entry in self._entries if entry is not None]
        self._firsts[:] = [entry.first for entry in self._entries if entry is not None]
        self._head = 0
