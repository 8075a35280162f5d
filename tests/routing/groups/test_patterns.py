"""What regular expressions mean, kept up to date by what comes and goes."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import trio

import routing.groups.patterns
from routing.groups.errors import InvalidPattern
from routing.groups.patterns import Patterns
from tests.routing.groups.topics import FakeTopics
from tests.support.turns import Turns

NAMES = [f"{first}{second}-{number}" for first in "ab" for second in "xy" for number in range(9)]
PATTERNS = ("a.*", ".*-[0-4]", "bx-.", "none", ".*", "a")


@pytest.mark.parametrize("seed", range(5))
async def test_they_mean_what_they_would_if_they_were_looked_at_anew(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routing.topics.topic_ids._CHANGES_MAX", 10)
    monkeypatch.setattr("routing.groups.patterns._PATTERNS_MAX", 4 if seed % 2 else 1000)
    monkeypatch.setattr("routing.groups.patterns._NAMES_MAX", 40)
    choose = random.Random(seed)
    topics = FakeTopics()
    patterns = Patterns(topics)
    for _ in range(300):
        for _ in range(choose.choice([0, 1, 1, 2, 20])):
            topics.set(choose.choice(NAMES), choose.choice([0, 1, 2]))
        pattern = choose.choice(PATTERNS)
        if choose.random() < 0.3:
            await patterns.prepare(pattern)
        assert patterns.matching(pattern) == {name for name in topics if re.fullmatch(pattern, name)}


async def test_others_have_their_turn_while_a_bad_one_is_looked_at() -> None:
    topics, others = FakeTopics(), Turns()
    for number in range(100):
        topics.set("ab" * 120 + str(number), 1)
    patterns = Patterns(topics)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others.take)
        await trio.lowlevel.checkpoint()
        others.count = 0
        await patterns.prepare("(.{0,30}){0,30}x")
        assert others.count >= 5
        nursery.cancel_scope.cancel()
    assert patterns.matching("(.{0,30}){0,30}x") == frozenset()


async def test_a_topic_that_comes_while_one_is_looked_at_is_not_missed() -> None:
    topics = FakeTopics()
    for number in range(2000):
        topics.set(f"t{number}", 1)
    patterns = Patterns(topics)

    async def later() -> None:
        topics.set("t-new", 1)
        topics.set("t7", 0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        await patterns.prepare("t.*(.{0,20}){0,20}")
    assert patterns.matching("t.*(.{0,20}){0,20}") == frozenset(topics)


async def test_what_is_none_is_refused() -> None:
    for pattern in ("(", "x" * 5000):
        with pytest.raises(InvalidPattern):
            Patterns(FakeTopics()).matching(pattern)
        with pytest.raises(InvalidPattern):
            await Patterns(FakeTopics()).prepare(pattern)


async def test_a_topic_that_comes_is_the_only_one_that_many_patterns_are_held_against(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics, patterns, looked = FakeTopics(), 2000, 0
    for number in range(10):
        topics.set(f"t{number}", 1)
    known = Patterns(topics)
    for number in range(patterns):
        known.matching(f"t{number}.*")

    def matches(expression: Any, name: str) -> bool:
        nonlocal looked
        looked += 1
        return real(expression, name)

    real = routing.groups.patterns._matches
    monkeypatch.setattr("routing.groups.patterns._matches", matches)
    topics.set("t1999x", 1)
    assert sum(len(known.matching(f"t{number}.*")) for number in range(patterns)) == 10 + 4
    assert looked == patterns
