"""Exchanges that divide messages among their destinations: by a hash, or by chance.

`x-consistent-hash` is a rendezvous: the binding whose weighted hash with the message's value is the largest gets it. So
the answer depends on the bindings alone, not on their order or history: it is the same after a restart, and a binding
that comes or goes moves no message but those that it gets or had. Weights are binding keys, as in RabbitMQ.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from routing.errors import PreconditionFailed
from routing.message import NeutralProperties
from routing.topology.binding import Binding, Destination
from routing.topology.matchers import Matcher, Neutral

_MASK = (1 << 64) - 1
_MIX = 0xFF51AFD7ED558CCD
_REMEMBERED_MAX = 65536
_PROPERTIES = ("correlation_id", "message_id", "timestamp")


def _hash(value: str) -> int:
    return int.from_bytes(blake2b(value.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


def _erlang(value: object) -> str:
    """A value as RabbitMQ prints it."""
    return (f'<<"{value}">>' if value else "<<>>") if isinstance(value, str) else str(value)


def _property(neutral: NeutralProperties, name: str) -> object:
    if name == "timestamp":
        return neutral.timestamp_s
    return neutral.correlation_id if name == "correlation_id" else neutral.message_id


class ConsistentHashMatcher(Matcher):
    """See the module: by the routing key, by the header that `hash-header` names, or a `hash-property`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._header: str | None = arguments.get("hash-header")
        self._property: str | None = arguments.get("hash-property")
        self.varies = self._header is not None or self._property is not None
        self._bindings: dict[Binding, tuple[int, float]] = {}
        """The hash and the weight of each."""
        self._found: dict[str, Destination] = {}

    @staticmethod
    def check_arguments(arguments: Mapping[str, Any]) -> None:
        header, name = arguments.get("hash-header"), arguments.get("hash-property")
        if header is not None and name is not None:
            raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
        if header is not None and not isinstance(header, str):
            raise PreconditionFailed(f"hash-header is no name: {header}")
        if name is not None and name not in _PROPERTIES:
            raise PreconditionFailed(f"Unsupported property: {name}")

    @staticmethod
    def check(binding: Binding) -> None:
        try:
            weight = int(binding.pattern) if binding.pattern.strip() == binding.pattern else None
        except ValueError:
            weight = None
        if weight is None:
            raise PreconditionFailed(f"The binding key must be an integer: {_erlang(binding.pattern)}")
        if weight < 1:
            raise PreconditionFailed("The binding key must be greater than 0")

    def add(self, binding: Binding) -> None:
        kind, name = binding.destination
        self._bindings[binding] = (_hash(f"{kind} {name} {binding.arguments_key}"), float(binding.pattern))
        self._found.clear()

    def remove(self, binding: Binding) -> None:
        self._bindings.pop(binding, None)
        self._found.clear()

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        if not self._bindings:
            return ()
        if self._header is not None:
            value = str(neutral().headers.get(self._header))
        elif self._property is not None:
            value = str(_property(neutral(), self._property))
        else:
            value = key
        found = self._found.get(value)
        if found is None:
            if len(self._found) >= _REMEMBERED_MAX:
                self._found.clear()
            found = self._found[value] = self._best(_hash(value))
        return (found,)

    def _best(self, wanted: int) -> Destination:
        def score(item: tuple[Binding, tuple[int, float]]) -> float:
            seed, weight = item[1]
            mixed = ((wanted ^ seed) * _MIX) & _MASK
            mixed = ((mixed ^ (mixed >> 33)) * _MIX) & _MASK
            return -math.log(((mixed >> 11) + 0.5) / (1 << 53)) / weight

        return min(self._bindings.items(), key=score)[0].destination


class ModulusHashMatcher(Matcher):
    """The hash of the routing key, modulo the number of destinations, which are taken in the order of their names."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        self._bindings.pop(binding, None)

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        there = sorted({binding.destination for binding in self._bindings})
        return (there[_hash(key) % len(there)],) if there else ()


class RandomMatcher(Matcher):
    """One of the destinations, by chance."""

    varies = True

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._bindings: list[Binding] = []

    def add(self, binding: Binding) -> None:
        self._bindings.append(binding)

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        return (random.choice(self._bindings).destination,) if self._bindings else ()
