"""What a queue needs of the engine around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from delay.timer_service import Timer
    from routing.message import Slab
    from routing.queues.fact_columns import FactColumns
    from routing.queues.queue import Queue
    from routing.queues.slab_cache import CachedSlab
    from routing.queues.view import TopicFeed
    from routing.queues.view_queue import ViewQueue


class QueueHost(Protocol):
    """Implemented by the broker."""

    impatient: WeakSet[Queue]
    """Queues that limit how long a delivery may be held."""

    views: WeakSet[ViewQueue]
    """Queues that are views of topics."""

    deaths: Counter[str]
    """How many messages have died since the start, by reason (`death_history.py`); dead letter exchange or not."""

    def topics_changed(self) -> None:
        """A topic is there, or has more partitions."""

    def topic_feed(self, topic: str, advanced: Callable[[], None]) -> TopicFeed:
        """A topic for a view, which is told when there may be more."""

    def runnable(self, queue: Queue) -> None:
        """Pump the queue when the turn ends."""

    def now_ms(self) -> int:
        """The time in ms since the epoch, on a clock that never goes back while the process lives."""

    def at_ms(self, due_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back at a time of `now_ms`; a turn ends afterwards."""

    def dead_letter(self, queue: Queue, offsets: Sequence[int], reason: str) -> None:
        """Publish copies of messages to the queue's dead letter exchange and settle the originals once that is safe.

        The messages are in no line of the queue any more and count as outstanding. `reason` is "rejected", "expired",
        "maxlen" or "delivery_limit".
        """

    def refused(self, queue: Queue, slab: Slab) -> None:
        """A full queue did not take these messages, which die of that without having been in it."""

    def gave_way(self, queue: Queue, count: int) -> None:
        """So many messages had to leave a queue because of its length, with a dead letter exchange or without."""

    def unused(self, queue: Queue) -> None:
        """Nobody has used the queue for as long as it lives without: delete it."""


class MessageStore(Protocol):
    """Where messages of a queue lie: its home partition, or of a view, its topic. They are known by offset."""

    @property
    def facts(self) -> FactColumns:
        """What they ask for."""

    @property
    def find(self) -> Callable[[int], CachedSlab | None]:
        """The slab that holds an offset, if it is in memory."""

    @property
    def load(self) -> Callable[[int, Any], None]:
        """Read what an offset begins for a queue, which is pumped again when it is here."""

    @property
    def load_now(self) -> Callable[[int, Any], Awaitable[None]]:
        """As `load`, for one who can wait."""

    @property
    def load_scattered(self) -> Callable[[list[int], Any], bool]:
        """As `load`, for messages far apart; False if the first has to be asked for with `load`."""

    @property
    def read_scattered(self) -> Callable[[Sequence[int]], Awaitable[None]]:
        """As `load_scattered`, for one who can wait."""

    @property
    def awaits(self) -> Callable[[Any], bool]:
        """A queue wants what is not in memory; whether it has a `load_scattered` under way."""

    def settle(self, queue_id: int, first: int, count: int) -> None:
        """A queue is done with these messages."""

    def settle_offsets(self, queue_id: int, offsets: list[int]) -> None:
        """As `settle`, for rising offsets that do not lie together."""

    def forget(self, first: int, count: int) -> None:
        """Messages of a deleted queue."""
