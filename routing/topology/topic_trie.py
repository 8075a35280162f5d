"""One trie for the wildcards of AMQP and MQTT.

A pattern is words separated by dots; the empty key has no words. In AMQP syntax `*` stands for exactly one word and `#`
for any number of words, anywhere. In MQTT syntax (`/` in a filter already swapped for `.`) the wildcards are `+` and
a final `#`, `*` is a literal, and a wildcard in the first place does not match a first word that begins with `$`
[MQTT-4.7.2-1]. Patterns of both kinds live in one trie: wildcards are tokens of their own, never strings.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any


class Wildcard(Enum):
    """Tokens that are not words."""

    ONE = "one word"
    ANY = "any number of words"
    ONE_PLAIN = "one word that does not begin with $"
    ANY_PLAIN = "any number of words, the first not beginning with $"


Token = str | Wildcard


def parse_pattern(pattern: str, syntax: str) -> tuple[Token, ...]:
    """The tokens of `pattern`; `syntax` is "amqp" or "mqtt"."""
    words = pattern.split(".") if pattern else []
    if syntax == "amqp":
        return tuple(Wildcard.ONE if word == "*" else Wildcard.ANY if word == "#" else word for word in words)
    tokens: list[Token] = [Wildcard.ONE if word == "+" else Wildcard.ANY if word == "#" else word for word in words]
    if tokens and tokens[0] is Wildcard.ONE:
        tokens[0] = Wildcard.ONE_PLAIN
    elif tokens and tokens[0] is Wildcard.ANY:
        tokens[0] = Wildcard.ANY_PLAIN
    return tuple(tokens)


class _Node:
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[Token, _Node] = {}
        self.values: dict[Hashable, None] = {}


class TopicTrie:
    """Values by pattern; a value may stand under many patterns."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, tokens: tuple[Token, ...], value: Hashable) -> None:
        """Put `value` under the pattern; twice is once."""
        node = self._root
        for token in tokens:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node()
            node = child
        node.values[value] = None

    def remove(self, tokens: tuple[Token, ...], value: Hashable) -> None:
        """Take `value` from under the pattern; empty branches go."""
        path = [self._root]
        for token in tokens:
            child = path[-1].children.get(token)
            if child is None:
                return
            path.append(child)
        path[-1].values.pop(value, None)
        for depth in range(len(tokens), 0, -1):
            if path[depth].values or path[depth].children:
                return
            del path[depth - 1].children[tokens[depth - 1]]

    def match(self, key: str) -> dict[Any, None]:
        """The values whose patterns match `key`, each once, in a stable order."""
        words = key.split(".") if key else []
        found: dict[Any, None] = {}
        seen: set[tuple[int, int]] = set()
        stack: list[tuple[_Node, int]] = [(self._root, 0)]
        while stack:
            node, at = stack.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            children = node.children
            plain = at < len(words) and not (at == 0 and words[0].startswith("$"))
            for wildcard in (Wildcard.ANY, Wildcard.ANY_PLAIN):
                if wildcard in children and (wildcard is Wildcard.ANY or plain):
                    child = children[wildcard]
                    stack.extend((child, rest) for rest in range(at, len(words) + 1))
            if at == len(words):
                found.update(node.values)
                continue
            word = words[at]
            if word in children:
                stack.append((children[word], at + 1))
            if Wildcard.ONE in children:
                stack.append((children[Wildcard.ONE], at + 1))
            if Wildcard.ONE_PLAIN in children and plain:
                stack.append((children[Wildcard.ONE_PLAIN], at + 1))
        return found
