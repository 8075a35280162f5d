"""What one user may do in one virtual host: the rules, and what was found out by them.

1. Rules are RabbitMQ's. A permission is three regular expressions (configure, write, read) that a name has to match
   somewhere; an empty one matches the empty name alone; the default exchange is called `amq.default`. A topic
   permission limits keys on one topic exchange on top of that; where there is none every key may be used.
2. Everybody who acts for the same user in the same virtual host shares a `Grants`. What was found out is remembered in
   it until the rules change, live: a publish costs one look into a set for each slab.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from routing.errors import AccessRefused
from routing.name_rules import NameRule, kept_rule
from routing.topology.parked import stands_for

Access = Literal["configure", "write", "read"]
ExchangeKind = Callable[[str, str], str | None]
"""Virtual host and name of an exchange -> its type, if it is there."""

REMEMBERED_MAX = 4096
_LEVELS_AS_WORDS = str.maketrans("/.", "./")
"""How a name is written in a key that is part of an MQTT topic."""
_MQTT_WILDCARDS = frozenset("+#")
_NOTHING = "^$"
DEFAULT_EXCHANGE = "amq.default"


class Permission(NamedTuple):
    """Names that may be declared and deleted, written to, and read from."""

    configure: str
    write: str
    read: str


class TopicPermission(NamedTuple):
    """Keys that may be published with, and bound."""

    write: str
    read: str


EVERYTHING = Permission(".*", ".*", ".*")


class Grants:
    """See the module. Made by `Rights.grants`."""

    __slots__ = (
        "__weakref__", "_found", "_kind_of", "_permission", "_rules", "_topics", "_variables", "publishable", "user",
        "vhost",
    )  # fmt: skip

    def __init__(self, user: str, vhost: str, kind_of: ExchangeKind, client_id: str | None) -> None:
        self.user = user
        self.vhost = vhost
        self.publishable: set[str] = set()
        """Exchanges that may be published to with any key."""
        self._kind_of = kind_of
        self._variables: dict[str, str | None] = {"username": user, "vhost": vhost}
        if client_id is not None:
            self._variables |= {
                "username": user.translate(_LEVELS_AS_WORDS), "client_id": client_id.translate(_LEVELS_AS_WORDS),
            }  # fmt: skip
            for variable, value in self._variables.items():
                if value and not _MQTT_WILDCARDS.isdisjoint(value):
                    self._variables[variable] = None
        self._permission: Permission | None = None
        self._topics: Mapping[str, TopicPermission] = {}
        self._rules: dict[tuple[str, bool], NameRule] = {}
        self._found: dict[tuple[str, ...], bool] = {}

    def set_rules(self, permission: Permission | None, topics: Mapping[str, TopicPermission]) -> None:
        """From now on these count."""
        self._permission = permission
        self._topics = topics
        self._rules.clear()
        self._found.clear()
        self.publishable.clear()

    def allows(self, access: Access, name: str) -> bool:
        """Whether a queue, exchange or topic of this name may be used so."""
        key = (access, name)
        found = self._found.get(key)
        if found is None:
            permission = self._permission
            found = permission is not None and self._matches(getattr(permission, access), name, {})
            behind = stands_for(name)
            if found and behind is not None and access != "configure":
                found = self.allows_every_key(access, behind)
            self._remember(key, found)
        return found

    def allows_every_key(self, access: Literal["write", "read"], exchange: str) -> bool:
        """Whether an exchange may be used so with any key."""
        return self.allows(access, exchange) and exchange not in self._topics

    def allows_key(self, access: Literal["write", "read"], exchange: str, key: str) -> bool:
        """Whether a topic exchange may be published to with a key, or bound with a pattern."""
        limit = self._topics.get(exchange)
        if limit is None:
            return True
        entry = (access, exchange, key)
        found = self._found.get(entry)
        if found is None:
            found = self._matches(getattr(limit, access), key, self._variables)
            self._remember(entry, found)
        return found

    def require(self, access: Access, kind: Literal["queue", "exchange", "topic"], name: str) -> None:
        """Raises AccessRefused."""
        if kind == "exchange" and not name:
            name = DEFAULT_EXCHANGE
        if not self.allows(access, name):
            raise AccessRefused(f"access to {kind} '{name}' in vhost '{self.vhost}' refused for user '{self.user}'")

    def require_keys(self, access: Literal["write", "read"], exchange: str, keys: Iterable[str]) -> None:
        """For an exchange of type topic. Raises AccessRefused."""
        if exchange not in self._topics or self._kind_of(self.vhost, exchange) != "topic":
            return
        for key in keys:
            if not self.allows_key(access, exchange, key):
                raise AccessRefused(
                    f"access to topic '{key}' in exchange '{exchange}' in vhost '{self.vhost}' "
                    f"refused for user '{self.user}'"
                )

    def require_publish(self, exchange: str, keys: Iterable[str]) -> None:
        """Call it for exchanges that are not `publishable`. Raises AccessRefused."""
        self.require("write", "exchange", exchange)
        if exchange in self._topics:
            self.require_keys("write", exchange, keys)
            return
        if len(self.publishable) >= REMEMBERED_MAX:
            self.publishable.clear()
        self.publishable.add(exchange)

    def _matches(self, expression: str, name: str, variables: Mapping[str, str | None]) -> bool:
        key = (expression, bool(variables))
        rule = self._rules.get(key)
        if rule is None:
            for variable, value in variables.items():
                mention = "{" + variable + "}"
                if mention in expression:
                    expression = _NOTHING if value is None else expression.replace(mention, re.escape(value))
            rule = self._rules[key] = kept_rule(expression or _NOTHING)
        return rule.matches(name)

    def _remember(self, key: tuple[str, ...], found: bool) -> None:
        if len(self._found) >= REMEMBERED_MAX:
            self._found.clear()
        self._found[key] = found
