"""Offsets that a group has in transactions which are not ended: what it gets if they are committed.

They stand in the store of the group's offsets under keys of their own, so that whoever looks after the group next has
them as well. What the group commits in the same place later, or forgets, counts more, as with Kafka. `ended` counts
what was ended, for who must know whether a transaction was ended while it waited.

Where brokers share topics, the id of its topic stands beside each, in a record of its own: versions before this one
pass that over, and would not read what it is of with more in it. It is of the offset that it names, and of no other
that one of those put there later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgpack

from core_log.keyed_store import KeyedStore

_ID = [0, "topic id"]
"""What the key of such a record begins with; others begin with the name of a group."""
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
        self._read_ids: list[tuple[list[Any], int, bytes]] = []
        """Of what was read: the fields of the key, the offset, and the id of the topic."""

    @staticmethod
    def is_key(fields: list[Any]) -> bool:
        """Whether a key of the store, unpacked, is one of these."""
        return len(fields) == 4 or fields[:2] == _ID

    def load(self, fields: list[Any], value: bytes) -> None:
        """Take in what the store has under such a key."""
        if fields[:2] == _ID:
            self._read_ids.append((fields[2:], *msgpack.unpackb(value)))
            return
        group, topic, partition, producer_id = fields
        offset, note = msgpack.unpackb(value)
        self._of(group, producer_id)[topic, partition] = Committed(offset, note)

    def _of(self, group: str, producer_id: int) -> dict[Partition, Committed]:
        return self._groups.setdefault(group, {}).setdefault(producer_id, {})

    def put(
        self,
        group: str,
        producer_id: int,
        offsets: Mapping[Partition, Committed],
        topic_id: Callable[[str], bytes | None] = lambda name: None,
    ) -> None:
        """A transaction has these. Raises LogUnavailable."""
        puts: list[tuple[bytes, bytes | None]] = []
        for place, said in offsets.items():
            if found := topic_id(place[0]):
                puts.append((_id_key(group, place, producer_id), msgpack.packb([said.offset, found])))
            puts.append((_key(group, place, producer_id), msgpack.packb([said.offset, said.note])))
        self._store.put_all(puts)
        # The store has no leader epochs: brokers of older versions read it. Who goes on with it knows none, as if none
        # had been said.
        self._of(group, producer_id).update(offsets)

    def of(self, group: str, producer_id: int) -> dict[Partition, Committed]:
        """What a transaction has, if it has anything."""
        return dict(self._groups.get(group, {}).get(producer_id, {}))

    def removals(self, group: str, producer_id: int, places: Iterable[Partition]) -> list[tuple[bytes, None]]:
        """What is to be put for offsets that are pending no more."""
        return [(key, None) for place in places for key in self._keys(group, place, producer_id)]

    def _keys(self, group: str, place: Partition, producer_id: int) -> list[bytes]:
        beside = _id_key(group, place, producer_id)
        return [_key(group, place, producer_id), *([beside] if self._store.get(beside) is not None else [])]

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
            put
            for producer_id, offsets in self._groups.get(group, {}).items()
            for put in self.removals(group, producer_id, wanted.intersection(offsets))
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
                    yield from self._keys(group, place, producer_id)

    def forget_former(self, ids: Mapping[str, bytes | None]) -> list[tuple[bytes, None]]:
        """Of what was read, what is of topics that have other ids now goes, and ids without what they are of; what is
        to be put for that.
        """
        puts: list[tuple[bytes, None]] = []
        for (group, topic, partition, producer_id), offset, topic_id in self._read_ids:
            place = (topic, partition)
            offsets = self._groups.get(group, {}).get(producer_id, {})
            is_of_it = place in offsets and offsets[place].offset == offset
            if is_of_it and topic_id != ids.get(topic):
                del offsets[place]
                puts += self.removals(group, producer_id, [place])
            elif not is_of_it:
                puts.append((_id_key(group, place, producer_id), None))
        self._read_ids = []
        return puts


def _key(group: str, place: Partition, producer_id: int) -> bytes:
    return msgpack.packb([group, *place, producer_id])  # type: ignore[no-any-return]


def _id_key(group: str, place: Partition, producer_id: int) -> bytes:
    return msgpack.packb([*_ID, group, *place, producer_id])  # type: ignore[no-any-return]
