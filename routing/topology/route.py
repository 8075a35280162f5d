"""Where messages go, worked out once for each exchange and routing key.

A route names, for each home partition, the set of queues there, and the topics. Keys that lead to the same places share
one route, so that messages with different keys can stay together. The broker caches routes until the topology changes;
only routes that pass a headers exchange are worked out anew for each set of properties. A slab for transient
queues whose only consumers wait for it, and give nothing back, is handed to them at once, without offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING

from routing.errors import StorageUnavailable
from routing.facts import DELAYED_FROM, TIMED_FROM, without_delay
from routing.message import Properties, Slab
from routing.queues.history import with_histories
from routing.queues.homes.destination_sets import NO_DUPLICATES
from routing.queues.limits import room
from routing.topology.interest import Elsewhere

if TYPE_CHECKING:
    from core_log.files import BytesLike
    from core_log.partition_log import PartitionLog
    from routing.queues.homes.destination_sets import DestinationSet
    from routing.queues.homes.home import Home
    from routing.queues.queue import Queue
    from routing.topics.topic import Topic
    from routing.topology.history import RecentHistoryMatcher


_AVOIDING_MAX = 64
_ENDLESS = 1 << 30


class Route:
    """See the module."""

    __slots__ = (
        "__weakref__", "_as_new", "_avoiding", "_divided", "_fleeting", "_heeding", "_here", "_instead", "_once_in_ms",
        "_passing", "asks", "delayed", "durable_homes", "guarded", "histories", "homes", "is_logged", "queues",
        "remembering", "sole", "topics",
    )  # fmt: skip

    def __init__(
        self,
        queues: list[Queue],
        topics: Sequence[Topic | Elsewhere],
        *,
        delayed: bool = False,
        histories: tuple[RecentHistoryMatcher, ...] = (),
        once_in_ms: int = 0,
        retained: bool = True,
        divided: Sequence[Queue] = (),
    ) -> None:
        """With `delayed` messages wait as long as their facts say, without they do not; `histories` remember them.

        With `once_in_ms` every queue takes a message only once in this time, with `NO_DUPLICATES` none asks whether it
        knows one; without `retained` queues that retain what they get do not retain this. `divided` queues were chosen
        among others.
        """
        self.histories = histories
        heeding = [] if delayed else [queue for queue in queues if queue.settings.delayed]
        self.delayed = delayed or (bool(heeding) and len(heeding) == len(queues))
        self._heeding = [] if self.delayed else heeding
        """Queues that have messages wait, while the others get them at once."""
        self.guarded = [queue for queue in queues if queue.settings.guards_publishing]
        """Queues that publishers have to ask."""
        self._fleeting = [queue for queue in queues if not (queue.settings.keep_transient or queue.elsewhere)]
        """Queues that take what is not persistent only while they are consumed."""
        self.asks = any(queue.elsewhere for queue in self.guarded)
        """Some of them are led elsewhere: what they refuse is known later."""
        self._once_in_ms = once_in_ms
        asked = queues if once_in_ms != NO_DUPLICATES else ()
        self.remembering = [queue for queue in asked if once_in_ms or queue.settings.deduplication_window_ms]
        """Queues that take no message twice."""
        self._avoiding: dict[frozenset[Queue], Route] = {}
        self._instead: dict[Home, Home] = {}
        """Where messages wait, see `waiting`."""
        self.queues = queues
        self._here: Route | None = None
        self._as_new: Route | None = None
        self._divided = divided
        by_home: dict[Home, list[Queue]] = {}
        for queue in with_histories(queues) if retained else queues:
            by_home.setdefault(queue.partition, []).append(queue)
        self.homes: list[tuple[Home, DestinationSet]] = [
            (home, home.destination_set(tuple(members)).within(once_in_ms)) for home, members in by_home.items()
        ]
        self.durable_homes = [home for home in by_home if home.durable]
        self.topics = topics
        self.is_logged = bool(topics or self.durable_homes)
        """It leads to logs, which may refuse what is published (`error`)."""
        remain = self.is_logged or any(queue.history is not None for queue in queues)
        self._passing = [] if remain else queues
        is_plain = len(self._passing) == 1 and not (histories or self.guarded or self.remembering)
        self.sole = queues[0] if is_plain else None
        """The queue, if the route leads to nothing but one that is transient and has no say in publishing."""

    @property
    def durable_queue_ids(self) -> list[int]:
        """The queues here that outlive the process."""
        return [queue.id for queue in self.queues if queue.partition.durable]

    def require_room(self, slab: Slab) -> None:
        """Raises LimitExceeded if a topic here cannot take a message of the slab."""
        for topic in self.topics:
            topic.require_room(slab)

    @property
    def leads_nowhere(self) -> bool:
        """It has no destination, or none but brokers with which there is no link now."""
        return not self.homes and not any(not isinstance(topic, Elsewhere) or topic.is_reached for topic in self.topics)

    def error(self) -> StorageUnavailable | None:
        """Why the route cannot take messages now, if a log it leads to refuses writes."""
        for home in self.durable_homes:
            if home.error is not None:
                return home.error
        for topic in self.topics:
            failed = topic.error()
            if failed is not None:
                return failed
        return None

    def waiting(self) -> Route | None:
        """The same, for now that homes, or topics, have an `error` which may pass: what is published to these waits
        elsewhere, and their queues are asked there. None: it may not.
        """
        instead: dict[Home, Home] = {}
        for home in self.durable_homes:
            if home.error is not None:
                if home.instead is None or home.instead.error is not None:
                    return None
                instead[home] = home.instead
        if not all(topic.wait() for topic in self.topics):
            return None
        return self._waiting_at(instead)

    def _waiting_at(self, instead: dict[Home, Home]) -> Route:
        found = copy(self)
        found._instead, found.homes = instead, []
        for home, destinations in self.homes:
            there = instead.get(home)
            if there is not None:
                queues = tuple(queue for queue in self.queues if queue.partition is home)
                destinations = there.destination_set(queues).within(destinations.once_in_ms)
            found.homes.append((home if there is None else there, destinations))
        found.guarded = [queue for queue in self.guarded if queue.partition not in instead]
        found.asks = self.asks or len(found.guarded) < len(self.guarded)
        found.remembering = [queue for queue in self.remembering if queue.partition not in instead]
        found._avoiding, found._as_new = {}, None
        return found

    def room(self, bodies: Sequence[BytesLike]) -> int:
        """How many of these messages the fullest of the guarded queues takes before it refuses one."""
        return self._room(bodies)[0]

    def fullest(self, bodies: Sequence[BytesLike]) -> Queue:
        """The guarded queue that is the first to refuse one of these messages."""
        return min((queue for queue in self.guarded if not queue.elsewhere), key=lambda queue: room(queue, bodies))

    def _room(self, bodies: Sequence[BytesLike]) -> tuple[int, int]:
        return min((room(queue, bodies) for queue in self.guarded if not queue.elsewhere), default=(_ENDLESS, 0))

    def pieces(self, slab: Slab) -> Iterator[Slab]:
        """A slab for guarded queues, divided so that in each piece those who are refused are the last: publish each
        before the next is asked for.
        """
        at, count = 0, len(slab.bodies)
        while at < count:
            taken, over = self._room(slab.bodies[at:])
            end = at + taken + over if over else count
            yield slab.part(at, end) if end - at < count else slab
            at = end

    def avoiding(self, queues: frozenset[Queue]) -> Route:
        """Where messages go that some queues must not get."""
        found = self._avoiding.get(queues)
        if found is None:
            if len(self._avoiding) >= _AVOIDING_MAX:
                self._avoiding.clear()
            found = self._to([queue for queue in self.queues if queue not in queues], self.topics)
            self._avoiding[queues] = found
        return found

    def here(self) -> Route:
        """Where messages go that another broker sent, which sees to all else: to queues that end with this one,
        but for those that it chooses itself.
        """
        if self._here is None:
            own = [queue for queue in self.queues if not queue.partition.durable and queue not in self._divided]
            self._here = self._to(own, [])
        return self._here

    def as_new(self) -> Route:
        """Where messages go that are no duplicates, though queues may know their ids: they have been there before."""
        if not self.remembering:
            return self
        if self._as_new is None:
            self._as_new = self._to(self.queues, self.topics, histories=self.histories, once_in_ms=NO_DUPLICATES)
        return self._as_new

    def with_copies(self, copies: Sequence[str]) -> Route:
        """The same for messages that go wherever further keys lead: other brokers are told these."""
        if not any(isinstance(topic, Elsewhere) for topic in self.topics):
            return self
        topics = [topic.with_copies(copies) if isinstance(topic, Elsewhere) else topic for topic in self.topics]
        return self._to(self.queues, topics, histories=self.histories)

    def after_death(self, barred: Collection[str]) -> Route:
        """Where dead letters go that must not get to the queues of these names: other brokers are told of that."""
        there = frozenset(queue for queue in self.queues if queue.name in barred)
        if not any(isinstance(topic, Elsewhere) for topic in self.topics):
            return self.avoiding(there) if there else self
        topics = [topic.after_death(barred) if isinstance(topic, Elsewhere) else topic for topic in self.topics]
        left = [queue for queue in self.queues if queue not in there]
        return self._to(left, [topic for topic in topics if topic is not None])

    def _to(
        self,
        queues: list[Queue],
        topics: Sequence[Topic | Elsewhere],
        *,
        delayed: bool = False,
        histories: tuple[RecentHistoryMatcher, ...] = (),
        once_in_ms: int | None = None,
    ) -> Route:
        """One like this that leads to these alone."""
        if once_in_ms is None:
            once_in_ms = self._once_in_ms
        found = Route(
            queues, topics, delayed=delayed or self.delayed, histories=histories, once_in_ms=once_in_ms,
            divided=self._divided,
        )  # fmt: skip
        return found._waiting_at(self._instead) if self._instead else found

    def _deliver_divided(self, slab: Slab) -> list[tuple[PartitionLog, int]]:
        heeding = frozenset(self._heeding)
        later = self._to(self._heeding, [], delayed=True)
        return later.deliver(slab) + self.avoiding(heeding).deliver(slab)

    def _pass_on(self, slab: Slab, facts: int) -> bool:
        """Hand the slab, whose facts are at most these, to the consumers of all queues, if each could have it now."""
        consumers = []
        for queue in self._passing:
            consumer = queue.open_to()
            if consumer is None or consumer.credit() < len(slab.bodies):
                return False
            if facts >= TIMED_FROM and consumer.passed is not None:
                return False
            consumers.append(consumer)
        for consumer in consumers:
            consumer.session.pass_on(consumer, slab)
        return True

    def deliver(self, slab: Slab) -> list[tuple[PartitionLog, int]]:
        """Put the slab into everything the route leads to; the durable logs it went to, with the offsets it ends at."""
        if self._fleeting and not slab.properties.persistent:
            unused = frozenset(queue for queue in self._fleeting if not queue.consumers)
            if unused:
                return self.avoiding(unused).deliver(slab)
        facts = slab.properties.facts if slab.facts is None else slab.highest_facts
        held, asked = facts >= DELAYED_FROM, slab
        if held and not self.delayed:
            if self._heeding:
                return self._deliver_divided(slab)
            slab = undelayed(slab)
        elif not held and self._passing and self._pass_on(slab, facts):
            return []
        targets = []
        for home, destinations in self.homes:
            end = home.enqueue(slab, destinations)
            if home.durable:
                targets.append((home.log, end))
        for topic in self.topics:
            # Another broker knows itself who heeds delays there.
            targets += topic.append_slab(asked if isinstance(topic, Elsewhere) else slab)
        return targets


class SoleRoutes(Route):
    """The routes of messages each of which goes to another queue, and to nothing else (`Route.sole`).

    If all of these stand open and their consumers belong to one session, that gets the slab as a whole.
    """

    __slots__ = ("_routes",)

    def __init__(self, routes: list[Route], queues: list[Queue]) -> None:
        super().__init__([], [])
        self._routes = routes
        self.queues = queues
        self.homes = routes[0].homes  # so that it does lead somewhere

    def deliver(self, slab: Slab) -> list[tuple[PartitionLog, int]]:
        """As `Route.deliver`; no log is written."""
        if not self._pass_on_each(slab):
            for route, part in in_parts(slab, self._routes):
                route.deliver(part)
        return []

    def _pass_on_each(self, slab: Slab) -> bool:
        session = None
        consumers = []
        if not slab.plain:
            return False
        for queue in self.queues:
            consumer = queue.open_to()
            if consumer is None or not consumer.no_ack:
                return False
            if consumer.session is not session:
                if session is not None or consumer.credit() <= 0:
                    return False
                session = consumer.session
            consumers.append(consumer)
        return session is not None and session.pass_on_each(consumers, slab)


def in_parts(slab: Slab, routes: Sequence[Route]) -> list[tuple[Route, Slab]]:
    """A slab cut where the route of its messages changes."""
    parts: list[tuple[Route, Slab]] = []
    count, start = len(routes), 0
    while start < count:
        route = routes[start]
        stop = start + 1
        if not start and routes.count(route) == count:
            stop = count
        while stop < count and routes[stop] is route:
            stop += 1
        parts.append((route, slab.part(start, stop)))
        start = stop
    return parts


def undelayed(slab: Slab) -> Slab:
    """The same messages without their delays."""
    properties = slab.properties
    if slab.facts is None:
        found = properties.wire.get(undelayed)
        if found is None:
            facts = without_delay(properties.facts)
            found = Properties(properties.protocol, properties.raw, persistent=properties.persistent, facts=facts)
            properties.wire[undelayed] = found
        properties = found
    facts_of_each = None if slab.facts is None else list(map(without_delay, slab.facts))
    return Slab(
        slab.exchange, slab.routing_key, properties, slab.bodies, slab.size,
        keys=slab.keys, raws=slab.raws, facts=facts_of_each,
    )  # fmt: skip
