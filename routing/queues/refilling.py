"""Queues stand as they stood, at a start: what waits goes to its lines, and what has a time to live begins to be
watched; what is delayed is held back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from routing.facts import DELAY_BITS, DELAYED_FROM, delay_ms_of, priority_of
from routing.queues.arrivals import Arrival
from routing.queues.offset_set import Range
from routing.queues.packed_ranges import COUNT_BITS, unpack
from routing.queues.picked_facts import PickedFacts, deadlines, stand
from routing.queues.priority_sort import sort_in

if TYPE_CHECKING:
    from routing.queues.queue import Queue


def refill(queue: Queue, packed: array[int], picked: PickedFacts) -> None:
    """What a start found that was never given out, as rising packed ranges, stands in line; delayed messages are held
    back again.
    """
    rules = queue.rules
    for part, offsets, facts, times in picked.pick(packed):
        if facts is None:
            _refill_runs(queue, unpack(part))
        elif max(facts) < DELAYED_FROM:
            _fill(queue, part, offsets, facts, times)
        else:
            _hold(queue, offsets, facts, times)
            rest = [at for at, fact in enumerate(facts) if fact < DELAYED_FROM]
            if rest:
                singles = array("Q", [offsets[at] << COUNT_BITS for at in rest])
                _fill(queue, singles, *([column[at] for at in rest] for column in (offsets, facts, times)))
    rules.arm()


def _fill(queue: Queue, packed: array[int], offsets: list[int], facts: list[int], times: list[int]) -> None:
    stand(queue, packed, facts)
    due_ms, mortal = deadlines(offsets, facts, times, queue.settings.message_ttl_ms)
    if mortal:
        queue.rules.need_timing().expire_at(due_ms, mortal)


def _hold(queue: Queue, offsets: Sequence[int], facts: Sequence[int], times: Sequence[int]) -> None:
    """Those that are delayed wait for their time, or are late."""
    due_ms = [time_ms + (fact >> DELAY_BITS) for fact, time_ms in zip(facts, times)]
    if min(facts) < DELAYED_FROM:
        held = [fact >= DELAYED_FROM for fact in facts]
        due_ms, offsets = list(compress(due_ms, held)), list(compress(offsets, held))
    now_ms = queue.host.now_ms()
    if min(due_ms) <= now_ms:
        waits = [due > now_ms for due in due_ms]
        queue.rules.late += [(due, offset) for due, offset in zip(due_ms, offsets) if due <= now_ms]
        due_ms, offsets = list(compress(due_ms, waits)), list(compress(offsets, waits))
    if due_ms:
        queue.rules.need_timing().delay(due_ms, offsets)


def _refill_runs(queue: Queue, ranges: Iterable[Range]) -> None:
    rules, facts = queue.rules, queue.store.facts
    for first, count in ranges:
        at = first
        for run_first, column, time_ms in facts.between(first, count):
            if run_first > at:
                _stand(queue, Arrival(at, run_first - at, 0, 0))
            at = run_first + len(column)
            if min(column) >= DELAYED_FROM:
                _hold(queue, range(run_first, at), column, [time_ms] * len(column))
                continue
            arrival = Arrival(run_first, len(column), time_ms, column)
            if max(column) >= DELAYED_FROM:
                for part_first, number in _part(queue, arrival, column):
                    queue.line_of(part_first).ready.append(part_first, number)
            else:
                rules.watch(arrival, run_first, at)
                _stand(queue, arrival)
        if at < first + count:
            _stand(queue, Arrival(at, first + count - at, 0, 0))


def _stand(queue: Queue, arrival: Arrival) -> None:
    """Messages that nothing has to be waited for stand at the end of their lines."""
    if queue.levels is None:
        queue.line.ready.append(arrival.first, arrival.count)
    else:
        sort_in(queue.levels, arrival, arrival.first, arrival.first + arrival.count)


def given_back(queue: Queue, ranges: Iterable[Range]) -> Iterator[Range]:
    """What a start found, cut into runs that agree in priority; delayed messages are held back again."""
    facts = queue.store.facts
    for first, count in ranges:
        at = first
        for run_first, column, time_ms in facts.between(first, count):
            if run_first > at:
                yield at, run_first - at
            at = run_first + len(column)
            yield from _part(queue, Arrival(run_first, len(column), time_ms, column), column)
        if at < first + count:
            yield at, first + count - at
    queue.rules.arm()


def _part(queue: Queue, arrival: Arrival, column: list[int]) -> Iterator[Range]:
    rules = queue.rules
    end = arrival.first + arrival.count
    rules.watch(arrival, arrival.first, end)
    due_ms, held = [], []
    now_ms = queue.host.now_ms()
    at, level = arrival.first, -1
    for offset, fact in enumerate(column, arrival.first):
        if fact >= DELAYED_FROM:
            due = arrival.time_ms + delay_ms_of(fact)
            if due <= now_ms:
                rules.late.append((due, offset))
            else:
                due_ms.append(due)
                held.append(offset)
            wanted = -1
        else:
            wanted = priority_of(fact)
        if wanted != level:
            if level >= 0 and offset > at:
                yield at, offset - at
            at, level = offset, wanted
    if level >= 0:
        yield at, end - at
    if held:
        rules.need_timing().delay(due_ms, held)
