"""Expressions that names have to match: what they mean, and that none takes long."""

from __future__ import annotations

import random
import re
import time

import pytest

from routing.name_rules import InvalidExpression, NameRule, kept_rule

CATASTROPHES = [
    ("(a+)+$", "a" * 254 + "!"),
    ("^(a|aa)+$", "a" * 254 + "!"),
    ("(x+x+)+y", "x" * 255),
    ("^(.*a){25}$", "a" * 254 + "!"),
    ("(?:a?){100}a{100}b", "a" * 255),
    ("(.*.*.*=){20}b", "=" * 255),
    ("^(?!(a+)+$).*", "a" * 254 + "!"),
]


@pytest.mark.parametrize(("expression", "name"), CATASTROPHES)
def test_no_expression_takes_long_over_a_name(expression: str, name: str) -> None:
    began_s = time.thread_time()
    NameRule(expression).matches(name)
    assert time.thread_time() - began_s < 2, "a backtracking matcher would still be at it when the sun is gone"


def test_a_name_that_would_take_too_many_steps_is_not_meant() -> None:
    large = NameRule("(.{0,30}a){20}")
    assert large.matches("a" * 200)
    assert not large.matches("a" * 30_000)
    assert NameRule(".*").matches("a" * 30_000)
    assert NameRule("^a.*$").matches("a" * 30_000)
    excluding = NameRule("^(?!(.{0,30}b){20}).*")
    assert excluding.matches("a" * 200)
    assert not excluding.matches("a" * 30_000), "it might be one of those that are excluded"


def test_an_expression_means_what_pythons_means() -> None:
    dice = random.Random(1)
    names = ["", "a", "b", "ab", "a.b", "a|b", "aa", "b.", "]", "c-d", "^a", "$", "ü", "aü"]
    pieces = ["a", "b", "|", "^", "$", ".", "*", r"\.", "[ab]", "[^|]", "(", ")", "(?:", r"\|", "-", ".*", "ü", "{1,2}"]
    tried = 0
    for _ in range(30_000):
        expression = "".join(dice.choices(pieces, k=dice.randrange(1, 9)))
        try:
            python = re.compile(expression)
            rule = NameRule(expression)
        except (re.error, InvalidExpression):
            continue
        tried += 1
        for name in names:
            assert rule.matches(name) == (python.search(name) is not None), (expression, name)
    assert tried > 3_000


@pytest.mark.parametrize(
    "expression",
    [
        r"^(?!amq\.).*",
        r"^(?!amq\.|mq)",
        r"^(?!amq\.)(?!mq).+$",
        r"^(?!amq\.)(a|mq.*|o.*)$",
        "^(?![)a]).*",
        r"^(?!\))..",
        "^(?!(?:a|b)).*",
    ],
)
def test_a_lookahead_at_the_beginning_excludes_names(expression: str) -> None:
    rule, python = NameRule(expression), re.compile(expression)
    names = ("", "a", "b", "amq.gen", "mq", "mqtt", "amqp", "orders", ")x", "amq.")
    assert {name for name in names if rule.matches(name)} == {name for name in names if python.search(name)}


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("^q(", "missing )"),
        ("[", "missing ]"),
        ("a**", "bad repetition operator"),
        ("(?<=a)b", "invalid perl operator"),
        ("a(?=b)", "invalid perl operator"),
        (r"(a)\1", "invalid escape"),
        ("^(?!a", "a group has no end"),
        ("^(?!a)b|c", "alternatives behind a lookahead"),
        ("^(?!a)*b", "a lookahead that is repeated"),
        (r"(\pL{900})", "too large"),
        ("(((a{100}){100}){100})", "invalid repetition size"),
        ("\udcff", "invalid UTF-8"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_a_reason(expression: str, why: str) -> None:
    with pytest.raises(InvalidExpression, match=re.escape(why)):
        NameRule(expression)


def test_names_that_are_no_text_can_be_matched() -> None:
    assert NameRule("^a").matches("a\udcff")
    assert not NameRule("^b").matches("a\udcff")
    assert NameRule("").matches("a\udcff")


def test_what_was_set_before_and_is_not_taken_any_more_matches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rule = kept_rule(r"(a)\1")
    assert not rule.matches("aa")
    assert not rule.matches("")
    assert "matches nothing, set another" in caplog.text
    assert kept_rule("a").matches("aa")
