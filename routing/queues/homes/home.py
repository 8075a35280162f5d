"""What stands for a home partition, wherever its queues are led.

Where this broker leads them it is a `QueuePartition`, whose log is here. For what is led by other brokers something
else takes its place that has the same queues, made from the same entries, so that routes and the topology need not
know the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict, Unpack

from routing.errors import StorageUnavailable
from routing.queues.settings import QueueSettings

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.message import Slab
    from routing.queues.homes.destination_sets import DestinationSet
    from routing.queues.host import QueueHost
    from routing.queues.publish_numbers import PublishNumbers
    from routing.queues.queue import Queue


class Declared(TypedDict):
    """What a queue is told of itself beside its id and its name."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    owner: object
    settings: QueueSettings
    start: NotRequired[Sequence[int]]


class Home(Protocol):
    """See the module."""

    index: int
    """Its stripe number, -1 for the transient one."""
    durable: bool
    queues: dict[int, Queue]
    """By id; histories of queues are among them."""
    retired: bool
    """Another object is this home now."""
    for_others: bool
    """What is published now is published again by somebody else if it is lost: see `for_others`."""

    @property
    def log(self) -> PartitionLog:
        """What confirms wait for, with the offsets that `enqueue` returns."""

    @property
    def error(self) -> StorageUnavailable | None:
        """Why nothing can be published to it now. A route that leads there asks before it delivers."""

    @property
    def next_offset(self) -> int:
        """Up to where `log` has to get for all that was taken to be safe."""

    @property
    def instead(self) -> Home | None:
        """What takes publishes while there is an `error` that may pass."""

    @property
    def numbers(self) -> PublishNumbers | None:
        """Of publishes that may be said again, where they are known here."""

    def destination_set(self, queues: tuple[Queue, ...]) -> DestinationSet:
        """The set of exactly these of its queues."""

    def enqueue(self, slab: Slab, destinations: DestinationSet) -> int:
        """Take a slab for the queues of a set; up to where `log` has to get for it to be safe. Raises
        LogUnavailable.
        """

    def prepare(self, destinations: DestinationSet) -> None:
        """See to it that `enqueue` cannot be refused any more. Raises LogUnavailable."""

    def make_queue(self, queue_id: int, name: str, host: QueueHost, **declared: Unpack[Declared]) -> Queue:
        """Have a queue from now on; it is in `queues`."""

    def remove(self, queue: Queue) -> None:
        """A queue is deleted."""

    def settlements_due(self) -> None:
        """What was settled or told so far is written when the turn ends."""


def led_elsewhere(homes: Iterable[Home]) -> bool:
    """Whether another broker leads one of them by now: what was settled there may be unknown to it."""
    return any(home.retired for home in homes)


@contextmanager
def for_others(homes: Iterable[Home]) -> Iterator[None]:
    """What is published to these homes within the block need not outlive their leaders: whoever publishes it keeps it
    until it is committed, and does it again.
    """
    for home in homes:
        home.for_others = True
    try:
        yield
    finally:
        for home in homes:
            home.for_others = False
