"""Queues stand as they stood, at a start: what waits goes to its lines, and what has a time to live begins to be
watched; what is delayed is held back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from routing.facts import DELAYED_FROM, delay_ms_of, priority_of
from routing.queues.arrivals import Arrival
from routing.queues.offset_set import Range
from routing.queues.picked_facts import PickedFacts, deadlines, stand
from routing.queues.priority_sort import sort_in
from routing.queues.runs_of import runs_of

if TYPE_CHECKING:
    from routing.queues.queue import Queue


def refill(queue: Queue, ranges: Iterable[Range], picked: PickedFacts) -> None:
    """What a start found that was never given out stands in line; delayed messages are held back again."""
    rules = queue.rules
    for offsets, column, times in picked.pick(ranges):
        if column is None or max(column) >= DELAYED_FROM:
            _refill_runs(queue, runs_of(offsets))
            continue
        stand(queue, offsets, column)
        due_ms, mortal = deadlines(offsets, column, times, queue.settings.message_ttl_ms)
        if mortal:
            rules.need_timing().expire_at(due_ms, mortal)
    rules.arm()


def _refill_runs(queue: Queue, ranges: Iterable[Range]) -> None:
    rules, facts = queue.rules, queue.store.facts
    for first, count in ranges:
        at = first
        for run_first, column, time_ms in facts.between(first, count):
            if run_first > at:
                _stand(queue, Arrival(at, run_first - at, 0, 0))
            at = run_first + len(column)
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
