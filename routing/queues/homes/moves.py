"""Where messages lie that were written again further on in the log, so that what lay around them could go.

A message is known by the offset it had first of all, to queues, sessions, timers and in settlements, and that is also
its place in the order of its queues. Only the log, and what is read from it, goes by the offset at which it lies now.
Whoever passes from one to the other asks here; for nearly all messages the two are the same, and cost one comparison
with `before`.

Runs are kept in columns (24 bytes each), in blocks of the first offsets that go when nothing in them is live any more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from routing.queues.fact_columns import BLOCK_BITS

MovedRun = tuple[int, int, int]
"""First offset, count, and where the first lies now."""

_Block = tuple["array[int]", "array[int]", "array[int]"]


class Moves:
    """See the module. `before` is beyond all that was moved; `live` counts what is live of each block's moved ones."""

    __slots__ = ("_blocks", "before", "live")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self.live: dict[int, int] = {}
        self.before = 0

    def __bool__(self) -> bool:
        return bool(self._blocks)

    @property
    def first(self) -> int:
        """Nothing below was moved and is live."""
        return min(self._blocks, default=1 << 48) << BLOCK_BITS

    def place(self, runs: Iterable[MovedRun]) -> None:
        """Note where messages lie from now on. Those that are named more than once lie where the last one says."""
        placed: dict[int, list[MovedRun]] = {}
        for first, count, location in runs:
            for start, number in _by_block(first, count):
                placed.setdefault(start >> BLOCK_BITS, []).append((start, number, location + start - first))
            self.before = max(self.before, first + count)
        for number, new in placed.items():
            new = _resolved(new)
            kept = [part for run in self._runs(number) for part in _around(new, run)]
            firsts, counts, locations = zip(*sorted([*kept, *new]), strict=True)
            self._blocks[number] = (array("Q", firsts), array("Q", counts), array("Q", locations))

    def _runs(self, number: int) -> Iterator[MovedRun]:
        block = self._blocks.get(number)
        return iter(()) if block is None else zip(*block, strict=True)

    def between(self, first: int, count: int) -> Iterator[MovedRun]:
        """What was moved of [first, first + count), in order."""
        end = first + count
        for number in range(first >> BLOCK_BITS, (end - 1 >> BLOCK_BITS) + 1):
            block = self._blocks.get(number)
            if block is None:
                continue
            firsts, counts, locations = block
            for index in range(max(bisect_right(firsts, first) - 1, 0), len(firsts)):
                if firsts[index] >= end:
                    return
                start, stop = max(first, firsts[index]), min(end, firsts[index] + counts[index])
                if start < stop:
                    yield start, stop - start, locations[index] + start - firsts[index]

    def pieces(self, first: int, count: int) -> Iterator[MovedRun]:
        """All of [first, first + count), in order; what was not moved lies where its offset says."""
        end = first + count
        for start, number, location in self.between(first, count):
            if start > first:
                yield first, start - first, first
            yield start, number, location
            first = start + number
        if first < end:
            yield first, end - first, first

    def run_of(self, offset: int) -> MovedRun | None:
        """The run of a message that was moved."""
        block = self._blocks.get(offset >> BLOCK_BITS)
        if block is not None:
            firsts, counts, locations = block
            index = bisect_right(firsts, offset) - 1
            if index >= 0 and offset < firsts[index] + counts[index]:
                return firsts[index], counts[index], locations[index]
        return None

    def location(self, offset: int) -> int:
        """Where a message lies in the log."""
        run = self.run_of(offset) if offset < self.before else None
        return offset if run is None else run[2] + offset - run[0]

    def count(self, first: int, count: int, sign: int) -> list[int]:
        """Add `sign` for each of these, which were moved; the blocks in which nothing is live now, and that go."""
        dead = []
        for start, number in _by_block(first, count):
            block = start >> BLOCK_BITS
            left = self.live[block] = self.live.get(block, 0) + number * sign
            if not left:
                self.drop(block)
                dead.append(block)
        return dead

    def drop(self, number: int) -> None:
        """Nothing in a block is live any more."""
        self.live.pop(number, None)
        self._blocks.pop(number, None)
        if not self._blocks:
            self.before = 0

    def keep(self, live: Collection[int]) -> None:
        """Forget all blocks but these."""
        for number in [number for number in self._blocks if number not in live]:
            self.drop(number)

    def take(self, other: Moves) -> None:
        """Have what the other has, and leave it with nothing."""
        self._blocks, self.live, self.before = other._blocks, other.live, other.before
        other.__init__()  # type: ignore[misc]

    def all(self) -> Iterator[MovedRun]:
        """All that is known, in order."""
        for number in sorted(self._blocks):
            yield from self._runs(number)

    def columns(self) -> Iterator[_Block]:
        """All of it, to be saved."""
        for number in sorted(self._blocks):
            yield self._blocks[number]

    def load(self, columns: Iterable[_Block]) -> None:
        """The inverse of `columns`. Raises ValueError if they do not fit together."""
        self.place(run for block in columns for run in zip(*block, strict=True))


def _by_block(first: int, count: int) -> Iterator[tuple[int, int]]:
    while count:
        number = min(count, ((first >> BLOCK_BITS) + 1 << BLOCK_BITS) - first)
        yield first, number
        first, count = first + number, count - number


def _resolved(runs: list[MovedRun]) -> list[MovedRun]:
    """Sorted, and each offset once."""
    ordered = sorted(runs)
    if all(before[0] + before[1] <= after[0] for before, after in pairwise(ordered)):
        return ordered
    places = {first + index: location + index for first, count, location in runs for index in range(count)}
    found: list[MovedRun] = []
    for offset in sorted(places):
        first, count, location = found[-1] if found else (-1, 0, 0)
        if (offset, places[offset]) == (first + count, location + count):
            found[-1] = first, count + 1, location
        else:
            found.append((offset, 1, places[offset]))
    return found


def _overlapping(runs: list[MovedRun], run: MovedRun) -> Iterator[MovedRun]:
    """Those of the sorted `runs` that share something with `run`."""
    first, count, _ = run
    for index in range(max(bisect_right(runs, (first, 1 << 62, 0)) - 1, 0), len(runs)):
        if runs[index][0] >= first + count:
            return
        if runs[index][0] + runs[index][1] > first:
            yield runs[index]


def _around(runs: list[MovedRun], run: MovedRun) -> list[MovedRun]:
    """What is left of `run` where `runs` say otherwise."""
    first, count, location = run
    end, left = first + count, []
    for start, number, _ in _overlapping(runs, run):
        if start > first:
            left.append((first, start - first, location))
        location += start + number - first
        first = start + number
    if first < end:
        left.append((first, end - first, location))
    return left
