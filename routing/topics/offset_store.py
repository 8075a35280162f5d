"""How far each consumer group has come: committed offsets by group, topic and partition, in a keyed store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple, Protocol

import msgpack

from core_log.errors import LogUnavailable
from core_log.keyed_store import KeyedStore
from routing.bites import bites
from routing.errors import StorageUnavailable
from routing.topics.pending_offsets import Committed as Committed
from routing.topics.pending_offsets import Partition as Partition
from routing.topics.pending_offsets import PendingOffsets


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


class _Entry(NamedTuple):
    """An offset as it is kept."""

    offset: int
    note: str
    at_ms: int
    """When it was committed."""
    leader_epoch: int = -1
    topic_id: bytes = b""
    """Of the topic, where brokers share it: one that was made anew since is another. Older versions pass it over."""
    arrival: int = 0
    """See `OffsetStore.arrival`; not stored."""

    @property
    def committed(self) -> Committed:
        """Without what is nobody else's."""
        return Committed(self.offset, self.note, self.leader_epoch)

    def packed(self) -> bytes:
        """What is stored of it."""
        stored = self[:_ID_AT] if not self.topic_id else self[: _ID_AT + 1]
        return msgpack.packb(stored)  # type: ignore[no-any-return]


_ID_AT = 4
"""Where it stands in an `_Entry`."""
_GROUPS_AT_ONCE = 20
"""That forget a topic: each may have come somewhere in many partitions."""
_arrivals = count()
_KEY_PARTS = 3
"""group, topic and partition: the key of an offset. Other records of the log are about groups (`routing/groups`)."""
Puts = Sequence[tuple[bytes, bytes | None]]
"""Keys with their values, or None where there is to be none."""


