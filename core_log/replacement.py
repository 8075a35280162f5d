"""Putting a compacted segment in the place of those that it was made of.

1. It is complete and synced before it is offered; its `.log` alone has a temporary name still.
2. The log's own job gives it its name, which is when it begins to count (`segment_names.py`), after the recovery point
   has been moved behind it: one within would speak of bytes that are not there any more.
3. On the event loop it then takes its place in the log, and what it was made of goes with the next job. What has gone
   meanwhile of its own right (a deleted prefix) stays gone.
4. While a log is cut no job runs; what was made of segments that are not in the log any more is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core_log.segment import Segment
from core_log.tail_cache import TailCache


@dataclass(slots=True, eq=False)
class Replacement:
    """An offer, and what became of it."""

    sources: list[Segment]
    """Neighbours, all closed."""
    segment: Segment
    temporary: str
    """What its `.log` is called until then."""
    end: int
    """Where the segment behind them begins."""
    cuts: int
    """How often the log had been cut when the sources were read."""
    named: bool = False
    on_settled: Callable[[], None] | None = None
    """Called when it is in the log, or never will be."""

    def settle(self) -> None:
        """Say so."""
        if self.on_settled is not None:
            self.on_settled()


class ReplaceableLog:
    """The part of a `PartitionLog` that takes offers, on the event loop."""

    cuts = 0
    """How often its end was cut off: what was read before may be other records now."""
    segments: list[Segment]
    size_bytes: int
    _removals: list[Segment]
    _tail: TailCache
    _offer: Replacement | None = None

    def offer(self, replacement: Replacement) -> None:
        """Have a compacted segment take the place of its sources; `replacement.on_settled` is called. One at a time."""
        self._offer = replacement

    def take_offer(self) -> Replacement | None:
        """What the next job is to name: rule 4."""
        offer, self._offer = self._offer, None
        if offer is not None and not (offer.cuts == self.cuts and offer.sources[-1] in self.segments[:-1]):
            offer.settle()
            return None
        return offer

    def put_in_place(self, offer: Replacement) -> None:
        """The job is done: rule 3."""
        if offer.named:
            gone = [segment for segment in self.segments if segment in offer.sources]
            if gone:
                at = self.segments.index(gone[0])
                self.segments = [*self.segments[:at], offer.segment, *self.segments[at + len(gone) :]]
            self._removals += gone or [offer.segment]
            self._tail.drop_before(offer.end)
            self.size_bytes = sum(segment.size for segment in self.segments)
        offer.settle()

    def drop_offer(self) -> None:
        """The log is closed."""
        if self._offer is not None:
            self._offer.settle()
