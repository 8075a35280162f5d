"""Finds the route of every message of a virtual host, from a cache that lasts until the topology changes.

A lookup is one for each routing key, and messages whose routes are the same object travel on together; keys that lead
to the same queues and topics share their route for that reason. A change makes those exchanges forget their routes
that it can be reached from, and of these those alone whose keys a binding that comes or goes matches; all others keep
theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import WeakValueDictionary

from routing.errors import AccessRefused
from routing.message import Properties, Slab
from routing.queues.homes.destination_sets import NO_DUPLICATES
from routing.queues.queue import Queue
from routing.topics.topic import Topic
from routing.topology.history import RecentHistoryMatcher
from routing.topology.interest import BROKER, Elsewhere
from routing.topology.parked import is_closed
from routing.topology.route import Route, SoleRoutes, in_parts
from routing.topology.route_cache import RouteCache

if TYPE_CHECKING:
    from routing.topology.binding import Binding, Destination
    from routing.topology.exchange import Exchange
    from routing.topology.matchers import Neutral
    from routing.topology.virtual_host import VirtualHost

_FEW = 4
"""Messages of which so many in a row go to one place are better off as parts of a slab."""


class Reached(NamedTuple):
    """Where a message goes; `divided`: queues that an exchange chose among others; `varies`: more than its keys had
    a say; `by_chance`: more than the message; `delayed`: it passed an exchange where messages may ask to wait;
    `histories`: exchanges that remember it; `once_in_ms`: in this time no queue gets it twice.
    """

    queues: tuple[Queue, ...]
    topics: tuple[Topic | Elsewhere, ...]
    varies: bool
    delayed: bool
    histories: tuple[RecentHistoryMatcher, ...]
    once_in_ms: int
    divided: tuple[Queue, ...] = ()
    by_chance: bool = False


class Router:
    """See the module."""

    def __init__(self, vhost: VirtualHost, routes_cached_max: int) -> None:
        self._vhost = vhost
        self._routes_cached_max = routes_cached_max
        self._by_exchange: dict[str, RouteCache] = {}
        self._equal: WeakValueDictionary[Reached, Route] = WeakValueDictionary()
        """Routes that somebody still goes by."""
        self._kept: dict[Reached, Route] = {}
        """Those that no key leads to."""
        self._cached = 0

    # --- forgetting --------------------------------------------------------------------

    def forget(self, exchange: str, binding: Binding | None = None) -> None:
        """Something about an exchange has changed, or a binding of it comes or goes: work out anew what that concerns.
        Keys stay what they are on their way from exchange to exchange.
        """
        if not self._by_exchange:
            return
        found = self._vhost.exchanges.get(exchange) if binding is not None else None
        tokens = found.matcher.tokens(binding) if found is not None and binding is not None else None
        bound_to, alternate_of = self._vhost.bindings_to.sources, self._vhost.alternate_of
        seen = {exchange}
        pending = [exchange]
        while pending:
            name = pending.pop()
            cache = self._by_exchange.get(name)
            if cache is not None and tokens is not None:
                self._cached -= cache.drop_matching(tokens)
            elif cache is not None:
                self._cached -= len(self._by_exchange.pop(name).routes)
            sources = (bound_to.get(name, set()) | alternate_of.get(name, set())) - seen
            seen |= sources
            pending += sources

    def forget_queue(self, name: str) -> None:
        """A queue was made or is gone: the default exchange leads there. Its bindings are a matter of their own."""
        cache = self._by_exchange.get("")
        if cache is not None:
            self._cached -= cache.drop(name)
        if "" in self._vhost.alternate_of:
            self.forget("")
        self._kept.clear()

    def forget_all(self) -> None:
        """Work out everything anew."""
        self._by_exchange.clear()
        self._equal.clear()
        self._kept.clear()
        self._cached = 0

    # --- finding -----------------------------------------------------------------------

    def routed(self, slab: Slab, copies: Sequence[str] = (), *, together: bool = False) -> list[tuple[Route, Slab]]:
        """The slab with its route, or the parts of it with theirs. Raises NotFound and AccessRefused.

        With `copies`, further keys, its messages go wherever those lead as well (`routed_to_all`). With `together` one
        route may stand for those of many messages (`SoleRoutes`): it can only be delivered to.
        """
        if copies:
            return self.routed_to_all(slab, copies)
        cache = self._by_exchange.get(slab.exchange)
        if cache is None:
            self._entrance(slab.exchange)
            cache = self._by_exchange[slab.exchange] = RouteCache()
        by_key = cache.routes
        if slab.keys is None:
            route = by_key.get(slab.routing_key)
            if route is not None:
                return [(route, slab)]
            if slab.raws is None:
                route, by_chance = self._find(slab.exchange, slab.routing_key, slab.properties)
                if not by_chance or len(slab.bodies) == 1:
                    return [(route, slab)]
            routes = self._routes_of(slab, by_key)
        else:
            try:
                routes = list(map(by_key.__getitem__, slab.keys))
            except KeyError:
                routes = self._routes_of(slab, by_key)
        if together and routes[0].sole is not None and routes.count(routes[0]) * _FEW < len(routes):
            queues = [route.sole for route in routes]
            if None not in queues:
                return [(SoleRoutes(routes, cast("list[Queue]", queues)), slab)]
        return in_parts(slab, routes)

    def _routes_of(self, slab: Slab, known: dict[str, Route]) -> list[Route]:
        """The route of each message, where not all are known."""
        exchange, keys = slab.exchange, slab.keys or [slab.routing_key] * len(slab)
        return [known.get(key) or self._find(exchange, key, slab.properties_of(at))[0] for at, key in enumerate(keys)]

    def routed_to_all(self, slab: Slab, keys: Sequence[str]) -> list[tuple[Route, Slab]]:
        """As `routed`, for messages of one key that go wherever `keys` lead as well; every place gets them once."""
        exchange = self._entrance(slab.exchange)
        every = (slab.routing_key, *keys)
        route, reached = self._route(exchange, every, slab.properties_of(0))
        if not reached.varies:
            return [(route.with_copies(keys), slab)]
        others = [self._route(exchange, every, slab.properties_of(at))[0] for at in range(1, len(slab.bodies))]
        return [(route.with_copies(keys), part) for route, part in in_parts(slab, [route, *others])]

    def routed_inside(self, slab: Slab, further: Sequence[str] = ()) -> list[tuple[Route, Slab]]:
        """As `routed` or, with keys that messages go to as well, `routed_to_all`, for what the broker itself publishes:
        an internal exchange takes it. Raises NotFound.
        """
        exchange = self._vhost.exchange(slab.exchange)
        if not exchange.internal and not further:
            return self.routed(slab)
        routes: dict[str, Route] = {}
        found: list[Route] = []
        for at in range(len(slab.bodies)):
            key = slab.key_of(at)
            route = routes.get(key)
            if route is None:
                route, reached = self._route(exchange, (key, *further), slab.properties_of(at))
                route = route.with_copies(further) if further else route
                if not reached.varies:
                    routes[key] = route
            found.append(route)
        return in_parts(slab, found)

    def to_queue(self, name: str, slab: Slab) -> Route:
        """The route to the queue of a name, here or at another broker, for messages of whatever exchange and keys."""
        others = self._vhost.others
        there = others.queue(name) if others is not None and name not in self._vhost.queues else None
        if there is not None:
            return Route([], [there])
        ((route, _),) = self.routed(Slab("", name, slab.properties, slab.bodies, slab.size))
        return route

    def to_queues(self, queues: tuple[Queue, ...], exchange: str, once_in_ms: int) -> Route:
        """The route to queues that another broker has worked out. Delays count: it has seen to what may wait."""
        key = Reached(queues, (), False, True, (), once_in_ms)
        route = self._kept.get(key)
        if exchange and once_in_ms != NO_DUPLICATES:
            _remember(queues, exchange, once_in_ms)
        if route is None:
            route = Route(list(queues), [], delayed=True, once_in_ms=once_in_ms)
            self._keep(key, route)
        return route

    def _entrance(self, name: str) -> Exchange:
        exchange = self._vhost.exchange(name)
        if exchange.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{name}' in vhost '{self._vhost.name}'")
        return exchange

    def _find(self, exchange: str, key: str, properties: Properties) -> tuple[Route, bool]:
        """The route of a message, remembered if it can be, and whether chance had a say."""
        route, reached = self._route(self._vhost.exchange(exchange), (key,), properties)
        if not reached.varies:
            self._cached += 1
            cache = self._by_exchange.get(exchange)
            if cache is None:  # all was forgotten meanwhile
                cache = self._by_exchange[exchange] = RouteCache()
            cache.put(key, route)
        return route, reached.by_chance

    def _route(self, exchange: Exchange, keys: Sequence[str], properties: Properties) -> tuple[Route, Reached]:
        """The route of a message with these keys, and what it was made of."""
        reached = self.resolve(exchange, keys, lambda: properties.neutral)
        if self._cached >= self._routes_cached_max:
            self.forget_all()
        key = reached._replace(varies=False, by_chance=False) if reached.varies else reached
        route = self._kept.get(key) or self._equal.get(key)
        if exchange.name:
            _remember(reached.queues, exchange.name, reached.once_in_ms)
        if route is None:
            route = Route(
                list(reached.queues), list(reached.topics),
                delayed=reached.delayed, histories=reached.histories, once_in_ms=reached.once_in_ms,
                divided=reached.divided,
            )  # fmt: skip
            self._equal[key] = route
            if reached.varies:
                self._keep(key, route)
        return route, reached

    def _keep(self, key: Reached, route: Route) -> None:
        if len(self._kept) >= self._routes_cached_max:
            self._kept.clear()
        self._kept[key] = route

    def resolve(self, exchange: Exchange, keys: Sequence[str], neutral: Neutral) -> Reached:
        """What a message with these routing keys reaches, each once. An exchange that is reached twice is passed once,
        so loops end.
        """
        vhost = self._vhost
        queues: dict[Queue, bool] = {}
        topics: dict[Topic | Elsewhere, None] = {}
        histories: list[RecentHistoryMatcher] = []
        varies = by_chance = delayed = False
        once_in_ms = 0
        seen = {exchange.name}
        pending = [(exchange, False)]
        while pending:
            current, divided = pending.pop()
            matcher = current.matcher
            divided = divided or not matcher.to_all
            varies = varies or matcher.varies
            by_chance = by_chance or matcher.by_chance
            delayed = delayed or current.delayed
            once_in_ms = max(once_in_ms, current.once_in_ms)
            if isinstance(matcher, RecentHistoryMatcher):
                histories.append(matcher)
            if current.name == "":
                found: list[Destination] = [("queue", key) for key in keys if vhost.exists(("queue", key))]
                if vhost.others is not None:
                    found += vhost.others.named(keys)
            elif len(keys) == 1 or matcher.by_first_key:
                found = list(matcher.match(keys[0], neutral))
            else:
                found = [destination for key in keys for destination in matcher.match(key, neutral)]
            if not found and current.alternate is not None and current.alternate in vhost.exchanges:
                found = [("exchange", current.alternate)]
            for kind, name in found:
                if kind == "exchange":
                    if name not in seen:
                        seen.add(name)
                        pending.append((vhost.exchanges[name], divided))
                elif kind == "topic":
                    topics[vhost.topics[name]] = None
                elif kind == BROKER:
                    assert vhost.others is not None
                    topics[vhost.others.targets[name]] = None
                elif name in vhost.queues:
                    if is_closed(name, current.name):
                        continue
                    queue = vhost.queues[name]
                    view_of = queue.settings.view_of
                    if view_of is None:
                        queues[queue] = divided and queues.get(queue, True)
                    elif view_of in vhost.topics:
                        topics[vhost.topics[view_of]] = None
                elif name in vhost.streams:
                    topics[vhost.streams[name].topic] = None
                elif vhost.others is not None and (away := vhost.others.queue(name)) is not None:
                    topics[away] = None
        chosen = tuple(queue for queue, divided in queues.items() if divided)
        return Reached(tuple(queues), tuple(topics), varies, delayed, tuple(histories), once_in_ms, chosen, by_chance)

    def send_recent(self, slabs: Sequence[Slab], destination: Destination) -> None:
        """Give a destination that was just bound what its exchange remembers, as far as logs take it."""
        kind, name = destination
        if kind == "queue" and is_closed(name, ""):
            return
        for slab in slabs:
            if kind == "exchange":
                exchange = self._vhost.exchanges[name]
                parts = []
                for at in range(len(slab.bodies)):
                    properties = slab.properties_of(at)
                    parts.append((self._route(exchange, (slab.key_of(at),), properties)[0], slab.part(at, at + 1)))
            else:
                queue = self._vhost.queues.get(name) if kind == "queue" else None
                topic = self._vhost.topics[name] if kind == "topic" else None
                if kind == "queue" and queue is None:
                    topic = self._vhost.streams[name].topic
                view_of = None if queue is None else queue.settings.view_of
                if view_of is not None:
                    queue, topic = None, self._vhost.topics.get(view_of)
                route = Route([queue] if queue else [], [topic] if topic else [])
                parts = [(route, slab)]
            for route, part in parts:
                if route.error() is None:
                    self._vhost.send(route, part)


def _remember(queues: Iterable[Queue], exchange: str, once_in_ms: int) -> None:
    """Have queues know for how long an exchange that leads to them asks them to remember: a route may be that of
    several exchanges, and of one that has asked for something else meanwhile.
    """
    for queue in queues:
        if once_in_ms or queue.seen is not None:
            queue.remember(exchange, once_in_ms)
