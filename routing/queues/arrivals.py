"""What came into a queue in one turn, and what its facts (`routing/facts.py`) say about its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from routing.facts import delay_ms_of, ttl_ms_of
from routing.queues.offset_set import Range


@dataclass(slots=True)
class Arrival:
    """Messages [first, first + count) came at `time_ms`; `facts` is that of all, or a list of those of each."""

    first: int
    count: int
    time_ms: int
    facts: int | list[int]

    def at(self, offset: int) -> int:
        """The facts of one message."""
        facts = self.facts
        return facts if isinstance(facts, int) else facts[offset - self.first]


def is_mortal(arrival: Arrival) -> bool:
    """Whether any of them has a time to live of its own."""
    facts = arrival.facts
    return ttl_ms_of(facts) is not None if isinstance(facts, int) else max(facts) >= 1 << 9


def deadline_ms_of(facts: int, came_ms: int, queue_ttl_ms: int | None) -> int | None:
    """When a message expires; None: never."""
    ttl_ms = ttl_ms_of(facts)
    if ttl_ms is None or (queue_ttl_ms is not None and queue_ttl_ms < ttl_ms):
        ttl_ms = queue_ttl_ms
    return None if ttl_ms is None else came_ms + delay_ms_of(facts) + ttl_ms


def overlaps(arrivals: list[Arrival], ranges: list[Range]) -> Iterator[tuple[Arrival, int, int]]:
    """The parts of the arrivals that lie in the ranges; both rise."""
    at = 0
    for arrival in arrivals:
        arrival_end = arrival.first + arrival.count
        while at < len(ranges) and ranges[at][0] + ranges[at][1] <= arrival.first:
            at += 1
        index = at
        while index < len(ranges) and ranges[index][0] < arrival_end:
            first, count = ranges[index]
            yield arrival, max(first, arrival.first), min(first + count, arrival_end)
            index += 1
