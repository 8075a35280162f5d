"""Messages of one queue that came back: how often, and which of them wait for their next try.

Only a queue whose settings count what comes back (`retries.py`) has this.

1. Every return is written to the log of the queue's home (RETURNED), so counts and due times outlive the process.
2. What waits stands in no line; the queue's wheel holds it like a delayed message (`QueueRules.hold`), and when it is
   due it stands where it stood before. Nobody waits behind it.
3. On its way out again a message says how often it came back, in the header `x-delivery-count`, as RabbitMQ's quorum
   queues do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from routing.message import Properties, Slab
from routing.property_editors import editable, editor_of
from routing.queues.retries import FIRST, Cause, Tries, after

if TYPE_CHECKING:
    from routing.queues.host import QueueHost
    from routing.queues.queue import Queue

COUNT_HEADER = "x-delivery-count"


class Returns:
    """See the module."""

    __slots__ = ("_host", "_queue", "tries")

    def __init__(self, queue: Queue, host: QueueHost) -> None:
        self._queue = queue
        self._host = host
        self.tries: dict[int, Tries] = {}
        """By offset, of messages that came back and are still there."""

    def came_back(self, offsets: Sequence[int], cause: Cause) -> list[int]:
        """Outstanding messages came back: those that may go out again at once; the others are seen to."""
        queue, tries = self._queue, self.tries
        settings, now_ms = queue.settings, self._host.now_ms()
        at_once: list[int] = []
        later: list[int] = []
        due_ms: list[int] = []
        dead: dict[str, list[int]] = {}
        noted: list[tuple[int, Tries]] = []
        for offset in offsets:
            known, reason = after(settings, tries.get(offset, FIRST), cause, now_ms)
            if reason is not None:
                dead.setdefault(reason, []).append(offset)
                continue
            tries[offset] = known
            noted.append((offset, known))
            if known.due_ms:
                later.append(offset)
                due_ms.append(known.due_ms)
            else:
                at_once.append(offset)
        if noted:
            queue.partition.note_returns(queue.id, noted)
        if later:
            queue.outstanding -= len(later)
            queue.rules.hold(due_ms, later)
        for reason, buried in dead.items():
            queue.bury(buried, reason)
        return at_once

    def forget(self, first: int, count: int) -> None:
        """Messages are settled."""
        tries = self.tries
        if count <= len(tries):
            for offset in range(first, first + count):
                tries.pop(offset, None)
        else:
            for offset in [offset for offset in tries if first <= offset < first + count]:
                del tries[offset]

    def marked(self, slab: Slab, offsets: Sequence[int]) -> Slab:
        """Messages that go out again, each with its count in a header."""
        tries = self.tries
        counts = [tries.get(offset, FIRST).returns for offset in offsets]
        if not any(counts):
            return slab
        properties = slab.properties
        protocol, raws = editable(properties, slab.raws, len(counts))
        editor = editor_of(protocol)
        assert editor is not None
        headers: dict[int, bytes] = {}
        marked = []
        for index, count in enumerate(counts):
            raw = properties.raw if raws is None else raws[index]
            if count:
                if count not in headers:
                    headers[count] = editor.encode({COUNT_HEADER: count})
                raw = editor.edit(raw, headers[count], (COUNT_HEADER,))
            marked.append(raw)
        common = Properties(protocol, marked[0], persistent=properties.persistent, facts=properties.facts)
        return Slab(
            slab.exchange, slab.routing_key, common, slab.bodies, slab.size,
            keys=slab.keys, raws=marked, facts=slab.facts,
        )  # fmt: skip

    # --- over a stop -------------------------------------------------------------------

    def dump(self) -> dict[int, tuple[int, int]]:
        """What is remembered, as a checkpoint keeps it."""
        return {offset: (known.packed, known.due_ms) for offset, known in self.tries.items()}

    def restore(self, state: dict[int, Any], present: Iterable[int]) -> None:
        """Take over what was dumped of messages that are still there."""
        for offset in present:
            packed, due_ms = state[offset]
            self.tries[offset] = Tries.of(packed, due_ms)
