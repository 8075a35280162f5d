"""Patterns for keys with the wildcards of AMQP and MQTT.

A pattern is words separated by dots; the empty key has no words. In AMQP syntax `*` stands for exactly one word and `#`
for any number of words, anywhere. In MQTT syntax (`/` in a filter already swapped for `.`) the wildcards are `+` and
a final `#`, `*` is a literal, and a wildcard in the first place does not match a first word that begins with `$`
[MQTT-4.7.2-1]. Wildcards are tokens of their own, which no word can be.
"""

from __future__ import annotations

from collections.abc import Sequence

# Words contain no dots.
ONE, ONE_PLAIN = ".+", ".+$"
"""Tokens for one word; the second does not match a word that begins with $."""
ANY, ANY_PLAIN = ".#", ".#$"
"""Tokens for any number of words; for the second there has to be one, which does not begin with $."""
_ANY_OF = frozenset((ANY, ANY_PLAIN))


def parse_pattern(pattern: str, syntax: str) -> list[str]:
    """The tokens of `pattern`; `syntax` is "amqp" or "mqtt"."""
    words = pattern.split(".") if pattern else []
    one = "*" if syntax == "amqp" else "+"
    if one in words:
        words = [ONE if word == one else word for word in words]
    if "#" in words:
        words = [ANY if word == "#" else word for word in words]
    if syntax != "amqp" and words and words[0] in (ONE, ANY):
        words[0] += "$"
    return words


def matches(tokens: Sequence[str], key: str) -> bool:
    """Whether a pattern, by its tokens, matches a key."""
    return matches_from(tokens, 0, key.split(".") if key else [], 0)


def matches_from(tokens: Sequence[str], depth: int, words: list[str], at: int) -> bool:
    """Whether the tokens from `depth` on match the words from `at` on."""
    end = len(words)
    for place in range(depth, len(tokens)):
        token = tokens[place]
        if token in _ANY_OF:
            if token == ANY_PLAIN and (not words or words[0].startswith("$")):
                return False
            return place == len(tokens) - 1 or _matches_anywhere(tokens, place, words, at)
        if at == end or not (token == words[at] or token == ONE or (token == ONE_PLAIN and words[0][:1] != "$")):
            return False
        at += 1
    return at == end


def _matches_anywhere(tokens: Sequence[str], place: int, words: list[str], at: int) -> bool:
    """The same from a `#` on, which may stand for as many words as it takes; all ways at once."""
    end = len(words)
    here = {at}
    for token in tokens[place:]:
        if token in _ANY_OF:
            here = set(range(min(here), end + 1))
        else:
            here = {at + 1 for at in here if at < end and (token == ONE or token == words[at])}
        if not here:
            return False
    return end in here
