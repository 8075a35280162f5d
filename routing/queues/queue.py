"""A queue: a destructive cursor over its home partition.

A message is known here by its offset alone. It waits in a line (`line.py`), or is delivered (then a session holds its
offset until it is settled), or is delayed (`timing.py`); what has been settled is simply not there any more.

1. Whoever changes something that may allow a delivery calls `wake`; the broker pumps the woken queues when the turn
   ends. A run of neighbours is handed over whole; where neighbours in line lie scattered in the log (priorities, holes,
   delays) they are collected into one run with an offset for each.
2. A queue that tells priorities apart has `levels` instead of one line.
3. What has a time to live is looked at when the turn ends: only messages that still wait then are registered.
4. What a queue is told (`settings`) costs only the queues that are told so: a slab that asks for nothing, in a queue
   that asks for nothing, is one range more at the end of the line (`enqueue`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from routing.errors import AccessRefused, BrokerError, StorageUnavailable
from routing.facts import priority_of
from routing.message import Slab
from routing.queues import limits
from routing.queues.arrivals import Arrival
from routing.queues.consumer_turns import ConsumerTurns
from routing.queues.death_history import REJECTED
from routing.queues.gathering import SCATTERED_BELOW, gather, load
from routing.queues.groups import Groups
from routing.queues.history import follow
from routing.queues.line import Levels, Line
from routing.queues.offset_set import OffsetSet, Range
from routing.queues.queue_rules import QueueRules
from routing.queues.regrouping import tell_apart
from routing.queues.retries import Cause, catches, counts
from routing.queues.returns import Returns
from routing.queues.runs_of import runs_of
from routing.queues.settings import QueueSettings
from routing.seen_ids import SETTINGS, SeenIds, asked

if TYPE_CHECKING:
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.host import MessageStore, QueueHost
    from routing.queues.reservations import Reservation
    from routing.session import Consumer

_GATHERED_MAX = 512


class Queue:
    """One queue."""

    elsewhere = False
    """Another broker leads it: what is asked of it has to be waited for."""
    joining: Collection[Consumer] = ()  # those that are not told yet that they consume

    __slots__ = (
        "__weakref__", "arguments", "auto_delete", "awake", "deleted", "duplicates", "durable", "exclusive",
        "formerly", "fresh", "gave_way", "groups", "held", "history", "host", "id", "levels", "line", "name",
        "outstanding", "owner", "partition", "redelivered_before", "reserved", "returns", "rules", "seen", "settings",
        "start", "store", "turns", "vhost",
    )  # fmt: skip

    def __init__(
        self,
        queue_id: int,
        name: str,
        partition: QueuePartition,
        host: QueueHost,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        owner: object,
        settings: QueueSettings | None = None,
        start: Sequence[int] = (),
    ) -> None:
        self.id = queue_id
        self.name = name
        self.vhost = "/"
        self.partition = partition
        self.store: MessageStore = partition  # what has its messages: its home, unless it is a view
        self.start = start  # of a view, where each partition of its topic began
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.formerly: list[dict[str, Any]] = []
        """Arguments it had before it was altered: who declares it with those means this queue."""
        self.owner = owner
        self.line = Line()
        self.levels: Levels | None = None
        self.redelivered_before = 0
        """Messages in line below this offset may have been delivered before a restart."""
        self.outstanding = 0
        """Delivered and not yet settled."""
        self.turns = ConsumerTurns()
        self.awake = False
        self.deleted = False
        self.fresh: list[Arrival] = []
        """What came in this turn and has to be looked at when it ends."""
        self.host = host
        self.settings = settings or QueueSettings.effective(arguments)
        self.rules = QueueRules(self, host)
        self.returns: Returns | None = None
        self.seen: SeenIds | None = None
        self.held: OffsetSet | None = None  # what was received and is not completed (`receipts.py`)
        self.reserved: dict[str, Reservation] | None = None  # by reader (`reservations.py`)
        self.groups: Groups | None = None
        self.history: Queue | None = None  # what it has done with, if that is retained
        self.duplicates = 0  # publishes that were not taken because they had been before
        self.gave_way = 0  # messages that had to leave because of its length
        self.apply_settings(self.settings)

    @property
    def consumers(self) -> list[Consumer]:
        """Its consumers, those of a higher priority first."""
        return self.turns.consumers

    @property
    def consumer_count(self) -> int:
        """How many there are, at all brokers."""
        return len(self.turns.consumers)

    @property
    def message_count(self) -> int:
        """Messages that could be delivered now."""
        if self.levels is None and self.groups is None:
            return self.line.count
        return sum(line.count for line in self.lines())

    @property
    def is_empty(self) -> bool:
        """Whether no message could be delivered now; told sooner than how many could."""
        if self.groups is not None:
            return not self.message_count
        return self.line.is_empty if self.levels is None else self.levels.is_empty

    def lines(self) -> Sequence[Line]:
        """Everywhere that messages wait."""
        lines = (self.line,) if self.levels is None else self.levels.lines()
        return lines if self.groups is None else (*lines, self.groups.aside)

    def apply_settings(self, settings: QueueSettings) -> None:
        """Live by other rules from now on."""
        self.settings = settings
        self.turns.single_active = settings.single_active_consumer
        self.turns.least_first = settings.consumer_turns == "least-unsettled"
        if settings.group_by != (None if self.groups is None else self.groups.by):
            if self.groups is not None:
                self.groups.disband()
            self.groups = None
        if settings.priority_max != (0 if self.levels is None else self.levels.highest):
            tell_apart(self, settings.priority_max)
        if self.groups is None and settings.group_by is not None:
            self.groups = Groups(self, settings.group_by, self.partition.grouped_messages_max)
        self.rules.changed()
        if not counts(settings):
            self.returns = None
        elif self.returns is None:
            self.returns = Returns(self, self.host)
        self.remember(SETTINGS, settings.deduplication_window_ms)
        if settings.retain_ms or self.history is not None:
            follow(self, settings.retain_ms, self.host)
        self.wake()

    def remember(self, who: str | None, window_ms: int) -> None:
        """Know the ids of what comes for so long, because the settings or an exchange (by name) ask for it."""
        self.seen = asked(self.seen, who, window_ms, self.partition.deduplication_ids_max)

    def attach(self, consumer: Consumer, arguments: Mapping[str, Any]) -> Awaitable[None] | None:
        """Make it a consumer of this queue: it is one unless the answer has to be awaited. Raises AccessRefused when
        there is an exclusive one, or must be none.
        """
        alone = consumer.exclusive and (self.consumers or self.settings.single_active_consumer)
        if alone or (self.consumers and self.consumers[0].exclusive):
            raise AccessRefused(f"queue '{self.name}' in vhost '{self.vhost}' in exclusive use")
        self.turns.add(consumer)
        return None

    def adopt(self, consumer: Consumer) -> None:
        """Make a consumer of what stood for this queue before one of this. It may not be possible: then it is told."""
        consumer.queue = self
        try:
            self.attach(consumer, {})
        except BrokerError as error:
            consumer.refused = error
            consumer.session.queue_gone(consumer)
        self.wake()

    def detach(self, consumer: Consumer) -> None:
        """It consumes no more."""
        self.turns.remove(consumer)

    # --- messages in -------------------------------------------------------------------

    def enqueue(self, first: int, count: int) -> None:
        """Add messages that ask for nothing at the end; only for queues whose settings are plain."""
        self.line.ready.append(first, count)
        if self.turns.consumers and not self.awake:
            self.awake = True
            self.host.runnable(self)

    def admit(self, arrival: Arrival, *, delayed: bool) -> None:
        """Add messages that ask for something, or that come to a queue that does; `delayed`: some have to wait."""
        ranges: Iterable[Range] = ((arrival.first, arrival.count),)
        if delayed:
            ranges = self.rules.delay(arrival)
        line = self.line if self.levels is None else self.levels.fresh
        for first, count in ranges:
            line.ready.append(first, count)
        if self.rules.sizes is not None:
            self.rules.came(ranges)
        self.fresh.append(arrival)
        if not self.awake:
            self.awake = True
            self.host.runnable(self)

    def wake(self) -> None:
        """Something changed that may allow a delivery, if anything waits for one, or that a limit is about."""
        if not self.awake and (self.turns.consumers or self.settings.limited) and not self.is_empty:
            self.awake = True
            self.host.runnable(self)

    def line_of(self, offset: int) -> Line:
        """Where messages stand that agree in priority with the one at `offset`."""
        return self.line if self.levels is None else self.levels.at(self.priority(offset))

    def priority(self, offset: int) -> int:
        """The priority of a message."""
        found = self.store.facts.of(offset)
        return 0 if found is None else priority_of(found[0])

    # --- messages back -----------------------------------------------------------------

    def give_back(self, first: int, count: int) -> None:
        """Return delivered messages to where they stood; they will be redelivered."""
        self.give_back_offsets(range(first, first + count))

    def give_back_offsets(self, offsets: Sequence[int], cause: Cause = Cause.LOST) -> None:
        """As `give_back`, for messages that do not lie together; the queue may have rules for what comes back."""
        if self.deleted:
            return self.settle_offsets(offsets)
        if self.groups is not None:
            self.groups.release(offsets)
        if self.returns is not None:
            offsets = self.returns.came_back(offsets, cause)
        if offsets:
            self.stand_again(offsets)

    def stand_again(self, offsets: Sequence[int], *, delivered: bool = True) -> None:
        """Outstanding messages stand in line where they stood; unless they were `delivered` to somebody, unmarked."""
        self.outstanding -= len(offsets)
        if delivered and self.settings.keep_delivered:
            self.rules.live_on(offsets)
        if self.levels is None and not self.rules.timed:
            for first, count in runs_of(offsets):
                self.line.placed.add(first, count, redelivered=delivered)
        else:
            for offset in (offsets := self.rules.still_alive(offsets)):
                self.line_of(offset).placed.add(offset, 1, redelivered=delivered)
        self.rules.came_back(offsets)
        self.wake()

    def put_back(self, offsets: Iterable[int]) -> None:
        """The engine stops: outstanding messages stand in line again, whatever rules say of them."""
        for offset in offsets:
            self.outstanding -= 1
            if not self.deleted:
                self.line_of(offset).placed.add(offset, 1)

    def settle(self, first: int, count: int) -> None:
        """Delivered messages are done with."""
        self.outstanding -= count
        if self.deleted:
            self.store.forget(first, count)
            return
        if self.returns is not None and self.returns.tries:
            self.returns.forget(first, count)
        if self.groups is not None:
            self.groups.release(range(first, first + count))
        self.store.settle(self.id, first, count)

    def settle_offsets(self, offsets: Sequence[int]) -> None:
        """As `settle`, for messages that do not lie together."""
        if self.deleted or isinstance(offsets, range) or len(offsets) == 1 or self.returns is not None:
            for first, count in runs_of(offsets):
                self.settle(first, count)
        else:
            self.outstanding -= len(offsets)
            if self.groups is not None:
                self.groups.release(offsets)
            self.store.settle_offsets(self.id, sorted(offsets))

    def settle_waiting(self, offsets: Sequence[int], *, rejected: bool) -> None:
        """Settle messages that are not delivered, at a start; those that are not there are settled already."""
        if found := self.rules.take_out(sorted(offsets)):
            self.outstanding += len(found)
            (self.reject if rejected else self.settle_offsets)(found)

    def reject(self, offsets: Sequence[int]) -> None:
        """Delivered messages are refused by who got them: they die, unless the queue tries again."""
        if catches(self.settings) and not self.deleted:
            return self.give_back_offsets(offsets, Cause.REJECTED)
        if self.groups is not None:
            self.groups.release(offsets)
        self.bury(offsets, REJECTED)

    def bury(self, offsets: Sequence[int], reason: str) -> None:
        """Outstanding messages are dead: to the dead letter exchange with them, if there is one."""
        self.host.deaths[reason] += len(offsets)
        if self.deleted or not self.settings.buries:
            return self.settle_offsets(offsets)
        self.host.dead_letter(self, offsets, reason)

    # --- giving out --------------------------------------------------------------------

    def next_line(self) -> Line:
        """The line whose head comes next."""
        levels = self.levels
        if levels is None:
            return self.line
        if levels.fresh.ready.count:
            if levels.top() is None:
                return levels.fresh
            self.rules.sort_in()
        return levels.top() or levels.fresh

    def head(self) -> tuple[int, int, bool]:
        """First offset, contiguous count and redelivered flag of what comes next; count 0 when there is nothing."""
        first, count, redelivered = self.next_line().head()
        if first < self.redelivered_before and count and not redelivered:
            return first, min(count, self.redelivered_before - first), True
        return first, count, redelivered

    def take(self, count: int) -> None:
        """Remove the first `count` of `head()`: they are delivered now."""
        self.outstanding += count
        line = self.next_line()
        if self.rules.sizes is not None:
            self.rules.gone(line.head()[0], count)
        line.take(count)

    def taken(self, offsets: Sequence[int]) -> None:
        """Messages were taken off a line: they are delivered now."""
        self.outstanding += len(offsets)
        if self.rules.sizes is not None:
            for first, count in runs_of(offsets):
                self.rules.gone(first, count)

    def not_taken(self, offsets: Sequence[int], redelivered: bool) -> None:
        """Messages that were taken off the front could not be given out: they are next again."""
        self.outstanding -= len(offsets)
        for first, count in runs_of(offsets):
            self.line_of(first).placed.add(first, count, redelivered=redelivered)
        self.rules.came_back(offsets)

    def not_seen(self, offsets: Sequence[int], redelivered: bool) -> None:
        """Deliveries that nobody was given after all are back where they stood; it counts as no return."""
        if self.deleted:
            return self.settle_offsets(offsets)
        if self.groups is not None:
            self.groups.release(offsets)
        if self.rules.timed or self.groups is not None:
            return self.stand_again(offsets, delivered=redelivered)
        self.not_taken(offsets, redelivered)
        self.wake()

    async def take_one(self) -> tuple[Slab, int, bool, int] | None:
        """Get a message of a queue that is led elsewhere: slab of one, place, redelivered, how many are left."""
        raise NotImplementedError

    async def purge_elsewhere(self) -> int:
        """`purge` for a queue that is led elsewhere."""
        raise NotImplementedError

    async def refresh(self) -> None:
        """Have its counts be what they are now, wherever it is led. Raises StorageUnavailable."""
        await self.partition.until_given(self)

    async def feed(self) -> bool:
        """Where nothing is in line: wait until something is; False if nothing will be."""
        return await self.partition.until_given(self)

    def open_to(self) -> Consumer | None:
        """The only consumer, if no message waits and none is to come back: what comes may go straight to it."""
        consumers = self.turns.consumers
        if len(consumers) != 1 or self.fresh or self.levels is not None or self.groups is not None:
            return None
        consumer, line = consumers[0], self.line
        if line.ready.count or line.due or line.placed.count or self.settings.paused:
            return None
        if not consumer.no_ack and (consumer.passed is None or self.returns is not None or self.settings.buries):
            return None
        return consumer

    def pump(self) -> None:
        """Deliver what can be delivered: messages to consumers with credit; then look after those that stay."""
        if self.partition.suspended:
            return
        if self.groups is not None and self.fresh:
            self.rules.sort_in()
        if self.turns.consumers and (self.rules.timing is None or self.rules.lets_give_out()):
            self.give_out()
        if self.fresh:
            self.rules.sort_in()
        if self.settings.limited:
            limits.enforce(self)

    def give_out(self) -> None:
        """Give consumers with credit what is in line."""
        if self.settings.paused:
            return
        window, consumers = self.settings.priority_window, self.turns.consumers
        while self.groups is None:
            first, count, redelivered = self.head()
            if not count:
                return
            level = self.priority(first) if window else -1
            waiting = self.message_count if len(consumers) > 1 else count
            consumer, credit = self.turns.choose(waiting, window, level)
            if consumer is None:
                return
            if count < SCATTERED_BELOW and count < credit and not window and self._goes_on(count):
                gathered = gather(self, min(credit, _GATHERED_MAX))
                if gathered is not None:
                    slab, offsets, redelivered = gathered
                    if redelivered and self.returns is not None:
                        slab = self.returns.marked(slab, offsets)
                    consumer.session.hand_over_scattered(consumer, self, slab, offsets, redelivered)
                    continue
            entry = self.store.find(first)
            if entry is None:
                load(self, first, count)
                return
            start = first - entry.first
            count = min(count, credit, entry.end - first)
            self.take(count)
            if window and consumer.level is not None:
                consumer.level = max(level, consumer.level)
            if redelivered and self.returns is not None and self.returns.tries:
                offsets = list(range(first, first + count))
                slab = self.returns.marked(entry.slab.part(start, start + count), offsets)
                consumer.session.hand_over_scattered(consumer, self, slab, offsets, redelivered)
                continue
            consumer.session.hand_over(consumer, entry.slab, start, start + count, first, redelivered)
        self.groups.deliver()

    def _goes_on(self, count: int) -> bool:
        """Whether more waits, or may, than the `count` that come next."""
        line, levels = self.next_line(), self.levels
        return line.count > count or (levels is not None and line is not levels.fresh and levels.may_be_several)

    # --- emptying ----------------------------------------------------------------------

    def shed(self, count: int) -> int:
        """Give up the oldest messages that are not delivered, at most `count`; how many there were."""
        left = count
        if self.groups is not None:
            self.groups.disband()
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
        """Settle all that is in line; how many there were. Delayed messages stay."""
        return self.shed(self.message_count)

    def retire(self) -> None:
        """Another object is this queue from now on: what sessions say of this one means nothing any more."""
        if not self.deleted:
            self.deleted, self.history = True, None  # that retires as one of the home's queues
            self.clear()
            for consumer in self.turns.drain():
                consumer.session.queue_gone(consumer)

    def require_led(self) -> None:
        """Raises StorageUnavailable where another broker leads the queue, or this one may not serve it now."""
        self.partition.look_again()
        if self.partition.suspended:
            raise self.partition.error or StorageUnavailable(f"queue '{self.name}' is not ready yet")

    def clear(self) -> None:
        """The queue is deleted: forget everything."""
        if self.history is not None:
            follow(self, 0, self.host)
        if self.levels is not None:
            self.levels = Levels(self.levels.highest)
        if self.groups is not None:
            self.groups.disband()
        self.line.clear()
        self.fresh.clear()
        self.rules.stop()
