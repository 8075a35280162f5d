"""Who the members are, and this broker as one of them: registered under its lease, again and again if need be.

1. A broker is registered as long as its lease lives. When the lease is lost, or the registration alone, it registers
   anew, under a new broker epoch: to all others it is a process that has just begun.
2. `cluster.json` is written before what it says is true elsewhere: see `identity.py`.
3. The age of the data directory is raised before it registers, and again and again: see `age.py`.
4. Who the others are is what the metadata say; nobody is asked.
5. Clients are told of a broker whose registration has gone for some seconds more, unless it said that it stops; and by
   itself always. After a pause of etcd the leases of all run out at once while all of them serve, and a client that
   hears of no broker, or of one alone, ends its connections to the others and forgets where they are.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import trio

from core_log.errors import Conflict, MetadataUnavailable
from core_log.files import Files
from core_log.metadata.store import Guard, LeasedStore, MetadataEntry
from core_log.threads import in_thread
from routing.cluster.metadata.age import Age, load_age, save_age
from routing.cluster.metadata.identity import Identity, load_identity, save_identity
from routing.cluster.metadata.joining import (
    ClusterRefused,
    Revoke,
    View,
    Wait,
    Wanted,
    check_age,
    check_identity,
    directory_record,
    next_step,
)
from routing.cluster.metadata.records import (
    BROKERS,
    DIRECTORIES,
    DRAINS,
    META,
    RETAINED_LOGS,
    TRANSACTION_LOGS,
    BrokerRecord,
    ClusterMeta,
    broker_key,
    decode,
    directory_key,
    drain_key,
    encode,
)
from routing.cluster.metadata.trust import Trust

logger = logging.getLogger(__name__)

_ELECTED_S = 4.0
"""etcd has another leader by then."""
_RETRY_S = 1.0
_LATE_S = 6.0
"""By then a broker that lives has registered anew. With the lease it is as long as Kafka tells of one that died."""
AGE_INTERVAL_S = 60.0
"""A copy of the directory that is older is told from it, even if the broker is killed."""
DATA = "catalog"
"""The directory that every data directory of a single broker has."""


class Broker(NamedTuple):
    """A broker that runs."""

    broker_id: int
    epoch: int
    record: BrokerRecord
    drained: bool = False
    """An operator wants it to lead nothing."""

    @property
    def draining(self) -> bool:
        """It shall lead nothing: because it stops, or because an operator wants that."""
        return self.drained or self.record.draining


class Members:
    """See the module. `prepare` first, then `register`; then `run` as long as this broker is to be a member."""

    def __init__(
        self,
        store: LeasedStore,
        files: Files,
        *,
        cluster: str,
        broker_id: int,
        record: BrokerRecord,
        homes: int,
        offsets: int,
        offload: Callable[..., Awaitable[Any]] = in_thread,
        accept_old_data: bool = False,
        lease_s: float = 3.0,
    ) -> None:
        """`record` is without the id of the data directory, which is given here. With `accept_old_data` an age that
        does not fit is no reason to be refused: then all replicas are lost (`Trust`). `lease_s` is how long a lease
        lasts.
        """
        self.broker_id = broker_id
        self.epoch = 0
        """This broker's, 0 while it is not registered."""
        self.brokers: dict[int, Broker] = {}
        """All that run, this one included."""
        self._late: dict[int, tuple[Broker, float]] = {}
        """Whose registration has gone, and until when clients are told of them all the same (rule 5)."""
        self.listeners: list[Callable[[], None]] = []
        """Called when `brokers` or `epoch` has changed."""
        self._store = store
        self._files = files
        self._cluster = cluster
        self._record = record
        self._new_meta = ClusterMeta(
            secrets.token_hex(8),
            homes,
            offsets,
            transactions=min(TRANSACTION_LOGS, homes),
            retained=min(RETAINED_LOGS, homes),
        )
        self._offload = offload
        self._accept_old_data = accept_old_data
        self._taken_s = 2 * lease_s + _ELECTED_S
        """A lease that nobody renews is gone by then, even when etcd's leader changed meanwhile."""
        self._identity: Identity | None = None
        self._age = Age()
        self._raising = trio.Lock()
        self._changed = trio.Event()
        self._lost = trio.Event()
        store.listeners.append(self._applied)
        store.lease_lost.append(self._lease_lost)
        for key, entry in store.items(BROKERS):
            self._note(key, entry.value, entry.create_revision)

    @property
    def known(self) -> set[int]:
        """The brokers of the cluster, whether they run now or not."""
        return {int(key.removeprefix(DIRECTORIES)) for key in self._store.keys(DIRECTORIES)} | self.brokers.keys()

    @property
    def advertised(self) -> list[Broker]:
        """Whom clients are told of, by id (rule 5)."""
        now_s = trio.current_time()
        late = (broker for broker, until_s in self._late.values() if now_s < until_s)
        return sorted([*self.brokers.values(), *late])

    @property
    def record(self) -> BrokerRecord:
        """What this broker says of itself, now or when it registers next."""
        return self._record

    @property
    def meta(self) -> ClusterMeta:
        """What the cluster is, once this broker has joined."""
        entry = self._store.get(META)
        assert entry is not None
        return decode(entry.value, ClusterMeta)

    @property
    def guard(self) -> Guard:
        """For changes that only this registration may make."""
        return Guard(broker_key(self.broker_id), create_revision=self.epoch)

    # --- joining -----------------------------------------------------------------------

    async def join(self) -> None:
        """Become a member. Raises ClusterRefused, MetadataUnavailable, OSError."""
        await self.prepare()
        await self.register()

    async def prepare(self, meet: Callable[[Members], Awaitable[None]] | None = None) -> None:
        """All but the registration: whoever is refused is refused here, before there is an engine. The cluster is made
        if it is not there. Raises ClusterRefused, MetadataUnavailable, OSError.

        `meet` is called before anything is changed, where there is a cluster; what it raises is raised.
        """
        try:
            found = await self._offload(load_identity, self._files)
        except ValueError as error:
            raise ClusterRefused(str(error)) from None
        has_data = found is None and self._files.exists(DATA)
        check_identity(self._wanted, found, has_data=has_data)
        directory_id = found.directory_id if found is not None else secrets.token_hex(8)
        cluster_id, lease_id = (found.cluster_id, found.lease_id) if found is not None else ("", 0)
        self._identity = Identity(self._cluster, cluster_id, self.broker_id, directory_id, lease_id)
        self._record = msgspec.structs.replace(self._record, directory_id=directory_id)
        self._age = await self._offload(load_age, self._files)
        await self._store.barrier()
        if meet is not None and self._store.get(META) is not None:
            next_step(self._wanted, self._identity, self._age, self._view(), any_age=self._accept_old_data)
            await meet(self)
        await self._advance(to_registration=False)
        if self._accept_old_data:
            await self._accept_age()

    async def register(self, *, lost: Iterable[str] = (), unopened: Iterable[str] = ()) -> None:
        """Be there for all others; `lost` and `unopened` as in `BrokerRecord`. Raises ClusterRefused,
        MetadataUnavailable, OSError.
        """
        self._record = msgspec.structs.replace(self._record, lost=tuple(sorted(lost)), unopened=tuple(sorted(unopened)))
        await self._raise_age()  # not before: the engine has room for it made on a disk that is full
        await self._advance()

    @property
    def identity(self) -> Identity:
        """Who this broker is, once `prepare` has returned."""
        assert self._identity is not None
        return self._identity

    async def _advance(self, *, to_registration: bool = True, running: bool = False) -> None:
        """Take one step after the other, up to the registration or up to right before it; when `running` once more."""
        assert self._identity is not None
        until = trio.current_time() + self._taken_s
        while True:
            view, any_age = self._view(), self._accept_old_data
            step = next_step(self._wanted, self._identity, self._age, view, any_age=any_age, running=running)
            changed = self._changed
            try:
                if isinstance(step, Revoke):
                    await self._store.revoke(step.lease_id)
                    await self._save(lease_id=0)
                elif isinstance(step, Wait):
                    if trio.current_time() >= until:
                        if running and step.own:  # what etcd has to tell since is long in coming
                            raise MetadataUnavailable("etcd has not told yet that its last registration is gone")
                        raise ClusterRefused(step.reason)
                    with trio.move_on_at(until):
                        await changed.wait()
                elif step.lease and not to_registration:
                    return
                elif step.lease:
                    await self._store.begin_lease()
                    await self._save(cluster_id=self.meta.cluster_id, lease_id=self._store.lease_id)
                    await self._store.change(step.guards, step.puts, lease=True)
                    return
                else:
                    await self._save()
                    await self._store.change(step.guards, step.puts)
            except Conflict:
                continue

    @property
    def _wanted(self) -> Wanted:
        return Wanted(self._cluster, self.broker_id, self._record, self._new_meta)

    def _view(self) -> View:
        keys = (META, directory_key(self.broker_id), broker_key(self.broker_id))
        return View(*map(self._store.get, keys))

    async def _save(self, **changes: Any) -> None:
        assert self._identity is not None
        self._identity = msgspec.structs.replace(self._identity, **changes)
        await self._offload(save_identity, self._files, self._identity)

    # --- the age of the data directory -----------------------------------------------------

    async def _accept_age(self) -> None:
        """Begin with a directory whose age does not fit as one that has lost what was in it."""
        self._accept_old_data = False
        record = directory_record(self._wanted, self.identity, self._store.get(directory_key(self.broker_id)))
        if record is None:
            return
        try:
            check_age(self._wanted, self._age, record.age)
        except ClusterRefused:
            logger.warning("age %s of the data directory, etcd knows %s: all replicas are lost", self._age, record.age)
            await self._offload(Trust(self._files, self._record.boot).distrust)
            if self._age.is_before(record.age):
                self._age = record.age

    async def _raise_age(self) -> None:
        """Raises ClusterRefused, MetadataUnavailable, OSError; then the next time goes on where this one ended."""
        await self._say_age()
        older = Age(self._age.number + 1, secrets.token_hex(4))
        await self._offload(save_age, self._files, older)
        self._age = older
        await self._say_age()

    async def _say_age(self) -> None:
        """Have the metadata say what the directory says."""
        key = directory_key(self.broker_id)
        while True:
            entry = self._store.get(key)
            record = directory_record(self._wanted, self.identity, entry)
            if entry is None or record is None or record.age == self._age:
                return
            check_age(self._wanted, self._age, record.age, running=True)
            value = encode(msgspec.structs.replace(record, age=self._age))
            try:
                await self._store.change([Guard(key, entry.mod_revision)], [(key, value)])
            except Conflict:
                continue

    async def _try_to_raise_age(self) -> None:
        try:
            async with self._raising:  # who stops may come while it is raised anyway
                await self._raise_age()
        except (MetadataUnavailable, OSError) as error:
            logger.warning("the age of the data directory is not noted: %s", error)

    # --- being a member ----------------------------------------------------------------

    async def run(self) -> None:
        """Stay registered, until cancelled. Raises ClusterRefused when this broker is no member any more."""
        while True:
            with trio.move_on_after(AGE_INTERVAL_S):
                await self._lost.wait()
            if not self._lost.is_set():
                await self._try_to_raise_age()
                continue
            self._lost = trio.Event()
            said = ""
            while not self.epoch:
                try:
                    await self._say_age()
                    await self._advance(running=True)
                    logger.warning("registered anew as broker %d, epoch %d", self.broker_id, self.epoch)
                except (MetadataUnavailable, OSError) as error:  # a disk in trouble may recover
                    if str(error) != said:  # once, however long it lasts
                        said = str(error)
                        logger.warning("broker %d is not registered: %s", self.broker_id, error)
                    with trio.move_on_after(_RETRY_S):
                        await self._lost.wait()  # it was the lease: at once with another
                    self._lost = trio.Event()

    async def update(self, **changes: Any) -> None:
        """Say something else of this broker: fields of its record. Raises MetadataUnavailable, also when the lease is
        lost; then it is said with the next registration.
        """
        while True:
            record = msgspec.structs.replace(self._record, **changes)
            here = self.brokers.get(self.broker_id)
            if self.epoch and here is not None and here.record == record:
                return
            if not self.epoch:
                self._record = record
                raise MetadataUnavailable("this broker is not registered")
            self._record = record
            try:
                await self._store.change([self.guard], [(broker_key(self.broker_id), encode(record))], lease=True)
                return
            except Conflict:
                continue

    async def leave(self) -> None:
        """Stop being registered, so that nobody has to wait for the lease. Raises MetadataUnavailable."""
        try:
            if trio.current_time() < self._store.lease_deadline:
                await self._try_to_raise_age()
        except ClusterRefused as error:  # meanwhile it is no member any more
            logger.warning("%s", error)
        if self._store.lease_id:
            await self._store.revoke(self._store.lease_id)

    def _lease_lost(self) -> None:
        self.epoch = 0
        self._lost.set()
        self._tell()

    # --- following ---------------------------------------------------------------------

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        concerned = [entry for entry in entries if entry.key.startswith((BROKERS, DRAINS)) or entry.key == META]
        for entry in concerned:
            if entry.key.startswith(DRAINS):
                self._note_drain(int(entry.key.removeprefix(DRAINS)))
            elif entry.key != META:
                self._note(entry.key, entry.value, entry.create_revision)
        if concerned:
            self._tell()

    def _note(self, key: bytes, value: bytes | None, epoch: int) -> None:
        number = int(key.removeprefix(BROKERS))
        self._late.pop(number, None)
        if value is None:
            gone = self.brokers.pop(number, None)
            if gone is not None and not gone.record.draining:
                until_s = math.inf if number == self.broker_id else trio.current_time() + _LATE_S
                self._late[number] = gone, until_s
        else:
            drained = self._store.get(drain_key(number)) is not None
            self.brokers[number] = Broker(number, epoch, decode(value, BrokerRecord), drained)
        if number == self.broker_id:
            here = self.brokers.get(number)
            mine = here is not None and self._store.lease_id and here.record.directory_id == self._record.directory_id
            self.epoch = epoch if mine else 0
            if value is None and self._store.lease_id:  # who leaves has let go of its lease before
                self._lost.set()

    def _note_drain(self, number: int) -> None:
        if number in self.brokers:
            drained = self._store.get(drain_key(number)) is not None
            self.brokers[number] = self.brokers[number]._replace(drained=drained)

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        for listener in self.listeners:
            listener()
