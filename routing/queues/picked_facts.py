"""Facts of messages that lie apart from each other, by columns: a start asks for those of millions.

The messages of many queues lie between each other in a home partition, so a queue's own are single offsets, and to look
each up costs microseconds. What is wanted of a block of facts is worked out once, with a place for each offset, and
every queue picks its own from that. When the messages of a block expire is not asked for each: nothing has to be done
before the first of them does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from routing.facts import DELAYED_FROM, PRIORITY_MAX, TIMED_FROM, TTL_EXACT_MS_MAX, ttl_ms_of
from routing.queues.arrivals import deadline_ms_of
from routing.queues.fact_columns import BLOCK_BITS, FactColumns, SavedBlock, from_columns
from routing.queues.packed_ranges import COUNT_BITS, COUNT_MASK, low_bits, offsets_of, singly
from routing.queues.priority_sort import levels_of

_MASK = (1 << BLOCK_BITS) - 1
_EXACT = TTL_EXACT_MS_MAX + 2 << 9
"""Facts below this say a time to live by its milliseconds."""
_SPREAD_MAX = 256
"""Most blocks that are kept spread out: 256 KiB each, while queues are filled."""


class Outline(NamedTuple):
    """What is to be known first of the facts of a block."""

    life_ms: int | None
    """No message of those that are not delayed lives less long; None: for ever."""
    since_ms: int
    """None was published before."""
    delayed: bool
    """Some are to be given out later."""


class _Spread(NamedTuple):
    """Facts and times by the lower bits of an offset; time 0: none are known."""

    low: array[int]
    high: array[int] | None
    times: array[int]


class PickedFacts:
    """Facts of one home partition while its queues are filled."""

    def __init__(self, facts: FactColumns) -> None:
        self._facts = facts
        self._outlines: dict[int, Outline | None] = {}
        self._levels: dict[int, bytes] = {}
        self._spread: dict[int, _Spread] = {}

    def outline(self, number: int) -> Outline | None:
        """Of a block; None if nothing in it has facts."""
        if number not in self._outlines:
            block = self._facts.block(number)
            self._outlines[number] = None if block is None else _outline_of(block)
        return self._outlines[number]

    def levels(self, piece: array[int]) -> tuple[array[int], bytes]:
        """Messages of one block, as rising packed ranges, singly, and the priority of each."""
        number = piece[0] >> COUNT_BITS + BLOCK_BITS
        if number not in self._levels:
            block = self._facts.block(number)
            self._levels[number] = b"" if block is None else _levels_by_place(block)
        singles, levels = singly(piece), self._levels[number]
        if not levels:
            return singles, bytes(len(singles))
        if len(piece) == 1:
            first = piece[0] >> COUNT_BITS & _MASK
            return singles, levels[first : first + len(singles)]
        return singles, bytes(_picked(levels, singles))

    def known(self, piece: array[int]) -> tuple[list[int], Sequence[int], Sequence[int]]:
        """Messages of one block that has facts, and of each its facts and when it was published: 0 if it has none."""
        number = piece[0] >> COUNT_BITS + BLOCK_BITS
        spread = self._spread.get(number)
        if spread is None:
            if len(self._spread) >= _SPREAD_MAX:
                self._spread.clear()
            block = self._facts.block(number)
            assert block is not None
            spread = self._spread[number] = _spread_out(block)
        singles = singly(piece)
        low, times = _picked(spread.low, singles), _picked(spread.times, singles)
        facts = low if spread.high is None else from_columns(low, _picked(spread.high, singles))
        return offsets_of(singles), facts, times


def deadlines(
    offsets: Sequence[int], facts: Sequence[int], times: Sequence[int], queue_ttl_ms: int | None
) -> tuple[list[int], list[int]]:
    """When which of the messages, none of which is delayed, expire: times in ms, and whose they are."""
    if queue_ttl_ms is None and max(facts) < _EXACT:
        if min(facts) >= TIMED_FROM:
            return [time_ms + (fact >> 9) - 1 for fact, time_ms in zip(facts, times)], list(offsets)
        due = [time_ms + (fact >> 9) - 1 for fact, time_ms in zip(facts, times) if fact >= TIMED_FROM]
        return due, [offset for offset, fact in zip(offsets, facts) if fact >= TIMED_FROM]
    found = [
        (due_ms, offset)
        for offset, fact, time_ms in zip(offsets, facts, times)
        if time_ms and (due_ms := deadline_ms_of(fact, time_ms, queue_ttl_ms)) is not None
    ]
    return [due_ms for due_ms, _ in found], [offset for _, offset in found]


def _picked(column: Sequence[int], singles: array[int]) -> tuple[int, ...]:
    """What a column has at the places of messages."""
    found: tuple[int, ...] = itemgetter(*low_bits(singles, BLOCK_BITS), 0)(column)  # never one alone
    return found[:-1]


def _outline_of(block: SavedBlock) -> Outline:
    _, times, low, high = block
    since_ms = min(times)
    if high is None and max(low) < DELAYED_FROM:
        least = min(low)
        if least < TIMED_FROM:
            least = min((fact for fact in low if fact >= TIMED_FROM), default=0)
        return Outline(ttl_ms_of(least), since_ms, False)
    least = min((fact for fact in from_columns(low, high) if TIMED_FROM <= fact < DELAYED_FROM), default=0)
    return Outline(ttl_ms_of(least), since_ms, True)


def _levels_by_place(block: SavedBlock) -> bytes:
    """The priorities of a block's messages by the lower bits of their offsets."""
    runs, _, low, _ = block
    levels = levels_of(low, low, PRIORITY_MAX)
    found = bytearray(1 << BLOCK_BITS)
    at = 0
    for run in runs:
        place, count = run >> COUNT_BITS & _MASK, (run & COUNT_MASK) + 1
        found[place : place + count] = levels[at : at + count]
        at += count
    return bytes(found)


def _spread_out(block: SavedBlock) -> _Spread:
    runs, run_times, low, high = block
    facts, times = array("Q", bytes(8 << BLOCK_BITS)), array("Q", bytes(8 << BLOCK_BITS))
    above = None if high is None else array("Q", bytes(8 << BLOCK_BITS))
    at = 0
    for run, time_ms in zip(runs, run_times):
        place, count = run >> COUNT_BITS & _MASK, (run & COUNT_MASK) + 1
        facts[place : place + count] = low[at : at + count]
        times[place : place + count] = array("Q", (time_ms,)) * count
        if above is not None and high is not None:
            above[place : place + count] = high[at : at + count]
        at += count
    return _Spread(facts, above, times)
