"""Offsets that a group has in transactions which are not ended: what it gets if they are committed.

They stand in the store of the group's offsets under keys of their own, so that whoever looks after the group next has
them as well. What the group commits in the same place later, or forgets, counts more, as with Kafka. `ended` counts
what was ended, for who must know whether a transaction was ended while it waited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgpack

from core_log.keyed_store import KeyedStore

Partition = tuple[str, int]
"""Topic name and partition number."""


class Committed(NamedTuple):
    """How far a group has come in a partition."""

    offset: int
    """Of the next record to read."""
    note: str = ""
    """The committer's own."""
    leader_epoch: int = -1
    """Of the record before, if the committer said so: what another leader has there instead is told by it."""


class ComingOffsets:
    """What is stored once somebody else has answered. What of it is of topics that are deleted meanwhile goes: else who
    makes such a topic later would find that groups have come somewhere in it.
    """

    def __init__(self) -> None:
        self._coming: list[dict[Partition, Committed]] = []

    @contextmanager
    def of(self, offsets: Mapping[Partition, Committed]) -> Iterator[dict[Partition, Committed]]:
        """What is left of these."""
        left = dict(offsets)
        self._coming.append(left)
        try:
            yield left
        finally:
            self._coming = [one for one in self._coming if one is not left]

    def forget_topic(self, name: str) -> None:
        """It is deleted."""
        for coming in self._coming:
            drop_topic(coming, name)


def drop_topic(offsets: dict[Partition, Committed], name: str) -> None:
    """Leave out what is of a topic."""
    for place in [place for place in offsets if place[0] == name]:
        del offsets[place]


class PendingOffsets:
    """See the module; of all groups in one store."""

    def __init__(self, store: KeyedStore) -> None:
        self.ended = 0
        self.coming = ComingOffsets()
        self._store = store
        self._groups: dict[str, dict[int, dict[Partition, Committed]]] = {}
        """By group and producer id."""

    @staticmethod
    def is_key(fields: list[Any]) -> bool:
        """Whether a key of the store, unpacked, is one of these."""
        return len(fields) == 4

    def load(self, fields: list[Any], value: bytes) -> None:
        """Take in what the store has under such a key."""
        group, topic, partition, producer_id = fields
        offset, note = msgpack.unpackb(value)
        self._of(group, producer_id)[topic, partition] = Committed(offset, note)

    def _of(self, group: str, producer_id: int) -> dict[Partition, Committed]:
        return self._groups.setdefault(group, {}).setdefault(producer_id, {})

    def put(self, group: str, producer_id: int, offsets: Mapping[Partition, Committed]) -> None:
        """A transaction has these. Raises LogUnavailable."""
        self._store.put_all(
            [
                (_key(group, place, producer_id), msgpack.packb([said.offset, said.note]))
                for place, said in offsets.items()
            ]
        )
        # The store has no leader epochs: brokers of older versions read it. Who goes on with it knows none, as if none
        # had been said.
        self._of(group, producer_id).update(offsets)

    def of(self, group: str, producer_id: int) -> dict[Partition, Committed]:
        """What a transaction has, if it has anything."""
        return dict(self._groups.get(group, {}).get(producer_id, {}))

    @staticmethod
    def removals(group: str, producer_id: int, places: Iterable[Partition]) -> list[tuple[bytes, None]]:
        """What is to be put for offsets that are pending no more."""
        return [(_key(group, place, producer_id), None) for place in places]

    def drop(self, group: str, producer_id: int) -> None:
        """A transaction is ended."""
        known = self._groups.get(group, {})
        known.pop(producer_id, None)
        if not known:
            self._groups.pop(group, None)

    def outdated(self, group: str, places: Iterable[Partition]) -> list[tuple[bytes, None]]:
        """What is to be put when something later counts in these places, whatever becomes of the transactions."""
        wanted = frozenset(places) if group in self._groups else frozenset()
        return [
            (_key(group, place, producer_id), None)
            for producer_id, offsets in self._groups.get(group, {}).items()
            for place in offsets
            if place in wanted
        ]

    def forget(self, group: str, places: Iterable[Partition]) -> None:
        """What is `outdated` was put."""
        if group in self._groups:
            wanted = frozenset(places)
            for producer_id, offsets in list(self._groups[group].items()):
                left = {place: said for place, said in offsets.items() if place not in wanted}
                if left:
                    self._groups[group][producer_id] = left
                else:
                    self.drop(group, producer_id)

    def unstable(self, group: str, partitions: Iterable[Partition] | None = None) -> set[Partition]:
        """Where a transaction has something for a group, among these partitions or all."""
        found = {place for offsets in self._groups.get(group, {}).values() for place in offsets}
        return found if partitions is None else found.intersection(partitions)

    def topics(self) -> set[str]:
        """Where any transaction has something."""
        return {topic for producers in self._groups.values() for known in producers.values() for topic, _ in known}

    def forget_topic(self, name: str) -> Iterator[bytes]:
        """The topic is deleted; the keys that go."""
        self.coming.forget_topic(name)
        for group, producers in self._groups.items():
            for producer_id, offsets in producers.items():
                for place in [place for place in offsets if place[0] == name]:
                    del offsets[place]
                    yield _key(group, place, producer_id)


def _key(group: str, place: Partition, producer_id: int) -> bytes:
    return msgpack.packb([group, *place, producer_id])  # type: ignore[no-any-return]
