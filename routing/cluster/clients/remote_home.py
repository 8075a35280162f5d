"""A home that another broker leads: what is published to it is sent there, its queues are `RemoteQueue`s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from routing.cluster.clients.orders import NO_QUEUE, for_queues, order
from routing.cluster.clients.remote_queue import RemoteQueue
from routing.cluster.clients.streams import Stream
from routing.cluster.metadata.log_names import home_log
from routing.commits import storage_error
from routing.errors import StorageUnavailable
from routing.message import Slab
from routing.queues.homes.destination_sets import Definition, DestinationSet
from routing.queues.queue import Queue

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.cluster.clients.forwarding import Forwarding
    from routing.queues.homes.home import Declared
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.host import QueueHost
    from routing.queues.publish_numbers import PublishNumbers

_SLAB_MESSAGES_MAX = 1 << 16


def led_by(broker: int | None) -> str:
    """Where something is, for a sentence."""
    return "has no leader now" if broker is None else f"is led by broker {broker}"


class RemoteHome:
    """See the module; made by `Forwarding.home`."""

    durable = True
    suspended = False
    for_others = False
    """What is put here now queues take that are full: they were asked before, or take dead letters all the same."""
    retired = False
    instead = None
    numbers: PublishNumbers | None = None
    """What its leader knows of publishes that were numbered it does not tell: there they may come twice."""

    def __init__(self, index: int, forwarding: Forwarding) -> None:
        self.index = index
        self.queues: dict[int, Queue] = {}
        self.name = home_log(index)
        self.forwarding = forwarding
        self.stream: Stream = forwarding.stream(self.name)
        self.again = False
        """What is put here now may have come there before, by other means than the stream."""

    @property
    def leader(self) -> str:
        """Who leads it, for a sentence."""
        return led_by(self.forwarding.leader_of(self.name)[0])

    @property
    def error(self) -> StorageUnavailable | None:
        """See `Home`."""
        return None if self.stream.error is None else storage_error(self.stream)

    @property
    def log(self) -> PartitionLog:
        """What a confirm asks of a log is all that a stream answers."""
        return cast("PartitionLog", self.stream)

    @property
    def next_offset(self) -> int:
        """See `Home`."""
        return self.stream.next_position

    def destination_set(self, queues: tuple[Queue, ...]) -> DestinationSet:
        """See `Home`; each route has its own."""
        ordered = tuple(sorted(queues, key=lambda queue: queue.id))
        return DestinationSet(Definition(0, tuple(queue.id for queue in ordered), 0, 0), ordered)

    def enqueue(self, slab: Slab, destinations: DestinationSet) -> int:
        """See `Home`."""
        ids, once_in_ms = destinations.definition.queue_ids, destinations.once_in_ms
        if self.for_others and any(queue.settings.guards_publishing for queue in destinations.queues):
            ids = (*ids, NO_QUEUE)
        count = len(slab.bodies)
        if count <= _SLAB_MESSAGES_MAX:
            return self.stream.take(count, slab.size, for_queues(ids, once_in_ms, slab, self.again))
        for start in range(0, count, _SLAB_MESSAGES_MAX):
            part = slab.part(start, min(start + _SLAB_MESSAGES_MAX, count))
            end = self.stream.take(len(part.bodies), part.size, for_queues(ids, once_in_ms, part, self.again))
        return end

    def held_for(self, queue: Queue) -> int:
        """See `QueuePartition`: its leader waits for these before it counts."""
        return 0

    def prepare(self, destinations: DestinationSet) -> None:
        """See `Home`."""

    def make_queue(self, queue_id: int, name: str, host: QueueHost, **declared: Unpack[Declared]) -> Queue:
        """See `Home`."""
        # What it has of a partition is all that a `RemoteQueue` asks for.
        here = cast("QueuePartition", self)
        queue = self.queues[queue_id] = RemoteQueue(queue_id, name, here, host, **declared)
        queue.home = self
        return queue

    def tell(self, fields: Sequence[Any], epoch: int) -> int:
        """See `LedElsewhere`."""
        return order(self.stream, fields, said_by=(fields[1], epoch) if epoch else None)

    def settlements_due(self) -> None:
        """See `Home`: what was told goes with the turn."""

    def remove(self, queue: Queue) -> None:
        """See `Home`."""
        self.queues.pop(queue.id, None)
