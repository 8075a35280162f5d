"""How far each consumer group has come: committed offsets by group, topic and partition, in a keyed store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgpack

from core_log.errors import LogUnavailable
from core_log.keyed_store import KeyedStore
from routing.errors import StorageUnavailable

Partition = tuple[str, int]
"""Topic name and partition number."""
Committed = tuple[int, str]
"""Offset of the next record to read, and the committer's own note."""


class Positions(Protocol):
    """Of `OffsetStore`, or in a cluster of what stands for it."""

    async def fetch(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """What the group has committed; others may have to be asked. Raises StorageUnavailable."""

    def known(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """What the group has committed, from memory."""

    def note(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets that nobody waits for. Raises LogUnavailable."""

    def count(self, partition: Partition, prefix: str) -> int:
        """How many groups whose names begin so have come somewhere in a partition."""


class OffsetStore:
    """See the module. Reads are from memory."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self._groups: dict[str, dict[Partition, Committed]] = {}
        for key, value in store.items():
            group, topic, partition = msgpack.unpackb(key)
            offset, note = msgpack.unpackb(value)
            self._groups.setdefault(group, {})[topic, partition] = (offset, note)

    async def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets; returns when they are durable. Raises StorageUnavailable."""
        try:
            self.note(group, offsets)
            await self._store.commit()
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error

    def note(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets that nobody waits for: written soon, durable later. Raises LogUnavailable."""
        for (topic, partition), (offset, note) in offsets.items():
            self._store.put(msgpack.packb([group, topic, partition]), msgpack.packb([offset, note]))
        self._groups.setdefault(group, {}).update(offsets)

    def count(self, partition: Partition, prefix: str) -> int:
        """How many groups whose names begin so have come somewhere in a partition."""
        return sum(partition in known for group, known in self._groups.items() if group.startswith(prefix))

    async def fetch(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """What the group has committed, for the partitions asked for or for all; others may have to be asked."""
        return self.known(group, partitions)

    def known(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """`fetch` from memory."""
        known = self._groups.get(group, {})
        if partitions is None:
            return dict(known)
        return {partition: known[partition] for partition in partitions if partition in known}

    @property
    def groups(self) -> list[str]:
        """Who has come anywhere."""
        return [group for group, known in self._groups.items() if known]

    async def forget(self, group: str, partitions: Iterable[Partition]) -> None:
        """A group has come nowhere there; returns when that is durable. Raises StorageUnavailable."""
        known = self._groups.get(group, {})
        try:
            for topic, partition in [key for key in partitions if key in known]:
                del known[topic, partition]
                self._store.put(msgpack.packb([group, topic, partition]), None)
            await self._store.commit()
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error

    def topics(self) -> set[str]:
        """Where anybody has come."""
        return {topic for known in self._groups.values() for topic, _ in known}

    def forget_topic(self, name: str) -> None:
        """The topic is deleted: nobody has come anywhere in it."""
        for group, known in self._groups.items():
            for topic, partition in [key for key in known if key[0] == name]:
                del known[topic, partition]
                self._store.put(msgpack.packb([group, topic, partition]), None)
