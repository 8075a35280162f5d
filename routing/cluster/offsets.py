"""How far each consumer group has come, in a cluster: the groups are divided among logs that are replicated as any.

1. A group belongs to one log for ever (`log_of`), and what it commits is kept and told by the broker that leads it. Any
   other asks that one (`Forward`), so that a client may ask whom it likes.
2. Who begins to lead waits until all that is in the log is committed, and reads it then: nothing is told that could be
   taken back.
3. What is asked while nobody leads, or too few brokers follow, waits for `patience_s`. A commit that was under way then
   may have been kept; that it was is not known.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import trio

from core_log.errors import CorruptBatch, LogUnavailable
from core_log.keyed_store import KeyedStore
from core_log.replica_log import ReplicaLog
from core_log.replication.leader import Leader
from routing.cluster.cluster import Cluster
from routing.cluster.log_names import OFFSETS, number_of, offsets_log
from routing.errors import StorageUnavailable
from routing.topics.offset_store import Committed, OffsetStore, Partition

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
_LOOK_S = 0.05


class Forward(Protocol):
    """To other brokers. Raises StorageUnavailable, also when that one does not lead."""

    async def commit_offsets(self, broker: int, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Have another broker commit."""

    async def fetch_offsets(
        self, broker: int, group: str, partitions: list[Partition] | None
    ) -> dict[Partition, Committed]:
        """Ask another broker."""


def _too_few(group: str) -> StorageUnavailable:
    return StorageUnavailable(f"too few brokers have the offsets of group '{group}' in sync")


class _Part:
    """One of the logs; `store` while it is led here, once it has been read."""

    def __init__(self, log: ReplicaLog) -> None:
        self.log = log
        self.role: Leader | None = None
        self.store: OffsetStore | None = None
        self._waiting: set[trio.CancelScope] = set()

    def over(self) -> None:
        """This broker leads it no more, or does anew."""
        self.role = self.store = None
        for scope in self._waiting:
            scope.cancel()

    @contextmanager
    def while_led(self) -> Iterator[None]:
        """What is waited for within the block ends with this leadership."""
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)


class ReplicatedOffsets:
    """See the module. What adapters see is that of `OffsetStore`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        count: int,
        open_log: Callable[[int], ReplicaLog],
        spawn: Callable[..., Any],
        topic_exists: Callable[[str], bool],
        patience_s: float = 5.0,
    ) -> None:
        """`open_log` opens the log of a number."""
        self.forward: Forward | None = None
        self._cluster = cluster
        self._count = count
        self._open_log = open_log
        self._spawn = spawn
        self._topic_exists = topic_exists
        self._patience_s = patience_s
        self._parts: dict[int, _Part] = {}
        self._changed = trio.Event()
        cluster.moved.append(self._moved)
        for number in range(count):
            self._moved(offsets_log(number))

    def log_of(self, group: str) -> int:
        """The number of the log that a group belongs to."""
        return zlib.crc32(group.encode("utf-8", "surrogateescape")) % self._count

    # ---- leading

    def _moved(self, name: str) -> None:
        number = number_of(name, OFFSETS)
        if number is None:
            return
        cluster = self._cluster
        state, part = cluster.state_of(name), self._parts.get(number)
        if part is not None and state is not None and cluster.broker_id not in state.replicas:
            part.over()
            del self._parts[number]
            cluster.close_log(name)
            self._wake()
            return
        if part is None:
            if state is None or cluster.broker_id not in state.replicas or name in cluster.replicas.by_name:
                return  # the last: it is being opened
            part = self._parts[number] = _Part(self._open_log(number))
        role = cluster.role_of(name) if cluster.may_append(name) else None
        if role is not part.role:
            part.over()
            part.role = role
            if role is not None:
                self._spawn(self._load, part, role)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _load(self, part: _Part, role: Leader) -> None:
        log = part.log
        while part.role is role:
            try:
                with part.while_led():
                    await log.wait_committed(log.log_end_offset)
                    store = OffsetStore(await trio.to_thread.run_sync(KeyedStore, log))
                    if part.role is role:
                        for topic in store.topics():
                            if not self._topic_exists(topic):
                                store.forget_topic(topic)
                        part.store = store
                        self._wake()
                return
            except (LogUnavailable, CorruptBatch, OSError) as error:
                logger.warning("%s: group offsets cannot be served now: %s", log.directory, error)
                await trio.sleep(_RETRY_S)

    async def _led(self, group: str, *, here: bool = False) -> tuple[_Part, OffsetStore] | int:
        """The log of a group, or the broker that has it unless it is to be `here`. Raises StorageUnavailable."""
        number = self.log_of(group)
        name = offsets_log(number)
        cluster = self._cluster
        until = trio.current_time() + self._patience_s
        while True:
            changed = self._changed
            part = self._parts.get(number)
            if part is not None and part.role is None:
                self._moved(name)  # a lease may have been renewed: nobody tells that
            if part is not None and part.store is not None and cluster.may_append(name):
                return part, part.store
            leader = cluster.leader_of(name)[0]
            if leader is not None and leader != cluster.broker_id and self.forward is not None and not here:
                return leader
            if trio.current_time() >= until:
                if part is not None and part.role is not None:
                    raise _too_few(group)
                raise StorageUnavailable(f"nobody leads the offsets of group '{group}' now")
            with trio.move_on_after(_LOOK_S):
                await changed.wait()

    async def commit_here(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """`commit` of a group that is led here, or will be soon. Raises StorageUnavailable."""
        found = await self._led(group, here=True)
        assert not isinstance(found, int)
        await self._commit(group, offsets, *found)

    async def fetch_here(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """`fetch` likewise. Raises StorageUnavailable."""
        found = await self._led(group, here=True)
        assert not isinstance(found, int)
        return found[1].known(group, partitions)

    # ---- what adapters see

    async def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets; returns when they are committed. Raises StorageUnavailable."""
        found = await self._led(group)
        if isinstance(found, int):
            assert self.forward is not None
            await self.forward.commit_offsets(found, group, offsets)
        else:
            await self._commit(group, offsets, *found)

    async def _commit(
        self, group: str, offsets: Mapping[Partition, Committed], part: _Part, store: OffsetStore
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

    def known(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """`fetch` from memory: what is not led here is not known."""
        part = self._parts.get(self.log_of(group))
        return part.store.known(group, partitions) if part is not None and part.store is not None else {}

    def note(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """Store offsets that nobody waits for."""
        self._spawn(self._note, group, dict(offsets))

    async def _note(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        try:
            await self.commit(group, offsets)
        except StorageUnavailable as error:
            logger.warning("the position of %s is not kept now: %s", group, error)

    def count(self, partition: Partition, prefix: str) -> int:
        """How many groups whose names begin so have come somewhere in a partition, as far as is known here."""
        stores = [part.store for part in self._parts.values() if part.store is not None]
        return sum(store.count(partition, prefix) for store in stores)

    def forget_topic(self, name: str) -> None:
        """The topic is deleted: as far as it is led here, nobody has come anywhere in it."""
        for part in self._parts.values():
            if part.store is not None:
                part.store.forget_topic(name)
