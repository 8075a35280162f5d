"""What a queue holds that no consumer has, as ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from routing.queues.offset_set import Range
from routing.queues.reservations import reserved_ranges

if TYPE_CHECKING:
    from routing.queues.queue import Queue


def waiting_ranges(queue: Queue) -> tuple[list[Range], list[Range]]:
    """What was never given out, delayed messages with it, and what was given back or is reserved; each in offset
    order.
    """
    lines = queue.lines()
    ready = [part for line in lines for part in line.fresh_ranges()]
    ready += [(offset, 1) for _, offset in queue.rules.delayed()]
    returned = [part for line in lines for part in line.placed.ranges_of(redelivered=True)]
    return sorted(ready), sorted(returned + reserved_ranges(queue))


def waiting_between(queues: Iterable[Queue], first: int, end: int) -> list[int]:
    """The offsets of [first, end) that stand in a line of any of the queues; rising."""
    found: set[int] = set()
    for queue in queues:
        for line in queue.lines():
            if line.count:
                found.update(line.between(first, end))
    return sorted(found)


def live_ranges(queue: Queue) -> list[Range]:
    """All messages that are not delivered, in no particular order."""
    ready, returned = waiting_ranges(queue)
    return ready + returned
