"""Finds the route of every message, from a cache that lasts until the topology changes.

A lookup is one for each routing key, and messages whose routes are the same object travel on together; keys that lead
to the same queues and topics share their route for that reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from routing.errors import AccessRefused
from routing.message import Properties, Slab
from routing.queues.queue import Queue
from routing.topics.topic import Topic
from routing.topology.route import Route
from routing.topology.topology import Topology


class Router:
    """See the module; call `forget` whenever the topology has changed."""

    def __init__(self, topology: Topology, routes_cached_max: int) -> None:
        self._topology = topology
        self._routes_cached_max = routes_cached_max
        self._by_exchange: dict[str, dict[str, Route]] = {}
        self._equal: dict[tuple[tuple[Queue, ...], tuple[Topic, ...]], Route] = {}
        self._cached = 0

    def forget(self) -> None:
        """Work out everything anew."""
        self._by_exchange.clear()
        self._equal.clear()
        self._cached = 0

    def routed(self, slab: Slab) -> list[tuple[Route, Slab]]:
        """The slab with its route, or the parts of it with theirs. Raises NotFound and AccessRefused."""
        by_key = self._by_exchange.get(slab.exchange)
        if by_key is None:
            exchange = self._topology.exchange(slab.exchange)
            if exchange.internal:
                raise AccessRefused(f"cannot publish to internal exchange '{slab.exchange}' in vhost '/'")
            by_key = self._by_exchange[slab.exchange] = {}
        if slab.keys is None:
            route = by_key.get(slab.routing_key)
            if route is not None:
                return [(route, slab)]
            if slab.raws is None:
                return [(self._find(slab.exchange, slab.routing_key, slab.properties), slab)]
            routes: list[Route | None] = [None] * len(slab.bodies)
        else:
            routes = list(map(by_key.get, slab.keys))
        if None in routes:
            for at, route in enumerate(routes):
                if route is None:
                    key = slab.key_of(at)
                    routes[at] = by_key.get(key) or self._find(slab.exchange, key, slab.properties_of(at))
        return _in_parts(slab, routes)

    def _find(self, exchange: str, key: str, properties: Properties) -> Route:
        queues, topics, dynamic = self._topology.resolve(
            self._topology.exchange(exchange), key, lambda: properties.neutral.headers
        )
        destinations = (tuple(queues), tuple(topics))
        route = self._equal.get(destinations)
        if route is None:
            route = self._equal[destinations] = Route(queues, topics)
        if not dynamic:
            if self._cached >= self._routes_cached_max:
                self.forget()
            self._cached += 1
            self._by_exchange.setdefault(exchange, {})[key] = route
        return route


def _in_parts(slab: Slab, routes: Sequence[Route | None]) -> list[tuple[Route, Slab]]:
    """A slab cut where the route of its messages changes."""
    parts: list[tuple[Route, Slab]] = []
    count, start = len(routes), 0
    while start < count:
        route = routes[start]
        assert route is not None
        stop = start + 1
        if not start and routes.count(route) == count:
            stop = count
        while stop < count and routes[stop] is route:
            stop += 1
        parts.append((route, slab.part(start, stop)))
        start = stop
    return parts
