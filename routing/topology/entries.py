"""What a change of the topology consists of.

Every change, of durable and of transient entities alike, takes the same three steps: *plan* (all checks; nothing is
changed), *write* (the durable entries go to the catalog, all or none) and *apply* (the entries become what is in
memory). A plan names what it relies on as well, so that two changes that are under way at once and have to do with each
other are told apart from those that have not. What is written can be applied by whoever reads it: a start applies the
whole catalog, and a broker what others have written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from core_log.metadata.store import Guard, Put

Key = tuple[str, ...]
"""Kind of entity, then its virtual host if it has one, then what names it there."""


class Entry(NamedTuple):
    """An entity as it is declared; without `value` it goes. `live` is what of it cannot be written down."""

    key: Key
    value: dict[str, Any] | None
    durable: bool
    live: Any = None


@dataclass(slots=True)
class Plan:
    """Entries in the order in which they are applied, and the keys of what must not change until they are."""

    entries: list[Entry] = field(default_factory=list)
    guards: list[Key] = field(default_factory=list)
    check: Callable[[], None] | None = None
    """Called again right before the entries are applied: what it raises takes back what was written."""
    also: list[Put] = field(default_factory=list)
    """What else is put into a shared store with the entries: what comes, before them, what goes, behind."""
    relied: list[Guard] = field(default_factory=list)
    """What of it must not change until then."""
    message_count: int = 0
    """How many messages the queue has that goes."""


def vhost_key(vhost: str) -> Key:
    """The key of a virtual host."""
    return ("vhost", vhost)


def exchange_key(vhost: str, name: str) -> Key:
    """The key of an exchange."""
    return ("exchange", vhost, name)


def queue_key(vhost: str, name: str) -> Key:
    """The key of a queue."""
    return ("queue", vhost, name)


def topic_key(name: str) -> Key:
    """The key of a topic."""
    return ("topic", name)


class InFlight:
    """The keys of the changes that are being written: what they change, and what they rely on; and of what is to go by
    itself and is not gone yet, on which nobody may rely.
    """

    def __init__(self) -> None:
        self._written: dict[Key, Entry] = {}
        self._guarded: dict[Key, int] = {}
        self._leaving: Counter[Key] = Counter()

    def conflicts(self, plan: Plan) -> bool:
        """Whether a plan has to wait for another and be made anew."""
        if not self._guarded and not self._written and not self._leaving:
            return False
        return any(key in self._written or key in self._leaving for key in plan.guards) or any(
            entry.key in self._written or entry.key in self._guarded for entry in plan.entries
        )

    def add(self, plan: Plan) -> None:
        """A plan is being written."""
        self._written.update((entry.key, entry) for entry in plan.entries)
        for key in plan.guards:
            self._guarded[key] = self._guarded.get(key, 0) + 1

    def __contains__(self, key: Key) -> bool:
        return key in self._written

    def queues(self, vhost: str) -> list[str]:
        """The names of queues that are being written."""
        return [key[2] for key in self._written if key[:2] == ("queue", vhost)]

    def live(self, key: Key) -> Any:
        """What cannot be written down of an entity that is being changed, None for one that is not."""
        entry = self._written.get(key)
        return entry.live if entry is not None else None

    def leave(self, plan: Plan) -> None:
        """What a plan removes goes by itself, as soon as that can be written."""
        self._leaving.update(entry.key for entry in plan.entries)

    def left(self, plan: Plan) -> None:
        """It is gone, or stays."""
        for entry in plan.entries:
            self._leaving[entry.key] -= 1
            if self._leaving[entry.key] <= 0:
                del self._leaving[entry.key]

    def is_leaving(self, key: Key) -> bool:
        """Whether something is still there and is to go by itself."""
        return key in self._leaving

    def remove(self, plan: Plan) -> None:
        """It was applied, or refused."""
        for entry in plan.entries:
            self._written.pop(entry.key, None)
        for key in plan.guards:
            self._guarded[key] -= 1
            if not self._guarded[key]:
                del self._guarded[key]
