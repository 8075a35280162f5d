"""How many messages are live in which part of a home partition's log, once for each queue that has them.

Counted by blocks of the log's offsets (where messages lie, not what they are known by, see `moves.py`): what lies
before the first of them can go. With the last message of a block goes what else is known of it.

The log goes by segments, and where messages are large a block is many of them. So a block is *cut* about where a
segment begins, and its parts are counted as well.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from core_log.segment import Segment
from routing.queues.fact_columns import BLOCK_BITS, FactColumns
from routing.queues.homes.moves import MovedRun, Moves
from routing.queues.packed_ranges import COUNT_BITS, by_blocks, count_below, count_of, unpack
from routing.queues.runs_of import runs_of
from routing.queues.slab_cache import SlabCache


class LiveCounts:
    """See the module; `blocks` are the counts that are not 0."""

    __slots__ = ("_cache", "_facts", "_moves", "_parts", "_segment", "blocks")

    def __init__(self, cache: SlabCache, moves: Moves, facts: FactColumns, segments: Sequence[Segment]) -> None:
        self.blocks: dict[int, int] = {}
        self._parts: dict[int, tuple[list[int], list[int]]] = {}
        """Of blocks that were cut: where each part begins, and its count."""
        self._cache = cache
        self._moves = moves
        self._facts = facts
        self._segment: object = segments[-1]
        for segment in segments:
            self._cut(segment.base_offset)

    def add(self, first: int, count: int, sign: int) -> None:
        """Add `sign` for each message that lies here to its block's count."""
        live = self.blocks
        end = first + count
        while first < end:
            block = first >> BLOCK_BITS
            stop = min(end, (block + 1) << BLOCK_BITS)
            if block in self._parts:
                self._add_to_parts(block, first, stop, sign)
            left = live.get(block, 0) + (stop - first) * sign
            if left:
                live[block] = left
            else:
                del live[block]
                if block not in self._moves.live:
                    self._facts.drop(block)
            first = stop

    def _add_to_parts(self, block: int, first: int, end: int, sign: int) -> None:
        starts, counts = self._parts[block]
        at = bisect_right(starts, first) - 1
        while first < end:
            stop = min(end, starts[at + 1]) if at + 1 < len(starts) else end
            counts[at] += (stop - first) * sign
            first, at = stop, at + 1

    def _part_end(self, offset: int) -> int:
        """Where the part that an offset lies in ends."""
        block = offset >> BLOCK_BITS
        starts, _ = self._parts.get(block, ((), ()))
        at = bisect_right(starts, offset)
        return starts[at] if at < len(starts) else block + 1 << BLOCK_BITS

    def follow(self, segment: object, offset: int) -> None:
        """The log has come to `offset`, and this is its segment: if that is a new one, what follows is another part."""
        if segment is not self._segment:
            self._segment = segment
            for old in [number for number in self._parts if number not in self.blocks]:
                del self._parts[old]
            self._cut(offset)

    def _cut(self, offset: int) -> None:
        """From `offset` on, behind all that was counted, messages are another part of their block."""
        block = offset >> BLOCK_BITS
        starts, counts = self._parts.setdefault(block, ([block << BLOCK_BITS], [self.blocks.get(block, 0)]))
        if starts[-1] < offset:
            starts.append(offset)
            counts.append(0)

    def first(self, otherwise: int) -> int:
        """Nothing below this offset is live, as far as is counted; `otherwise` if nothing is."""
        if not self.blocks:
            return otherwise
        block = min(self.blocks)
        if block in self._parts:
            for start, count in zip(*self._parts[block], strict=True):
                if count:
                    return start
        return block << BLOCK_BITS

    def between(self, first: int, end: int) -> int:
        """How many are live in [first, end), or some more: in all blocks and parts that have a share in it."""
        found = 0
        for block in range(first >> BLOCK_BITS, (end - 1 >> BLOCK_BITS) + 1):
            starts, counts = self._parts.get(block, ((0,), (self.blocks.get(block, 0),)))
            at = max(bisect_right(starts, first) - 1, 0)
            found += sum(counts[at : max(bisect_right(starts, end - 1), at + 1)])
        return found

    def restore(self, packed: array[int]) -> None:
        """Count messages that replay found to be live in one queue, as packed ranges."""
        moves, blocks = self._moves, self.blocks
        unmoved = bisect_left(packed, moves.before << COUNT_BITS)
        for block, piece in by_blocks(packed[unmoved:], BLOCK_BITS):
            if block not in self._parts:
                blocks[block] = blocks.get(block, 0) + count_of(piece)
                continue
            starts, counts = self._parts[block]
            before = 0
            for part, end in enumerate([*starts[1:], block + 1 << BLOCK_BITS]):
                below = count_below(piece, end)
                counts[part] += below - before
                before = below
            blocks[block] = blocks.get(block, 0) + before
        for first, count in unpack(packed[:unmoved]):
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
            stop = bisect_left(offsets, self._part_end(offsets[at]), at)
            self.add(offsets[at], stop - at, -1)  # as many as these, within one part
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
