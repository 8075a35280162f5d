"""Patterns for keys with the wildcards of AMQP and MQTT.

A pattern is words separated by dots; the empty key has no words. In AMQP syntax `*` stands for exactly one word and `#`
for any number of words, anywhere. In MQTT syntax (`/` in a filter already swapped for `.`) the wildcards are `+` and
a final `#`, `*` is a literal, and a wildcard in the first place does not match a first word that begins with `$`
[MQTT-4.7.2-1]. Wildcards are tokens of their own, which no word can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Words contain no dots.
ONE, ONE_PLAIN = ".+", ".+$"
"""Tokens for one word; the second does not match a word that begins with $."""
ANY, ANY_PLAIN = ".#", ".#$"
"""Tokens for any number of words; for the second there has to be one, which does not begin with $."""
_ANY_OF = frozenset((ANY, ANY_PLAIN))
_SYSTEM = "$SYS"
_BRIDGE_STATE = re.compile(r"\$SYS\.broker\.connection\.[^.]+\.state")
"""What Mosquitto lets clients publish below `$SYS`: its bridges retain "1" there, and have "0" as their will."""


def is_system(key: str) -> bool:
    """Whether a key is a topic of `$SYS` that the broker alone tells MQTT's clients of; states of bridges are not."""
    if not key.startswith(_SYSTEM) or key[len(_SYSTEM) : len(_SYSTEM) + 1] not in ("", "."):
        return False
    return _BRIDGE_STATE.fullmatch(key) is None


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
    return Ways(words).lead_to_end(tokens[place:], 1 << at)


class Ways:
    """All ways through the words of a key at once: where they have come is a set of places, bit n the one before word
    n. One that is behind the last word has come to the end.
    """

    __slots__ = ("_whole", "end", "places")

    def __init__(self, words: Sequence[str]) -> None:
        self.places: dict[str, int] = {}
        """Where each word stands."""
        for at, word in enumerate(words):
            self.places[word] = self.places.get(word, 0) | 1 << at
        self.end = 1 << len(words)
        self._whole = (self.end << 1) - 1

    def after(self, token: str, here: int) -> int:
        """Where they have come behind a token, which is not in the first place; 0: nowhere."""
        if token in _ANY_OF:
            return self._whole & -(here & -here)
        if token == ONE:
            return here << 1 & self._whole
        return (here & self.places.get(token, 0)) << 1

    def lead_to_end(self, tokens: Sequence[str], here: int) -> bool:
        """Whether the tokens match what is left."""
        for token in tokens:
            here = self.after(token, here)
            if not here:
                return False
        return bool(here & self.end)
