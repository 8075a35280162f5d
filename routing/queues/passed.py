"""What is delivered past a queue to a consumer whose deliveries end with it, or was taken from who held it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routing.queues.queue import Queue
    from routing.queues.retries import Cause


class Passed:
    """Stands for a queue in what a session has not settled: nobody has kept the messages, so there is nothing to do for
    them but to count. Offsets are the session's own ids, where nothing was kept.
    """

    __slots__ = ("name", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.name = queue.name

    def settle(self, first: int, count: int) -> None:
        """These are done with."""
        self.queue.outstanding -= count

    def settle_offsets(self, offsets: Sequence[int]) -> None:
        """The same."""
        self.queue.outstanding -= len(offsets)

    def give_back_offsets(self, offsets: Sequence[int], cause: Cause) -> None:
        """Nobody else is to have them."""
        self.settle_offsets(offsets)

    def not_seen(self, offsets: Sequence[int], redelivered: bool) -> None:
        """The same."""
        self.settle_offsets(offsets)

    def reject(self, offsets: Sequence[int]) -> None:
        """Nobody wants to know: a queue that would is not passed (`Queue.open_to`), and what is taken is gone."""
        self.settle_offsets(offsets)
