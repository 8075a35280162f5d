"""What a checkpoint keeps of a queue besides offsets and facts, and how the log's records add to it.

A state is a mapping as MessagePack takes it, without what is empty:

    "held"      packed ranges of messages that were received and are not completed (`Queue.held`)
    "reserved"  what is set aside for readers (`reservations.py`)
    "returns"   offset -> (counts, due time in ms), of messages that came back (`returns.py`)
    "seen"      [(time in ms, whether it is a whole table, hashes)] of ids, in order (`seen_ids.py`)
    "sizes"     [(first offset, bytes of each message)], where their sum is limited (`message_sizes.py`)
    "view"      what a view holds of its topic (`view_state.py`)
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from routing.queues import reservations
from routing.queues.packed_ranges import COUNT_BITS, Range, from_bytes, holds, pack, to_bytes, unpack
from routing.queues.settlement import (
    CARRIED_KEY,
    COMPLETED_KEY,
    RECEIVED_KEY,
    RESERVED_KEY,
    RETURNED_KEY,
    SEEN_KEY,
    SIZES_KEY,
    TAKEN_KEY,
    Reserved,
    decode_reserved,
    decode_returned,
    decode_seen,
    decode_settled,
    decode_sizes,
    decode_taken,
)
from routing.queues.view_pieces import ranges_of
from routing.queues.view_state import VIEW, ViewChanges

State = dict[str, Any]


class StateChanges:
    """What the log says of states since they were taken, by queue id."""

    def __init__(self) -> None:
        self._returns: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        self._held: dict[int, list[tuple[bool, int, int]]] = defaultdict(list)
        """(whether received or completed, first offset, count), in order."""
        self._reserved: dict[int, list[Reserved]] = defaultdict(list)
        self._seen: dict[int, list[tuple[int, bool, bytes]]] = defaultdict(list)
        self._sizes: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.views = ViewChanges()

    def control(self, key: bytes | None, value: bytes) -> None:
        """Take a control record into account, if it is one of these."""
        if key == RETURNED_KEY:
            for queue_id, offset, counts, due_ms in decode_returned(value):
                self._returns[queue_id][offset] = counts, due_ms
        elif key in (RECEIVED_KEY, COMPLETED_KEY):
            for queue_id, first, count in decode_settled(value):
                self._held[queue_id].append((key == RECEIVED_KEY, first, count))
        elif key == RESERVED_KEY:
            one = decode_reserved(value)
            self._reserved[one.queue_id].append(one)
        elif key == SEEN_KEY:
            for queue_id, seen_ms, hashes in decode_seen(value):
                self._seen[queue_id].append((seen_ms, False, hashes))
        elif key == SIZES_KEY:
            for queue_id, first, sizes in decode_sizes(value):
                self._sizes[queue_id].append((first, sizes))
        elif key == TAKEN_KEY:
            self.views.take(decode_taken(value))
        elif key == CARRIED_KEY:
            self.views.carry(decode_taken(value))

    def fold(
        self,
        states: dict[int, State],
        live: Mapping[int, array[int]],
        settled: Mapping[int, Iterable[Range]],
        *,
        seen_since_ms: int = 0,
    ) -> dict[int, State]:
        """The states of queues with all that was said; `live` are packed ranges of what is there, by queue id, but for
        views, of which it is said what they have `settled`. Ids that were seen before `seen_since_ms` matter to nobody.
        """
        folded = {}
        for queue_id, packed in live.items():
            state = dict(states.get(queue_id) or {})
            view = self.views.fold(queue_id, state, settled.get(queue_id, ()))
            if view is not None:
                state[VIEW] = view.dump()
                packed = ranges_of(view.parts)
                if "returns" in state:
                    state["returns"] = {one: known for one, known in state["returns"].items() if holds(packed, one)}
            if queue_id in self._returns:
                returns = state.get("returns", {}) | self._returns[queue_id]
                state["returns"] = {offset: known for offset, known in returns.items() if holds(packed, offset)}
            if queue_id in self._held:
                held = _held(state.pop("held", b""), self._held[queue_id])
                if held:
                    state["held"] = held
            if queue_id in self._reserved or "reserved" in state:
                reserved = reservations.fold(state.pop("reserved", {}), self._reserved.get(queue_id, ()), packed)
                if reserved:
                    state["reserved"] = reserved
            if queue_id in self._seen:
                seen = [*state.get("seen", ()), *self._seen[queue_id]]
                state["seen"] = sorted((lot for lot in seen if lot[0] >= seen_since_ms), key=lambda lot: lot[0])
            sizes = [*state.pop("sizes", ()), *self._sizes.get(queue_id, ())]
            if sizes and packed:
                oldest = packed[0] >> COUNT_BITS
                known = dict(sizes)  # some may stand there twice (`carried_states.py`)
                state["sizes"] = [
                    (first, column) for first, column in known.items() if first + len(column) // 4 > oldest
                ]
            if state:
                folded[queue_id] = state
        self._returns.clear()
        self._held.clear()
        self._reserved.clear()
        self._seen.clear()
        self._sizes.clear()
        self.views.clear()
        return folded


def _held(before: bytes, changes: Iterable[tuple[bool, int, int]]) -> bytes:
    """What is received and not completed: these were before, and then came changes, any number of them. Of all that is
    said of a message the last counts.
    """
    said = [(first, first + count, 0, True) for first, count in unpack(from_bytes(before))]
    said += [(first, first + count, -at, received) for at, (received, first, count) in enumerate(changes, 1)]
    said.sort()
    edges = sorted({edge for first, end, _, _ in said for edge in (first, end)})
    held: list[Range] = []
    over: list[tuple[int, int, bool]] = []
    """A heap of what was said of the messages at an edge, the last of it first, and of others that are behind."""
    at = 0
    for edge, following in pairwise(edges):
        while at < len(said) and said[at][0] == edge:
            _, end, last, received = said[at]
            heappush(over, (last, end, received))
            at += 1
        while over and over[0][1] <= edge:
            heappop(over)
        if over and over[0][2]:
            held.append((edge, following - edge))
    return to_bytes(pack(held))
