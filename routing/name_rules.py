"""Regular expressions that names have to match: of permissions, policies and subscriptions to topics.

Who writes an expression is not who chooses the names it is held against, so no expression may take long over any name.
They are RE2's (https://github.com/google/re2/wiki/Syntax): its time is linear in the name, whatever the expression; its
memory, and the steps of one match, are limited here. What RE2 does not know is refused when a rule is set, but for the
one thing that policies are full of: negative lookaheads at the beginning (`^(?!amq\\.).*`), which are expressions of
their own that must not match.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

_MEMORY_BYTES_MAX = 1 << 20
"""Of one expression, as a program and while it is matched."""
_STEPS_MAX = 1 << 22
"""Size of the program times bytes of the name: some 0.1 s."""
_LOOKAHEAD = "^(?!"


class InvalidExpression(ValueError):
    """An expression that cannot be obeyed; the text says why."""


def encoded(text: str) -> bytes:
    """The bytes of a name or an expression, as they came."""
    return text.encode("utf-8", "surrogateescape")


def compiled(expression: str) -> Any:
    """RE2's object for an expression, to be held against bytes. Raises InvalidExpression."""
    import re2  # it is loaded by who needs it

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        return re2.compile(encoded(expression), options)
    except re2.error as error:
        why = error.args[0] if error.args else b""
        raise InvalidExpression(why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)) from None


class NameRule:
    """An expression that is looked for anywhere in a name.

    Raises InvalidExpression.
    """

    __slots__ = ("_excluded", "_required")

    def __init__(self, expression: str) -> None:
        excluded = []
        while expression.startswith(_LOOKAHEAD):
            end = _closing(expression, 1)
            excluded.append(f"^(?:{expression[len(_LOOKAHEAD) : end]})")
            expression = "^" + expression[end + 1 :]
            if expression[1:2] in ("*", "+", "?", "{"):
                raise InvalidExpression("a lookahead that is repeated")
        if excluded and "|" in _outside_groups(expression):
            raise InvalidExpression("alternatives behind a lookahead: put them into brackets")
        self._excluded = [compiled(one) for one in excluded]
        self._required = None if expression in ("", ".*") else compiled(expression)

    def matches(self, name: str) -> bool:
        """Whether a name is meant. A name that would take too many steps is not."""
        text = encoded(name)
        if self._required is not None and not _found(self._required, text):
            return False
        return not any(len(text) * one.programsize > _STEPS_MAX or _found(one, text) for one in self._excluded)


class _Nothing(NameRule):
    __slots__ = ()

    def __init__(self) -> None:
        pass

    def matches(self, name: str) -> bool:
        return False


_NOTHING = _Nothing()


def kept_rule(expression: str) -> NameRule:
    """The rule of an expression that was set before. One that nobody would take any more matches nothing."""
    try:
        return NameRule(expression)
    except InvalidExpression as error:
        logger.warning("the regular expression %r matches nothing, set another: %s", expression[:200], error)
        return _NOTHING


def _found(expression: Any, text: bytes) -> bool:
    return len(text) * expression.programsize <= _STEPS_MAX and expression.search(text) is not None


def behind_set(expression: str, at: int) -> int:
    """Behind the set of characters that begins here. A bracket that comes first in it is one of them."""
    at += 1
    if expression[at : at + 1] == "^":
        at += 1
    if expression[at : at + 1] == "]":
        at += 1
    while at < len(expression) and expression[at] != "]":
        at += 2 if expression[at] == "\\" else 1
    return at + 1


def _closing(expression: str, at: int) -> int:
    """Where the group that begins here ends."""
    depth = 0
    while at < len(expression):
        character = expression[at]
        if character == "[":
            at = behind_set(expression, at)
            continue
        if character == "\\":
            at += 1
        elif character in "()":
            depth += 1 if character == "(" else -1
            if not depth:
                return at
        at += 1
    raise InvalidExpression("a group has no end")


def _outside_groups(expression: str) -> str:
    """The special characters of an expression that are in no group."""
    found, at = [], 0
    while at < len(expression):
        if expression[at] == "[":
            at = behind_set(expression, at)
            continue
        if expression[at] == "\\":
            at += 1
        elif expression[at] == "(":
            at = _closing(expression, at)
        else:
            found.append(expression[at])
        at += 1
    return "".join(found)
