"""How much may wait in a queue, and what becomes of the rest.

Limits are enforced after deliveries: what went straight through never counted. Who is dropped dies ("maxlen").
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING

from routing.queues.death_history import MAXLEN

if TYPE_CHECKING:
    from routing.queues.queue import Queue

_AT_ONCE_MAX = 50_000
"""A limit that comes to a long queue drops no more in a turn; others have theirs in between."""


def room(queue: Queue, bodies: Sequence[Sized]) -> tuple[int, int]:
    """How many messages a queue takes of these before it refuses some, and how many it refuses then: one that is too
    large does not stand in the way of smaller ones. What its consumers may be given counts, once: what waits has it
    first. Nothing does while messages wait whose keys are held: others of these keys would wait, too.
    """
    settings, sizes, count = queue.settings, queue.rules.sizes, len(bodies)
    if not settings.limited or settings.overflow == "drop-head":
        return count, 0
    held_up = queue.groups is not None and queue.groups.aside.count
    straight = 0 if held_up else queue.turns.credit(settings.priority_window)
    waiting = queue.message_count + queue.partition.held_for(queue)
    left = count
    if settings.max_length is not None:
        left = max(0, settings.max_length + straight - waiting)
    taken, over = min(left, count), max(0, count - left)
    free = max(0, straight - waiting)
    if sizes is not None and settings.max_length_bytes is not None and free < taken:
        end, lengths = free, list(map(len, bodies))
        waiting_bytes = sizes.waiting_bytes + queue.partition.held_bytes_for(queue)
        space = settings.max_length_bytes - waiting_bytes * max(0, waiting - straight) // max(1, waiting)
        while end < taken and lengths[end] <= space:
            space -= lengths[end]
            end += 1
        if end < taken:
            fits = (at for at in range(end + 1, taken) if lengths[at] <= space)
            taken, over = end, next(fits, count) - end
    return taken, over


def enforce(queue: Queue) -> None:
    """Drop what is too much, the oldest of the lowest priority; not where publishers are refused: those who were not
    keep what they have, whatever came back since. Of very many some go in this turn, and some in each of the next.
    """
    settings, sizes = queue.settings, queue.rules.sizes
    if settings.overflow != "drop-head":
        return
    dropped: list[int] = []
    over = 0 if settings.max_length is None else min(queue.message_count - settings.max_length, _AT_ONCE_MAX)
    while over > len(dropped) and _drop_oldest(queue, over - len(dropped), dropped):
        pass
    if sizes is not None and settings.max_length_bytes is not None:
        while (over := sizes.waiting_bytes - settings.max_length_bytes) > 0 and len(dropped) < _AT_ONCE_MAX:
            if not _drop_oldest(queue, _AT_ONCE_MAX - len(dropped), dropped, over):
                break
    if len(dropped) >= _AT_ONCE_MAX:
        queue.host.at_ms(queue.host.now_ms(), queue.wake)
    if dropped:
        queue.gave_way += len(dropped)
        queue.host.gave_way(queue, len(dropped))
        queue.outstanding += len(dropped)
        queue.bury(dropped, MAXLEN)


def _drop_oldest(queue: Queue, most: int, dropped: list[int], over_bytes: int | None = None) -> bool:
    """Of one run, at most so many, and no more than have `over_bytes`; whether there was anything."""
    line = queue.line if queue.levels is None else queue.levels.lowest()
    if queue.groups is not None and queue.groups.aside.count:
        line = queue.groups.aside
    first, count, _ = line.head()
    count = min(count, most)
    if count:
        if over_bytes is not None and queue.rules.sizes is not None:
            count = queue.rules.sizes.until(first, count, over_bytes)
        queue.rules.gone(first, count)
        line.take(count)
        dropped += range(first, first + count)
    return bool(count)
