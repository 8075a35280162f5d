"""The facts of messages (`routing/facts.py`) and when they were published, by offset, for those that have any.

What a message asks for (priority, time to live, delay) is decided upon long after its slab has left memory, so it is
kept here while the message may be live: 8 bytes a message, 16 where a delay is longer than some seventy minutes, and
16 a run. Messages without facts take nothing.

Columns are kept for blocks of offsets and go block by block, when nothing in a block is live any more. They only grow
at their ends: what follows at the same time joins the run before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

BLOCK_BITS = 14
"""Blocks are of so many offset bits."""
_LOW_BITS = 64
_LOW_MASK = (1 << _LOW_BITS) - 1
_COUNT_BITS = 16
_COUNT_MASK = (1 << _COUNT_BITS) - 1

Columns = tuple["array[int]", "array[int] | None"]
"""The lower 64 bits of the facts of consecutive messages, and what is above them where any has more."""


SavedBlock = tuple["array[int]", "array[int]", "array[int]", "array[int] | None"]
"""Packed runs, their times, and the columns of their facts."""


class FactRun(NamedTuple):
    """Facts of consecutive offsets that were published at the same time."""

    first: int
    facts: list[int]
    timestamp_ms: int


def to_columns(facts: Iterable[int]) -> Columns:
    """A list of facts as columns."""
    try:
        return array("Q", facts), None
    except OverflowError:
        whole = list(facts)
        return array("Q", [one & _LOW_MASK for one in whole]), array("Q", [one >> _LOW_BITS for one in whole])


def from_columns(low: Sequence[int], high: Sequence[int] | None) -> list[int]:
    """The inverse of `to_columns`."""
    return list(low) if high is None else [above << _LOW_BITS | one for one, above in zip(low, high, strict=True)]


class _Block:
    """`runs` are packed, `first << 16 | count - 1`; `starts` says where in the columns each begins."""

    __slots__ = ("high", "low", "runs", "starts", "times")

    def __init__(self) -> None:
        self.runs = array("Q")
        self.starts = array("L")
        self.times = array("Q")
        self.low = array("Q")
        self.high: array[int] | None = None

    def add(self, first: int, low: array[int], high: array[int] | None, timestamp_ms: int) -> None:
        runs = self.runs
        if (
            runs
            and self.times[-1] == timestamp_ms
            and (runs[-1] >> _COUNT_BITS) + (runs[-1] & _COUNT_MASK) + 1 == first
        ):
            runs[-1] += len(low)
        else:
            runs.append(first << _COUNT_BITS | len(low) - 1)
            self.starts.append(len(self.low))
            self.times.append(timestamp_ms)
        if high is not None and self.high is None:
            self.high = array("Q", bytes(8 * len(self.low)))
        self.low += low
        if self.high is not None:
            self.high += array("Q", bytes(8 * len(low))) if high is None else high

    def of(self, offset: int) -> tuple[int, int] | None:
        """Facts and time of one message."""
        runs = self.runs
        index = bisect_right(runs, offset << _COUNT_BITS | _COUNT_MASK) - 1
        if index < 0:
            return None
        at = offset - (runs[index] >> _COUNT_BITS)
        if at > runs[index] & _COUNT_MASK:
            return None
        at += self.starts[index]
        fact = self.low[at]
        if self.high is not None:
            fact |= self.high[at] << _LOW_BITS
        return fact, self.times[index]

    def between(self, first: int, end: int) -> Iterator[FactRun]:
        """What is known of [first, end)."""
        runs = self.runs
        at = max(bisect_right(runs, first << _COUNT_BITS | _COUNT_MASK) - 1, 0)
        for index in range(at, len(runs)):
            run_first = runs[index] >> _COUNT_BITS
            if run_first >= end:
                return
            start = max(first, run_first)
            stop = min(end, run_first + (runs[index] & _COUNT_MASK) + 1)
            if start < stop:
                begin, until = self.starts[index] + start - run_first, self.starts[index] + stop - run_first
                high = None if self.high is None else self.high[begin:until]
                yield FactRun(start, from_columns(self.low[begin:until], high), self.times[index])


class FactColumns:
    """See the module."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, first: int, columns: Columns, timestamp_ms: int) -> None:
        """Note the facts of consecutive offsets from `first` on, which lies beyond all that are known."""
        low, high = columns
        at, count = 0, len(low)
        while at < count:
            number = first + at >> BLOCK_BITS
            stop = min(count, ((number + 1) << BLOCK_BITS) - first)
            block = self._blocks.get(number)
            if block is None:
                block = self._blocks[number] = _Block()
            if at or stop < count:
                block.add(first + at, low[at:stop], None if high is None else high[at:stop], timestamp_ms)
            else:
                block.add(first, low, high, timestamp_ms)
            at = stop

    def insert(self, runs: Iterable[tuple[int, Columns, int]]) -> None:
        """As `add` for several (first, columns, time), anywhere; what is known already stays as it is."""
        mixed: dict[int, list[FactRun]] = {}
        for first, (low, high), timestamp_ms in runs:
            facts, at = from_columns(low, high), first
            for run in [*self.between(first, len(facts)), FactRun(first + len(facts), [], 0)]:
                while at < run.first:
                    number = at >> BLOCK_BITS
                    stop = min(run.first, (number + 1) << BLOCK_BITS)
                    mixed.setdefault(number, []).append(FactRun(at, facts[at - first : stop - first], timestamp_ms))
                    at = stop
                at += len(run.facts)
        for number, new in mixed.items():
            known = self._blocks.pop(number, None)
            start = number << BLOCK_BITS
            block = self._blocks[number] = _Block()
            before = [] if known is None else known.between(start, start + (1 << BLOCK_BITS))
            at = start
            for run in sorted([*before, *new]):
                facts = run.facts[max(at - run.first, 0) :]  # the new ones may have the same twice
                if facts:
                    first = max(run.first, at)
                    block.add(first, *to_columns(facts), run.timestamp_ms)
                    at = first + len(facts)

    def between(self, first: int, count: int) -> Iterator[FactRun]:
        """The facts of [first, first + count), run by run; offsets without any are left out."""
        end = first + count
        for number in range(first >> BLOCK_BITS, (end - 1 >> BLOCK_BITS) + 1):
            block = self._blocks.get(number)
            if block is not None:
                yield from block.between(first, end)

    def of(self, offset: int) -> tuple[int, int] | None:
        """Facts and time of publishing in ms of one message; None if it has none."""
        block = self._blocks.get(offset >> BLOCK_BITS)
        return None if block is None else block.of(offset)

    def each(self, offsets: Sequence[int], otherwise: int) -> list[int]:
        """The facts of messages, `otherwise` of those that have none."""
        found = map(self.of, offsets)
        return [otherwise if known is None else known[0] for known in found]

    def take(self, other: FactColumns) -> None:
        """Have what the other has, and leave it with nothing."""
        self._blocks, other._blocks = other._blocks, {}

    def drop(self, number: int) -> None:
        """Nothing in a block is live any more."""
        self._blocks.pop(number, None)

    def keep(self, live: Collection[int]) -> None:
        """Forget all blocks but these."""
        for number in [number for number in self._blocks if number not in live]:
            del self._blocks[number]

    def block(self, number: int) -> SavedBlock | None:
        """One block, as it is saved."""
        block = self._blocks.get(number)
        return None if block is None else (block.runs, block.times, block.low, block.high)

    def columns(self) -> Iterator[SavedBlock]:
        """All of it, to be saved."""
        for number in sorted(self._blocks):
            block = self._blocks[number]
            yield block.runs, block.times, block.low, block.high

    def load(self, blocks: Iterable[SavedBlock]) -> None:
        """The inverse of `columns`. Raises ValueError if columns do not fit together."""
        for runs, times, low, high in blocks:
            if not runs:
                continue
            counts = [(run & _COUNT_MASK) + 1 for run in runs]
            whole = sum(counts) == len(low) == (len(low) if high is None else len(high)) and len(times) == len(runs)
            number, last = runs[0] >> _COUNT_BITS + BLOCK_BITS, (runs[-1] >> _COUNT_BITS) + counts[-1] - 1
            if not whole or last >> BLOCK_BITS != number or number in self._blocks:
                raise ValueError("facts do not fit together")
            block = self._blocks[number] = _Block()
            block.runs, block.times, block.low, block.high = runs, times, low, high
            block.starts = array("L", accumulate(counts[:-1], initial=0))
