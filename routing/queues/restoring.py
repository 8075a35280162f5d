"""A queue as it is written down, beside its offsets and facts, and as it is made of that again."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from routing.queues import reservations
from routing.queues.offset_set import OffsetSet
from routing.queues.packed_ranges import from_bytes, pack, to_bytes, unpack, without
from routing.queues.picked_facts import PickedFacts
from routing.queues.refilling import given_back, refill
from routing.queues.settings import EXPIRY_MS_MAX
from routing.queues.view_queue import ViewQueue
from routing.queues.view_state import VIEW

if TYPE_CHECKING:
    from routing.queues.queue import Queue


def state_of(queue: Queue) -> Any:
    """What a checkpoint has to keep besides offsets and facts, as msgpack takes it; None if there is nothing."""
    state: dict[str, Any] = {}
    if queue.returns is not None and queue.returns.tries:
        state["returns"] = queue.returns.dump()
    if queue.held is not None and queue.held.count:
        state["held"] = to_bytes(pack(queue.held.ranges()))
    if reserved := reservations.state_of(queue):
        state["reserved"] = reserved
    if queue.seen is not None:
        state["seen"] = list(queue.seen.dump(queue.host.now_ms()))
    if queue.rules.sizes is not None:
        state["sizes"] = queue.rules.sizes.dump()
    if isinstance(queue, ViewQueue):
        state[VIEW] = queue.view.state().dump()
    return state or None


def restore(
    queue: Queue,
    ready: array[int],
    returned: array[int],
    redelivered_before: int,
    *,
    picked: PickedFacts,
    state: Any = None,
) -> None:
    """Have a new queue take over what the log says is there: rising packed ranges, those given back apart.

    `state` is what `state_of` said.
    """
    if state and "reserved" in state:
        reservations.restore(queue, state["reserved"])
        aside = reservations.reserved_ranges(queue)
        ready, returned = without(ready, aside), without(returned, aside)
    queue.redelivered_before = redelivered_before
    rules = queue.rules
    if queue.levels is None and not queue.store.facts:
        queue.line.ready.extend(ready)
    else:
        refill(queue, ready, picked)
    for first, count in given_back(queue, unpack(returned)):
        queue.line_of(first).placed.add(first, count)
    rules.restored(state.get("sizes", ()) if state else ())
    if state and queue.returns is not None and "returns" in state:
        rules.restore_returns(queue.returns, state["returns"])
    if state and "held" in state:
        queue.held = OffsetSet(unpack(from_bytes(state["held"])))
    if state and "seen" in state:
        if queue.seen is None:
            queue.remember(None, EXPIRY_MS_MAX)  # an exchange has asked, and will say again for how long
        assert queue.seen is not None
        queue.seen.restore(state["seen"], queue.host.now_ms())
