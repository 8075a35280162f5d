"""Keyed stores that brokers share: each on a replicated log of its own, with whoever leads that log.

1. Who begins to lead waits until all that is in the log is committed, and reads it then: nothing is told that could be
   taken back.
2. What is asked while nobody leads waits for `patience_s`.
3. Who leads by the metadata may not serve while its lease is late, and nobody tells when it is renewed: whoever asks
   has it looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import trio

from core_log.errors import CorruptBatch, LogUnavailable
from core_log.keyed_store import KeyedStore
from core_log.log_config import LogConfig
from core_log.replica_log import ReplicaLog
from core_log.replication.leader import Leader
from core_log.threads import in_thread
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.log_names import directory_of, log_of_kind, number_of
from routing.errors import StorageUnavailable

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
_LOOK_S = 0.05
Store = TypeVar("Store")


class LedStore(Generic[Store]):
    """One of the logs; `store` while it is led here, once it has been read."""

    def __init__(self, number: int, log: ReplicaLog) -> None:
        self.number = number
        self.log = log
        self.role: Leader | None = None
        self.store: Store | None = None
        self.keyed: KeyedStore | None = None
        """What `store` is made of."""
        self._waiting: set[trio.CancelScope] = set()

    def over(self) -> None:
        """This broker leads it no more, or does anew."""
        self.role = self.store = None
        if self.keyed is not None:
            self.keyed.end()
            self.keyed = None
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


class LedStores(Generic[Store]):
    """See the module. `read` makes of a log what is kept here; in a thread where it is `apart` from all else: of what
    is large, that takes seconds.
    """

    def __init__(
        self,
        kind: str,
        count: int,
        cluster: Cluster,
        *,
        settings: LogConfig,
        read: Callable[[KeyedStore], Store],
        spawn: Callable[..., Any],
        patience_s: float = 5.0,
        apart: bool = False,
    ) -> None:
        self.count = count
        self.parts: dict[int, LedStore[Store]] = {}
        self.begun: Callable[[Store], None] | None = None
        """Called when one is led here and has been read."""
        self.ended: Callable[[Store], None] = lambda store: None
        """Called when that is over."""
        self._kind = kind
        self._cluster = cluster
        self._settings = settings
        self._read = read
        self._spawn = spawn
        self._patience_s = patience_s
        self._apart = apart
        self._changed = trio.Event()
        self._reading = trio.CapacityLimiter(1)
        """One log at a time: a thread takes the interpreter from the loop, and reads on when nobody wants it."""
        self._unopened: set[int] = set()
        """Logs that the disk did not let be opened, and that are tried again soon."""
        cluster.moved.append(self._moved)
        for number in range(count):
            self._moved(log_of_kind(kind, number))

    def _moved(self, name: str) -> None:
        number = number_of(name, self._kind)
        if number is not None:
            self._look(number, name)
            self._wake()

    def _look(self, number: int, name: str) -> None:
        """Lead a log here, or not, as it is now."""
        cluster = self._cluster
        is_replica, part = cluster.is_replica(name), self.parts.get(number)
        if part is not None and not is_replica and cluster.state_of(name) is not None:
            self._end(part)
            del self.parts[number]
            cluster.close_log(name)
            return
        if part is None:
            if not is_replica or name in cluster.replicas.by_name:
                return  # the last: it is being opened
            try:
                log = cluster.open_log(name, directory_of(name), self._settings)
            except OSError as error:
                logger.error("%s cannot be opened, which is tried again: %s", name, error)
                if number not in self._unopened:
                    self._unopened.add(number)
                    self._spawn(self._look_again, number, name)
                return
            part = self.parts[number] = LedStore(number, log)
        role = cluster.role_of(name) if cluster.may_append(name) else None
        if role is not part.role:
            self._end(part)
            part.role = role
            if role is not None:
                self._spawn(self._load, part, role)

    def _end(self, part: LedStore[Store]) -> None:
        store = part.store
        part.over()
        if store is not None:
            self.ended(store)

    async def _look_again(self, number: int, name: str) -> None:
        await trio.sleep(_RETRY_S)
        self._unopened.discard(number)
        self._look(number, name)

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _load(self, part: LedStore[Store], role: Leader) -> None:
        log = part.log
        while part.role is role:
            try:
                with part.while_led():
                    await log.wait_committed(log.log_end_offset)
                    keyed = await in_thread(KeyedStore, log, limiter=self._reading)
                    if self._apart:
                        store = await in_thread(self._read, keyed, limiter=self._reading)
                    else:
                        store = self._read(keyed)
                    await trio.lowlevel.checkpoint_if_cancelled()  # it may lead anew meanwhile, and reads anew then
                    if part.role is role:
                        part.keyed = keyed
                        if self.begun is not None:
                            self.begun(store)
                        part.store = store
                        self._wake()
                return
            except (LogUnavailable, CorruptBatch, OSError) as error:
                logger.warning("%s cannot be served now: %s", log.directory, error)
                await trio.sleep(_RETRY_S)

    def part(self, number: int) -> LedStore[Store] | None:
        """One of the logs, if this broker has a replica of it."""
        part = self.parts.get(number)
        if part is not None and part.role is None:
            self._look(number, log_of_kind(self._kind, number))  # rule 3
            part = self.parts.get(number)
        return part

    def led(self) -> Iterator[tuple[LedStore[Store], Store]]:
        """Those that can be asked here now."""
        for number in tuple(self.parts):
            part = self.part(number)
            store = part.store if part is not None else None
            if (
                part is not None
                and store is not None
                and self._cluster.may_append(log_of_kind(self._kind, part.number))
            ):
                yield part, store

    def leaders(self) -> list[int | None]:
        """Of each of the logs, by the metadata."""
        return [self._cluster.leader_of(log_of_kind(self._kind, number))[0] for number in range(self.count)]

    def epoch(self, number: int) -> int:
        """In which one of the logs is led, by the metadata."""
        return self._cluster.leader_of(log_of_kind(self._kind, number))[1]

    def all_read(self) -> bool:
        """Whether all can be asked here that this broker leads by the metadata."""
        led = {part.number for part, _ in self.led()}
        return all(leader != self._cluster.broker_id or number in led for number, leader in enumerate(self.leaders()))

    async def at(
        self, number: int, what: str, *, may_forward: Callable[[], bool]
    ) -> tuple[LedStore[Store], Store] | int:
        """One of them, or the broker that has it if what is asked may go there. Raises StorageUnavailable, which says
        `what` it is about.
        """
        name = log_of_kind(self._kind, number)
        cluster = self._cluster
        until = trio.current_time() + self._patience_s
        while True:
            changed = self._changed
            part = self.part(number)
            if part is not None and part.store is not None and cluster.may_append(name):
                return part, part.store
            leader = cluster.leader_of(name)[0]
            if leader is not None and leader != cluster.broker_id and may_forward():
                return leader
            if trio.current_time() >= until:
                if part is not None and part.role is not None:
                    raise StorageUnavailable(f"too few brokers have {what} in sync")
                raise StorageUnavailable(f"nobody leads {what} now")
            with trio.move_on_after(_LOOK_S):
                await changed.wait()
