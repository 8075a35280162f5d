"""How far readers that are no consumers are behind in queues: Spark's queries.

1. Who consumes a queue in steps has a reservation (`queues/reservations.py`). Its lag is what is set aside for it and
   not done with, and all that waits, of which others may get a part.
2. Who browses a queue says where it stands, with a lease as readers of topics have (`topics/leases.py`) that holds
   nothing back: in memory, for as long as it said. Its lag is what waits at that offset of the home's log or behind it.
3. In seconds that is the age of the oldest of these messages. It is looked up when somebody asks; nothing is counted
   for it per message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from core_log.errors import LogError
from routing.errors import BrokerError, PreconditionFailed
from routing.queue_reading import published_at
from routing.topics.leases import Leases

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue


class Standing(NamedTuple):
    """Where a reader stands in a queue."""

    queue: Queue
    group: str
    mode: Literal["browse", "consume"]
    position: int
    """The next offset of the home's log (browse), or position of the reservation (consume)."""
    lag: int
    """Messages."""
    oldest: int | None
    """The offset of the oldest of these; None: there are none."""


def stand(broker: Broker, queue: Queue, reader: str, offset: int, lease_ms: int) -> None:
    """A reader that browses a queue has come up to an offset; it is known for so long. 0: no longer. Raises
    LimitExceeded, PreconditionFailed (a view).
    """
    if queue.settings.view_of is not None:
        raise PreconditionFailed(f"queue '{queue.name}' is a view: read its topic '{queue.settings.view_of}'")
    key, now_ms = (queue.vhost, queue.name), broker.clock.now_ms()
    if lease_ms > 0:
        broker.browsed.setdefault(key, Leases()).renew(reader, offset, now_ms + lease_ms, now_ms)
    elif key in broker.browsed:
        broker.browsed[key].give_back(reader)


def tidy(broker: Broker) -> None:
    """Forget who was not heard of, and queues that are gone or led elsewhere now."""
    now_ms = broker.clock.now_ms()
    for (vhost, name), leases in list(broker.browsed.items()):
        leases.drop_ended(now_ms)
        host = broker.topology.vhosts.get(vhost)
        queue = None if host is None else host.queues.get(name)
        if not leases.held or queue is None or queue.elsewhere:
            del broker.browsed[vhost, name]


def groups(broker: Broker) -> set[str]:
    """The names of all readers of queues that are led here."""
    found = {reader for queue in broker.topology.all_queues() if _is_here(queue) for reader in queue.reserved or ()}
    now_ms = broker.clock.now_ms()
    return found.union(
        reader for leases in broker.browsed.values() for reader, held in leases if held.until_ms > now_ms
    )


def standings(broker: Broker, queue: Queue, group: str | None = None) -> Iterator[Standing]:
    """The readers of a queue, if it is led here, or the one of a name."""
    reserved, leases = queue.reserved or {}, broker.browsed.get((queue.vhost, queue.name), ())
    if not (reserved or leases) or not _is_here(queue):
        return
    for reader, found in reserved.items():
        if group is None or group == reader:
            waiting = [first for first, _ in found.ranges]
            waiting += [line.head()[0] for line in queue.lines() if line.count]
            lag = found.count + queue.message_count
            yield Standing(queue, reader, "consume", found.position, lag, min(waiting, default=None))
    now_ms = broker.clock.now_ms()
    for reader, held in leases:
        if held.until_ms > now_ms and (group is None or group == reader):
            behind = [line.from_on(held.offset) for line in queue.lines() if line.count]
            oldest = min((first for count, first in behind if count), default=None)
            yield Standing(queue, reader, "browse", held.offset, sum(count for count, _ in behind), oldest)


def _is_here(queue: Queue) -> bool:
    return not queue.elsewhere and not queue.deleted


def first_waiting(queue: Queue) -> int | None:
    """The offset of the oldest message that waits; None if there is none."""
    return min((line.head()[0] for line in queue.lines() if line.count), default=None)


async def oldest_ms(standing: Standing) -> int | None:
    """When the oldest message was published that a reader has not read; None if nobody knows: there is none, or see
    `published_ms`.
    """
    return None if standing.oldest is None else await published_ms(standing.queue, standing.oldest)


async def published_ms(queue: Queue, offset: int) -> int | None:
    """When a message was published; None if it is one of a transient queue, or the disk does not say."""
    if not queue.partition.durable:
        return None
    try:
        found_ms, _ = await published_at(queue, offset)
    except (BrokerError, LogError, OSError):
        return None
    return found_ms
