"""A consumer of another broker as this one sees it: a session, its sink, and the link that both use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from routing.consumer import Consumer
from routing.errors import BrokerError
from routing.facts import pack
from routing.lives_left import comes_of_home, lives_left_ms
from routing.message import Slab
from routing.queues.runs_of import ranges_in_order
from routing.unsettled import entry_at

if TYPE_CHECKING:
    from routing.cluster.clients.leader_questions import Answer
    from routing.queues.queue import Queue
    from routing.session import Session


def _with_lives(slab: Slab, left_ms: Sequence[int | None]) -> Slab:
    """A slab whose messages are said to have so much left to live: who is sent it has no home to ask."""
    persistent = slab.properties.persistent
    return slab.with_facts([pack(persistent, ttl_ms=None if one is None else max(one, 0)) for one in left_ms])


class ServedLink(Protocol):
    """From another broker. What is not answered by return is collected until `flush`."""

    @property
    def broker(self) -> int:
        """Its id."""

    @property
    def writable(self) -> bool:
        """It takes deliveries."""

    def placed(self, number: int, first_id: int, ranges: Sequence[int]) -> None:
        """Deliveries that come next lie at these offsets."""

    def deliver(self, number: int, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Messages [start, stop) of a slab for a consumer."""

    def done(self, log: str, leader_epoch: int, written: int, committed: int, refused: Sequence[int]) -> None:
        """How far what it published is."""

    def not_led(self, log: str, leader_epoch: int, *, last: bool) -> None:
        """What it published was not taken. `last`: nothing more will be said of what it has in that epoch."""

    def fenced(self, client: int, epoch: int) -> None:
        """A client has a later connection than what was said or is consumed there (`latest_connections.py`)."""

    def answer(self, request: int, answer: Answer) -> None:
        """To a question."""

    def over(self, number: int, *, queue_is_gone: bool) -> None:
        """A consumer is gone."""

    def flush(self) -> None:
        """Send what was collected."""

    def beat(self) -> None:
        """Show that this broker lives, if nothing has shown it for a while."""

    def replaced(self) -> None:
        """The same broker has another link now: end, and do nothing of what is still to be done for this one."""


class PeerConsumer(Consumer):
    """A consumer of another broker, which grants its credit: messages and bytes that it may have been sent in all."""

    __slots__ = ("allowed", "allowed_bytes", "at_most_once", "mean_bytes", "sent", "sent_bytes")

    def __init__(self, session: Session, queue: Queue, tag: str, *, at_most_once: bool, **settings: Any) -> None:
        super().__init__(session, queue, tag, prefetch=0, context=None, **settings)
        self.at_most_once = at_most_once
        """What it has unsettled when the link is lost may have been passed on, and does not come again."""
        self.allowed = self.allowed_bytes = self.sent = self.sent_bytes = 0
        self.mean_bytes = queue.partition.mean_bytes + 1

    def credit(self) -> int:
        """See `Consumer.credit`."""
        if not self.session.sink.writable():
            return 0
        room_bytes = self.allowed_bytes - self.sent_bytes
        if room_bytes <= 0:
            return 0
        return min(self.allowed - self.sent, max(1, room_bytes // self.mean_bytes))

    def went(self, count: int, size_bytes: int) -> None:
        """So much was sent."""
        self.sent += count
        self.sent_bytes += size_bytes
        self.mean_bytes = size_bytes // count + 1


class Sink:
    """Where the session of a remote consumer delivers to."""

    def __init__(self, link: ServedLink, number: int, over: Callable[[int], None]) -> None:
        """`over` is called when the consumer is gone."""
        self._link = link
        self.number = number
        self._over = over

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        assert isinstance(consumer, PeerConsumer)
        if comes_of_home(consumer):
            left_ms = lives_left_ms(consumer, first_id, stop - start)
            if left_ms is not None:
                slab, start, stop = _with_lives(slab.part(start, stop), left_ms), 0, stop - start
        consumer.went(stop - start, slab.size_of(start, stop))
        if consumer.exclusive and not consumer.no_ack:
            offsets = entry_at(consumer.session.unsettled, first_id).offsets_of(first_id, first_id + stop - start)
            self._link.placed(self.number, first_id, ranges_in_order(offsets))
        self._link.deliver(self.number, first_id, slab, start, stop, redelivered)

    def confirm(self, up_to: int) -> None:
        raise AssertionError("nothing is published by such a session")

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        raise AssertionError("nothing is published by such a session")

    def returned(self, slab: Slab, reason: str) -> None:
        raise AssertionError("nothing is published by such a session")

    def cancelled(self, consumer: Consumer) -> None:
        queue = consumer.queue
        there = consumer.session.vhost.queues.get(queue.name)
        is_there = there is not None and isinstance(queue.arguments, dict) and getattr(queue, "id", -1) == there.id
        self._link.over(self.number, queue_is_gone=not is_there)
        self._over(self.number)

    def writable(self) -> bool:
        return self._link.writable
