"""An exchange: its matcher, the properties it was declared with, and its bindings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routing.topology.binding import Binding, BindingsFrom, BindingsTo
from routing.topology.kinds import ALTERNATE, DELAYED, make_matcher
from routing.topology.matchers import Matcher

DEFAULT_EXCHANGES = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
)
"""Name, kind and whether it is internal of what every virtual host has from its beginning."""


class Exchange:
    """See the module."""

    __slots__ = (
        "alternate", "arguments", "auto_delete", "bindings", "delayed", "durable", "internal", "kind", "matcher",
        "name", "once_in_ms", "transient",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = True,
        transient: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
        bindings_to: BindingsTo | None = None,
    ) -> None:
        """`bindings_to` has the bindings of all exchanges of its virtual host. See `transient` below."""
        self.name = name
        self.kind = kind
        self.durable = durable
        self.transient = transient
        """Declared as one that need not be durable, but it is: all brokers of a cluster have to know it."""
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = dict(arguments or {})
        self.matcher: Matcher = make_matcher(kind, self.arguments)
        self.bindings = BindingsFrom(name, BindingsTo() if bindings_to is None else bindings_to)
        self.alternate: str | None = None
        """The exchange that takes what leads nowhere from here."""
        self.delayed = False
        """Whether messages that pass here wait as long as they ask for."""
        self.once_in_ms = 0
        """Queues take a message that comes from here only once in this time; 0: always."""
        self.apply_policy({})

    def apply_policy(self, definition: Mapping[str, Any]) -> None:
        """Live by another policy's definition from now on; arguments go before it."""
        self.alternate = self.arguments.get(ALTERNATE, definition.get(ALTERNATE))
        self.delayed = self.kind == DELAYED or bool(definition.get("delayed"))
        self.once_in_ms = int(definition.get("deduplication-window-ms", 0))

    def add(self, binding: Binding) -> None:
        """Add a binding, which was checked; the same one twice is once."""
        if binding not in self.bindings:
            self.matcher.add(binding)
            self.bindings.add(binding)

    def remove(self, binding: Binding) -> bool:
        """Remove a binding; False if it was not there."""
        if binding not in self.bindings:
            return False
        self.bindings.remove(binding)
        self.matcher.remove(binding)
        return True
