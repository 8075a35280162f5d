"""Messages to be published when somebody is gone who cannot do it himself any more: his will.

1. A will is kept durably from `keep` on, under a virtual host and a name, in the store that `retained.py` has too. It
   is erased by who leaves in good order, and published (`send`) for who is gone, at once or after a delay in which he
   may come back (`returned`).
2. It is published exactly once, whatever kills the broker. That it is published is decided by one batch of the store:
   the will goes from under its name, what is to be retained is there, and a note says what to publish, and how far the
   logs of the home partitions had come. When that is durable it is published, and when that is safe the note goes. A
   start publishes what is noted, but not to queues in whose log it finds it behind that place, which is kept until
   then; where a crash has left less of a log it notes that first. (Topics may have it twice then, and so may queues
   that other brokers lead.)
3. At a start nobody is there: a will that was kept, or waits, is published after its delay, or after
   `will_grace_ms` if that is longer, unless its owner comes back until then.
4. What the disk refuses is tried again. `finish` waits a little for what is under way; the rest is done at the next
   start.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import trio

from core_log.errors import BatchTooLarge, LogUnavailable
from core_log.keyed_store import KeyedStore
from core_log.partition_log import PartitionLog
from core_log.record_batch import iterate_records
from delay.timer_service import Timer
from routing.commits import storage_errors
from routing.errors import BrokerError, LimitExceeded, StorageUnavailable
from routing.facts import pack
from routing.message import NAME_ENCODING_ERRORS, Numbered, Properties, Slab
from routing.publishing.named import NamedSlab
from routing.queues.homes.home_records import encode_key
from routing.topics.topic import Topic

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.kept.retained import Retained
    from routing.queues.homes.home import Home
    from routing.session import Consumer, Session
    from routing.topology.route import Route

logger = logging.getLogger(__name__)

_KEPT, DECIDED = b"w\0", b"d\0"
NUMBERS = 1 << 16
_RETRY_S = 1.0
_FINISH_S = 5.0
_READ_BYTES = 1 << 20
_Place = tuple[PartitionLog, int]
"""A log, and up to where it has to be committed."""


class Will(NamedTuple):
    """What to publish, and for whom."""

    user: str
    """Whose rights count when it is published."""
    exchange: str
    routing_key: str
    tag: bytes
    """Of `Properties.log_tag`."""
    retained_tag: bytes | None
    """The same for the message as it is retained; None: it is not."""
    body: bytes
    ttl_ms: int | None = None
    delay_ms: int = 0
    """From when the owner is gone."""
    due_at_ms: int = 0
    """When it is published, if the owner is gone."""
    holder: Sequence[int] = ()
    """In a cluster the broker and process that the owner is connected to, and the connection's number there."""

    def slab(self, tag: bytes) -> Slab:
        """The message, with one of the tags."""
        found = Properties.from_log_tag(tag)
        facts = pack(found.persistent, ttl_ms=self.ttl_ms)
        properties = Properties(found.protocol, found.raw, persistent=found.persistent, facts=facts)
        return Slab(self.exchange, self.routing_key, properties, [self.body])


class Decision(NamedTuple):
    """A will that is to be published: the number of its note, and where the homes' logs ended before."""

    number: int
    vhost: str
    name: str
    will: Will
    ends: dict[int, int]
    publisher: int = 0
    """In a cluster, who publishes it under its number (`Slab.once`), so that homes take it once; other queues do by its
    `title` (`NamedSlab`).
    """

    @property
    def once(self) -> int:
        """Its number as a publish."""
        return self.number % NUMBERS

    @property
    def title(self) -> bytes:
        return b"%d.%d" % (self.publisher, self.number)

    @property
    def key(self) -> bytes:
        return DECIDED + self.number.to_bytes(8, "big")

    @property
    def note(self) -> bytes:
        """What is kept under the key."""
        more = (self.publisher,) if self.publisher else ()
        packed: bytes = msgpack.packb(
            [self.vhost, self.name, list(self.will), self.ends, *more], unicode_errors=NAME_ENCODING_ERRORS
        )
        return packed


