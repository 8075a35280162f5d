"""How much may wait in a queue, and what becomes of the rest.

Limits are enforced after deliveries: what went straight through never counted. Who is dropped dies ("maxlen").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routing.queues.queue import Queue


def room(queue: Queue) -> int:
    """How many more messages a queue takes now before it refuses publishers: its consumers' credit counts."""
    settings, sizes = queue.settings, queue.rules.sizes
    left: int = 1 << 30
    if settings.max_length is not None:
        left = settings.max_length - queue.message_count - queue.partition.held_for(queue)
    if sizes is not None and settings.max_length_bytes is not None:
        left = left if sizes.waiting_bytes < settings.max_length_bytes else 0
    return max(0, left) + sum(max(0, min(consumer.credit(), 1 << 20)) for consumer in queue.consumers)


def enforce(queue: Queue) -> None:
    """Drop what is too much: the oldest of the lowest priority, or the newest where publishers are refused."""
    settings, sizes = queue.settings, queue.rules.sizes
    if settings.overflow == "reject-publish":
        return
    dropped: list[int] = []
    over = 0 if settings.max_length is None else queue.message_count - settings.max_length
    if over > 0 and settings.overflow == "reject-publish-dlx":
        dropped = _drop_newest(queue, over)
    while over > len(dropped) and _drop_oldest(queue, over - len(dropped), dropped):
        pass
    if sizes is not None and settings.max_length_bytes is not None:
        while sizes.waiting_bytes > settings.max_length_bytes and _drop_oldest(queue, 1, dropped):
            pass
    if dropped:
        queue.gave_way += len(dropped)
        queue.host.gave_way(queue, len(dropped))
        queue.outstanding += len(dropped)
        queue.bury(dropped, "maxlen")


def _drop_oldest(queue: Queue, most: int, dropped: list[int]) -> bool:
    line = queue.line if queue.levels is None else queue.levels.lowest()
    if queue.groups is not None and queue.groups.aside.count:
        line = queue.groups.aside
    first, count, _ = line.head()
    count = min(count, most)
    if count:
        queue.rules.gone(first, count)
        line.take(count)
        dropped += range(first, first + count)
    return bool(count)


def _drop_newest(queue: Queue, count: int) -> list[int]:
    """The last that came: all of them lie at the end of the partition's log."""
    newest: list[int] = []
    for line in queue.lines():
        for first, number in reversed(list(line.ready.ranges())):
            take = min(number, count - len(newest))
            newest += range(first + number - take, first + number)
    newest = sorted(newest)[-count:]
    for line in queue.lines():
        line.ready.discard(newest)
    queue.rules.forget_sizes(newest)
    return newest
