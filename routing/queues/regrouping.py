"""Having what waits in a queue stand in other lines: priorities are told apart from now on, or not any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from routing.facts import priority_of
from routing.queues.line import Levels, Line
from routing.queues.offset_set import Range

if TYPE_CHECKING:
    from routing.queues.queue import Queue


def tell_apart(queue: Queue, highest: int) -> None:
    """Have the queue tell priorities 0 to `highest` apart; 0: none.

    Messages keep their places within a priority. Only those count as more than 0 whose priority the queue had to
    remember when they came (`fact_columns.py`).
    """
    if queue.fresh:
        queue.rules.sort_in()
    lines = queue.lines()
    queue.line = Line()
    queue.levels = Levels(highest) if highest else None
    for first, count in sorted(part for line in lines for part in line.ready.ranges()):
        for run_first, number, line in _cut(queue, first, count):
            line.ready.append(run_first, number)
    for redelivered in (False, True):
        for first, count in [part for line in lines for part in line.placed.ranges_of(redelivered=redelivered)]:
            for run_first, number, line in _cut(queue, first, count):
                line.placed.add(run_first, number, redelivered=redelivered)
    for position, offset in sorted(entry for line in lines for entry in line.due):
        queue.line_of(offset).due.append((position, offset))


def _cut(queue: Queue, first: int, count: int) -> Iterator[tuple[int, int, Line]]:
    """A range in runs that agree in priority, and where each stands."""
    for run_first, number in _runs(queue, first, count) if queue.levels is not None else ((first, count),):
        yield run_first, number, queue.line_of(run_first)


def _runs(queue: Queue, first: int, count: int) -> Iterator[Range]:
    at, level, end = first, 0, first + count
    for run_first, column, _ in queue.store.facts.between(first, count):
        levels = [(run_first, 0)] if run_first > at else []
        levels += [(offset, priority_of(fact)) for offset, fact in enumerate(column, run_first)]
        levels.append((run_first + len(column), 0))
        for offset, other in levels:
            if other != level:
                if offset > at:
                    yield at, offset - at
                at, level = offset, other
    if end > at:
        yield at, end - at