class Wills:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker, store: KeyedStore, retained: Retained, grace_ms: int) -> None:
        self._broker = broker
        self._store = store
        self._retained = retained
        self._waiting: dict[bytes, Timer] = {}
        """Those whose owners are gone."""
        self._of_before: set[bytes] = set()
        """Those among them whose owners were there when the broker stopped."""
        self._undecided: set[bytes] = set()
        """Those that are due, which the disk has refused to have decided."""
        self._publishers: dict[str, _Publisher] = {}
        self._open: dict[int, dict[int, int]] = {}
        """Decided, and not yet done with, by number: where a start would look for them from (`Decision.ends`)."""
        self._idle = trio.Event()
        self._next = 1
        self._recovered: list[Decision] = []
        for key, value in store.items():
            if key.startswith(DECIDED):
                vhost, name, will, ends, *publisher = unpack(value)
                number = int.from_bytes(key[len(DECIDED) :], "big")
                self._recovered.append(Decision(number, vhost, name, Will(*will), ends, *publisher))
                self._next = max(self._next, number + 1)
            elif key.startswith(_KEPT):
                self._found(key, Will(*unpack(value)), grace_ms)
        if self._recovered:
            broker.spawn(self._recover)

    def _found(self, key: bytes, will: Will, grace_ms: int) -> None:
        """Rule 3."""
        now_ms = self._broker.clock.now_ms()
        due_ms = now_ms + grace_ms
        if will.due_at_ms:
            due_ms = max(due_ms, will.due_at_ms)
        else:
            due_ms = max(due_ms, now_ms + will.delay_ms)
            self._of_before.add(key)
        self._wait(key, due_ms)

    # --- owners ------------------------------------------------------------------------

    def returned(self, vhost: str, name: str, *, afresh: bool) -> None:
        """An owner is there again: what waits is void. If he begins `afresh` he is not who went: it is published."""
        key = key_of(vhost, name)
        if key in self._undecided:  # it was due before
            self._decide(key)
        timer = self._waiting.pop(key, None)
        if timer is None:
            return
        timer.cancel()
        if afresh and key not in self._of_before:
            self._decide(key)
        else:
            self._put(key, None)
        self._of_before.discard(key)

    async def keep(self, vhost: str, name: str, will: Will, lost: Callable[[], None] | None = None) -> None:
        """Have a will from now on; durable when it returns. Raises StorageUnavailable; it may be kept all the same. In
        a cluster `lost` is called when it is published though its owner is there.
        """
        key = key_of(vhost, name)
        with storage_errors():
            end = self._store.put(key, pack_will(will))
            self._undecided.discard(key)
            await self._store.log.wait_committed(end)

    def erase(self, vhost: str, name: str) -> None:
        """The owner leaves in good order."""
        key = key_of(vhost, name)
        if key not in self._undecided:  # else that is an earlier one, as his could not be kept
            self._put(key, None)

    def send(self, vhost: str, name: str, delay_ms: int) -> None:
        """The owner is gone: his will is published after a delay; 0 is at once."""
        key = key_of(vhost, name)
        value = self._store.get(key)
        if value is None:
            return
        if delay_ms <= 0:
            self._decide(key)
            return
        due_ms = self._broker.clock.now_ms() + delay_ms
        self._put(key, pack_will(Will(*unpack(value))._replace(due_at_ms=due_ms)))
        self._wait(key, due_ms)

    # --- publishing --------------------------------------------------------------------

    def _wait(self, key: bytes, due_ms: int) -> None:
        broker = self._broker
        self._waiting[key] = broker.timers.at(broker.clock.seconds(due_ms), partial(self._due, key))

    def _due(self, key: bytes) -> None:
        self._waiting.pop(key, None)
        self._of_before.discard(key)
        self._decide(key)

    def _later(self, call: Callable[[], None]) -> None:
        self._broker.timers.at(trio.current_time() + _RETRY_S, call)

    def _put(self, key: bytes, value: bytes | None) -> None:
        if self._store.get(key) == value:
            return
        try:
            self._store.put(key, value)
        except (LogUnavailable, BatchTooLarge) as error:
            logger.warning("a will is not kept as it is to be now: %s", error)
            before = self._store.get(key)
            self._later(lambda: self._put(key, value) if self._store.get(key) is before else None)

    def _decide(self, key: bytes) -> None:
        """It is published from now on, see the module's rule 2."""
        self._undecided.discard(key)
        value = self._store.get(key)
        if value is None:
            return
        will = Will(*unpack(value))
        try:
            self._decide_now(key, will)
        except (LogUnavailable, BatchTooLarge) as error:
            logger.warning("the will for %s waits: %s", will.routing_key, error)
            self._undecided.add(key)
            self._later(lambda: self._decide(key) if key in self._undecided else None)

    def _decision(self, vhost: str, name: str, will: Will) -> Decision:
        ends = {home.index: home.log.log_end_offset for home in self._broker.topology.led}
        return Decision(self._next, vhost, name, will, ends)

    def _decide_now(self, key: bytes, will: Will, also: Sequence[tuple[bytes, bytes | None]] = ()) -> None:
        """The same, with other records of the store. Raises LogUnavailable, BatchTooLarge."""
        vhost, name = _parts(key)
        try:
            self._require_rights(vhost, name, will)
        except BrokerError as error:
            logger.warning("the will for %s was not published: %s", will.routing_key, error)
            self._store.put_all([(key, None), *also])
            return
        decision = self._decision(vhost, name, will)
        retained: dict[bytes, bytes | None] = {}
        if will.retained_tag is not None:
            try:
                retained = self._retained.plan(vhost, will.slab(will.retained_tag))
            except LimitExceeded as error:
                logger.warning("the will for %s is not retained: %s", will.routing_key, error)
        self._retained.put(retained, [(decision.key, decision.note), (key, None), *also])
        self._next += 1
        self._open[decision.number] = decision.ends
        self._look_behind()
        self._when_durable(decision, self._store.log.log_end_offset)

    def _require_rights(self, vhost: str, name: str, will: Will) -> None:
        """Raises BrokerError if its owner may not publish it now."""
        grants = self._broker.rights.grants(will.user, vhost, client_id=name)
        grants.require_publish(will.exchange, (will.routing_key,))

    def _when_durable(self, decision: Decision, end: int, avoided: Iterable[Home] = ()) -> None:
        def done(error: StorageUnavailable | None) -> None:
            if error is None:
                self._publish(decision, avoided)
            else:
                self._later(lambda: self._when_durable(decision, end, avoided))

        self._broker.commits.when_committed([(self._store.log, end)], done)

    def _publish(self, decision: Decision, avoided: Iterable[Home] = ()) -> None:
        will, broker = decision.will, self._broker
        try:
            self._require_rights(decision.vhost, decision.name, will)
            publisher = self._publishers.get(decision.vhost)
            if publisher is None or not publisher.is_there:
                publisher = self._publishers[decision.vhost] = _Publisher(broker, decision.vhost, self._over)
            publisher.publish(decision, frozenset(avoided))
        except StorageUnavailable:
            self._later(lambda: self._publish(decision, avoided))
        except BrokerError as error:
            logger.warning("the will for %s was not published: %s", will.routing_key, error)
            self._over([decision], published=True)

    def close(self) -> None:
        """Nothing is published any more, and nobody is told of what is under way."""
        for timer in self._waiting.values():
            timer.cancel()
        for publisher in self._publishers.values():
            publisher.close()

    def _over(self, decisions: list[Decision], *, published: bool) -> None:
        """These are safe, or are to be published once more."""
        if not published:
            for decision in decisions:
                self._later(partial(self._publish, decision))
            return
        for decision in decisions:
            self._open.pop(decision.number, None)
        self._look_behind()
        if not self._open:
            self._idle.set()
        try:
            self._store.put_all([(decision.key, None) for decision in decisions])
        except LogUnavailable as error:
            logger.warning("wills that were published may be published again by the next start: %s", error)

    def _look_behind(self) -> None:
        """Homes keep what a start would look at: for the oldest one, and so for all."""
        oldest = next(iter(self._open.values()), {})
        for home in self._broker.topology.led:
            home.looked_behind.pop(DECIDED, None)
            if home.index in oldest:
                home.looked_behind[DECIDED] = oldest[home.index]

    # --- starting and stopping ---------------------------------------------------------

    async def _recover(self) -> None:
        decisions, self._recovered = self._recovered, []
        self._open |= {decision.number: decision.ends for decision in decisions}
        led = {home.index: home for home in self._broker.topology.led}
        for decision in decisions:
            slab = decision.will.slab(decision.will.tag)
            left = {index: led[index].log.log_end_offset for index in decision.ends if index in led}
            ends = {index: min(end, left.get(index, end)) for index, end in decision.ends.items()}
            avoided = [led[index] for index in left if _is_there(led[index], ends[index], slab)]
            if ends == decision.ends:
                self._publish(decision, avoided)
                continue
            noted = decision._replace(ends=ends)
            self._put(noted.key, noted.note)
            self._open[decision.number] = ends
            self._when_durable(noted, self._store.log.log_end_offset, avoided)
        self._look_behind()
        self._broker.end_turn()

    async def finish(self) -> None:
        """Wait for what is under way, for a little while."""
        if not self._open:
            return  # a turn more would deliver to sessions that are about to be closed
        self._broker.end_turn()
        with trio.move_on_after(_FINISH_S):
            while self._open:
                self._idle = trio.Event()
                await self._idle.wait()


