"""What a session does where another broker leads the queue, or this one leads it and may not serve it yet: it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from routing.consumer import Got
from routing.errors import LedHere, NotLeader, StorageUnavailable
from routing.unsettled import Unsettled

if TYPE_CHECKING:
    from routing.queues.queue import Queue
    from routing.session import Session

SERVED_WITHIN_S = 2.0
LOOK_S = 0.02


async def is_served(queue: Queue) -> bool:
    """Wait until what is here of a queue holds, as another broker might lead it; False once it is another's, or
    deleted. Raises StorageUnavailable.
    """
    until_s = trio.current_time() + SERVED_WITHIN_S
    while not queue.deleted:
        try:
            queue.require_led()
        except StorageUnavailable:
            if trio.current_time() >= until_s:
                raise
            await trio.sleep(LOOK_S)
        else:
            return True
    return False


async def get_elsewhere(session: Session, queue: Queue, *, no_ack: bool) -> Got | None:
    """`Session.get`. Raises StorageUnavailable, NotFound; NotLeader for another broker, which asks the next leader."""
    if session.protocol == "peer":
        raise NotLeader(f"queue '{queue.name}' in vhost '{queue.vhost}' is led elsewhere now")
    try:
        found = await queue.take_one()
    except LedHere:
        return None if session.closed else await session.get(queue.name, no_ack=no_ack)
    if found is None:
        return None
    slab, place, redelivered, left = found
    if session.closed:
        queue.give_back_offsets([place])
        return None
    if session.vhost.trace is not None:
        session.vhost.trace.delivered(session, queue.name, slab, 0, 1, redelivered)
    delivery_id = session.next_id
    session.next_id += 1
    if no_ack:
        queue.settle(place, 1)
    else:
        session.unsettled.append(Unsettled(delivery_id, delivery_id + 1, place, queue, None))
    return Got(delivery_id, slab, 0, redelivered, left)
