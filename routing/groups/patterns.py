"""Regular expressions over the names of topics, as members subscribe to (KIP-848): RE2's, as with Kafka.

RE2 matches in time linear in the name, whatever the expression; its size and the memory it may take are limited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from routing.groups.errors import InvalidPattern

PATTERN_BYTES_MAX = 4096
_MEMORY_BYTES_MAX = 1 << 20


def compiled(pattern: str) -> Any:
    """Raises InvalidPattern."""
    import re2  # it is loaded by who needs it

    if len(pattern.encode("utf-8", "surrogateescape")) > PATTERN_BYTES_MAX:
        raise InvalidPattern(f"a regular expression of more than {PATTERN_BYTES_MAX} bytes")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        text = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise InvalidPattern(f"the regular expression '{pattern}' is not valid: {text}") from None


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match as a whole. Raises InvalidPattern."""
    matches = compiled(pattern).fullmatch
    return frozenset(name for name in names if name.isprintable() and matches(name) is not None)