class _Publisher:
    """The session that publishes wills in a virtual host, and its sink."""

    def __init__(self, broker: Broker, vhost: str, over: Callable[..., None]) -> None:
        self._session: Session = broker.session(self, protocol="millrace", owner=self, vhost=vhost)
        self._over = over
        self._first = 1
        self._unsafe: deque[tuple[Decision, Sequence[Route]]] = deque()
        """From the sequence number `_first` on, and where each is, whatever the disk says of it."""

    @property
    def is_there(self) -> bool:
        """The virtual host is still the one that it was."""
        vhost = self._session.vhost
        return self._session.broker.topology.vhosts.get(vhost.name) is vhost

    def close(self) -> None:
        """See `Wills.close`."""
        self._session.close()

    def publish(self, decision: Decision, avoided: frozenset[Home]) -> None:
        """Raises BrokerError."""
        session, slab = self._session, decision.will.slab(decision.will.tag)
        if decision.publisher and (engine := session.broker.engine) is not None:
            slab = NamedSlab(slab, decision.title, engine.interests.names)
            slab.once = Numbered(decision.publisher, array("H", [decision.once]))
        if not avoided:
            routes = [route for route, _ in session.vhost.router.routed(slab)]
            is_taken = not decision.publisher and all(route.error() is None for route in routes)
            session.publish(slab, confirm=True)
            self._unsafe.append((decision, routes if is_taken else ()))
            return
        targets = []
        for route, part in session.vhost.router.routed(slab):
            queues = frozenset(queue for queue in route.queues if queue.partition in avoided)
            targets += session.deliver_to(route.avoiding(queues), part, False)
        session.broker.end_turn()  # it is appended, so that its sync can be asked for

        def done(error: StorageUnavailable | None) -> None:
            if error is None:  # else the next start looks again
                self._over([decision], published=True)

        session.broker.commits.when_committed(targets, done)

    def confirm(self, up_to: int) -> None:
        """See `DeliverySink`."""
        self._over([decision for decision, _ in self._take(up_to)], published=True)

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """See `DeliverySink`."""
        for decision, routes in self._take(last):
            if routes and isinstance(error, StorageUnavailable):
                self._await(decision, [place for route in routes for place in _ends(route)])
            else:
                self._over([decision], published=False)

    def _take(self, up_to: int) -> list[tuple[Decision, Sequence[Route]]]:
        count = up_to - self._first + 1
        self._first = up_to + 1
        return [self._unsafe.popleft() for _ in range(count)]

    def _await(self, decision: Decision, places: Sequence[_Place]) -> None:
        """It is in its queues, and in memory until the disk takes it: it is not published once more."""
        broker = self._session.broker

        def done(error: StorageUnavailable | None) -> None:
            if error is None:
                self._over([decision], published=True)
            else:
                broker.timers.at(trio.current_time() + _RETRY_S, lambda: self._await(decision, places))

        broker.commits.when_committed(places, done)

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """See `DeliverySink`: it consumes nothing."""

    def returned(self, slab: Slab, reason: str) -> None:
        """See `DeliverySink`."""

    def cancelled(self, consumer: Consumer) -> None:
        """See `DeliverySink`."""

    def writable(self) -> bool:
        """See `DeliverySink`."""
        return True


