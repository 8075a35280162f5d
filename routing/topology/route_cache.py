"""The routes of an exchange by routing key, from which those can be dropped that a pattern matches.

A binding that comes or goes has a say only in keys that its pattern matches, and subscriptions come and go all the
time while others publish. So that a wildcard need not be held against each key that is remembered, keys stand in a
trie, the other way round than patterns do: words are looked for by a pattern. It is made when a wildcard first asks,
and keys that are remembered since are put in when the next one does: who only publishes has none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from routing.key_patterns import ANY, ANY_PLAIN, ONE, ONE_PLAIN, matches

if TYPE_CHECKING:
    from routing.topology.route import Route

_END = "."
"""Below it is the key that ends at a node; no word has a dot."""


class RouteCache:
    """See the module."""

    __slots__ = ("_keys", "_recent", "routes")

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        """By routing key."""
        self._keys: dict[str, Any] = {}
        """A node is a dict by word; where there is one key below, it stands there itself."""
        self._recent: list[str] = []
        """Keys that are not in the trie yet."""

    def put(self, key: str, route: Route) -> None:
        """Remember the route of a key that has none."""
        self.routes[key] = route
        self._recent.append(key)

    def drop(self, key: str) -> int:
        """Forget a key; how many there were."""
        if self.routes.pop(key, None) is None:
            return 0
        if self._keys:
            self._remove(key)
        if len(self._recent) > 2 * len(self.routes) + 64:
            self._recent = [key for key in dict.fromkeys(self._recent) if key in self.routes]
        return 1

    def drop_matching(self, tokens: Sequence[str]) -> int:
        """Forget the keys that a pattern matches; how many there were."""
        if not self.routes:
            return 0
        if not any(token in (ONE, ONE_PLAIN, ANY, ANY_PLAIN) for token in tokens):
            return self.drop(".".join(tokens))
        for key in self._recent:
            if key in self.routes:
                self._add(key)
        self._recent.clear()
        matching = self._matching(tokens)
        for key in matching:
            self._remove(key)
            del self.routes[key]
        return len(matching)

    def _add(self, key: str) -> None:
        words = key.split(".") if key else []
        node = self._keys
        for depth, word in enumerate((*words, _END), 1):
            child = node.get(word)
            if child is None or child == key:
                node[word] = key
                return
            if type(child) is not dict:
                theirs = [*(child.split(".") if child else ()), _END]
                child = node[word] = {theirs[depth]: child}
            node = child

    def _remove(self, key: str) -> None:
        """Take a key out, if it is in; branches that are empty then stay no longer."""
        node, path = self._keys, []
        for word in (*(key.split(".") if key else ()), _END):
            child = node.get(word)
            path.append((node, word))
            if type(child) is not dict:
                break
            node = child
        if child != key:
            return
        while path:
            node, word = path.pop()
            del node[word]
            if node:
                return

    def _matching(self, tokens: Sequence[str]) -> list[str]:
        """The keys in the trie that a pattern matches."""
        found: list[str] = []
        decided: set[str] = set()
        """Those that stand there themselves: behind `#` one can come to them at many places of the pattern."""
        end = len(tokens)
        seen: set[tuple[int, int]] = set()
        stack: list[tuple[dict[str, Any], int]] = [(self._keys, 0)]
        while stack:
            node, depth = stack.pop()
            if (id(node), depth) in seen:
                continue
            seen.add((id(node), depth))
            if depth == end:
                if _END in node and matches(tokens, node[_END]):
                    found.append(node[_END])
                continue
            token = tokens[depth]
            if token in (ANY, ANY_PLAIN):
                stack.append((node, depth + 1))
                below = [(word, child, depth) for word, child in node.items() if word != _END]
            elif token in (ONE, ONE_PLAIN):
                below = [(word, child, depth + 1) for word, child in node.items() if word != _END]
            else:
                below = [(token, node[token], depth + 1)] if token in node else []
            for word, child, after in below:
                if token in (ONE_PLAIN, ANY_PLAIN) and node is self._keys and word.startswith("$"):
                    continue
                if type(child) is dict:
                    stack.append((child, after))
                elif child not in decided:
                    decided.add(child)
                    if matches(tokens, child):
                        found.append(child)
        return found
