"""What comes over a watch on etcd, made whole, and whether a watch is to be left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from core_log.metadata.etcd_wire import WatchAnswer
from core_log.metadata.store import MetadataEntry

_LOOKS_MAX = 32


class WholeRevisions:
    """etcd sends a thousand revisions at a time to a watch that is behind, in answers of some 2 MiB each, as it is
    asked to: one may end in the midst of a revision, which is kept until the rest of it is there.
    """

    def __init__(self) -> None:
        self._begun: list[MetadataEntry] = []

    def take(self, answer: WatchAnswer) -> Iterator[tuple[int, list[MetadataEntry]]]:
        """The revisions that are whole with this answer, each with its entries."""
        events, self._begun = self._begun + answer.events, []
        if answer.is_fragment and events:
            last = events[-1].mod_revision
            self._begun = [event for event in events if event.mod_revision == last]
            del events[-len(self._begun) :]
        for revision, entries in groupby(events, lambda event: event.mod_revision):
            yield revision, list(entries)


class Standstill:
    """A watch that is behind, and has brought nothing from one look to the next, is left; if that was in vain the next
    one has twice the time, and so on: what it has to bring may be much.
    """

    def __init__(self) -> None:
        self._revision = self._looks = 0
        self._looks_max = 1

    def is_there(self, revision: int, wanted: int) -> bool:
        """Look: whether the watch, which has come to a revision and should have come to another, is to be left."""
        if revision != self._revision or revision >= wanted:
            self._revision, self._looks, self._looks_max = revision, 0, 1
        if revision >= wanted:
            return False
        self._looks += 1
        if self._looks <= self._looks_max:
            return False
        self._looks, self._looks_max = 0, min(2 * self._looks_max, _LOOKS_MAX)
        return True
