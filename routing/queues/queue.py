"""A queue: a destructive cursor over its home partition.

A message is known here by its offset alone. It is ready, or delivered (then a session holds its offset until it is
settled), or returned; what has been settled is simply not there any more. Returned messages go first, in their
original order.

Whoever changes something that may allow a delivery calls `wake`; the broker pumps the woken queues when the turn ends.
With one consumer a run is handed over whole; with several each gets its turn, in shares no larger than what keeps all
of them busy. Where nothing has to be remembered (`passes`) a message never enters the queue at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from routing.errors import AccessRefused
from routing.queues.offset_set import OffsetSet, Range, ReturnedOffsets

if TYPE_CHECKING:
    from routing.queues.queue_partition import QueuePartition
    from routing.session import Consumer

_SHARE_MAX = 64
"""Most messages a consumer gets in one go while others of the queue wait for theirs."""


class Queue:
    """One queue. Its properties never change after it was declared."""

    __slots__ = (
        "_next_consumer", "_runnable", "arguments", "auto_delete", "awake", "consumers", "deleted", "durable",
        "exclusive", "id", "name", "outstanding", "owner", "partition", "ready", "redelivered_before", "returned",
        "vhost",
    )  # fmt: skip

    def __init__(
        self,
        queue_id: int,
        name: str,
        partition: QueuePartition,
        runnable: Callable[[Queue], None],
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        owner: object,
    ) -> None:
        self.id = queue_id
        self.name = name
        self.vhost = "/"
        self.partition = partition
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.owner = owner
        self.ready = OffsetSet()
        self.returned = ReturnedOffsets()
        self.redelivered_before = 0
        """Ready messages below this offset may have been delivered before a restart."""
        self.outstanding = 0
        """Delivered and not yet settled."""
        self.consumers: list[Consumer] = []
        self.awake = False
        self.deleted = False
        self._next_consumer = 0
        self._runnable = runnable

    @property
    def message_count(self) -> int:
        """Messages that could be delivered now."""
        return self.ready.count + self.returned.count

    def attach(self, consumer: Consumer, arguments: Mapping[str, Any]) -> None:
        """Make it a consumer of this queue. Raises AccessRefused when there is an exclusive one, or must be none."""
        if self.consumers and (consumer.exclusive or self.consumers[0].exclusive):
            raise AccessRefused(f"queue '{self.name}' in vhost '{self.vhost}' in exclusive use")
        self.consumers.append(consumer)

    def detach(self, consumer: Consumer) -> None:
        """It consumes no more."""
        self.consumers.remove(consumer)

    def enqueue(self, first: int, count: int) -> None:
        """Add messages at the end."""
        self.ready.append(first, count)
        if self.consumers and not self.awake:
            self.awake = True
            self._runnable(self)

    def wake(self) -> None:
        """Something changed that may allow a delivery."""
        if not self.awake and self.consumers:
            self.awake = True
            self._runnable(self)

    def give_back(self, first: int, count: int) -> None:
        """Return delivered messages; they will be redelivered before all others."""
        self.outstanding -= count
        if self.deleted:
            self.partition.forget(first, count)
            return
        self.returned.add(first, count)
        self.wake()

    def settle(self, first: int, count: int) -> None:
        """Delivered messages are done with."""
        self.outstanding -= count
        if self.deleted:
            self.partition.forget(first, count)
        else:
            self.partition.settle(self.id, first, count)

    # --- giving out --------------------------------------------------------------------

    def head(self) -> tuple[int, int, bool]:
        """First offset, contiguous count and redelivered flag of what comes next; count 0 when there is nothing."""
        first, count = self.returned.head()
        if count:
            return first, count, True
        first, count = self.ready.head()
        if first < self.redelivered_before:
            return first, min(count, self.redelivered_before - first), True
        return first, count, False

    def take(self, count: int) -> None:
        """Remove the first `count` of `head()`: they are delivered now."""
        self.outstanding += count
        if self.returned.count:
            self.returned.drop(count)
        else:
            self.ready.drop(count)

    def passes(self) -> bool:
        """Whether a message could go straight to the only consumer, who settles nothing: none waits before it."""
        if self.ready.count or self.returned.count or len(self.consumers) != 1:
            return False
        consumer = self.consumers[0]
        return consumer.no_ack and consumer.credit() > 0

    def pump(self) -> None:
        """Deliver what can be delivered: messages to consumers with credit."""
        while True:
            first, count, redelivered = self.head()
            if not count:
                return
            consumer, credit = self._choose()
            if consumer is None:
                return
            entry = self.partition.find(first)
            if entry is None:
                self.partition.load(first, self)
                return
            start = first - entry.first
            count = min(count, credit, entry.end - first)
            self.take(count)
            consumer.session.hand_over(consumer, entry.slab, start, start + count, first, redelivered)

    def _choose(self) -> tuple[Consumer | None, int]:
        """The next consumer in turn that has credit, and how many messages it may have."""
        consumers = self.consumers
        if len(consumers) == 1:
            credit = consumers[0].credit()
            return (consumers[0], credit) if credit > 0 else (None, 0)
        for _ in range(len(consumers)):
            index = self._next_consumer % len(consumers)
            self._next_consumer = index + 1
            credit = consumers[index].credit()
            if credit > 0:
                share = -(-self.message_count // len(consumers))
                return consumers[index], min(credit, max(1, min(share, _SHARE_MAX)))
        return None, 0

    def skip_unreadable(self, offset: int) -> None:
        """Give up on a message that the log does not hold any more."""
        first, count, _ = self.head()
        if count and first == offset:
            self.take(1)
            self.settle(first, 1)
        self.wake()

    # --- emptying ----------------------------------------------------------------------

    def live_ranges(self) -> Iterable[Range]:
        """Ready and returned messages, in no particular order."""
        yield from self.returned.ranges()
        yield from self.ready.ranges()

    def shed(self, count: int) -> int:
        """Give up the oldest messages that are not delivered, at most `count`; how many there were."""
        left = count
        while left:
            first, number, _ = self.head()
            number = min(number, left)
            if not number:
                break
            self.take(number)
            self.settle(first, number)
            left -= number
        return count - left

    def purge(self) -> int:
        """Settle all that is ready or returned; how many there were."""
        count = self.message_count
        for first, number in list(self.live_ranges()):
            self.outstanding += number
            self.settle(first, number)
        self.ready.clear()
        self.returned.clear()
        return count
