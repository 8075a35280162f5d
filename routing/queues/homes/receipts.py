"""Being done with messages in two steps, and publishing them in two: both ends of a hand-over that happens once.

1. *Received* messages are settled, but who got them still knows them by what they are called, so that nothing else may
   be called that: the queue holds their offsets (`Queue.held`) until they are *completed*. One record does both, and
   survives as settlements do.
2. A publisher's numbers are in use until they are *released* (`publish_numbers.py`).
3. What the other end is told of either has to be committed first: see `Confirms.when_written`.
4. Where another broker leads the home it is told so (`LedElsewhere.tell`), in the order of what is published there, by
   names that outlive deliveries: ids of queues, offsets, numbers. To be told twice is to be told once
   (`cluster/clients/orders.py`). What is told has the epoch of the client's connection (`publish_numbers.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from routing.queues.offset_set import OffsetSet
from routing.queues.runs_of import runs_of

if TYPE_CHECKING:
    from routing.queues.homes.home import Home
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.queue import Queue


RECEIVED, COMPLETED, RELEASED, RELEASED_FROM = "received", "completed", "released", "released from"


class LedElsewhere(Protocol):
    """A home that another broker leads."""

    def tell(self, fields: Sequence[Any], epoch: int) -> int:
        """Have that one do something for a client; up to where the home's `log` has to get for it to be safe."""


def receive(queue: Queue, offsets: Sequence[int]) -> None:
    """Delivered messages are received. Where nothing outlives the process, or another broker leads the queue, they are
    completed with it.
    """
    partition = queue.partition
    if queue.deleted or queue.elsewhere or not partition.durable:
        queue.settle_offsets(offsets)
        return
    queue.outstanding -= len(offsets)
    if queue.groups is not None:
        queue.groups.release(offsets)
    if queue.held is None:
        queue.held = OffsetSet()
    for first, count in runs_of(offsets):
        if queue.returns is not None and queue.returns.tries:
            queue.returns.forget(first, count)
        queue.held.add(first, count)
        partition.live.release(first, count)
        partition.unsealed.received.append((queue.id, first, count))
    partition.mark_dirty()


def complete(queue: Queue, offsets: Sequence[int], epoch: int = 0) -> None:
    """Received messages are completed; those that are not held are passed over."""
    if queue.elsewhere:
        tell(queue, COMPLETED, offsets, epoch)
        return
    found = queue.held.discard(offsets) if queue.held is not None and not queue.deleted else []
    if found:
        queue.partition.unsealed.completed += [(queue.id, first, count) for first, count in runs_of(found)]
        queue.partition.mark_dirty()


def begin(home: Home, client: int, epoch: int) -> bool:
    """A client says something over its connection of this epoch to a home that is led here; False: it has a later one,
    and nothing is to be done.
    """
    assert home.numbers is not None
    known = home.numbers.epochs.get(client, 0)
    if epoch > known:
        _begin(cast("QueuePartition", home), client, epoch)
    return not 0 < epoch < known


def _begin(partition: QueuePartition, client: int, epoch: int) -> None:
    partition.numbers.begin(client, epoch)
    partition.unsealed.epochs.append((client, epoch))
    partition.mark_dirty()


def release(home: Home, publisher: int, numbers: Collection[int] = (), epoch: int = 0) -> bool:
    """Numbers of a publisher may be used again, or the publisher is gone without any; whether there is something to be
    written.
    """
    if home.numbers is None:
        cast("LedElsewhere", home).tell((RELEASED, publisher, list(numbers)), epoch)
        return True
    partition = cast("QueuePartition", home)
    begin(home, publisher, epoch)
    if not numbers and publisher in home.numbers.epochs:
        _begin(partition, publisher, 0)
    found = home.numbers.release(publisher, numbers)
    if found:
        partition.unsealed.released.append((publisher, found))
        partition.mark_dirty()
    return bool(found or partition.unsealed.epochs)


def release_from(home: Home, first: int, *, but: int) -> None:
    """All numbers of the publishers from an id on may be used again, except for one's."""
    if home.numbers is None:
        cast("LedElsewhere", home).tell((RELEASED_FROM, first, but), 0)
        return
    for publisher in [one for one in home.numbers.by_publisher if one >= first and one != but]:
        release(home, publisher)


def tell(queue: Queue, what: str, offsets: Iterable[int], epoch: int) -> None:
    """Say to who leads a queue what became of messages."""
    ranges = [one for first, count in runs_of(sorted(offsets)) for one in (first, first + count - 1)]
    cast("LedElsewhere", queue.partition).tell((what, queue.id, ranges), epoch)