class OffsetStore:
    """See the module. Reads are from memory."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self.log = store.log
        self._groups: dict[str, dict[Partition, _Entry]] = {}
        self.pending = PendingOffsets(store)
        self._states: dict[str, dict[str, bytes]] = {}
        self.topic_id: Callable[[str], bytes | None] = lambda name: b""
        """That a topic has now; None: it is not there."""
        self._read_ids: dict[bytes, bytes] = {}
        arrival = next(_arrivals)
        for key, value in store.items():
            parts = msgpack.unpackb(key)
            if len(parts) == _KEY_PARTS:
                group, topic, partition = parts
                offset, note, *more = msgpack.unpackb(value)
                entry = _Entry(offset, note, *(more[:3] or [store.log.wall_clock_ms()]))
                topic_id = self._read_ids.setdefault(entry.topic_id, entry.topic_id)
                entry = entry._replace(topic_id=topic_id, arrival=arrival)
                self._groups.setdefault(group, {})[topic, partition] = entry
            elif self.pending.is_key(parts):
                self.pending.load(parts, value)
            else:
                group, *more = parts
                self._states.setdefault(group, {})[more[0] if more else ""] = value

    async def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets; returns when they are durable. Raises StorageUnavailable."""
        try:
            self.note(group, offsets)
            await self._store.commit()
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error

    def note(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets that nobody waits for: written soon, durable later. Raises LogUnavailable."""
        self._put(group, offsets, self.pending.outdated(group, offsets))
        self.pending.forget(group, offsets)

    def _put(self, group: str, offsets: Mapping[Partition, Committed], others: Puts = ()) -> None:
        now_ms, arrival, known = self.log.wall_clock_ms(), next(_arrivals), self._groups.get(group, {})
        entries: dict[Partition, _Entry] = {}
        for place, said in offsets.items():
            before = known.get(place)
            since = before.arrival if before is not None and before.offset == said.offset else arrival
            topic_id = self.topic_id(place[0]) or b""
            entries[place] = _Entry(said.offset, said.note, now_ms, said.leader_epoch, topic_id, since)
        puts = [(_key(group, place), entry.packed()) for place, entry in entries.items()]
        self._store.put_all([*puts, *others])
        self._groups.setdefault(group, {}).update(entries)

    # ---- other records of groups

    def store_of(self, group: str) -> OffsetStore:
        """Of a broker that shares them with nobody."""
        return self

    def stores(self) -> list[OffsetStore]:
        """All of them."""
        return [self]

    def take_states(self) -> dict[str, dict[str, bytes]]:
        """The records of groups that were there when this was made, for whoever asks first: by group, and by the second
        part of their keys, or "" where there is none.
        """
        found, self._states = self._states, {}
        return found

    def put_states(self, puts: Puts) -> int:
        """Store such records; the end of the log that is to be committed. Raises LogUnavailable, BatchTooLarge."""
        return self._store.put_all(puts)

    @property
    def has_garbage(self) -> bool:
        """Whether `tidy` has something to do."""
        return self._store.has_garbage

    async def tidy(self) -> None:
        """Have the log no longer than it has to be. Raises StorageUnavailable."""
        try:
            await self._store.commit()
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error

    # ---- offsets

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
            return {partition: entry.committed for partition, entry in known.items()}
        return {partition: known[partition].committed for partition in partitions if partition in known}

    def older(self, group: str, at_ms: int) -> list[Partition]:
        """Where a group has committed nothing since a time, nor will have if a transaction is committed."""
        known, unstable = self._groups.get(group, {}), self.unstable(group)
        return [place for place, entry in known.items() if entry.at_ms < at_ms and place not in unstable]

    def committed_ms(self, group: str, partition: Partition) -> int | None:
        """When a group committed where it stands in a partition, in ms since 1970; None if it has come nowhere."""
        entry = self._groups.get(group, {}).get(partition)
        return None if entry is None else entry.at_ms

    def arrival(self, group: str, partition: Partition) -> int | None:
        """A number that is another one whenever the group has come to another offset in a partition, or to the same one
        again; None if it has come nowhere.
        """
        entry = self._groups.get(group, {}).get(partition)
        return None if entry is None else entry.arrival

    def last_ms(self, group: str) -> int | None:
        """When a group committed anything last, in ms since 1970; None if it has come nowhere."""
        return max((entry.at_ms for entry in self._groups.get(group, {}).values()), default=None)

    @property
    def groups(self) -> list[str]:
        """Who has come anywhere."""
        return [group for group, known in self._groups.items() if known]

    async def forget(self, group: str, partitions: Iterable[Partition], states: Puts = ()) -> None:
        """A group has come nowhere there, whatever becomes of transactions that are under way, and other records of it
        change with that; returns when that is durable.

        Raises StorageUnavailable.
        """
        known, places = self._groups.get(group, {}), list(partitions)
        gone = [place for place in places if place in known]
        try:
            outdated = self.pending.outdated(group, places)
            self._store.put_all([*((_key(group, place), None) for place in gone), *outdated, *states])
            self._drop(group, gone)
            self.pending.forget(group, places)
            await self._store.commit()
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error

    def _drop(self, group: str, partitions: Iterable[Partition]) -> None:
        known = self._groups.get(group, {})
        for partition in partitions:
            known.pop(partition, None)
        if not known:
            self._groups.pop(group, None)

    # ---- offsets of transactions

    async def commit_pending(
        self, group: str, producer_id: int, offsets: Mapping[Partition, Committed], check: Callable[[], Awaitable[None]]
    ) -> None:
        """Store what a group gets if a transaction is committed; durable when it returns. `check` raises if there is no
        such transaction. Raises StorageUnavailable.
        """
        with self.pending.coming.of(offsets) as left:
            while True:
                ended = self.pending.ended
                await check()
                if ended == self.pending.ended:
                    break  # else it may have been this one: what came now would be pending for ever
        try:
            self.pending.put(group, producer_id, left, self.topic_id)
            await self._store.commit()
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error

    async def end_pending(self, group: str, producer_id: int, *, committed: bool) -> None:
        """A transaction is ended: what it has are the group's offsets now, or nobody's; durable when it returns. Raises
        StorageUnavailable.
        """
        pending = self.pending
        pending.ended += 1
        found = pending.of(group, producer_id)
        try:
            if found:
                if committed:
                    self._put(group, found)  # first: what a crash leaves is done again
                self._store.put_all(pending.removals(group, producer_id, found))
                pending.drop(group, producer_id)
            await self._store.commit()
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error

    def unstable(self, group: str, partitions: Iterable[Partition] | None = None) -> set[Partition]:
        """Where a transaction may change how far a group has come, among these partitions or all."""
        return self.pending.unstable(group, partitions)

    def topics(self) -> set[str]:
        """Where anybody has come, or will have if a transaction is committed."""
        return {topic for known in self._groups.values() for topic, _ in known} | self.pending.topics()

    def forget_former(self) -> None:
        """Of what was read when this was made, what is of topics that are not there any more, or were made anew since,
        is forgotten: whoever kept it before may have gone without having heard of that.
        """
        ids = {name: self.topic_id(name) for name in self.topics()}
        for name in [name for name, topic_id in ids.items() if topic_id is None]:
            self.forget_topic(name)
        former = self._read_ids.keys() - ids.values() - {b""}
        if former:
            self._forget_places(lambda place, entry: entry.topic_id in former)
        if puts := self.pending.forget_former(ids):
            self._store.put_all(puts)

    def forget_topic(self, name: str) -> None:
        """The topic is deleted: nobody has come anywhere in it."""
        self._forget_in(name, list(self._groups))
        self._forget_pending(name)

    async def forget_topic_in_bites(self, name: str) -> None:
        """The same for who can wait, and sees to it that nobody makes such a topic meanwhile. It is durable when this
        returns, unless the disk refuses; then later. Raises LogUnavailable when nothing can be written at all.
        """
        groups = list(self._groups)
        async for at in bites(range(0, len(groups), _GROUPS_AT_ONCE)):
            self._forget_in(name, groups[at : at + _GROUPS_AT_ONCE])
        self._forget_pending(name)
        with suppress(LogUnavailable):
            await self._store.commit()

    def _forget_in(self, name: str, groups: Iterable[str]) -> None:
        self._forget_places(lambda place, entry: place[0] == name, groups)

    def _forget_places(self, is_gone: Callable[[Partition, _Entry], bool], groups: Iterable[str] | None = None) -> None:
        known = {group: self._groups.get(group, {}) for group in (self._groups if groups is None else groups)}
        gone = {group: [place for place, one in found.items() if is_gone(place, one)] for group, found in known.items()}
        self._store.put_all([(_key(group, place), None) for group, places in gone.items() for place in places])
        for group, places in gone.items():
            self._drop(group, places)

    def _forget_pending(self, name: str) -> None:
        for key in list(self.pending.forget_topic(name)):
            self._store.put(key, None)


def _key(group: str, partition: Partition) -> bytes:
    return msgpack.packb([group, *partition])  # type: ignore[no-any-return]
