"""Facts of messages that lie apart from each other, by columns: a start asks for those of millions.

The messages of many queues lie between each other in a home partition, so a queue's own are single offsets, and to look
each up costs microseconds. A block of facts whose runs are short is spread out once, a place for each offset, and every
queue picks its own from that. Blocks of long runs are left to who reads run by run, which is less work there.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from routing.facts import TIMED_FROM, TTL_EXACT_MS_MAX, priority_of
from routing.queues.arrivals import deadline_ms_of
from routing.queues.fact_columns import BLOCK_BITS, FactColumns
from routing.queues.offset_set import Range
from routing.queues.priority_sort import add_singles

if TYPE_CHECKING:
    from routing.queues.queue import Queue

_MASK = (1 << BLOCK_BITS) - 1
_EXACT = TTL_EXACT_MS_MAX + 2 << 9
"""Facts below this say a time to live by its milliseconds."""
_RUN_MIN = 8
"""Runs of this length on average are not worth spreading out."""
_SPREAD_MAX = 256
"""Most blocks that are kept spread out: 256 KiB each, while queues are filled."""

Spread = tuple["array[int]", "array[int]"]
"""Facts and times by the lower bits of an offset; time 0: none are known."""


class PickedFacts:
    """Facts of one home partition while its queues are filled."""

    def __init__(self, facts: FactColumns) -> None:
        self._facts = facts
        self._spread: dict[int, Spread | None] = {}

    def pick(self, ranges: Iterable[Range]) -> Iterator[tuple[list[int], list[int] | None, list[int]]]:
        """(offsets, facts, times) of the messages in rising `ranges`, block by block; facts and time 0 of those that
        have none. None instead of facts: to be read run by run.
        """
        offsets: list[int] = []
        number, limit = 0, -1
        for first, count in ranges:
            end = first + count
            while end > limit:
                if first < limit:
                    offsets += range(first, limit)
                    first = limit
                if offsets:
                    yield self._of(number, offsets)
                    offsets = []
                number = first >> BLOCK_BITS
                limit = number + 1 << BLOCK_BITS
            offsets += range(first, end)
        if offsets:
            yield self._of(number, offsets)

    def _of(self, number: int, offsets: list[int]) -> tuple[list[int], list[int] | None, list[int]]:
        if number not in self._spread:
            if len(self._spread) >= _SPREAD_MAX:
                self._spread.clear()
            self._spread[number] = self._spread_out(number)
        spread = self._spread[number]
        if spread is None:
            return offsets, None, []
        facts, times = spread
        places = [offset & _MASK for offset in offsets]
        return offsets, [facts[at] for at in places], [times[at] for at in places]

    def _spread_out(self, number: int) -> Spread | None:
        block = self._facts.block(number)
        if block is None:
            return None
        runs, run_times, low, high = block
        if high is not None or len(low) >= _RUN_MIN * len(runs):
            return None
        facts, times = array("Q", bytes(8 << BLOCK_BITS)), array("Q", bytes(8 << BLOCK_BITS))
        at = 0
        for run, time_ms in zip(runs, run_times):
            place, count = run >> 16 & _MASK, (run & 0xFFFF) + 1
            if count == 1:
                facts[place], times[place] = low[at], time_ms
            else:
                facts[place : place + count] = low[at : at + count]
                times[place : place + count] = array("Q", (time_ms,)) * count
            at += count
        return facts, times


def stand(queue: Queue, offsets: Sequence[int], facts: Sequence[int]) -> None:
    """Messages that nothing has to be waited for stand at the end of their lines."""
    levels = queue.levels
    if levels is None:
        add_singles(queue.line, array("Q", [offset << 16 for offset in offsets]))
        return
    sorted_out: defaultdict[int, list[int]] = defaultdict(list)
    for offset, fact in zip(offsets, facts):
        sorted_out[min(priority_of(fact), levels.highest)].append(offset << 16)
    for level, singles in sorted_out.items():
        add_singles(levels.at(level), array("Q", singles))


def deadlines(
    offsets: Sequence[int], facts: Sequence[int], times: Sequence[int], queue_ttl_ms: int | None
) -> tuple[list[int], list[int]]:
    """When which of the messages expire: times in ms, and whose they are."""
    if queue_ttl_ms is None and max(facts) < _EXACT:
        due = [time_ms + (fact >> 9) - 1 for fact, time_ms in zip(facts, times) if fact >= TIMED_FROM]
        return due, [offset for offset, fact in zip(offsets, facts) if fact >= TIMED_FROM]
    found = [
        (due_ms, offset)
        for offset, fact, time_ms in zip(offsets, facts, times)
        if time_ms and (due_ms := deadline_ms_of(fact, time_ms, queue_ttl_ms)) is not None
    ]
    return [due_ms for due_ms, _ in found], [offset for _, offset in found]
