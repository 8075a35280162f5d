"""What came into a queue in one turn, and what its facts (`routing/facts.py`) say about its end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from routing.facts import TTL_MASK, delay_ms_of, ttl_ms_of
from routing.queues.offset_set import Range


@dataclass(slots=True)
class Arrival:
    """Messages [first, first + count) came at `time_ms`; `facts` is that of all, or a list of those of each.

    `words` are the same where they fit into 64 bits, for who looks at many; without `delayed` none has a delay.
    """

    first: int
    count: int
    time_ms: int
    facts: int | list[int]
    words: array[int] | None = None
    delayed: bool = True

    def at(self, offset: int) -> int:
        """The facts of one message."""
        facts = self.facts
        return facts if isinstance(facts, int) else facts[offset - self.first]


def is_mortal(arrival: Arrival) -> bool:
    """Whether any of them has a time to live of its own."""
    facts = arrival.facts
    return ttl_ms_of(facts) is not None if isinstance(facts, int) else max(facts) >= 1 << 9


def shortest_life(arrival: Arrival, first: int, end: int) -> int:
    """The least time to live of messages [first, end) as `facts.py` packs it: one more than the milliseconds, or less
    than that (where it is not exact); 0 if all are for ever.
    """
    facts = arrival.facts
    if isinstance(facts, int):
        return facts >> 9 & TTL_MASK
    if end - first != len(facts):
        facts = facts[first - arrival.first : end - arrival.first]
    if not arrival.delayed:
        least = min(facts) >> 9  # nothing stands above it
        if least:
            return least
    lives = [fact >> 9 & TTL_MASK for fact in facts]
    return min(lives) or min(filter(None, lives), default=0)


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
