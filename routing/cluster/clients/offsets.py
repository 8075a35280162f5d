"""How far each consumer group has come, in a cluster: the groups are divided among logs that are replicated as any.

1. A group belongs to one log for ever (`log_of`), and what it commits is kept and told by the broker that leads it. Any
   other asks that one (`Forward`), so that a client may ask whom it likes.
2. What is asked while nobody leads (`led_stores.py`), or too few brokers follow, waits for `patience_s`. A commit that
   was under way then may have been kept; that it was is not known.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import trio

from core_log.log_config import LogConfig
from routing.cluster.clients.led_stores import LedStore, LedStores
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.log_names import OFFSETS
from routing.errors import StorageUnavailable
from routing.topics.offset_store import Committed, OffsetStore, Partition, Puts
from routing.topics.pending_offsets import ComingOffsets, drop_topic

logger = logging.getLogger(__name__)


class Forward(Protocol):
    """To other brokers. Raises StorageUnavailable, also when that one does not lead."""

    async def commit_offsets(
        self, broker: int, group: str, offsets: Mapping[Partition, Committed], topic_ids: Mapping[str, bytes]
    ) -> None:
        """Have another broker commit; `topic_ids` are those that the topics have here."""

    async def fetch_offsets(
        self, broker: int, group: str, partitions: list[Partition] | None
    ) -> dict[Partition, Committed]:
        """Ask another broker."""


def _too_few(group: str) -> StorageUnavailable:
    return StorageUnavailable(f"too few brokers have {_what(group)} in sync")


def _what(group: str) -> str:
    return f"the offsets of group '{group}'"


class ReplicatedOffsets:
    """See the module. What adapters see is that of `OffsetStore`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        count: int,
        settings: LogConfig,
        spawn: Callable[..., Any],
        topic_id: Callable[[str], bytes | None],
        patience_s: float = 5.0,
    ) -> None:
        self.forward: Forward | None = None
        self.begun: Callable[[OffsetStore, int], None] = lambda store, number: None
        """Called when the log of a number is led here and has been read."""
        self._spawn = spawn
        self._topic_id = topic_id
        self._patience_s = patience_s
        self._coming = ComingOffsets()
        """Until it is known who leads."""
        self._noted: dict[str, dict[Partition, Committed]] = {}
        """Of groups of which a commit is under way that nobody waits for: what it does not have yet."""
        self._stores = LedStores(
            OFFSETS, count, cluster, settings=settings, read=OffsetStore, spawn=spawn, patience_s=patience_s, apart=True
        )
        self._stores.begun = self._begun

    def log_of(self, group: str) -> int:
        """The number of the log that a group belongs to."""
        return zlib.crc32(group.encode("utf-8", "surrogateescape")) % self._stores.count

    def _begun(self, store: OffsetStore) -> None:
        self.begun(store, next(part.number for part in self._stores.parts.values() if part.log is store.log))
        store.topic_id = self._topic_id
        store.forget_former()

    async def _led(self, group: str, *, here: bool = False) -> tuple[LedStore[OffsetStore], OffsetStore] | int:
        """The log of a group, or the broker that has it unless it is to be `here`. Raises StorageUnavailable."""
        may_forward = (lambda: False) if here else (lambda: self.forward is not None)
        return await self._stores.at(self.log_of(group), _what(group), may_forward=may_forward)

    async def commit_here(
        self, group: str, offsets: Mapping[Partition, Committed], topic_ids: Mapping[str, bytes] | None = None
    ) -> None:
        """`commit` of a group that is led here, or will be soon. `topic_ids` are those that who asks knows the topics
        by: of two brokers that know different ones one is behind.

        Raises StorageUnavailable.
        """
        with self._coming.of(offsets) as left:
            found = await self._led(group, here=True)
        assert not isinstance(found, int)
        for topic in {topic for topic, _ in left} & (topic_ids or {}).keys():
            if topic_ids is not None and self._topic_id(topic) != topic_ids[topic]:
                raise StorageUnavailable(f"topic '{topic}' is another one at the broker that has {_what(group)}")
        if left:
            await self._commit(group, left, *found)

    async def fetch_here(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """`fetch` likewise. Raises StorageUnavailable."""
        found = await self._led(group, here=True)
        assert not isinstance(found, int)
        return found[1].known(group, partitions)

    # ---- what adapters see

    async def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets; returns when they are committed. Raises StorageUnavailable."""
        with self._coming.of(offsets) as left:
            found = await self._led(group)
        if not left:
            return
        if isinstance(found, int):
            assert self.forward is not None
            topic_ids = {topic: topic_id for topic, _ in left if (topic_id := self._topic_id(topic))}
            await self.forward.commit_offsets(found, group, left, topic_ids)
        else:
            await self._commit(group, left, *found)

    async def _commit(
        self, group: str, offsets: Mapping[Partition, Committed], part: LedStore[OffsetStore], store: OffsetStore
    ) -> None:
        if part.role is None or not part.role.may_append():
            raise _too_few(group)
        with part.while_led(), trio.move_on_after(self._patience_s) as waiting:
            await store.commit(group, offsets)
            return
        if waiting.cancelled_caught:
            raise _too_few(group)
        raise StorageUnavailable(f"the offsets of group '{group}' have moved to another broker")

    async def fetch(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """What the group has committed, for the partitions asked for or for all. Raises StorageUnavailable."""
        found = await self._led(group)
        if isinstance(found, int):
            assert self.forward is not None
            wanted = list(partitions) if partitions is not None else None
            return await self.forward.fetch_offsets(found, group, wanted)
        return found[1].known(group, partitions)

    async def commit_pending(
        self, group: str, producer_id: int, offsets: Mapping[Partition, Committed], check: Callable[[], Awaitable[None]]
    ) -> None:
        """See `OffsetStore.commit_pending`, of a group that is led here. Raises StorageUnavailable."""
        with self._coming.of(offsets) as left:
            found = await self._here(group)
        with self._waiting(group, *found) as store:
            await store.commit_pending(group, producer_id, left, check)
            return
        raise _too_few(group)

    async def end_pending(self, group: str, producer_id: int, *, committed: bool) -> None:
        """See `OffsetStore.end_pending`, of a group that is led here. Raises StorageUnavailable; also when it was asked
        for in an earlier leader epoch: another leader may have done it since, and have the producer's next transaction.
        """
        epoch = self._stores.epoch(self.log_of(group))
        part, store = await self._here(group)
        if self._stores.epoch(part.number) != epoch:
            raise StorageUnavailable(f"{_what(group)} were led elsewhere")
        with self._waiting(group, part, store):
            await store.end_pending(group, producer_id, committed=committed)
            return
        raise _too_few(group)

    async def _here(self, group: str) -> tuple[LedStore[OffsetStore], OffsetStore]:
        found = await self._led(group, here=True)
        assert not isinstance(found, int)
        return found

    @contextmanager
    def _waiting(self, group: str, part: LedStore[OffsetStore], store: OffsetStore) -> Iterator[OffsetStore]:
        """For as long as it is led here, and for `patience_s`: the block may end early. Raises StorageUnavailable."""
        if part.role is None or not part.role.may_append():
            raise _too_few(group)
        with part.while_led(), trio.move_on_after(self._patience_s):
            yield store

    def unstable(self, group: str, partitions: Iterable[Partition] | None = None) -> set[Partition]:
        """See `OffsetStore.unstable`, of a group that is led here."""
        part = self._stores.parts.get(self.log_of(group))
        return part.store.unstable(group, partitions) if part is not None and part.store is not None else set()

    def known(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """`fetch` from memory: what is not led here is not known."""
        part = self._stores.parts.get(self.log_of(group))
        return part.store.known(group, partitions) if part is not None and part.store is not None else {}

    def note(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets that nobody waits for. What comes while a commit is under way is the next one's."""
        waiting = self._noted.get(group)
        if waiting is not None:
            waiting.update(offsets)
            return
        self._noted[group] = dict(offsets)
        self._spawn(self._commit_noted, group)

    async def _commit_noted(self, group: str) -> None:
        try:
            while offsets := self._noted[group]:
                self._noted[group] = {}
                try:
                    await self.commit(group, offsets)
                except StorageUnavailable as error:
                    logger.warning("the position of %s is not kept now: %s", group, error)
        finally:
            del self._noted[group]

    def count(self, partition: Partition, prefix: str) -> int:
        """How many groups whose names begin so have come somewhere in a partition, as far as is known here."""
        stores = [part.store for part in self._stores.parts.values() if part.store is not None]
        return sum(store.count(partition, prefix) for store in stores)

    def stores(self) -> list[OffsetStore]:
        """Of the logs that are led here."""
        return [part.store for part in self._stores.parts.values() if part.store is not None]

    def all_read(self) -> bool:
        """See `LedStores`."""
        return self._stores.all_read()

    @property
    def groups(self) -> list[str]:
        """Who has come anywhere, as far as it is led here."""
        return [group for part in self._stores.parts.values() if part.store is not None for group in part.store.groups]

    def store_of(self, group: str) -> OffsetStore | None:
        """What a group's log says, if this broker leads that now and has read it."""
        part = self._stores.part(self.log_of(group))
        return part.store if part is not None else None

    async def forget(self, group: str, partitions: Iterable[Partition], states: Puts = ()) -> None:
        """A group that is led here has come nowhere there. Raises StorageUnavailable."""
        found = await self._led(group, here=True)
        assert not isinstance(found, int)
        part, store = found
        with part.while_led(), trio.move_on_after(self._patience_s):
            await store.forget(group, partitions, states)
            return
        raise _too_few(group)

    def forget_topic(self, name: str) -> None:
        """The topic is deleted: as far as it is led here, nobody has come anywhere in it, nor will who commits that."""
        self._coming.forget_topic(name)
        for noted in self._noted.values():
            drop_topic(noted, name)
        for part in self._stores.parts.values():
            if part.store is not None:
                part.store.forget_topic(name)

    async def forget_topic_in_bites(self, name: str) -> None:
        """The same for who can wait, and sees to it that nobody makes such a topic meanwhile."""
        for part in list(self._stores.parts.values()):
            if part.store is not None:
                await part.store.forget_topic_in_bites(name)
