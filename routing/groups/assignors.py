"""How the broker divides partitions among the members of a group (KIP-848): `uniform` and `range`.

1. Both are pure: who wants which topics, how many partitions these have, and who was to have what until now.
2. `uniform` moves as few partitions as it can: who has some keeps them up to a fair share, only what is over or free
   goes elsewhere. Shares differ by one at most where all members want the same topics.
3. `range` gives each topic's partitions in runs, in the members' order, so that partitions with the same number in
   several topics are with one member.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

Place = tuple[bytes, int]
"""A topic's id and a partition's number."""
Places = frozenset[Place]
NOWHERE: Places = frozenset()
Wants = Mapping[str, frozenset[bytes]]
"""Members in their order, with the ids of the topics that they want."""
Assignor = Callable[[Wants, Mapping[bytes, int], Mapping[str, Places]], dict[str, Places]]
"""Takes who wants what, the partitions of each topic, and what was assigned before."""

_PASSES_MAX = 8
"""Over who has too much, where members want different topics."""


def uniform(wants: Wants, partitions: Mapping[bytes, int], before: Mapping[str, Places]) -> dict[str, Places]:
    """See the module, rule 2."""
    if not wants:
        return {}
    kinds = set(wants.values())
    if len(kinds) == 1:
        return _even(list(wants), set(_places(kinds.pop(), partitions)), before)
    return _Uneven(wants, partitions, before).divided()


def in_ranges(wants: Wants, partitions: Mapping[bytes, int], before: Mapping[str, Places]) -> dict[str, Places]:
    """See the module, rule 3."""
    found: dict[str, list[Place]] = {member: [] for member in wants}
    for topic, count in partitions.items():
        members = [member for member, wanted in wants.items() if topic in wanted]
        if not members:
            continue
        share, over = divmod(count, len(members))
        first = 0
        for index, member in enumerate(members):
            last = first + share + (index < over)
            found[member] += [(topic, number) for number in range(first, last)]
            first = last
    return {member: frozenset(places) for member, places in found.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": in_ranges}
"""By their names in the protocol; the first is used where nobody wants another."""


def _places(topics: Iterable[bytes], partitions: Mapping[bytes, int]) -> Iterable[Place]:
    return [(topic, number) for topic in topics for number in range(partitions.get(topic, 0))]


def _kept(before: Places, free: set[Place]) -> Places:
    """What is left of it; the same object if all is."""
    return before if before <= free else before & free


def _even(members: list[str], free: set[Place], before: Mapping[str, Places]) -> dict[str, Places]:
    share, over = divmod(len(free), len(members))
    found: dict[str, Places] = {}
    for member in members:
        held = _kept(before.get(member, NOWHERE), free)
        most = share + (over > 0)
        if len(held) > most:
            held = frozenset(sorted(held)[:most])
        over -= len(held) > share
        found[member] = held
        free -= held
    if free:
        left = sorted(free, reverse=True)
        for member in members:
            held = found[member]
            most = share + (over > 0)
            if len(held) < most:
                over -= most > share
                found[member] = held.union([left.pop() for _ in range(most - len(held))])
    return found


class _Uneven:
    """Members want different topics: what is free goes to who has least of those that want it, then who has two more
    than another one gives.
    """

    def __init__(self, wants: Wants, partitions: Mapping[bytes, int], before: Mapping[str, Places]) -> None:
        self._found: dict[str, set[Place]] = {}
        self._wanting: dict[bytes, tuple[str, ...]] = {}
        free = set(_places(partitions, partitions))
        for member, topics in wants.items():
            held = {place for place in before.get(member, NOWHERE) if place[0] in topics} & free
            self._found[member] = held
            free -= held
        one: dict[tuple[str, ...], tuple[str, ...]] = {}
        for topic in partitions:
            who = tuple(member for member, topics in wants.items() if topic in topics)
            self._wanting[topic] = one.setdefault(who, who)
        self._free = sorted(free, key=lambda place: (len(self._wanting[place[0]]), place))

    def divided(self) -> dict[str, Places]:
        self._give_free()
        for _ in range(_PASSES_MAX):
            if not self._level():
                break
        return {member: frozenset(places) for member, places in self._found.items()}

    def _give_free(self) -> None:
        found = self._found
        heaps: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}
        for place in self._free:
            who = self._wanting[place[0]]
            if not who:
                continue
            heap = heaps.get(who)
            if heap is None:
                heap = heaps[who] = [(len(found[member]), index, member) for index, member in enumerate(who)]
                heapq.heapify(heap)
            while True:
                load, index, member = heap[0]
                if load == len(found[member]):
                    break
                heapq.heapreplace(heap, (len(found[member]), index, member))  # it got some of other topics
            found[member].add(place)
            heapq.heapreplace(heap, (load + 1, index, member))

    def _level(self) -> bool:
        found = self._found
        moved = False
        fewest = min(map(len, found.values()))
        for member in sorted(found, key=lambda one: -len(found[one])):
            if len(found[member]) - fewest <= 1:
                break  # nor have those behind it
            for place in sorted(found[member]):
                least = min(self._wanting[place[0]], key=lambda one: len(found[one]))
                if len(found[member]) - len(found[least]) > 1:
                    found[member].discard(place)
                    found[least].add(place)
                    moved = True
        return moved
