"""A binding: from an exchange to a queue, another exchange or a topic.

There may be a million of them: what many have in common, all but the pattern, is there once (`Common`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from routing.topology.entries import Key

Destination = tuple[str, str]
"""Kind ("queue", "exchange" or "topic") and name."""


_SHARED_MAX = 4096
_shared: dict[str, dict[str, Any]] = {}
"""Arguments by how they are written down, as far as that tells all of them."""


def shared_arguments(arguments: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The same arguments, that other bindings have as well; never to be changed."""
    if not all(type(value) in (str, int, bool) for value in arguments.values()):
        return dict(arguments)
    found = _shared.get(key)
    if found is None:
        if len(_shared) >= _SHARED_MAX:
            _shared.clear()
        found = _shared[sys.intern(key)] = dict(arguments)
    return found


class Common:
    """All of a binding but its pattern: what many have in common, and what is there once for all that are made with it.
    Arguments take part in its identity as they are written down.
    """

    __slots__ = ("_hash", "arguments", "arguments_key", "destination", "exchange", "syntax")

    def __init__(
        self, exchange: str, destination: Destination, arguments: Mapping[str, Any], syntax: str, arguments_key: str
    ) -> None:
        self.exchange = exchange
        self.destination = destination
        self.arguments = arguments
        self.syntax = syntax
        self.arguments_key = arguments_key
        self._hash = hash((exchange, destination, syntax, arguments_key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Common)
            and self.destination == other.destination
            and self.exchange == other.exchange
            and self.arguments_key == other.arguments_key
            and self.syntax == other.syntax
        )


class Binding(msgspec.Struct, frozen=True, gc=False):
    """From an exchange to a destination. Nothing in it leads back to it, so no collection of garbage has to look."""

    pattern: str
    common: Common

    @classmethod
    def make(
        cls, exchange: str, destination: Destination, pattern: str, arguments: Mapping[str, Any] | None, syntax: str
    ) -> Binding:
        """A binding whose arguments take part in its identity."""
        arguments = arguments or {}
        key = json.dumps(arguments, sort_keys=True, default=repr) if arguments else ""
        return cls(pattern, Common(exchange, destination, shared_arguments(arguments, key), syntax, sys.intern(key)))

    @property
    def exchange(self) -> str:
        """The name of the exchange."""
        return self.common.exchange

    @property
    def destination(self) -> Destination:
        """Where it leads."""
        return self.common.destination

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What else was asked for; never to be changed."""
        return self.common.arguments

    @property
    def syntax(self) -> str:
        """What wildcards mean in the pattern."""
        return self.common.syntax

    @property
    def arguments_key(self) -> str:
        """The arguments as they are written down in the key."""
        return self.common.arguments_key

    def key(self, vhost: str) -> Key:
        """Its key in the catalog."""
        common = self.common
        kind, destination = common.destination
        return ("binding", vhost, common.exchange, kind, destination, self.pattern, common.syntax, common.arguments_key)


class BindingsTo(dict[Destination, dict[Binding, None]]):
    """The bindings of a virtual host by where they lead."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, set[str]] = {}
        """By the name of an exchange to which others are bound, which these are: of one there may be many bindings."""


def sharing(binding: Binding, others: dict[Binding, None] | None) -> Binding:
    """The same binding, made of what `others` have already: the first or the last of them, of one client's
    subscriptions nearly always both.
    """
    if others:
        for other in (next(iter(others)), next(reversed(others))):
            if other.common == binding.common:
                return Binding(binding.pattern, other.common)
    return binding


class BindingsFrom:
    """Those of one exchange. They are there once, with the others that lead to the same destinations."""

    __slots__ = ("_count", "_counts", "_source", "_to")

    def __init__(self, source: str, to: BindingsTo) -> None:
        self._source = source
        self._to = to
        self._counts: dict[Destination, int] = {}
        """How many of ours lead there."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_to(self, destination: Destination) -> int:
        """How many of them lead there."""
        return self._counts.get(destination, 0)

    def __contains__(self, binding: Binding) -> bool:
        return binding in self._to.get(binding.destination, ())

    def __iter__(self) -> Iterator[Binding]:
        for destination in self._counts:
            for binding in self._to[destination]:
                if binding.exchange == self._source:
                    yield binding

    def add(self, binding: Binding) -> None:
        """Add one that is not there."""
        destination = binding.destination
        self._to.setdefault(destination, {})[binding] = None
        if destination not in self._counts and destination[0] == "exchange":
            self._to.sources.setdefault(destination[1], set()).add(self._source)
        self._counts[destination] = self._counts.get(destination, 0) + 1
        self._count += 1

    def remove(self, binding: Binding) -> None:
        """Remove one that is there."""
        destination, counts = binding.destination, self._counts
        there = self._to[destination]
        del there[binding]
        if not there:
            del self._to[destination]
        counts[destination] -= 1
        if not counts[destination]:
            del counts[destination]
            if destination[0] == "exchange":
                self._leads_there_no_more(destination[1])
        self._count -= 1

    def _leads_there_no_more(self, name: str) -> None:
        sources = self._to.sources
        sources[name].discard(self._source)
        if not sources[name]:
            del sources[name]
