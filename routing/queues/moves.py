"""Where moved messages stand in the order of their queues: their *position*, the offset they had first of all.

Runs of offsets, in blocks that go when nothing in them is live any more (as in `fact_columns.py`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator

from routing.queues.fact_columns import BLOCK_BITS

Placement = tuple[int, int, int]
"""Position, first offset, count."""


class Moves:
    """See the module. Each block is three parallel columns: first offset, count, position."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[array[int], array[int], array[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, first: int, count: int, position: int) -> None:
        """Note consecutive offsets, beyond all that are known."""
        while count:
            number = first >> BLOCK_BITS
            part = min(count, ((number + 1) << BLOCK_BITS) - first)
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = (array("Q"), array("Q"), array("Q"))
            for column, value in zip(block, (first, part, position), strict=True):
                column.append(value)
            first, count, position = first + part, count - part, position + part

    def between(self, first: int, count: int) -> Iterator[Placement]:
        """What was moved of [first, first + count), in the order of offsets."""
        end = first + count
        for number in range(first >> BLOCK_BITS, (end - 1 >> BLOCK_BITS) + 1):
            block = self._blocks.get(number)
            if block is None:
                continue
            firsts, counts, positions = block
            for index in range(max(bisect_right(firsts, first) - 1, 0), len(firsts)):
                start, stop = max(first, firsts[index]), min(end, firsts[index] + counts[index])
                if firsts[index] >= end:
                    return
                if start < stop:
                    yield positions[index] + start - firsts[index], start, stop - start

    def position(self, offset: int) -> int:
        """Where one message stands."""
        for position, _, _ in self.between(offset, 1):
            return position
        return offset

    def take(self, other: Moves) -> None:
        """Have what the other has, and leave it with nothing."""
        self._blocks, other._blocks = other._blocks, {}

    def drop(self, number: int) -> None:
        """Nothing in a block is live any more."""
        self._blocks.pop(number, None)

    def keep(self, live: Collection[int]) -> None:
        """Forget all blocks but these."""
        for number in [number for number in self._blocks if number not in live]:
            del self._blocks[number]

    def columns(self) -> Iterator[tuple[array[int], array[int], array[int]]]:
        """All of it, to be saved."""
        for number in sorted(self._blocks):
            yield self._blocks[number]

    def load(self, columns: Iterable[tuple[array[int], array[int], array[int]]]) -> None:
        """The inverse of `columns`."""
        for firsts, counts, positions in columns:
            for first, count, position in zip(firsts, counts, positions, strict=True):
                self.add(first, count, position)
