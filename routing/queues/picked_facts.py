"""Facts of messages that lie apart from each other, by columns: a start asks for those of millions.

The messages of many queues lie between each other in a home partition, so a queue's own are single offsets, and to look
each up costs microseconds. A block of facts is spread out once, a place for each offset, and every queue picks its own
from that. Long runs are left to who reads run by run, which is less work there.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from routing.facts import TIMED_FROM, TTL_EXACT_MS_MAX
from routing.queues.arrivals import deadline_ms_of
from routing.queues.fact_columns import BLOCK_BITS, FactColumns, from_columns
from routing.queues.packed_ranges import COUNT_BITS, by_blocks, count_of, low_bits, offsets_of, singly
from routing.queues.priority_sort import add_singles, levels_of

if TYPE_CHECKING:
    from routing.queues.queue import Queue

_MASK = (1 << BLOCK_BITS) - 1
_EXACT = TTL_EXACT_MS_MAX + 2 << 9
"""Facts below this say a time to live by its milliseconds."""
_RUN_MIN = 8
"""A queue's runs of this length on average are not worth spreading out a block for."""
_SPREAD_MAX = 256
"""Most blocks that are kept spread out: 256 KiB each, while queues are filled."""
_BITE = 8192
"""So many messages of a queue are given out together, or a few more."""


class Spread(NamedTuple):
    """Facts and times by the lower bits of an offset; time 0: none are known."""

    low: array[int]
    high: array[int] | None
    times: array[int]


class Picked(NamedTuple):
    """Messages as packed ranges, one of each, and parallel lists of what is known of them: facts and time 0 of those
    that have none. Without `facts` they are to be read run by run, and there are no lists.
    """

    packed: array[int]
    offsets: list[int]
    facts: list[int] | None
    times: list[int]


class PickedFacts:
    """Facts of one home partition while its queues are filled."""

    def __init__(self, facts: FactColumns) -> None:
        self._facts = facts
        self._spread: dict[int, Spread | None] = {}

    def pick(self, packed: array[int]) -> Iterator[Picked]:
        """What is known of the messages in rising packed ranges, bite by bite."""
        pieces = array("Q")
        offsets: list[int] = []
        facts: list[int] = []
        times: list[int] = []
        for number, piece in by_blocks(packed, BLOCK_BITS):
            in_runs = count_of(piece) >= _RUN_MIN * max(len(piece), 2)
            if offsets and (in_runs or len(offsets) >= _BITE):
                yield Picked(pieces, offsets, facts, times)
                pieces, offsets, facts, times = array("Q"), [], [], []
            if in_runs:
                yield Picked(piece, [], None, [])
                continue
            piece = singly(piece)
            pieces += piece
            offsets += offsets_of(piece)
            spread = self._spread_out(number)
            if spread is None:
                facts += bytes(len(piece))
                times += bytes(len(piece))
                continue
            places = low_bits(piece, BLOCK_BITS)
            get = itemgetter(*places, 0)  # never one alone
            low, high = get(spread.low)[:-1], None if spread.high is None else get(spread.high)[:-1]
            facts += low if high is None else from_columns(low, high)
            times += get(spread.times)[:-1]
        if offsets:
            yield Picked(pieces, offsets, facts, times)

    def _spread_out(self, number: int) -> Spread | None:
        """A block, None if nothing in it has facts."""
        if number not in self._spread:
            if len(self._spread) >= _SPREAD_MAX:
                self._spread.clear()
            self._spread[number] = self._spread_anew(number)
        return self._spread[number]

    def _spread_anew(self, number: int) -> Spread | None:
        block = self._facts.block(number)
        if block is None:
            return None
        runs, run_times, low, high = block
        facts, times = array("Q", bytes(8 << BLOCK_BITS)), array("Q", bytes(8 << BLOCK_BITS))
        above = None if high is None else array("Q", bytes(8 << BLOCK_BITS))
        at = 0
        for run, time_ms in zip(runs, run_times):
            place, count = run >> COUNT_BITS & _MASK, (run & 0xFFFF) + 1
            if count == 1:
                facts[place], times[place] = low[at], time_ms
            else:
                facts[place : place + count] = low[at : at + count]
                times[place : place + count] = array("Q", (time_ms,)) * count
            if above is not None and high is not None:
                above[place : place + count] = high[at : at + count]
            at += count
        return Spread(facts, above, times)


def stand(queue: Queue, packed: array[int], facts: Sequence[int]) -> None:
    """Messages that nothing has to be waited for, packed singly, stand at the end of their lines."""
    levels = queue.levels
    if levels is None:
        queue.line.ready.extend(packed)
        return
    sorted_out: defaultdict[int, list[int]] = defaultdict(list)
    for level, single in zip(levels_of(facts, array("Q", facts), levels.highest), packed.tolist()):
        sorted_out[level].append(single)
    for level, singles in sorted_out.items():
        add_singles(levels.at(level), array("Q", singles))


def deadlines(
    offsets: Sequence[int], facts: Sequence[int], times: Sequence[int], queue_ttl_ms: int | None
) -> tuple[list[int], list[int]]:
    """When which of the messages expire: times in ms, and whose they are."""
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
