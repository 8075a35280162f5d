"""What a client's channel is to the engine.

1. Deliveries get dense ids, 1, 2, ..., per session. What becomes of them is in `settling.py`.
2. What its publishers wait for is in `confirms.py`.
3. Everything here is synchronous. The sink may only append to its outbox.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import trio

from routing.consumer import NOBODY, EachSink, consumer_argument
from routing.consumer import Consumer as Consumer
from routing.consumer import DeliverySink as DeliverySink
from routing.consumer import Got as Got
from routing.elsewhere import get_elsewhere, is_served
from routing.errors import BrokerError, StorageUnavailable
from routing.message import Slab
from routing.publishing.confirms import Confirms, watch
from routing.publishing.deduplication import put
from routing.publishing.overflowing import publish_pieces, publish_what_fits
from routing.queues.passed import Passed
from routing.queues.queue import Queue
from routing.settling import Settling
from routing.unsettled import Outcome as Outcome
from routing.unsettled import Unsettled, add_run

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.broker import Broker
    from routing.topology.route import Route
    from routing.topology.virtual_host import VirtualHost
    from routing.transactions import Transaction

logger = logging.getLogger(__name__)


class Session(Settling):
    """See the module. Made by `Broker.session`."""

    def __init__(self, broker: Broker, sink: DeliverySink, *, protocol: str, owner: object, vhost: VirtualHost) -> None:
        self.broker = broker
        self.sink = sink
        # `isinstance` of a protocol takes 50 us, of each channel that is opened.
        self._each_sink = cast("EachSink", sink) if hasattr(sink, "deliver_each") else None
        self.protocol = protocol
        self.owner = owner
        self.vhost = vhost
        self.prefetch = 0
        """Unsettled messages the session may have in all; 0 is no limit."""
        self.prefetch_default = 0
        """The limit that new consumers get; 0 is none."""
        self.outstanding = 0  # deliveries to consumers that are not settled; the answers to `get` do not count
        self.paused = False
        self.closed = False
        self.number = 0  # what the protocol calls it: the number of a channel
        self.on_overdue: Callable[[BrokerError], None] | None = None
        """Ends the session when it holds a delivery for too long; without it, it may."""
        self.on_failed: Callable[[BrokerError], None] | None = None
        """Ends the session, in a turn of its own, when its sink has failed; without it, it gets no more."""
        self.impatient = False  # it has, or had, a consumer with a limit of its own for that
        self.consumers: dict[Consumer, None] = {}
        self.first_resumed = 0  # which of them was the first that `resume` has looked at
        self.unsettled: list[Unsettled] = []
        self.transaction: Transaction | None = None
        """What publishes and settlements go into instead of taking effect."""
        self.next_id, self.published = 1, 0  # of the next delivery; how many messages came
        self.given: tuple[int, Sequence[int]] | None = None
        """Of messages that are handed over now and are settled by that: the id of the first, and where they lie in
        their queue."""
        self.confirms = Confirms(self)

    # --- publishing --------------------------------------------------------------------

    def publish(
        self, slab: Slab, *, mandatory: bool = False, confirm: bool = False, copies: Sequence[str] = ()
    ) -> None:
        """Route a slab to its queues and topics.

        With `copies`, further routing keys, the slab has one key and goes wherever any of them leads, once.

        With `confirm` each message takes the next sequence number and is confirmed through the sink. Raises NotFound
        when there is no such exchange, AccessRefused when it is internal, LimitExceeded for a message that is too
        large, StorageUnavailable for a persistent one without `confirm` that a log refuses: there is no other way to
        tell. Refused messages of which nobody wants to hear are counted. A broker that is outdated does not know where
        a message goes now: to say that it is there would be to lose it.
        """
        broker = self.broker
        vhost = self.vhost
        parts = vhost.router.routed(slab, copies, together=self.transaction is None and vhost.trace is None)
        if slab.size > broker.message_bytes_max:
            broker.require_size(slab.bodies)
        for route, part in parts:
            if route.topics:
                route.require_room(part)
        self.published += len(slab.bodies)
        if self.transaction is not None:
            self.transaction.publish(slab, mandatory, copies)
            return
        counts = confirm or slab.properties.persistent
        for route, part in parts:
            outdated = broker.outdated_for(route, part) if counts else None
            if outdated is not None:
                self._count(part, confirm)
                self._refuse(part, outdated, confirm)
                continue
            for piece in route.pieces(part) if route.guarded else (part,):
                self._publish(route, piece, mandatory, confirm)

    def publish_into(self, queue_name: str, slab: Slab) -> None:
        """Put a slab into one queue, as `publish` by its name does, mandatory and with a confirm, whatever exchange and
        keys it has, and whether or not the queue knows its id.
        """
        route = self.vhost.router.to_queue(queue_name, slab).as_new()
        self.published += len(slab.bodies)
        for piece in route.pieces(slab) if route.guarded else (slab,):
            self._publish(route, piece, mandatory=True, confirm=True)

    def deliver_to(
        self, route: Route, slab: Slab, mandatory: bool, *, decided: bool = False
    ) -> list[tuple[PartitionLog, int]]:
        """Publish what was routed before, without a confirm and whatever the logs say; as `Route.deliver`. What is
        `decided` no queue can refuse any more.
        """
        if self.vhost.trace is not None:
            self.vhost.trace.published(self, slab, route)
        for history in route.histories:
            history.remember(slab)
        if not route.homes and (mandatory or not route.topics) and route.leads_nowhere:
            if mandatory and not self.closed:
                self.sink.returned(slab, "NO_ROUTE")
            return []
        if route.guarded and not decided:
            return publish_pieces(self, route, slab)
        return put(route, slab, self.broker.clock.now_ms)

    def _publish(self, route: Route, slab: Slab, mandatory: bool, confirm: bool) -> None:
        broker = self.broker
        if self.vhost.trace is not None:
            self.vhost.trace.published(self, slab, route)
        self._count(slab, confirm)
        failed = route.error() if route.is_logged else None
        if failed is not None:
            waiting = route.waiting()
            if waiting is not None:
                route, failed = waiting, None
        if route.histories and failed is None:
            for history in route.histories:
                history.remember(slab)
        if not route.homes and (mandatory or not route.topics) and route.leads_nowhere:
            if mandatory:
                self.sink.returned(slab, "NO_ROUTE")
            return
        if failed is not None:
            self._refuse(slab, failed, confirm)
            return
        if route.guarded and (room := route.room(slab.bodies)) < len(slab.bodies):
            publish_what_fits(self, route, slab, room, confirm)
            return
        once = slab.once is not None or route.remembering
        targets = put(route, slab, broker.clock.now_ms) if once else route.deliver(slab)
        if confirm and targets:
            self.confirms.require(slab, targets, asks=route.asks)
        elif route.asks:
            watch(targets, len(slab.bodies))

    def _count(self, slab: Slab, confirm: bool) -> None:
        if confirm:
            self.confirms.published += len(slab.bodies)
            self.broker.confirming[self] = None

    def _refuse(self, slab: Slab, error: StorageUnavailable, confirm: bool) -> None:
        self.broker.refused_messages += len(slab.bodies)
        if confirm:
            self.confirms.refuse(len(slab.bodies), error)
        elif slab.properties.persistent:
            raise error

    # --- consuming ---------------------------------------------------------------------

    async def consume(
        self,
        queue_name: str,
        *,
        tag: str,
        no_ack: bool,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
        prefetch: int | None = None,
        context: object = None,
        gives_back: bool = True,
    ) -> Consumer:
        """Subscribe to a queue; deliveries begin when the turn ends. A queue of this broker is not waited for, unless
        it is about to go. `prefetch` is how many messages at once; the default is the session's. Without `gives_back`
        nobody is to have what it has not settled when it goes.

        Raises NotFound, ResourceLocked (another connection's exclusive queue) and AccessRefused (an exclusive consumer
        is there, or is asked for and others are); of a stream PreconditionFailed and NotImplementedYet, too.
        """
        await self.broker.topology.until_left(self.vhost.name, queue_name)
        queue = self.vhost.source(queue_name, self.owner)
        consumer = Consumer(
            self, queue, tag, no_ack=no_ack, exclusive=exclusive, context=context,
            prefetch=self.prefetch_default if prefetch is None else prefetch,
            priority=consumer_argument("priority", arguments, queue),
            timeout_ms=consumer_argument("consumer-timeout", arguments, queue),
        )  # fmt: skip
        if not (gives_back or no_ack) and isinstance(queue, Queue):
            consumer.passed = Passed(queue)
        self.impatient = self.impatient or consumer.timeout_ms > 0
        attached = queue.attach(consumer, arguments or {})
        if attached is not None:
            await attached
        if self.closed:
            consumer.queue.detach(consumer)
            self.settle_up_to(0, Outcome.RELEASE)  # what it was given since
            return consumer
        self.consumers[consumer] = None
        consumer.queue.wake()
        return consumer

    def cancel(self, consumer: Consumer) -> None:
        """End a subscription; what it has unsettled stays with the session."""
        if consumer in self.consumers:
            del self.consumers[consumer]
            consumer.queue.detach(consumer)
            consumer.context = None  # which may have it
            self.broker.consumer_gone(consumer.queue)

    def queue_gone(self, consumer: Consumer) -> None:
        """The queue was deleted under the consumer."""
        self.consumers.pop(consumer, None)
        self.sink.cancelled(consumer)
        consumer.context = None

    async def get(self, queue_name: str, *, no_ack: bool) -> Got | None:
        """Take one message, waiting for the disk if need be; None when the queue is empty, or the session closed."""
        queue = self.vhost.queue(queue_name, self.owner, "basic.get")
        if queue.elsewhere:
            return await get_elsewhere(self, queue, no_ack=no_ack)
        queue.rules.used()
        queue.rules.catch_up()
        while True:
            if not await is_served(queue):
                return None if self.closed else await self.get(queue_name, no_ack=no_ack)
            if self.closed:
                return None
            if queue.rules.timing is not None and not queue.rules.lets_give_out():
                await trio.lowlevel.checkpoint()
                continue
            first, count, redelivered = queue.head() if queue.groups is None else queue.groups.first()
            if not count and not await queue.feed():
                return None
            entry = queue.store.find(first) if count else None
            if entry is not None:
                break
            if count:
                await queue.store.load_now(first, queue)
            if self.closed or queue.deleted:
                return None if self.closed else await self.get(queue_name, no_ack=no_ack)
        if queue.groups is None:
            queue.take(1)
        else:
            queue.groups.take_first()
        slab, index = entry.slab, first - entry.first
        if redelivered and queue.returns is not None:
            slab, index = queue.returns.marked(slab.part(index, index + 1), [first]), 0
        if self.vhost.trace is not None:
            self.vhost.trace.delivered(self, queue_name, slab, index, index + 1, redelivered)
        delivery_id, self.next_id = self.next_id, self.next_id + 1
        if no_ack:
            queue.settle(first, 1)
        else:
            self.unsettled.append(Unsettled(delivery_id, delivery_id + 1, first, queue, None))
        return Got(delivery_id, slab, index, redelivered, queue.message_count)

    def hand_over(self, consumer: Consumer, slab: Slab, start: int, stop: int, offset: int, redelivered: bool) -> None:
        """Called by the queue: give messages to the sink, and remember them until they are settled."""
        count = stop - start
        first = self.next_id
        self.next_id = end = first + count
        if consumer.no_ack:
            self.given = first, range(offset, offset + count)
            self._deliver(consumer, first, slab, start, stop, redelivered)
            self.given = None
            consumer.queue.settle(offset, count)
            return
        add_run(self.unsettled, first, end, offset, consumer.queue, consumer)
        consumer.outstanding += count
        self.outstanding += count
        self._deliver(consumer, first, slab, start, stop, redelivered)

    def hand_over_scattered(
        self, consumer: Consumer, queue: Queue, slab: Slab, offsets: list[int], redelivered: bool
    ) -> None:
        """As `hand_over`, for a whole slab of messages that do not lie together in the log."""
        count = len(offsets)
        first = self.next_id
        self.next_id = end = first + count
        if consumer.no_ack:
            self.given = first, offsets
            self._deliver(consumer, first, slab, 0, count, redelivered)
            self.given = None
            queue.settle_offsets(offsets)
            return
        self.unsettled.append(Unsettled(first, end, offsets[0], queue, consumer, offsets))
        consumer.outstanding += count
        self.outstanding += count
        self._deliver(consumer, first, slab, 0, count, redelivered)

    def _deliver(self, consumer: Consumer, first: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        if self.vhost.trace is not None:
            self.vhost.trace.delivered(self, consumer.queue_name, slab, start, stop, redelivered)
        try:
            self.sink.deliver(consumer, first, slab, start, stop, redelivered)
        except Exception:
            self._sink_failed()

    def _sink_failed(self) -> None:
        """A sink that raises is a bug: it gets no more, and the turn, which is everybody's, goes on. Then it is ended,
        which gives back what it has.
        """
        logger.exception("deliveries to a %s session stop", self.protocol)
        self.paused = True
        self.broker.timers.at(trio.current_time(), self._failed)

    def _failed(self) -> None:
        if self.on_failed is not None:
            self.on_failed(BrokerError("messages could not be delivered"))

    def pass_on(self, consumer: Consumer, slab: Slab) -> None:
        """Called by a route: give a whole slab to a consumer who gives nothing back, past its empty queue."""
        first, count, passed = self.next_id, len(slab.bodies), consumer.passed
        self.next_id = end = first + count
        if passed is not None:
            add_run(self.unsettled, first, end, first, passed, consumer)
            passed.queue.outstanding += count
            consumer.outstanding += count
            self.outstanding += count
        self._deliver(consumer, first, slab, 0, count, False)

    def pass_on_each(self, consumers: list[Consumer], slab: Slab) -> bool:
        """As `pass_on`, of message `i` to `consumers[i]`; False if the sink wants them one by one."""
        sink = self._each_sink
        if sink is None:
            return False
        first = self.next_id
        self.next_id = first + len(consumers)
        try:
            sink.deliver_each(consumers, first, slab)
        except Exception:
            self._sink_failed()
        return True

    # --- transactions ------------------------------------------------------------------

    def begin(self) -> None:
        """From now on publishes and settlements wait for `commit`."""
        if self.transaction is None:
            self.transaction = self.broker.transactions.begin()

    async def commit(self) -> None:
        """Let everything since `begin` or the last commit take effect, all of it or nothing; the next transaction
        begins. Returns when it is safe. Raises BrokerError: then what was settled is outstanding again.
        """
        transaction = self.transaction
        assert transaction is not None, "no transaction was begun"
        self.transaction = self.broker.transactions.begin()
        await self.broker.transactions.commit(self, transaction)

    def roll_back(self) -> None:
        """Forget what was published since, and have what was settled outstanding again; the next transaction begins."""
        transaction = self.transaction
        assert transaction is not None, "no transaction was begun"
        self.transaction = self.broker.transactions.begin()
        self.take_back(transaction)

    # --- flow --------------------------------------------------------------------------

    def set_prefetch(self, count: int, *, per_session: bool) -> None:
        """Limit unsettled messages: of the whole session, or of each consumer that is made from now on; 0 is no
        limit.
        """
        if per_session:
            self.prefetch = count
            self.resume()
        else:
            self.prefetch_default = count

    def pause(self, paused: bool) -> None:
        """Stop or go on with deliveries to this session."""
        self.paused = paused
        if not paused:
            self.resume()

    def close(self) -> None:
        """Give everything back. The sink is not called any more, nor kept: it has this session."""
        if self.closed:
            return
        if self.transaction is not None:
            self.roll_back()
            self.transaction = None
        self.closed = True
        queues = {consumer.queue for consumer in self.consumers}
        for consumer in self.consumers:
            consumer.queue.detach(consumer)
            consumer.context = None
        self.consumers.clear()
        self.settle_up_to(0, Outcome.RELEASE)
        self.broker.session_ended(self)
        for queue in queues:
            self.broker.consumer_gone(queue)
        self.sink, self.owner, self._each_sink = NOBODY, None, None
        self.on_overdue = self.on_failed = None
