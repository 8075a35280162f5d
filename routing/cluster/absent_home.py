"""A home that another broker leads, or nobody, where nothing forwards to it: its queues are names and settings.

What is metadata works: declaring, binding, deleting, listing. All else says who leads the queue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, cast

from core_log.errors import LogUnavailable
from core_log.partition_log import PartitionLog
from routing.errors import StorageUnavailable
from routing.message import Slab
from routing.queues.destination_sets import DestinationSet, DestinationSets
from routing.queues.queue import Queue
from routing.queues.queue_rules import QueueRules
from routing.queues.settings import QueueSettings

if TYPE_CHECKING:
    from routing.consumer import Consumer
    from routing.queues.home import Declared
    from routing.queues.host import QueueHost
    from routing.queues.queue_partition import QueuePartition


def led_by(broker: int | None) -> str:
    """Where something is, for a sentence."""
    return "has no leader now" if broker is None else f"is led by broker {broker}"


class AbsentHome:
    """See the module. `leader` answers with the broker that leads it now."""

    durable = True
    next_offset = 0
    suspended = False

    def __init__(self, index: int, leader: Callable[[], int | None]) -> None:
        self.index = index
        self.queues: dict[int, Queue] = {}
        self._leader = leader
        self._sets = DestinationSets()

    @property
    def leader(self) -> str:
        """Who leads it, for a sentence."""
        return led_by(self._leader())

    @property
    def error(self) -> StorageUnavailable:
        """See `Home`."""
        return StorageUnavailable(f"home partition {self.index} {self.leader}")

    @property
    def log(self) -> PartitionLog:
        """Nothing is ever waited for."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise LogUnavailable(str(self.error))

    def destination_set(self, queues: tuple[Queue, ...]) -> DestinationSet:
        """See `Home`."""
        return self._sets.get(queues)

    def enqueue(self, slab: Slab, destinations: DestinationSet) -> int:
        """Refused, see `error`."""
        self._refuse()

    def prepare(self, destinations: DestinationSet) -> None:
        """Refused, see `error`."""
        self._refuse()

    def make_queue(self, queue_id: int, name: str, host: QueueHost, **declared: Unpack[Declared]) -> Queue:
        """See `Home`."""
        # What it has of a partition is all that an `AbsentQueue` asks for.
        here = cast("QueuePartition", self)
        queue = self.queues[queue_id] = AbsentQueue(queue_id, name, here, host, **declared)
        queue.home = self
        return queue

    def remove(self, queue: Queue) -> None:
        """See `Home`."""
        self.queues.pop(queue.id, None)


class AbsentRules(QueueRules):
    """Nothing happens here by itself: its leader sees to that."""

    __slots__ = ()

    def changed(self) -> None:
        """See `QueueRules`."""

    def used(self) -> None:
        """See `QueueRules`."""


class AbsentQueue(Queue):
    """See the module."""

    __slots__ = ("home",)
    home: AbsentHome

    def __init__(
        self, queue_id: int, name: str, home: QueuePartition, host: QueueHost, **declared: Unpack[Declared]
    ) -> None:
        super().__init__(queue_id, name, home, host, **declared)
        self.rules = AbsentRules(self, host)

    def _refuse(self) -> NoReturn:
        raise StorageUnavailable(f"queue '{self.name}' in vhost '{self.vhost}' {self.home.leader}")

    def require_led(self) -> None:
        """See `Queue`."""
        self._refuse()

    def apply_settings(self, settings: QueueSettings) -> None:
        """They are its leader's to follow."""
        self.settings = settings

    def remember(self, who: str | None, window_ms: int) -> None:
        """See `Queue`."""

    def attach(self, consumer: Consumer, arguments: Mapping[str, Any]) -> Awaitable[None] | None:
        """Refused."""
        self._refuse()

    def head(self) -> tuple[int, int, bool]:
        """Refused: nobody knows here."""
        self._refuse()

    def shed(self, count: int) -> int:
        """Refused."""
        self._refuse()
