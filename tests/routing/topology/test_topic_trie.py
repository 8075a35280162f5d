"""The trie against a matcher that tries everything, in both syntaxes."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.key_patterns import matches as tokens_match
from routing.key_patterns import parse_pattern
from routing.topology.topic_trie import TopicTrie

_WORDS = st.sampled_from(["a", "b", "", "$sys", "*", "+", "#", "é"])
_KEYS = st.lists(_WORDS, max_size=5).map(".".join)
_AMQP = st.lists(st.sampled_from(["a", "b", "", "$sys", "+", "*", "#", "#"]), max_size=5).map(".".join)
_MQTT_WORDS = st.lists(st.sampled_from(["a", "b", "", "$sys", "*", "+", "+"]), min_size=1, max_size=4)
_MQTT = st.tuples(_MQTT_WORDS, st.booleans()).map(lambda drawn: ".".join(drawn[0] + ["#"] * drawn[1])).filter(
    bool
) | st.just("#")


class Held(NamedTuple):
    """A value; several may stand under one pattern."""

    pattern: str
    syntax: str = "amqp"
    number: int = 0


def words_of(text: str) -> list[str]:
    """AMQP: an empty key has no words at all."""
    return text.split(".") if text else []


def amqp_matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(amqp_matches(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and amqp_matches(pattern[1:], words[1:])


def mqtt_matches(pattern: list[str], words: list[str]) -> bool:
    """MQTT 5.0 section 4.7, with the levels separated already; a topic name has at least one character."""
    if not words or (pattern[0] in ("+", "#") and words[0].startswith("$")):
        return False
    if pattern[-1] == "#":
        return len(words) >= len(pattern) - 1 and all(p in ("+", w) for p, w in zip(pattern[:-1], words))
    return len(words) == len(pattern) and all(p in ("+", w) for p, w in zip(pattern, words))


def matches(pattern: str, syntax: str, key: str) -> bool:
    if syntax == "amqp":
        return amqp_matches(words_of(pattern), words_of(key))
    return mqtt_matches(pattern.split("."), words_of(key))


@pytest.mark.parametrize(
    ("pattern", "syntax", "hits", "misses"),
    [
        ("a.b", "amqp", ["a.b"], ["a", "a.b.c", "a.", ".a.b", "A.b", ""]),
        ("*", "amqp", ["a", "$sys", "#"], ["", "a.b", "."]),
        ("*.*", "amqp", ["a.b", ".", "a."], ["", "a", "a.b.c"]),
        ("#", "amqp", ["", "a", "a.b.c", ".", "$sys.x"], []),
        ("a.#", "amqp", ["a", "a.b", "a.b.c", "a."], ["", "b", "ab"]),
        ("#.a", "amqp", ["a", "b.a", "a.a", "b.b.a"], ["", "a.b"]),
        ("a.#.b", "amqp", ["a.b", "a.x.b", "a.b.b", "a.a.b"], ["a", "b", "a.b.c"]),
        ("#.#", "amqp", ["", "a", "a.b"], []),
        ("*.#", "amqp", ["a", "a.b"], [""]),
        ("#.*.#", "amqp", ["a", "a.b.c"], [""]),
        ("a.*.#.b", "amqp", ["a.x.b", "a.x.y.b"], ["a.b"]),
        ("", "amqp", [""], ["a", "."]),
        ("+.a", "amqp", ["+.a"], ["x.a"]),
        ("lazy.#", "amqp", ["lazy", "lazy.brown.fox"], ["quick.lazy"]),
        ("+", "mqtt", ["a", "é"], ["", "a.b", "$sys"]),
        ("#", "mqtt", ["a", "a.b.c", ".", ".a"], ["", "$sys", "$sys.a"]),
        ("a.#", "mqtt", ["a", "a.b", "a."], ["b", "$a"]),
        ("$sys.#", "mqtt", ["$sys", "$sys.a.b"], ["a"]),
        ("$sys.+", "mqtt", ["$sys.a"], ["$sys", "$sys.a.b"]),
        ("+.+", "mqtt", [".a", "a.", "a.b"], ["a", "$sys.a"]),
        ("+.a.#", "mqtt", ["x.a", "x.a.y"], ["a", "$x.a"]),
        ("*.a", "mqtt", ["*.a"], ["x.a"]),
        ("a.$b", "mqtt", ["a.$b"], []),
        ("a.+", "mqtt", ["a.$b", "a."], ["a"]),
    ],
)
def test_patterns(pattern: str, syntax: str, hits: list[str], misses: list[str]) -> None:
    trie, held, tokens = TopicTrie[Held](), Held(pattern, syntax), parse_pattern(pattern, syntax)
    trie.add(held)
    for key in hits:
        assert matches(pattern, syntax, key), f"the model says {pattern} does not match {key}"
        assert trie.match(key) == [held], key
        assert tokens_match(tokens, key)
    for key in misses:
        assert not matches(pattern, syntax, key), f"the model says {pattern} matches {key}"
        assert not trie.match(key), key
        assert not tokens_match(tokens, key)


_PATTERNS = st.lists(
    st.builds(Held, _AMQP, st.just("amqp"), st.integers(0, 2)) | st.builds(Held, _MQTT, st.just("mqtt")),
    min_size=1, max_size=12, unique=True,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(_PATTERNS, st.lists(_KEYS, min_size=1, max_size=8), st.data())
def test_against_all_possibilities(patterns: list[Held], keys: list[str], data: st.DataObject) -> None:
    trie = TopicTrie[Held]()
    for pattern in patterns:
        trie.add(pattern)
        trie.add(Held(*pattern))
    removed = data.draw(st.sets(st.sampled_from(patterns)))
    for pattern in removed:
        trie.remove(pattern)
    assert set(trie) == set(patterns) - removed
    assert len(list(trie)) == len(set(trie))
    for key in keys:
        found = trie.match(key)
        assert len(found) == len(set(found))
        assert set(found) == {p for p in patterns if p not in removed and matches(p.pattern, p.syntax, key)}
        for pattern in patterns:
            tokens = parse_pattern(pattern.pattern, pattern.syntax)
            assert tokens_match(tokens, key) == matches(pattern.pattern, pattern.syntax, key)


@given(_PATTERNS, st.data())
def test_what_is_left_is_as_if_the_rest_had_never_been(patterns: list[Held], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(patterns), unique=True))
    trie, other = TopicTrie[Held](), TopicTrie[Held]()
    for pattern in patterns:
        trie.add(pattern)
    trie.remove(Held("no.such.pattern"))
    for pattern in patterns:
        trie.remove(Held(pattern.pattern, pattern.syntax, 3))
        if pattern not in kept:
            trie.remove(pattern)
    for pattern in kept:
        other.add(pattern)
    assert bool(trie) == bool(kept)
    assert set(trie) == set(other)
    if not kept:
        assert trie._root == {}


def test_many_wildcards_do_not_explode() -> None:
    for others in ([], [Held("#.a." * 20 + "b"), Held("#.a." * 10 + "#.b")]):
        trie, held = TopicTrie[Held](), Held("#.a." * 20 + "#")
        for one in (held, *others):
            trie.add(one)
        assert not trie.match(".".join(["a"] * 19))
        assert trie.match(".".join(["a"] * 60)) == [held]


def test_many_patterns_with_many_wildcards_are_each_looked_at_once() -> None:
    looked = 0

    class Counted(Held):
        @property
        def pattern(self) -> str:  # type: ignore[override]
            nonlocal looked
            looked += 1
            return self[0]

    trie = TopicTrie[Held]()
    patterns = ["#." + ".#.".join(words) + ".#.z" for words in product("a*", repeat=8)]
    for pattern in patterns:
        trie.add(Counted(pattern))
    looked = 0
    assert not trie.match(".".join(["a"] * 127))
    assert looked <= len(patterns)
    assert len(trie.match(".".join([*["a"] * 126, "z"]))) == len(patterns)


def test_a_pattern_of_many_words_needs_no_recursion() -> None:
    trie = TopicTrie[Held]()
    key = ".".join(["a"] * 100_000)
    both = [Held(key), Held(key + ".b")]
    for held in both:
        trie.add(held)
    assert trie.match(key) == both[:1]
    assert trie.match(key + ".b") == both[1:]
    for held in both:
        trie.remove(held)
    assert not trie
