"""Names by patterns, beside the trie that finds patterns by names."""

from __future__ import annotations

import random
from itertools import product

import pytest

from routing.kept.retained_names import NameTrie
from routing.key_patterns import matches, parse_pattern

WORDS = ("", "a", "b", "$SYS")
NAMES = [".".join(words) for length in (1, 2, 3) for words in product(WORDS, repeat=length)]
TOKENS = (*WORDS, "+")
PATTERNS = [
    ".".join(words) for length in (1, 2, 3) for words in product(TOKENS, repeat=length) if words != ("",)
]  # fmt: skip
PATTERNS += ["#", *(f"{pattern}.#" for pattern in PATTERNS)]


def expected(names: set[str], pattern: str) -> list[str]:
    """What the other trie says of each name."""
    tokens = parse_pattern(pattern, "mqtt")
    return sorted(name for name in names if matches(tokens, name))


@pytest.mark.parametrize("seed", range(3))
def test_what_matches_is_what_the_trie_of_patterns_says(seed: int) -> None:
    dice = random.Random(seed)
    trie, there = NameTrie(), set[str]()
    candidates = [name for name in NAMES if name]
    for _ in range(4):
        for name in dice.sample(candidates, 40):
            trie.add(name)
            there.add(name)
        for name in dice.sample(candidates, 30):
            trie.remove(name)
            there.discard(name)
        assert sorted(trie.all()) == sorted(there)
        for pattern in PATTERNS:
            assert sorted(trie.matching(parse_pattern(pattern, "mqtt"))) == expected(there, pattern), pattern


def test_nothing_is_left_of_names_that_went() -> None:
    trie = NameTrie()
    for name in NAMES:
        trie.add(name)
    for name in NAMES:
        trie.remove(name)
        trie.remove(name)
    assert trie.all() == []
    assert trie._root == {}
