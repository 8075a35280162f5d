"""A permission's regular expression as a list of names and beginnings of names, as far as it is one.

An expression is split where it says "or" at the top, which changes nothing of what it matches; each part is a whole
name (`^orders$`), a beginning (`^logs\\.`), every name (`.*`) or an expression of its own, kept as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from routing.name_rules import behind_set

_SPECIAL = frozenset(".^$*+?{}[]\\|()")
_EVERYTHING = frozenset(("", ".*", "^.*", ".*$", "^.*$"))


class PatternKind(Enum):
    """What a part stands for."""

    NAME = "name"
    PREFIX = "prefix"
    EVERYTHING = "everything"
    EXPRESSION = "expression"


class NamePattern(NamedTuple):
    """A part; `text` is the name, its beginning or the expression."""

    kind: PatternKind
    text: str = ""

    @property
    def expression(self) -> str:
        """As a regular expression."""
        if self.kind is PatternKind.NAME:
            return f"^{re.escape(self.text)}$"
        if self.kind is PatternKind.PREFIX:
            return f"^{re.escape(self.text)}"
        return ".*" if self.kind is PatternKind.EVERYTHING else self.text


def parse(expression: str) -> list[NamePattern]:
    """The parts of an expression. The empty one has none: it matches no name."""
    if expression in ("", "^$"):
        return []
    return list(dict.fromkeys(map(_part, _alternatives(expression))))


def join(patterns: Iterable[NamePattern]) -> str:
    """An expression of these parts."""
    return "|".join(pattern.expression for pattern in patterns)


def _part(text: str) -> NamePattern:
    if text in _EVERYTHING:
        return NamePattern(PatternKind.EVERYTHING)
    if text.startswith("^"):
        for end, kind in (("$", PatternKind.NAME), (".*$", PatternKind.PREFIX), (".*", PatternKind.PREFIX)):
            name = _unescaped(text[1 : -len(end)]) if text.endswith(end) else None
            if name:
                return NamePattern(kind, name)
        name = _unescaped(text[1:])
        if name:
            return NamePattern(PatternKind.PREFIX, name)
    return NamePattern(PatternKind.EXPRESSION, text)


def _unescaped(text: str) -> str | None:
    """The name that is written so; None: it is more than a name."""
    found = []
    characters = iter(text)
    for character in characters:
        if character == "\\":
            character = next(characters, "x")
            if character.isalnum() or not character.isascii():
                return None
        elif character in _SPECIAL:
            return None
        found.append(character)
    return "".join(found)


def _alternatives(expression: str) -> list[str]:
    if "(?" in expression.replace("(?:", "") or re.search(r"\\\d", expression):
        return [expression]  # flags and references are about the whole
    found, start, depth, at = [], 0, 0, 0
    while at < len(expression):
        character = expression[at]
        if character == "\\":
            at += 1
        elif character == "[":
            at = behind_set(expression, at)
            continue
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and not depth:
            found.append(expression[start:at])
            start = at + 1
        at += 1
    found.append(expression[start:])
    return found
