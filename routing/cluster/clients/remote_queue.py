"""A queue that another broker leads: its consumers are here, its messages there.

1. A consumer here is one of the leader's (`served_broker.py`), under a number that nobody else has. What it is given
   has dense ids there; here that is its place in the queue: number and id in one integer, so that a session keeps runs
   of them as it keeps runs of offsets.
2. Prefetch is this broker's to grant: the leader may send what the session has credit for, at most a window, counted
   from the attachment on. What has come and finds no credit waits here.
3. When the link is lost, or another broker leads, consumers attach again under other numbers, and their clients do not
   notice: what they still say of older deliveries finds no number and means nothing, those messages come again.
4. Nobody is given anything before his `consume` was answered. Who is attached again is given it as it comes: the next
   answer may be that a transaction has settled it.
5. To its leader a consumer that acknowledges nothing is one that does, at once, so that what has come for it and no
   further is not lost when it cancels. Nothing that may have been passed on goes back when the link is lost
   (`PeerConsumer.at_most_once`). An exclusive one's messages are its own anyway. Who gets a message so settles it when
   it has come: an answer that is lost with its link is asked for again.
6. Where consumers share a limit (`Session.prefetch`) each has credit for what only one of them can be given. What has
   come and waits behind another queue's messages from one tick to the next is recalled: it goes back to the leader, who
   has others for it, and so does all that he has sent before he has heard of that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from routing.cluster.clients.attachment import ID_MASK, NUMBER_SHIFT, Attachment, unseen
from routing.cluster.clients.places import Places
from routing.errors import BrokerError, LedHere, NotFound, NotImplementedYet, StorageUnavailable
from routing.message import Slab
from routing.queues.homes.receipts import RECEIVED, complete, tell
from routing.queues.queue import Queue
from routing.queues.queue_rules import QueueRules
from routing.queues.retries import Cause
from routing.queues.runs_of import runs_of
from routing.queues.settings import QueueSettings
from routing.unsettled import Outcome

if TYPE_CHECKING:
    from routing.cluster.clients.forwarding import EngineLink, Forwarding
    from routing.cluster.clients.remote_home import RemoteHome
    from routing.consumer import Consumer
    from routing.queues.homes.home import Declared
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.host import QueueHost


class _RemoteRules(QueueRules):
    """Nothing happens here by itself: its leader sees to that."""

    __slots__ = ()

    def changed(self) -> None:
        """See `QueueRules`."""

    def _live_on(self, used_ms: int) -> None:
        """See `QueueRules`."""


class RemoteQueue(Queue):
    """See the module; made by `RemoteHome.make_queue`."""

    __slots__ = (
        "_attachments", "_by_consumer", "_counts", "_getter", "_is_told", "_places", "home", "joining", "retired",
    )  # fmt: skip
    elsewhere = True
    home: RemoteHome

    def __init__(
        self, queue_id: int, name: str, home: QueuePartition, host: QueueHost, **declared: Unpack[Declared]
    ) -> None:
        super().__init__(queue_id, name, home, host, **declared)
        self.rules = _RemoteRules(self, host)
        self._attachments: dict[int, Attachment] = {}
        self._by_consumer: dict[Consumer, Attachment | None] = {}
        self._counts = (0, 0)
        self._getter: Attachment | None = None
        self.joining: set[Consumer] = set()
        self.retired = False
        """Another object is this queue now."""
        self._is_told = False
        self._places = Places()

    @property
    def _forwarding(self) -> Forwarding:
        return self.home.forwarding

    # ---- what is the leader's

    def apply_settings(self, settings: QueueSettings) -> None:
        """They are its leader's to follow; for how long consumers here hold deliveries is seen here."""
        self.settings = settings
        if settings.consumer_timeout_ms:
            self.host.impatient.add(self)

    def remember(self, who: str | None, window_ms: int) -> None:
        """See `Queue`."""

    def head(self) -> tuple[int, int, bool]:
        """Refused: nobody knows here."""
        self._refuse()

    def shed(self, count: int) -> int:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StorageUnavailable(f"queue '{self.name}' in vhost '{self.vhost}' {self.home.leader}")

    # ---- what is asked of the leader

    @property
    def message_count(self) -> int:
        """What the leader said last."""
        return self._counts[0]

    @property
    def consumer_count(self) -> int:
        """What the leader said last: consumers at all brokers."""
        return self._counts[1]

    async def refresh(self) -> None:
        """Ask the leader for both. Raises StorageUnavailable, NotFound."""
        answer = await self._forwarding.ask(self, "count")
        self._counts = answer.messages, answer.consumers

    async def purge_elsewhere(self) -> int:
        """`Queue.purge`. Raises StorageUnavailable, NotFound."""
        return (await self._forwarding.ask(self, "purge")).messages

    async def command(self, name: str, arguments: Mapping[str, Any], *, repeat: bool) -> Any:
        """Have the leader do something; see `Forwarding.command`."""
        return await self._forwarding.command(self, name, arguments, repeat=repeat)

    async def has_room(self, sizes: Sequence[int]) -> bool:
        """Whether the leader takes messages with bodies of these sizes, and refuses none; one of a version before that
        question takes everything. Raises StorageUnavailable.
        """
        said = {"name": self.name, "sizes": list(sizes), "vhost": self.vhost}
        try:
            return bool(await self.command("queues.has_room", said, repeat=True))
        except (NotFound, NotImplementedYet):
            return True

    async def take_one(self) -> tuple[Slab, int, bool, int] | None:
        """Get a message: slab of one, place, redelivered, how many are left. Raises StorageUnavailable, NotFound."""
        answer = await self._forwarding.ask(self, "get")
        if answer.slab is None:
            return None
        if self._getter is not None:
            self._getter.unsettled += 1
        return answer.slab, answer.number << NUMBER_SHIFT | answer.first_id, answer.redelivered, answer.messages

    def getter(self, link: EngineLink) -> Attachment:
        """In whose name messages are got over a link."""
        if self._getter is None or self._getter.link is not link:
            self._getter = self._new(link, None)
        return self._getter

    def not_wanted(self, number: int, first_id: int, redelivered: bool) -> None:
        """A message was got for somebody who does not wait any more."""
        attachment = self._attachments.get(number)
        if attachment is not None:
            unseen(attachment.link, number, first_id, 1, redelivered)

    def require_led(self) -> None:
        """What `refresh` found counts."""

    # ---- consumers

    def attach(self, consumer: Consumer, arguments: Mapping[str, Any]) -> Awaitable[None]:
        """See `Queue.attach`; the leader is asked."""
        self.turns.add(consumer)
        self._by_consumer[consumer] = None
        self.joining.add(consumer)
        return self._attach(consumer, arguments)

    async def _attach(self, consumer: Consumer, arguments: Mapping[str, Any]) -> None:
        try:
            attachment = await self._forwarding.consume(self, consumer)
        except LedHere:
            session = consumer.session
            consumer.queue = successor = session.vhost.queue(self.name, session.owner, "basic.consume")
            attached = successor.attach(consumer, arguments)
            if attached is not None:
                await attached
            return
        except BaseException:
            if consumer in self._by_consumer:
                self.detach(consumer)
            raise
        finally:
            self.joining.discard(consumer)
        if consumer not in self._by_consumer:  # the queue went when the answer had just come
            raise NotFound(f"no queue '{self.name}' in vhost '{self.vhost}'")
        self._ready(consumer, attachment)

    def _ready(self, consumer: Consumer, attachment: Attachment | None) -> None:
        if attachment is None or consumer not in self._by_consumer:
            return
        if self._by_consumer[consumer] is attachment:
            attachment.ready = True
            self.wake()
        else:  # the link was lost when the answer had just come
            self._forwarding.spawn(self._attach_again, consumer)

    def adopt(self, consumer: Consumer) -> None:
        """Make who consumed it where it was led before a consumer of this one."""
        if consumer.session.protocol == "peer":
            consumer.session.queue_gone(consumer)  # its own broker sees to it
            return
        consumer.queue = self
        self.turns.add(consumer)
        self._by_consumer[consumer] = None
        self._forwarding.spawn(self._attach_again, consumer)

    async def _attach_again(self, consumer: Consumer) -> None:
        try:
            attachment = await self._forwarding.consume(self, consumer, patient=True)
        except BrokerError as error:
            if consumer in self._by_consumer:
                self.detach(consumer)
                consumer.refused = None if isinstance(error, NotFound) else error
                consumer.session.queue_gone(consumer)
                self._forwarding.want_turn()
            return
        self._ready(consumer, attachment)
        self._forwarding.want_turn()

    def attaching(self, consumer: Consumer, link: EngineLink) -> Attachment | None:
        """A consumer is about to be attached over a link; None: it is gone."""
        if consumer not in self._by_consumer:
            return None
        before = self._by_consumer[consumer]
        if before is not None:
            self._drop(before)
        attachment = self._by_consumer[consumer] = self._new(link, consumer)
        attachment.more()
        return attachment

    def _new(self, link: EngineLink, consumer: Consumer | None) -> Attachment:
        attachment = Attachment(self._forwarding.new_number(self), link, consumer)
        self._attachments[attachment.number] = attachment
        return attachment

    def detach(self, consumer: Consumer) -> None:
        """See `Queue.detach`; what has come for it and was not passed on goes back."""
        attachment = self._by_consumer.get(consumer)
        self._forget(consumer)
        if attachment is None:
            return
        attachment.link.cancel(attachment.number)
        for first_id, slab, start, redelivered in attachment.left(self._places):
            unseen(attachment.link, attachment.number, first_id + start, len(slab.bodies) - start, redelivered)
        attachment.consumer = None
        if not attachment.unsettled:
            self._drop(attachment)

    def _forget(self, consumer: Consumer) -> None:
        self._by_consumer.pop(consumer, None)
        if consumer in self.turns.consumers:
            self.turns.remove(consumer)

    def _drop(self, attachment: Attachment) -> None:
        self._attachments.pop(attachment.number, None)
        self._forwarding.numbers.pop(attachment.number, None)

    def over(self, number: int, *, queue_is_gone: bool) -> None:
        """The leader says that a consumer is gone."""
        attachment = self._attachments.get(number)
        if attachment is None:
            return
        self._drop(attachment)
        attachment.left(self._places)
        consumer = attachment.consumer
        if consumer is None or self._by_consumer.get(consumer) is not attachment:
            return
        self._by_consumer[consumer] = None
        if queue_is_gone:
            self._forget(consumer)
            if consumer not in self.joining:  # else it is not told yet that it consumes: `_attach` says it does not
                consumer.session.queue_gone(consumer)
        elif attachment.ready:
            self._forwarding.spawn(self._attach_again, consumer)

    def lost(self, link: EngineLink) -> None:
        """A link is gone, or does not lead to the leader any more: attach anew."""
        for attachment in [one for one in self._attachments.values() if one.link is link]:
            self.over(attachment.number, queue_is_gone=False)
        if self._getter is not None and self._getter.link is link:
            self._getter = None

    def retire(self) -> None:
        """See `Queue.retire`; consumers were moved before."""
        self.retired = True
        self._let_go()
        super().retire()

    def clear(self) -> None:
        """See `Queue.clear`."""
        self._let_go()
        super().clear()
        self._forwarding.look()

    def _let_go(self) -> None:
        for attachment in list(self._attachments.values()):
            if attachment.consumer is not None:
                attachment.link.cancel(attachment.number)
            self._drop(attachment)
        self._by_consumer.clear()
        self._getter = None

    # ---- messages out

    def wake(self) -> None:
        """See `Queue.wake`."""
        if not self.awake and self.turns.consumers:
            self.awake = True
            self.host.runnable(self)

    def delivered(self, link: EngineLink, number: int, first_id: int, redelivered: bool, slab: Slab) -> None:
        """Messages have come."""
        attachment = self._attachments.get(number)
        if attachment is None or attachment.consumer is None:
            place = number << NUMBER_SHIFT | first_id
            self._places.settle(range(place, place + len(slab.bodies)))
            unseen(link, number, first_id, len(slab.bodies), redelivered)
            return
        attachment.buffer.append((first_id, slab, 0, redelivered))
        if attachment.is_recalled:
            attachment.give_back(self._places)
        self.wake()

    def placed(self, number: int, first_id: int, ranges: Sequence[int]) -> None:
        """Where the deliveries lie that come next."""
        self._places.add(number << NUMBER_SHIFT | first_id, ranges)

    def pump(self) -> None:
        """See `Queue.pump`: pass on what has come, and say what else may come."""
        for consumer, attachment in list(self._by_consumer.items()):
            if attachment is None or consumer in self.joining or attachment.is_recalled:
                continue
            if attachment.buffer:
                self._pass_on(consumer, attachment)
                if attachment.is_held_up:
                    self._forwarding.held_up.setdefault(attachment, -1)
            if self._by_consumer.get(consumer) is attachment and attachment.more():
                attachment.link.credit(attachment.number, attachment.granted, attachment.granted_bytes)

    def _pass_on(self, consumer: Consumer, attachment: Attachment) -> None:
        buffer = attachment.buffer
        place = attachment.number << NUMBER_SHIFT
        while buffer:
            credit = consumer.credit()
            if credit <= 0:
                return
            first_id, slab, start, redelivered = buffer.popleft()
            there = len(slab.bodies)
            stop = min(there, start + credit)
            if stop < there:
                buffer.appendleft((first_id, slab, stop, redelivered))
            count = stop - start
            attachment.went(count, slab.size_of(start, stop))
            if not consumer.no_ack:
                attachment.unsettled += count
            for first, some in self._places.fresh(place | first_id + start, count):
                at = (first & ID_MASK) - first_id
                consumer.session.hand_over(consumer, slab, at, at + some, first, redelivered)
                count -= some
            if not consumer.no_ack:
                attachment.unsettled -= count  # what was received is settled by that
            if attachment.settles:
                ranges = [first_id + start, first_id + stop - 1]
                attachment.link.settle(attachment.number, Outcome.ACK, ranges)

    async def recall(self, attachment: Attachment) -> None:
        """See rule 6. Nothing new is passed on before what was on its way has gone back as well: the order stays."""
        attachment.is_recalled = True
        attachment.give_back(self._places)
        with suppress(BrokerError):
            await self._forwarding.ask(self, "count")
        attachment.is_recalled = False
        self.wake()
        self._forwarding.want_turn()

    # ---- messages back

    def delivered_as(self, offsets: Sequence[int]) -> tuple[int, int, Sequence[int]] | None:
        """Broker, number of the consumer and ids of these deliveries, as their leader knows them; None if it took them
        back.
        """
        attachment = self._attachments.get(offsets[0] >> NUMBER_SHIFT)
        if attachment is None:
            return None
        return attachment.link.broker, attachment.number, [offset & ID_MASK for offset in offsets]

    def offsets_of(self, places: Sequence[int]) -> Sequence[int] | None:
        """Where deliveries to an exclusive consumer lie in the home, whoever leads it by now; None: nobody knows."""
        return self._places.offsets_of(places)

    def begin(self) -> None:
        """Its client has connected anew: what was said before of what is received, and is not known to the leader by
        now, it does not do."""
        self._places = Places()

    def received(self, offsets: Sequence[int], epoch: int) -> None:
        """Its leader is told that these are received (`queues/homes/receipts.py`); what it sends of them yet is
        dropped."""
        self._places.receive(offsets)
        tell(self, RECEIVED, offsets, epoch)

    def completed(self, offsets: Sequence[int], epoch: int) -> None:
        """They are completed."""
        self._places.complete(offsets)
        complete(self, offsets, epoch)

    def _say(self, offsets: Sequence[int], outcome: Outcome) -> None:
        self._places.settle(offsets)
        attachment = self._attachments.get(offsets[0] >> NUMBER_SHIFT)
        if attachment is None:
            return  # rule 3
        consumer = attachment.consumer
        if consumer is not None and consumer.no_ack:
            return
        if isinstance(offsets, range):
            ranges = [offsets[0] & ID_MASK, offsets[-1] & ID_MASK]
        else:
            ranges = [
                one for first, count in runs_of(offsets) for one in (first & ID_MASK, (first & ID_MASK) + count - 1)
            ]
        if not self._is_told:
            attachment.link.settle(attachment.number, outcome, ranges)
        attachment.unsettled -= len(offsets)
        if consumer is None and attachment is not self._getter and attachment.unsettled <= 0:
            self._drop(attachment)

    @contextmanager
    def told(self) -> Iterator[None]:
        """What is settled within the block is settled at the leader already, by other means."""
        self._is_told = True
        try:
            yield
        finally:
            self._is_told = False

    def settle(self, first: int, count: int) -> None:
        """See `Queue.settle`."""
        self._say(range(first, first + count), Outcome.ACK)

    def settle_offsets(self, offsets: Sequence[int]) -> None:
        """See `Queue.settle_offsets`."""
        self._say(offsets, Outcome.ACK)

    def give_back_offsets(self, offsets: Sequence[int], cause: Cause = Cause.LOST) -> None:
        """See `Queue.give_back_offsets`."""
        self._say(offsets, Outcome.REQUEUE if cause is Cause.REQUEUED else Outcome.RELEASE)

    def not_seen(self, offsets: Sequence[int], redelivered: bool) -> None:
        """See `Queue.not_seen`."""
        self._say(offsets, Outcome.UNSEEN_AGAIN if redelivered else Outcome.UNSEEN)

    def reject(self, offsets: Sequence[int]) -> None:
        """See `Queue.reject`."""
        self._say(offsets, Outcome.DISCARD)
