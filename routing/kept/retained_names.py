"""Names by what patterns they match: the other way round than `topology/topic_trie.py`, which has patterns by names.

A name is words separated by dots. A branch is a dict from word to what is below; a name with nothing below it stands
there itself, instead of a branch, and one with something below it stands in its branch under None. So a name costs an
entry in a dict, and a look-up costs what it finds and the branches on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routing.key_patterns import ANY, ANY_PLAIN, ONE, ONE_PLAIN

_Branch = dict[str | None, Any]


class NameTrie:
    """See the module."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Branch = {}

    def add(self, name: str) -> None:
        """Have a name; twice is once."""
        *branches, last = name.split(".")
        branch = self._root
        for word in branches:
            below = branch.get(word)
            if type(below) is not dict:
                below = branch[word] = {} if below is None else {None: below}
            branch = below
        there = branch.get(last)
        if type(there) is dict:
            there[None] = name
        else:
            branch[last] = name

    def remove(self, name: str) -> None:
        """Have it no more; empty branches go."""
        *branches, last = name.split(".")
        path = [self._root]
        for word in branches:
            below = path[-1].get(word)
            if type(below) is not dict:
                return
            path.append(below)
        there = path[-1].get(last)
        if type(there) is dict:
            there.pop(None, None)
            if there:
                return
        path[-1].pop(last, None)
        while branches and not path[-1]:
            path.pop()
            del path[-1][branches.pop()]

    def all(self) -> list[str]:
        """Every name."""
        found: list[str] = []
        _collect(self._root, found)
        return found

    def matching(self, tokens: Sequence[str]) -> list[str]:
        """The names that match a pattern of `parse_pattern`, in no order."""
        found: list[str] = []
        stack: list[tuple[Any, int]] = [(self._root, 0)]
        while stack:
            below, at = stack.pop()
            if at == len(tokens):
                name = below if type(below) is str else below.get(None)
                if name is not None:
                    found.append(name)
                continue
            token = tokens[at]
            if token == ANY:
                _collect(below, found)
            elif type(below) is str:
                continue
            elif token == ONE:
                stack.extend((child, at + 1) for word, child in below.items() if word is not None)
            elif token in (ONE_PLAIN, ANY_PLAIN):
                for word, child in below.items():
                    if word.startswith("$"):
                        continue
                    if token == ONE_PLAIN:
                        stack.append((child, at + 1))
                    else:
                        _collect(child, found)
            elif token in below:
                stack.append((below[token], at + 1))
        return found


def _collect(below: Any, found: list[str]) -> None:
    """All names from here on down."""
    stack = [below]
    while stack:
        below = stack.pop()
        if type(below) is str:
            found.append(below)
            continue
        for child in below.values():
            if type(child) is str:
                found.append(child)
            else:
                stack.append(child)
