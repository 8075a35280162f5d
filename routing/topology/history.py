"""The last messages that an exchange of kind `x-recent-history` saw, for destinations that are bound to it later.

They are kept in memory only: a restart forgets them. (RabbitMQ's plugin keeps them in its metadata.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from typing import Any

from routing.errors import PreconditionFailed
from routing.message import Slab
from routing.topology.matchers import FanoutMatcher

_LENGTH = "x-recent-history-length"
_NO_STORE = "x-recent-history-no-store"
_LENGTH_DEFAULT = 20
_BYTES_MAX = 64 << 20
"""The bodies of one exchange; beyond it the oldest go, whatever length was asked for."""


class RecentHistoryMatcher(FanoutMatcher):
    """Everything to everyone, and the last messages are remembered."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self._length: int = arguments.get(_LENGTH, _LENGTH_DEFAULT)
        self._slabs: deque[Slab] = deque()
        self._count = 0
        self._bytes = 0

    @staticmethod
    def check_arguments(arguments: Mapping[str, Any]) -> None:
        length = arguments.get(_LENGTH, _LENGTH_DEFAULT)
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            said = f'<<"{length}">>' if isinstance(length, str) else length
            raise PreconditionFailed(f"Invalid argument {said}, '{_LENGTH}' must be a positive integer")

    def remember(self, slab: Slab) -> None:
        """Messages passed the exchange."""
        for part in self._wanted(slab):
            self._slabs.append(part)
            self._count += len(part.bodies)
            self._bytes += part.size
        while self._count > self._length or self._bytes > _BYTES_MAX:
            oldest = self._slabs.popleft()
            self._count -= len(oldest.bodies)
            self._bytes -= oldest.size
            keep = self._length - self._count
            if keep > 0 and self._bytes + oldest.size <= _BYTES_MAX:
                self._add_left(oldest.part(len(oldest.bodies) - keep, len(oldest.bodies)))

    def _add_left(self, slab: Slab) -> None:
        self._slabs.appendleft(slab)
        self._count += len(slab.bodies)
        self._bytes += slab.size

    def _wanted(self, slab: Slab) -> Iterable[Slab]:
        """Of the messages of a slab that may be stored the last, in parts: a header asks that a message be not."""
        count = len(slab.bodies)
        if slab.raws is None:
            refused = _NO_STORE in slab.properties.neutral.headers
            return () if refused else (slab.part(max(0, count - self._length), count),)
        allowed = (one for one in reversed(range(count)) if _NO_STORE not in slab.properties_of(one).neutral.headers)
        indices = sorted(islice(allowed, self._length))
        ends = [at for at, (one, following) in enumerate(pairwise(indices), 1) if following > one + 1]
        runs = [indices[start:stop] for start, stop in pairwise([0, *ends, len(indices)]) if start < stop]
        return [slab.part(run[0], run[-1] + 1) for run in runs]

    def recent(self) -> list[Slab]:
        """What is remembered, oldest first."""
        return list(self._slabs)
