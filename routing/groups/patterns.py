"""Regular expressions over the names of topics, as members subscribe to (KIP-848): RE2's, as with Kafka.

One that is bad takes milliseconds for a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from routing import name_rules
from routing.bites import bites
from routing.groups.errors import InvalidPattern
from routing.topics.topic_ids import Topics

PATTERN_BYTES_MAX = 4096
_PATTERNS_MAX, _NAMES_MAX = 10_000, 1_000_000
"""So many are known, of so many names in all: others are held against all topics again whenever one comes or goes."""


class _Found(NamedTuple):
    expression: Any
    names: frozenset[str]
    version: int
    """Of the topics, when that were the names."""


class Patterns:
    """What regular expressions mean, for all groups: each is held against all names once, and from then on against
    those of topics that come.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._found: dict[str, _Found] = {}
        self._names = 0
        """In all of them."""

    def matching(self, pattern: str) -> frozenset[str]:
        """The names of topics that match as a whole. Raises InvalidPattern."""
        topics = self._topics
        found = self._found.get(pattern)
        changed = topics.changed_since(found.version) if found is not None else None
        if found is None or changed is None:
            expression = compiled(pattern)
            found = self._keep(pattern, _Found(expression, _matching(expression, topics), topics.version))
        elif changed:
            came = _matching(found.expression, (name for name in changed if name in topics))
            found = self._keep(pattern, _Found(found.expression, found.names - changed | came, topics.version))
        return found.names

    async def prepare(self, pattern: str) -> None:
        """Have `matching` find most of it done. Raises InvalidPattern."""
        found, version = self._found.get(pattern), self._topics.version
        if found is None or (found.version != version and self._topics.changed_since(found.version) is None):
            expression = compiled(pattern) if found is None else found.expression
            self._keep(pattern, _Found(expression, await matching(expression, self._topics), version))

    def _keep(self, pattern: str, found: _Found) -> _Found:
        known = self._found
        before = known.pop(pattern, None)
        self._names += len(found.names) - (len(before.names) if before is not None else 0)
        while known and (len(known) >= _PATTERNS_MAX or self._names > _NAMES_MAX):
            self._names -= len(known.pop(next(iter(known))).names)
        known[pattern] = found
        return found


def compiled(pattern: str) -> Any:
    """Raises InvalidPattern."""
    if len(name_rules.encoded(pattern)) > PATTERN_BYTES_MAX:
        raise InvalidPattern(f"a regular expression of more than {PATTERN_BYTES_MAX} bytes")
    try:
        return name_rules.compiled(pattern)
    except name_rules.InvalidExpression as error:
        raise InvalidPattern(f"the regular expression '{pattern}' is not valid: {error}") from None


async def matching(expression: Any, names: Iterable[str]) -> frozenset[str]:
    """Those of the names that match as a whole, looked at in bites."""
    return frozenset([name async for name in bites(names) if _matches(expression, name)])


def _matching(expression: Any, names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if _matches(expression, name))


def _matches(expression: Any, name: str) -> bool:
    return expression.fullmatch(name_rules.encoded(name)) is not None
