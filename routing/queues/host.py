"""What a queue needs of the engine around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from delay.timer_service import Timer
    from routing.queues.queue import Queue


class QueueHost(Protocol):
    """Implemented by the broker."""

    impatient: WeakSet[Queue]
    """Queues that limit how long a delivery may be held."""

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

    def unused(self, queue: Queue) -> None:
        """Nobody has used the queue for as long as it lives without: delete it."""
