"""Regular expressions over the names of topics, as members subscribe to (KIP-848): RE2's, as with Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from routing import name_rules
from routing.groups.errors import InvalidPattern

PATTERN_BYTES_MAX = 4096


def compiled(pattern: str) -> Any:
    """Raises InvalidPattern."""
    if len(name_rules.encoded(pattern)) > PATTERN_BYTES_MAX:
        raise InvalidPattern(f"a regular expression of more than {PATTERN_BYTES_MAX} bytes")
    try:
        return name_rules.compiled(pattern)
    except name_rules.InvalidExpression as error:
        raise InvalidPattern(f"the regular expression '{pattern}' is not valid: {error}") from None


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match as a whole. Raises InvalidPattern."""
    matches = compiled(pattern).fullmatch
    return frozenset(name for name in names if matches(name_rules.encoded(name)) is not None)
