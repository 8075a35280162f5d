"""What a session was given and has not settled: what becomes of it, at once or with a transaction.

1. What is unsettled is kept as runs of ids that map to runs of offsets, so a million unsettled messages of one backlog
   are one entry.
2. Within a transaction settlements are taken out of what is unsettled, and take effect when it is committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from routing.errors import PreconditionFailed
from routing.queues.homes.receipts import receive
from routing.queues.queue import Queue
from routing.queues.retries import Cause
from routing.topics.stream import Stream
from routing.unsettled import ACK, Outcome, Unsettled, entry_first, require_returnable

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.consumer import Consumer
    from routing.transactions import Transaction


class Settling:
    """See the module; `Session` is one, and has what settling is about."""

    broker: Broker
    closed: bool
    prefetch: int
    outstanding: int
    next_id: int
    consumers: dict[Consumer, None]
    first_resumed: int
    unsettled: list[Unsettled]
    transaction: Transaction | None

    def settle(self, first_id: int, last_id: int, outcome: Outcome) -> None:
        """Settle a range of deliveries. Raises PreconditionFailed at the first id that is not outstanding, and
        LimitExceeded when a transaction that has them is too large.
        """
        if outcome is not ACK:
            require_returnable(self.unsettled, first_id, last_id)
        unsettled = self.unsettled
        while first_id <= last_id:
            index = bisect_right(unsettled, first_id, key=entry_first) - 1 if len(unsettled) > 1 else 0
            if index < 0 or not unsettled or not unsettled[index].first <= first_id < unsettled[index].end:
                raise PreconditionFailed(f"unknown delivery tag {first_id}")
            end = unsettled[index].end
            stop = last_id + 1 if last_id < end else end
            self._settle_part(index, first_id, stop, outcome)
            first_id = stop

    def settle_up_to(self, last_id: int, outcome: Outcome) -> None:
        """Settle every delivery up to and including `last_id`, all of them for 0.

        Raises PreconditionFailed if `last_id` itself is not outstanding, except for 0; LimitExceeded as `settle`.
        """
        unsettled = self.unsettled
        if last_id == 0:
            last_id = self.next_id - 1
        else:
            index = bisect_right(unsettled, last_id, key=entry_first) - 1
            if index < 0 or last_id >= unsettled[index].end:
                raise PreconditionFailed(f"unknown delivery tag {last_id}")
        if outcome is not ACK and not self.closed:
            require_returnable(self.unsettled, 0, last_id)
        whole = 0
        for entry in unsettled:
            if entry.end - 1 > last_id:
                break
            whole += 1
        done = unsettled[:whole]
        del unsettled[:whole]
        for entry in done:
            self._finish(entry, entry.first, entry.offsets_of(entry.first, entry.end), outcome)
        if unsettled and unsettled[0].first <= last_id:
            self._settle_part(0, unsettled[0].first, last_id + 1, outcome)
        elif self.transaction is not None:
            self.transaction.require_size()

    def first_unsettled(self, consumer: Consumer) -> int | None:
        """The lowest offset that was delivered to this consumer of a stream and is not settled."""
        for entry in self.unsettled:
            if entry.consumer is consumer:
                return entry.offset
        return None

    def _settle_part(self, index: int, first: int, stop: int, outcome: Outcome) -> None:
        """Settle the ids [first, stop) of one entry, which shrinks, splits or goes."""
        unsettled = self.unsettled
        entry = unsettled[index]
        offsets = entry.offsets_of(first, stop)
        if first > entry.first:
            rest = entry.cut(first, stop)
            if rest is not None:
                unsettled.insert(index + 1, rest)
        elif stop < entry.end:
            entry.begin_at(stop)
        else:
            del unsettled[index]
        self._finish(entry, first, offsets, outcome)
        if self.transaction is not None:
            self.transaction.require_size()

    def _finish(self, entry: Unsettled, first: int, offsets: Sequence[int], outcome: Outcome) -> None:
        """Settle the ids from `first` on, which have these offsets: now, or when the transaction is committed."""
        queue, count = entry.queue, len(offsets)
        if self.transaction is not None:
            scattered = None if entry.offsets is None else list(offsets)
            taken = Unsettled(first, first + count, offsets[0], queue, entry.consumer, scattered)
            self.transaction.take(taken, outcome)
            return
        if outcome is ACK and entry.offsets is None:
            queue.settle(offsets[0], count)
        elif isinstance(queue, Stream):
            queue.give_back(offsets[0], count)
        elif outcome is ACK:
            queue.settle_offsets(offsets)
        elif outcome is Outcome.RECEIVED and isinstance(queue, Queue):
            receive(queue, offsets)
        elif outcome is Outcome.REQUEUE:
            queue.give_back_offsets(offsets, Cause.REQUEUED)
        elif outcome is Outcome.RELEASE:
            queue.give_back_offsets(offsets, Cause.LOST)
        elif outcome is Outcome.UNSEEN or outcome is Outcome.UNSEEN_AGAIN:
            queue.not_seen(offsets, outcome is Outcome.UNSEEN_AGAIN)
        else:
            queue.reject(offsets)
        consumer = entry.consumer
        if consumer is None:
            return
        limited = self.prefetch and self.outstanding >= self.prefetch
        self.outstanding -= count
        if limited:
            self.resume()
        consumer.outstanding -= count
        consumer.level = None
        if not consumer.queue.awake:
            consumer.queue.wake()

    def finish(self, entry: Unsettled, outcome: Outcome) -> None:
        """Called by a commit: settle what the transaction has taken."""
        with self._at_once():
            self._finish(entry, entry.first, entry.offsets_of(entry.first, entry.end), outcome)

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """Settlements within the block do not wait for the commit."""
        transaction, self.transaction = self.transaction, None
        try:
            yield
        finally:
            self.transaction = transaction

    def take_back(self, transaction: Transaction) -> None:
        """What it has taken is outstanding again, or returned if the session has been closed."""
        if self.closed:
            for entry, _ in transaction.taken:
                self.finish(entry, Outcome.RELEASE)
        else:
            self.unsettled = sorted([*self.unsettled, *(entry for entry, _ in transaction.taken)], key=entry_first)

    def recover(self) -> None:
        """Return every unsettled delivery (AMQP 0-9-1 basic.recover), but those that the transaction has taken."""
        with self._at_once():
            self.settle_up_to(0, Outcome.RELEASE)

    def resume(self) -> None:
        """Deliveries may be possible again. Each time the queue of another consumer is first: where all of them share a
        limit, what may be outstanding goes to whoever is.
        """
        consumers = list(self.consumers)
        at = self.first_resumed = self.first_resumed + 1 if self.first_resumed + 1 < len(consumers) else 0
        for consumer in (*consumers[at:], *consumers[:at]) if at else consumers:
            consumer.queue.wake()
