"""A subscription, and what an adapter implements to be delivered to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from routing.errors import BrokerError, PreconditionFailed
from routing.message import Slab
from routing.queues.settings import CHECKS, integer

if TYPE_CHECKING:
    from routing.queues.passed import Passed
    from routing.queues.queue import Queue
    from routing.session import Session
    from routing.topics.stream import Stream

_UNLIMITED = 1 << 30
_CHECKS = {"priority": integer, "consumer-timeout": CHECKS["consumer-timeout"]}


class DeliverySink(Protocol):
    """What an adapter implements. All calls are synchronous and only append to the outbox."""

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Send slab.bodies[start:stop] under the delivery ids first_id, first_id + 1, ..."""

    def confirm(self, up_to: int) -> None:
        """Every publish with a sequence number <= `up_to` is safe."""

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """The publishes with these sequence numbers were not made safe: there is no room for them (LimitExceeded), or
        they may be in some logs and not in others.
        """

    def returned(self, slab: Slab, reason: str) -> None:
        """A mandatory slab had nowhere to go."""

    def cancelled(self, consumer: Consumer) -> None:
        """The consumer's queue is gone, and so is the consumer."""

    def writable(self) -> bool:
        """False while the peer does not take what it was sent; call `Session.resume` when that changes."""


class Nobody:
    """The sink of sessions that are closed."""

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """See `DeliverySink`."""

    def confirm(self, up_to: int) -> None:
        """See `DeliverySink`."""

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """See `DeliverySink`."""

    def returned(self, slab: Slab, reason: str) -> None:
        """See `DeliverySink`."""

    def cancelled(self, consumer: Consumer) -> None:
        """See `DeliverySink`."""

    def writable(self) -> bool:
        """See `DeliverySink`."""
        return False


NOBODY = Nobody()


@runtime_checkable
class EachSink(DeliverySink, Protocol):
    """A sink that takes deliveries to many consumers at once."""

    def deliver_each(self, consumers: list[Consumer], first_id: int, slab: Slab) -> None:
        """Send message `i` of the slab to `consumers[i]`, who settles nothing, under the delivery id first_id + i."""


class Consumer:
    """A subscription of a session to a queue. `context` is the adapter's own."""

    __slots__ = (
        "context", "exclusive", "level", "no_ack", "number", "outstanding", "passed", "prefetch", "priority", "queue",
        "refused", "session", "tag", "timeout_ms",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        queue: Queue | Stream,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        context: object,
        priority: int = 0,
        timeout_ms: int = 0,
    ) -> None:
        self.session = session
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.priority = priority
        """Consumers of a higher one go first."""
        self.number = 0
        """Those that came to its queue before have lower ones."""
        self.outstanding = 0
        self.level: int | None = None
        """`highest`, where the queue limits what it may hold of lower ones; None: it has settled some since."""
        self.timeout_ms = timeout_ms
        """For so long it may hold a delivery, if its queue allows as much; 0: it has no limit of its own."""
        self.context: Any = context
        self.passed: Passed | None = None
        """Whose messages those are that it is given past the queue: what it has not settled ends with it."""
        self.refused: BrokerError | None = None
        """Why it was cancelled, where its queue is there but is not to be consumed by it any more."""

    @property
    def queue_name(self) -> str:
        """The name of the queue it consumes."""
        return self.queue.name

    def credit_within(self, window: int, level: int) -> int:
        """How many messages of priority `level` it may get now, if it may hold only `window` of one not higher than
        another; 0: as many as there are.
        """
        if not window:
            return self.credit()
        more = window - self.outstanding
        return min(self.credit(), 1 if more <= 0 and level > self.highest() else more)

    def highest(self) -> int:
        """The highest priority of a message that it holds."""
        if self.level is None:
            priority = cast("Queue", self.queue).priority
            held = (one.offsets_of(one.first, one.end) for one in self.session.unsettled if one.consumer is self)
            self.level = max(map(priority, chain.from_iterable(held)), default=-1)
        return self.level

    def credit(self) -> int:
        """How many messages it may get now."""
        session = self.session
        if session.paused or not session.sink.writable():
            return 0
        if self.no_ack:
            # Nothing it gets counts, but like the others it gets nothing while the session has all it may have.
            return 0 if session.prefetch and session.outstanding >= session.prefetch else _UNLIMITED
        credit = self.prefetch - self.outstanding if self.prefetch else _UNLIMITED
        if session.prefetch:
            credit = min(credit, session.prefetch - session.outstanding)
        return credit


class Got:
    """The answer to a get: one message, `slab.bodies[index]`."""

    __slots__ = ("delivery_id", "index", "message_count", "redelivered", "slab")

    def __init__(self, delivery_id: int, slab: Slab, index: int, redelivered: bool, message_count: int) -> None:
        self.delivery_id = delivery_id
        self.slab = slab
        self.index = index
        self.redelivered = redelivered
        self.message_count = message_count


def consumer_argument(name: str, arguments: Mapping[str, Any] | None, queue: Queue | Stream) -> int:
    """The argument `x-priority`, or `x-consumer-timeout` in ms; 0 without one. Raises PreconditionFailed for a value
    that it cannot have.
    """
    value: int = (arguments or {}).get(f"x-{name}", 0)
    wrong = _CHECKS[name](value)
    if wrong:
        raise PreconditionFailed(f"invalid arg 'x-{name}' for queue '{queue.name}' in vhost '{queue.vhost}': {wrong}")
    return value
