"""One trie for patterns with the wildcards of AMQP and MQTT (`routing.key_patterns`), both kinds in one.

A million patterns are held, nearly all of them long and alike at their beginnings only. So a node is a bare dict from
tokens to what is below, and where there is but one pattern below, that stands there itself and not as a branch of nodes
(a *leaf*): what is left of it to compare is read from the pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from routing.key_patterns import ANY, ANY_PLAIN, ONE, ONE_PLAIN, Ways, matches_from, parse_pattern

_END = "."
"""Below it is what ends at a node."""


class Patterned(Protocol):
    """What can be put into a trie: hashable, and it knows its pattern."""

    @property
    def pattern(self) -> str:
        """As it is written."""

    @property
    def syntax(self) -> str:
        """What wildcards mean in it."""


Value = TypeVar("Value", bound=Patterned)


class _Several(dict[Any, None]):
    """Values of one pattern."""


def _first(leaf: Any) -> Any:
    return next(iter(leaf)) if type(leaf) is _Several else leaf


def _tokens_of(leaf: Any) -> list[str]:
    one = _first(leaf)
    return parse_pattern(one.pattern, one.syntax)


def _with(leaf: Any, value: Any) -> Any:
    """A leaf with one value more."""
    if leaf is None:
        return value
    if type(leaf) is _Several:
        leaf[value] = None
        return leaf
    return leaf if leaf == value else _Several({leaf: None, value: None})


class TopicTrie(Generic[Value]):
    """Values by their patterns."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}

    def add(self, value: Value) -> None:
        """Put a value under its pattern; twice is once."""
        tokens = parse_pattern(value.pattern, value.syntax)
        node = self._root
        theirs: list[str] = []
        for depth, token in enumerate(tokens, 1):
            child = node.get(token)
            if child is None:
                node[token] = value
                return
            if type(child) is not dict:
                # A leaf is passed on downwards until the two part.
                theirs = theirs or _tokens_of(child)
                if theirs == tokens:
                    node[token] = _with(child, value)
                    return
                child = node[token] = {theirs[depth] if depth < len(theirs) else _END: child}
            node = child
        node[_END] = _with(node.get(_END), value)

    def remove(self, value: Value) -> None:
        """Take a value away if it is there; empty branches go."""
        path = []
        node = self._root
        tokens = parse_pattern(value.pattern, value.syntax)
        for token in (*tokens, _END):
            child = node.get(token)
            path.append((node, token))
            if type(child) is not dict:
                break
            node = child
        if type(child) is _Several:
            child.pop(value, None)
            if len(child) == 1:
                node[token] = _first(child)
            return
        if child is None or child != value:
            return
        del node[token]
        path.pop()
        while path:
            above, token = path.pop()
            if len(node) > 1:
                return
            left = next(iter(node.values()), None)
            if type(left) is dict:
                return
            if left is None:
                del above[token]
            else:
                above[token] = left
            node = above

    def match(self, key: str) -> list[Value]:
        """The values whose patterns match `key`, each once, in a stable order."""
        words = key.split(".") if key else []
        end = len(words)
        found: list[Any] = []
        ways: Ways | None = None
        stack: list[tuple[Any, int, int]] = [(self._root, 0, 0)]
        plain = end > 0 and not words[0].startswith("$")
        while stack:
            node, at, depth = stack.pop()
            if type(node) is not dict:
                one = node if type(node) is not _Several else _first(node)
                if one.pattern == key or matches_from(parse_pattern(one.pattern, one.syntax), depth, words, at):
                    _take(node, found)
                continue
            for wildcard in (ANY, ANY_PLAIN) if plain and not depth else (ANY,):
                child = node.get(wildcard)
                if child is None:
                    continue
                if type(child) is not dict:
                    stack.append((child, at, depth))
                    continue
                ways = ways or Ways(words)
                _match_below(child, depth + 1, ways, ways.after(ANY, 1 << at), found)
            if at == end:
                if _END in node:
                    _take(node[_END], found)
                continue
            child = node.get(words[at])
            if child is not None:
                stack.append((child, at + 1, depth + 1))
            child = node.get(ONE)
            if child is not None:
                stack.append((child, at + 1, depth + 1))
            if plain and not depth and ONE_PLAIN in node:
                stack.append((node[ONE_PLAIN], at + 1, depth + 1))
        return found

    def __iter__(self) -> Iterator[Value]:
        stack: list[Any] = [self._root]
        while stack:
            node = stack.pop()
            if type(node) is dict:
                stack += node.values()
            elif type(node) is _Several:
                yield from node
            else:
                yield node

    def __bool__(self) -> bool:
        return bool(self._root)


def _match_below(node: dict[str, Any], depth: int, ways: Ways, here: int, found: list[Any]) -> None:
    """Take what matches below a `#` in the midst of patterns. There a node can be come to on many ways: it is looked at
    once, for all of them.
    """
    stack: list[tuple[Any, int, int]] = [(node, here, depth)]
    while stack:
        node, here, depth = stack.pop()
        if type(node) is not dict:
            if ways.lead_to_end(_tokens_of(node)[depth:], here):
                _take(node, found)
            continue
        if here & ways.end and _END in node:
            _take(node[_END], found)
        tokens = node if len(node) < len(ways.places) else (*ways.places, ONE, ANY)
        for token in tokens:
            child = node.get(token)
            if child is None or token == _END:
                continue
            there = ways.after(token, here)
            if there:
                stack.append((child, there, depth + 1))


def _take(leaf: Any, found: list[Any]) -> None:
    if type(leaf) is _Several:
        found += leaf
    else:
        found.append(leaf)
