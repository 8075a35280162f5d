"""Exchanges and how each kind finds the destinations of a message.

A kind is a matcher: it is given bindings and asked for the destinations of a routing key, or of headers. Kinds are
looked up by name in `KINDS`; an exchange is the matcher plus its declared properties. The result of a match is cached
by the broker under the catalog's version (`route.py`), so matchers need to be right rather than fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from routing.errors import InvalidArgument
from routing.topology.topic_trie import TopicTrie, parse_pattern

Destination = tuple[str, str]
"""Kind ("queue", "exchange" or "topic") and name."""


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
        arguments = dict(arguments or {})
        key = json.dumps(arguments, sort_keys=True, default=repr) if arguments else ""
        return cls(exchange, destination, pattern, arguments, syntax, key)


class Matcher(Protocol):
    """What an exchange kind has to do."""

    needs_headers: bool

    def add(self, binding: Binding) -> None:
        """A new binding; raises InvalidArgument if its arguments make no sense."""

    def remove(self, binding: Binding) -> None:
        """A binding that was added is gone."""

    def match(self, key: str, headers: Mapping[str, Any]) -> Iterable[Destination]:
        """Destinations, each at least once."""


class DirectMatcher:
    """Routing key equal to the binding key."""

    needs_headers = False

    def __init__(self) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.pattern, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        found = self._by_key.get(binding.pattern, {})
        found.pop(binding, None)
        if not found:
            self._by_key.pop(binding.pattern, None)

    def match(self, key: str, headers: Mapping[str, Any]) -> Iterable[Destination]:
        return [binding.destination for binding in self._by_key.get(key, ())]


class FanoutMatcher:
    """Everything to everyone."""

    needs_headers = False

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        self._bindings.pop(binding, None)

    def match(self, key: str, headers: Mapping[str, Any]) -> Iterable[Destination]:
        return [binding.destination for binding in self._bindings]


class TopicMatcher:
    """Wildcards of AMQP and MQTT, see `topic_trie`."""

    needs_headers = False

    def __init__(self) -> None:
        self._trie = TopicTrie()

    def add(self, binding: Binding) -> None:
        self._trie.add(parse_pattern(binding.pattern, binding.syntax), binding)

    def remove(self, binding: Binding) -> None:
        self._trie.remove(parse_pattern(binding.pattern, binding.syntax), binding)

    def match(self, key: str, headers: Mapping[str, Any]) -> Iterable[Destination]:
        return [binding.destination for binding in self._trie.match(key)]


def _same(wanted: Any, value: Any) -> bool:
    """Equal and of one class (true is not 1, nor 1 a float); a void in the binding asks for presence only."""
    return wanted is None or (_class_of(wanted) is _class_of(value) and wanted == value)


def _class_of(value: Any) -> type:
    """A protocol's own kinds of integers are integers: the catalog gives them back as such."""
    return int if isinstance(value, int) and not isinstance(value, bool) else type(value)


class HeadersMatcher:
    """Headers equal to the binding's arguments: `x-match` all (default), any, and the forms that count `x-` headers
    too.
    """

    needs_headers = True
    _KINDS = ("all", "any", "all-with-x", "any-with-x")

    def __init__(self) -> None:
        self._bindings: dict[Binding, tuple[bool, dict[str, Any]]] = {}

    def add(self, binding: Binding) -> None:
        kind = binding.arguments.get("x-match", "all")
        if kind not in self._KINDS:
            raise InvalidArgument(f"Invalid x-match field value {kind!r}; expected all, any, all-with-x or any-with-x")
        with_x = kind.endswith("-with-x")
        wanted = {
            name: value
            for name, value in binding.arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        }
        self._bindings[binding] = (kind.startswith("all"), wanted)

    def remove(self, binding: Binding) -> None:
        self._bindings.pop(binding, None)

    def match(self, key: str, headers: Mapping[str, Any]) -> Iterable[Destination]:
        found = []
        for binding, (every, wanted) in self._bindings.items():
            hits = (name in headers and _same(value, headers[name]) for name, value in wanted.items())
            if all(hits) if every else any(hits):
                found.append(binding.destination)
        return found


KINDS: dict[str, type[DirectMatcher] | type[FanoutMatcher] | type[TopicMatcher] | type[HeadersMatcher]] = {
    "direct": DirectMatcher,
    "fanout": FanoutMatcher,
    "topic": TopicMatcher,
    "headers": HeadersMatcher,
}


class Exchange:
    """A declared exchange with its bindings, in both directions of interest."""

    __slots__ = ("arguments", "auto_delete", "bindings", "durable", "internal", "kind", "matcher", "name")

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = dict(arguments or {})
        self.matcher: Matcher = KINDS[kind]()
        self.bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        """Add a binding; the same one twice is once. Raises InvalidArgument."""
        if binding not in self.bindings:
            self.matcher.add(binding)
            self.bindings[binding] = None

    def remove(self, binding: Binding) -> bool:
        """Remove a binding; False if it was not there."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding]
        self.matcher.remove(binding)
        return True
