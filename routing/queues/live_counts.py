"""How many messages are live in which part of a home partition's log, once for each queue that has them.

Counted by blocks of the log's offsets (where messages lie, not what they are known by, see `moves.py`): what lies
before the first of them can go. With the last message of a block goes what else is known of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from routing.queues.fact_columns import BLOCK_BITS, FactColumns
from routing.queues.moves import MovedRun, Moves
from routing.queues.packed_ranges import Range
from routing.queues.runs_of import runs_of
from routing.queues.slab_cache import SlabCache


class LiveCounts:
    """See the module; `blocks` are the counts that are not 0."""

    __slots__ = ("_cache", "_facts", "_moves", "blocks")

    def __init__(self, cache: SlabCache, moves: Moves, facts: FactColumns) -> None:
        self.blocks: dict[int, int] = {}
        self._cache = cache
        self._moves = moves
        self._facts = facts

    def add(self, first: int, count: int, sign: int) -> None:
        """Add `sign` for each message that lies here to its block's count."""
        live = self.blocks
        end = first + count
        while first < end:
            block = first >> BLOCK_BITS
            stop = min(end, (block + 1) << BLOCK_BITS)
            left = live.get(block, 0) + (stop - first) * sign
            if left:
                live[block] = left
            else:
                del live[block]
                if block not in self._moves.live:
                    self._facts.drop(block)
            first = stop

    def restore(self, ranges: Iterable[Range]) -> None:
        """Count messages that replay found to be live in one queue."""
        moves, blocks = self._moves, self.blocks
        for first, count in ranges:
            if first >= moves.before:
                block = first >> BLOCK_BITS
                if first + count - 1 >> BLOCK_BITS == block:
                    blocks[block] = blocks.get(block, 0) + count
                else:
                    self.add(first, count, 1)
                continue
            for _, number, location in moves.pieces(first, count):
                self.add(location, number, 1)
            for start, number, _ in moves.between(first, count):
                moves.count(start, number, 1)

    def release(self, first: int, count: int) -> None:
        """One queue wants these messages no more."""
        moves = self._moves
        if first >= moves.before:
            self.add(first, count, -1)
            self._cache.release(first, count)
            return
        for _, number, location in moves.pieces(first, count):
            self.add(location, number, -1)
            self._cache.release(location, number)
        for start, number, _ in list(moves.between(first, count)):
            for block in moves.count(start, number, -1):
                if block not in self.blocks:
                    self._facts.drop(block)

    def release_offsets(self, offsets: list[int]) -> None:
        """As `release`, for rising offsets that do not lie together."""
        if offsets[0] < self._moves.before:
            for first, count in runs_of(offsets):
                self.release(first, count)
            return
        at = 0
        while at < len(offsets):
            stop = bisect_left(offsets, (offsets[at] >> BLOCK_BITS) + 1 << BLOCK_BITS, at)
            self.add(offsets[at], stop - at, -1)
            at = stop
        self._cache.release_offsets(offsets)

    def moved_away(self, pieces: list[MovedRun], copies: int) -> None:
        """Messages that so many queues have are counted at their new place: no more at the old one."""
        for first, count, old in pieces:
            if first == old:
                self._moves.count(first, count, copies)
            self.add(old, count, -copies)
            for _ in range(copies):
                self._cache.release(old, count)
