"""Which records of its topic a view takes in, by their keys: those that a pattern of words matches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from routing.key_patterns import matches, parse_pattern
from routing.message import Slab
from routing.queues.packed_ranges import Range

_KNOWN_MAX = 1 << 16
"""So many keys are remembered, until all are forgotten."""


class KeyFilter:
    """A pattern as bindings of topic exchanges have it: words between dots, `*` for one, `#` for any number."""

    def __init__(self, pattern: str) -> None:
        self._tokens = parse_pattern(pattern, "amqp")
        self._known: dict[str, bool] = {}

    def wants(self, key: str) -> bool:
        """Whether the pattern matches a key."""
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            found = self._known[key] = matches(self._tokens, key)
        return found

    def wanted(self, slab: Slab, start: int, stop: int) -> list[Range]:
        """Those of messages [start, stop) of a slab that are wanted: where each stretch of them begins, its length."""
        if slab.keys is None:
            return [(start, stop - start)] if self.wants(slab.routing_key) else []
        found: list[Range] = []
        for wants, stretch in groupby(map(self.wants, slab.keys[start:stop])):
            count = len(list(stretch))
            if wants:
                found.append((start, count))
            start += count
        return found


def picked(slab: Slab, stretches: Sequence[Range]) -> Slab:
    """Stretches of a slab as one, as any queue has its messages: where in a log they lie is not said."""
    if len(stretches) == 1 and stretches[0] != (0, len(slab.bodies)):
        first, count = stretches[0]
        return slab.part(first, first + count)
    bodies, keys, raws = slab.bodies, slab.keys, slab.raws
    if len(stretches) > 1:
        places = [place for first, count in stretches for place in range(first, first + count)]
        bodies = [bodies[place] for place in places]
        keys = None if keys is None else [keys[place] for place in places]
        raws = None if raws is None else [raws[place] for place in places]
    key = slab.routing_key if keys is None else keys[0]
    return Slab(slab.exchange, key, slab.properties, bodies, keys=keys, raws=raws)
