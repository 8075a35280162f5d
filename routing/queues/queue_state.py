"""What a checkpoint keeps of a queue besides offsets and facts, and how the log's records add to it.

A state is a mapping as MessagePack takes it, without what is empty:

    "returns"   offset -> (counts, due time in ms), of messages that came back (`returns.py`)
    "seen"      [(time in ms, whether it is a whole table, hashes)] of ids, in order (`seen_ids.py`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from routing.queues.settlement import RETURNED_KEY, SEEN_KEY, decode_returned, decode_seen

State = dict[str, Any]


class StateChanges:
    """What the log says of states since they were taken, by queue id."""

    def __init__(self) -> None:
        self._returns: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        self._seen: dict[int, list[tuple[int, bool, bytes]]] = defaultdict(list)

    def control(self, key: bytes | None, value: bytes) -> None:
        """Take a control record into account, if it is one of these."""
        if key == RETURNED_KEY:
            for queue_id, offset, counts, due_ms in decode_returned(value):
                self._returns[queue_id][offset] = counts, due_ms
        elif key == SEEN_KEY:
            for queue_id, seen_ms, hashes in decode_seen(value):
                self._seen[queue_id].append((seen_ms, False, hashes))

    def fold(self, states: dict[int, State], queue_ids: Iterable[int]) -> dict[int, State]:
        """The states of these queues with all that was said."""
        folded = {}
        for queue_id in queue_ids:
            state = dict(states.get(queue_id) or {})
            if queue_id in self._returns:
                state["returns"] = state.get("returns", {}) | self._returns[queue_id]
            if queue_id in self._seen:
                state["seen"] = [*state.get("seen", ()), *self._seen[queue_id]]
            if state:
                folded[queue_id] = state
        self._returns.clear()
        self._seen.clear()
        return folded
