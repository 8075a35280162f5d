"""A binding: from an exchange to a queue, another exchange or a topic.

There may be a million of them: what many have in common (arguments, the names of an exchange and of a destination) is
there once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
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
