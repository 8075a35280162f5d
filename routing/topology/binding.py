"""A binding: from an exchange to a queue, another exchange or a topic.

There may be a million of them: what many have in common (arguments, the names of an exchange and of a destination) is
there once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(slots=True, frozen=True)
class Binding:
    """From an exchange to a destination; two with equal `identity` are one."""

    exchange: str
    destination: Destination
    pattern: str
    arguments: Mapping[str, Any] = field(hash=False, compare=False)
    syntax: str = "amqp"
    arguments_key: str = ""

    @classmethod
    def make(
        cls, exchange: str, destination: Destination, pattern: str, arguments: Mapping[str, Any] | None, syntax: str
    ) -> Binding:
        """A binding whose arguments take part in its identity."""
        arguments = arguments or {}
        key = json.dumps(arguments, sort_keys=True, default=repr) if arguments else ""
        return cls(exchange, destination, pattern, shared_arguments(arguments, key), syntax, sys.intern(key))

    def key(self, vhost: str) -> Key:
        """Its key in the catalog."""
        kind, destination = self.destination
        return ("binding", vhost, self.exchange, kind, destination, self.pattern, self.syntax, self.arguments_key)


BindingsTo = dict[Destination, dict[Binding, None]]
"""The bindings of a virtual host by where they lead."""


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
        self._count -= 1
