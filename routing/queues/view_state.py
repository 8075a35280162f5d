"""What is written down of a view: how far it has got in each partition of its topic, and which records it holds.

A checkpoint keeps it as MessagePack takes it; the log's records add to that (`ViewChanges`):

    "next"       the id of the next message
    "positions"  partition -> the offset at which it goes on
    "parts"      [(first id, count, partition, offset)], rising
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from routing.queues.packed_ranges import Range
from routing.queues.settlement import Taken
from routing.queues.view_pieces import Part, cut, joined

VIEW = "view"
"""What it is called in a queue's state."""


class ViewState(NamedTuple):
    """See the module."""

    next_id: int
    positions: dict[int, int]
    parts: list[Part]

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> ViewState:
        """The inverse of `dump`; what is not there is empty."""
        known = (state or {}).get(VIEW)
        if known is None:
            return cls(0, {}, [])
        return cls(known["next"], dict(known["positions"]), [Part(*part) for part in known["parts"]])

    def dump(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        return {"next": self.next_id, "positions": self.positions, "parts": [tuple(part) for part in self.parts]}


class ViewChanges:
    """What the log says of views since their states were taken, by queue id."""

    def __init__(self) -> None:
        self._taken: dict[int, list[Taken]] = defaultdict(list)
        self._carried: dict[int, list[Taken]] = defaultdict(list)

    @property
    def queue_ids(self) -> set[int]:
        """The views of which anything was said."""
        return {*self._taken, *self._carried}

    def take(self, taken: Iterable[Taken]) -> None:
        """Records were taken in."""
        for one in taken:
            self._taken[one.queue_id].append(one)

    def carry(self, carried: Iterable[Taken]) -> None:
        """It is said once more what a view holds."""
        for one in carried:
            self._carried[one.queue_id].append(one)

    def fold(self, queue_id: int, state: Mapping[str, Any], settled: Iterable[Range]) -> ViewState | None:
        """The state of a view with all that was said, and without what it has `settled`; None: it is none."""
        taken, carried = self._taken.get(queue_id, ()), self._carried.get(queue_id, ())
        if not taken and not carried and VIEW not in state:
            return None
        next_id, positions, parts = ViewState.of(state)
        for one in taken:
            positions[one.partition] = max(positions.get(one.partition, 0), one.offset + one.count)
            if one.count and one.first >= next_id:
                parts.append(Part(one.first, one.count, one.partition, one.offset))
            next_id = max(next_id, one.end)
        for one in carried:
            positions[one.partition] = max(positions.get(one.partition, 0), one.offset + one.count)
            next_id = max(next_id, one.end)
        if carried:
            parts = joined(parts, [Part(one.first, one.count, one.partition, one.offset) for one in carried])
        return ViewState(next_id, positions, cut(parts, settled))

    def clear(self) -> None:
        """All of it is folded."""
        self._taken.clear()
        self._carried.clear()
