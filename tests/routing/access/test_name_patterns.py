"""Regular expressions as names and beginnings of names, and back."""

from __future__ import annotations

import random

import pytest

from routing.access.name_patterns import NamePattern, PatternKind, join, parse
from routing.name_rules import InvalidExpression, NameRule

NAME, PREFIX, EVERYTHING, EXPRESSION = PatternKind


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("", []),
        ("^$", []),
        (".*", [(EVERYTHING, "")]),
        ("^.*$", [(EVERYTHING, "")]),
        ("^orders$", [(NAME, "orders")]),
        (r"^a\.b\-c$", [(NAME, "a.b-c")]),
        ("^a-b_c$", [(NAME, "a-b_c")]),
        (r"^logs\.", [(PREFIX, "logs.")]),
        (r"^logs\..*$", [(PREFIX, "logs.")]),
        ("^logs.*", [(PREFIX, "logs")]),
        (r"^a$|^b\.", [(NAME, "a"), (PREFIX, "b.")]),
        ("^a$|^a$", [(NAME, "a")]),
        ("orders", [(EXPRESSION, "orders")]),
        ("^a.b$", [(EXPRESSION, "^a.b$")]),
        ("^(a|b)$", [(EXPRESSION, "^(a|b)$")]),
        ("^[a|b]$|^c$", [(EXPRESSION, "^[a|b]$"), (NAME, "c")]),
        ("^[]|]$|^c$", [(EXPRESSION, "^[]|]$"), (NAME, "c")]),
        (r"^[^\]|]|^c$", [(EXPRESSION, r"^[^\]|]"), (NAME, "c")]),
        (r"a\|b|^c$", [(EXPRESSION, r"a\|b"), (NAME, "c")]),
        (r"^\w$", [(EXPRESSION, r"^\w$")]),
        ("(?i)^a$|^b$", [(EXPRESSION, "(?i)^a$|^b$")]),
        (r"^(a)\1$|^b$", [(EXPRESSION, r"^(a)\1$|^b$")]),
        ("(?:^a$|^b$)|^c$", [(EXPRESSION, "(?:^a$|^b$)"), (NAME, "c")]),
        ("a|", [(EXPRESSION, "a"), (EVERYTHING, "")]),
        ("|", [(EVERYTHING, "")]),
    ],
)
def test_what_an_expression_consists_of(expression: str, parts: list[tuple[PatternKind, str]]) -> None:
    found = parse(expression)
    assert found == [NamePattern(*part) for part in parts]
    if expression:
        assert parse(join(found)) == found or not found


def test_an_expression_and_its_parts_match_the_same() -> None:
    dice = random.Random(1)
    names = ["", "a", "b", "ab", "a.b", "a|b", "aa", "b.", "]", "c-d", "^a", "$"]
    pieces = ["a", "b", "|", "^", "$", ".", "*", r"\.", "[ab]", "[^|]", "(", ")", "(?:", r"\|", "-", "]", ".*", r"\1"]
    tried = 0
    for _ in range(30_000):
        expression = "".join(dice.choices(pieces, k=dice.randrange(1, 9)))
        try:
            rule = NameRule(expression or "^$")
            again = NameRule(join(parse(expression)) or "^$")
        except InvalidExpression:
            continue
        tried += 1
        for name in names:
            assert rule.matches(name) == again.matches(name), (expression, name)
    assert tried > 3_000