def _ends(route: Route) -> Iterator[_Place]:
    """Where the logs that a route leads to end now."""
    for home in route.durable_homes:
        yield home.log, home.next_offset
    for topic in route.topics:
        if isinstance(topic, Topic):
            for partition in topic.partitions:
                yield partition.log, partition.next_offset


def _is_there(home: Home, offset: int, slab: Slab) -> bool:
    """Whether a message was put into a home partition at or behind an offset: if that is not kept any more, it was."""
    log = home.log
    key, tag = encode_key(slab.routing_key), slab.properties.log_tag
    if log.log_start_offset > offset:
        return True
    while batches := log.read_blocking(offset, _READ_BYTES):
        for batch in batches:
            for record in iterate_records(batch):
                offset = record.offset + 1
                if record.key == key and record.value == slab.bodies[0] and ("p", tag) in record.headers:
                    return True
    return False


def key_of(vhost: str, name: str) -> bytes:
    """Of the store."""
    return _KEPT + f"{vhost}\0{name}".encode("utf-8", NAME_ENCODING_ERRORS)


def _parts(key: bytes) -> tuple[str, str]:
    vhost, _, name = key[len(_KEPT) :].decode("utf-8", NAME_ENCODING_ERRORS).partition("\0")
    return vhost, name


def pack_will(will: Will) -> bytes:
    """As it is written."""
    packed: bytes = msgpack.packb(list(will), unicode_errors=NAME_ENCODING_ERRORS)
    return packed


def unpack(value: bytes) -> Any:
    """What was packed."""
    return msgpack.unpackb(
        value, unicode_errors=NAME_ENCODING_ERRORS, strict_map_key=False,
        max_str_len=len(value), max_bin_len=len(value),
    )  # fmt: skip
