"""Exchanges that divide messages among their destinations: by a hash, or by chance.

`x-consistent-hash` is a rendezvous: the binding whose weighted hash with the message's value is the largest gets it. So
the answer depends on the bindings alone, not on their order or history: it is the same after a restart, and a binding
that comes or goes moves no message but those that it gets or had. Weights are binding keys, as in RabbitMQ.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from routing.errors import PreconditionFailed
from routing.message import NeutralProperties
from routing.topology.binding import Binding, Destination
from routing.topology.matchers import KeylessMatcher, Matcher, Neutral

_MASK = (1 << 64) - 1
_MIX = 0xFF51AFD7ED558CCD
_REMEMBERED_MAX = 65536
_INTEGER = re.compile(r"[+-]?[0-9]+")
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

    to_all = False

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._header: str | None = arguments.get("hash-header")
        self._property: str | None = arguments.get("hash-property")
        self.varies = self._header is not None or self._property is not None
        self._bindings: dict[Binding, tuple[int, float]] = {}
        """The hash and the weight of each."""
        self._found: dict[str, Destination] = {}
        self._changed()

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
        if _INTEGER.fullmatch(binding.pattern) is None:
            raise PreconditionFailed(f"The binding key must be an integer: {_erlang(binding.pattern)}")
        if int(binding.pattern) < 1:
            raise PreconditionFailed("The binding key must be greater than 0")

    def add(self, binding: Binding) -> None:
        kind, name = binding.destination
        self._bindings[binding] = (_hash(f"{kind} {name} {binding.arguments_key}"), float(binding.pattern))
        self._changed()

    def remove(self, binding: Binding) -> None:
        self._bindings.pop(binding, None)
        self._changed()

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
        """With equal weights the largest hash wins; otherwise the logarithm makes chances proportional to weights."""
        if self._stale:
            self._refresh()
        if self._equal:
            hashes = [
                (((mixed := ((wanted ^ seed) * _MIX) & _MASK) ^ (mixed >> 33)) * _MIX) & _MASK for seed in self._seeds
            ]
            return self._places[hashes.index(max(hashes))]
        best, found = -math.inf, self._places[0]
        for seed, weight, place in zip(self._seeds, self._weights, self._places):
            mixed = ((wanted ^ seed) * _MIX) & _MASK
            mixed = ((mixed ^ (mixed >> 33)) * _MIX) & _MASK
            score = math.log((mixed + 1) / (_MASK + 2)) / weight
            if score > best:
                best, found = score, place
        return found

    def _changed(self) -> None:
        self._found.clear()
        self._stale = True

    def _refresh(self) -> None:
        self._stale = False
        self._seeds = [seed for seed, _ in self._bindings.values()]
        self._weights = [weight for _, weight in self._bindings.values()]
        self._places = [binding.destination for binding in self._bindings]
        self._equal = len(set(self._weights)) <= 1


class ModulusHashMatcher(KeylessMatcher):
    """The hash of the routing key, modulo the number of destinations, which are taken in the order of their names."""

    to_all = False

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        there = sorted({binding.destination for binding in self._bindings})
        return (there[_hash(key) % len(there)],) if there else ()


class RandomMatcher(Matcher):
    """One of the destinations, by chance."""

    to_all = False
    varies = by_chance = True

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._bindings: list[Binding] = []

    def add(self, binding: Binding) -> None:
        self._bindings.append(binding)

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)

    def match(self, key: str, neutral: Neutral) -> Iterable[Destination]:
        return (random.choice(self._bindings).destination,) if self._bindings else ()
