"""A binding: from an exchange to a queue, another exchange or a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.topology.entries import Key

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

    def key(self, vhost: str) -> Key:
        """Its key in the catalog."""
        kind, destination = self.destination
        return ("binding", vhost, self.exchange, kind, destination, self.pattern, self.syntax, self.arguments_key)
