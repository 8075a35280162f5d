"""The data directory of a single broker becomes the first member of a cluster.

1. What is to be done follows from the directory alone, and is the same each time it is worked out: which entries go to
   the shared metadata, which logs there are, and under which names they lie from now on. So whoever was interrupted
   goes on by doing all of it again that has not been done.
2. The first step says in `cluster.json` that the directory is being imported: from then on nobody serves it alone, and
   nothing in it changes but by the import. Before that it was brought into the state that a clean stop leaves.
3. The second makes the cluster, with a state that keeps away everybody else, and the last makes it ready. Before that
   nobody but this broker has read any of it.
4. No message is copied. Homes, group offsets and what is retained stay where they are, as replicated logs with one
   replica; the directories of topics, and that of transactional ids and writers, get the names that those of a cluster
   have. Leader epochs go on behind those in the logs.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from core_log.errors import Conflict
from core_log.files import Files
from core_log.flush_job import load_epochs
from core_log.keyed_store import KeyedStore
from core_log.log_flusher import LogFlusher
from core_log.metadata.embedded import EmbeddedStore
from core_log.metadata.store import Guard, MetadataEntry, MetadataStore, Put
from core_log.partition_log import LogConfig, PartitionLog
from core_log.replication.state import encode as encode_state
from core_log.replication.state import log_key
from core_log.threads import in_thread
from routing.cluster.metadata.identity import Identity, load_identity, save_identity
from routing.cluster.metadata.joining import ClusterRefused
from routing.cluster.metadata.log_names import (
    RETAINED,
    TRANSACTIONS,
    directory_of,
    home_log,
    log_of_kind,
    offsets_log,
    topic_log,
)
from routing.cluster.metadata.members import DATA
from routing.cluster.metadata.placement import FACTOR, Place, minimum_of, new_state
from routing.cluster.metadata.records import (
    META,
    READY,
    TRANSACTION_LOGS,
    ClusterMeta,
    DirectoryRecord,
    decode,
    directory_key,
    encode,
    importing,
)
from routing.directories import TOPICS, logs_in, topic_directory
from routing.directories import TRANSACTIONS as OWN_TRANSACTIONS
from routing.topics.topic_config import replication
from routing.topology.catalog import Catalog
from routing.topology.mirror import as_shared

_CATALOG = "catalog/0"
_HOMES = "queues"
_OFFSET_LOGS = "offsets"
_RETAINED_LOGS = "retained"
_OFFSETS = 1
"""Partitions of group offsets: those of a single broker are one log."""
_CHUNK_PUTS = 100
_CHUNK_BYTES = 256 << 10
"""etcd takes 128 operations and 1.5 MiB at once."""


class Work(NamedTuple):
    """What an import comes to."""

    homes: int
    transactions: int
    puts: list[Put]
    moves: list[tuple[str, str]]
    """Directories, from and to."""


def work_of(files: Files, broker_id: int, directory_id: str) -> Work:
    """What there is to do. Reads the catalog; blocks. Raises CorruptBatch, OSError, InvalidArgument."""
    flusher = LogFlusher(retry_interval_s=1, unflushed_bytes_max=1)
    config = LogConfig(retention_ms=-1, tail_cache_bytes=0, room_syncs_min=-1)
    log = PartitionLog.open(files, _CATALOG, config, flusher, wall_clock_ms=lambda: 0)
    try:
        store = KeyedStore(log)
        topics = list(Catalog(EmbeddedStore(store)).entries("topic"))

        def uid_of(topic: str) -> str:
            return hashlib.sha256(f"{directory_id}/{topic}".encode()).hexdigest()[:16]

        puts = as_shared(store.items(), uid_of)
    finally:
        log.close()
    me = Place(broker_id, 0)  # whoever is registered has another epoch, and is elected

    def state(name: str, directory: str, factor: int, minimum: int, *, firm: bool = False) -> Put:
        epochs = load_epochs(files, directory)
        latest = epochs[0].latest if epochs is not None else 0
        found = msgspec.structs.replace(
            new_state([me], factor=factor, minimum=minimum, firm=firm),
            leader=None,
            leader_broker_epoch=0,
            leader_epoch=latest,
        )
        return log_key(b"", name), encode_state(found)

    homes = 1 + max((int(name) for name in files.list(_HOMES) if name.isdecimal()), default=0)
    internal = [(home_log(number), f"{_HOMES}/{number}") for number in range(homes)]
    internal += [(offsets_log(number), f"{_OFFSET_LOGS}/{number}") for number in range(_OFFSETS)]
    if files.exists(f"{_RETAINED_LOGS}/0"):
        internal.append((log_of_kind(RETAINED, 0), f"{_RETAINED_LOGS}/0"))
    moves: list[tuple[str, str]] = []

    def moved(old: str, new: str) -> str:
        """A directory is to be moved; where it is now."""
        moves.append((old, new))
        return new if files.exists(new) else old

    ids = log_of_kind(TRANSACTIONS, 0)
    has_ids = files.exists(OWN_TRANSACTIONS) or files.exists(directory_of(ids))
    if has_ids:
        internal.append((ids, moved(OWN_TRANSACTIONS, directory_of(ids))))
    puts += [state(name, directory, FACTOR, minimum_of(FACTOR)) for name, directory in internal]
    for (_, name), value in topics:
        said, uid = replication(value["config"]), uid_of(name)
        for index in range(value["partitions"]):
            now = moved(topic_directory(name, index), topic_directory(name, index, uid))
            puts.append(state(topic_log(uid, index), now, said.factor, said.minimum, firm=said.firm))
    return Work(homes, 1 if has_ids else TRANSACTION_LOGS, puts, moves)


def check(cluster: str, broker_id: int, identity: Identity | None, *, has_data: bool) -> None:
    """What can be said of the data directory alone. Raises ClusterRefused."""
    if identity is None or not (identity.importing or identity.cluster_id):
        if identity is not None or not has_data:
            raise ClusterRefused("--import: the data directory holds no data of a single broker")
        return
    if (identity.cluster, identity.broker_id) != (cluster, broker_id):
        raise ClusterRefused(
            f"the data directory belongs to broker {identity.broker_id} of cluster '{identity.cluster}', "
            f"not to broker {broker_id} of '{cluster}'"
        )


def check_metadata(
    cluster: str, identity: Identity, meta: ClusterMeta | None, directory: DirectoryRecord | None
) -> None:
    """What the metadata say against importing this directory. Raises ClusterRefused."""
    mine = directory is not None and directory.directory_id == identity.directory_id
    if meta is None and directory is None:
        return
    if meta is not None and mine and meta.state in (READY, importing(identity.directory_id)):
        return
    if meta is not None and meta.state != READY:
        raise ClusterRefused(f"cluster '{cluster}' is being made of another data directory ({meta.state})")
    raise ClusterRefused(
        f"etcd has a cluster '{cluster}' already: only a new one can be made of the data of a single broker"
    )


class Import:
    """See the module; `run` it before the broker joins. `settle` brings the directory into the state that a clean stop
    leaves.
    """

    def __init__(
        self,
        store: MetadataStore,
        files: Files,
        *,
        cluster: str,
        broker_id: int,
        settle: Callable[[], Awaitable[None]],
        offload: Callable[..., Awaitable[Any]] = in_thread,
    ) -> None:
        self._store = store
        self._files = files
        self._cluster = cluster
        self._broker_id = broker_id
        self._settle = settle
        self._offload = offload

    async def run(self) -> int:
        """Import the directory, unless it is a member's already; how many steps that took. Raises ClusterRefused,
        MetadataUnavailable, LogError, OSError, and what `settle` raises.
        """
        count = 0
        async for _ in self.steps():
            count += 1
        return count

    async def steps(self) -> AsyncIterator[str]:
        """The same, one step after the other: after each a crash leaves what the next start goes on with."""
        store, files = self._store, self._files
        try:
            found = await self._offload(load_identity, files)
        except ValueError as error:
            raise ClusterRefused(str(error)) from None
        check(self._cluster, self._broker_id, found, has_data=files.exists(DATA))
        if found is not None and found.cluster_id:
            return
        identity = found or Identity(self._cluster, "", self._broker_id, secrets.token_hex(8), importing=True)
        await store.barrier()
        meta = self._checked(identity)
        if found is None:
            await self._settle()
            await self._offload(_begin, files, identity)
            yield "the directory is being imported"
        if meta is None or decode(meta.value, ClusterMeta).state != READY:
            work = await self._offload(work_of, files, self._broker_id, identity.directory_id)
            if meta is None:
                state = importing(identity.directory_id)
                new = ClusterMeta(secrets.token_hex(8), work.homes, _OFFSETS, state, transactions=work.transactions)
                mine = directory_key(self._broker_id)
                await self._change(
                    identity,
                    [Guard(META, 0), Guard(mine, 0)],
                    [(META, encode(new)), (mine, encode(DirectoryRecord(identity.directory_id)))],
                )
                yield "the cluster is being made"
            for chunk in _chunks(self._lacking(work.puts)):
                await self._change(identity, [self._as_it_is(META), *(Guard(key, 0) for key, _ in chunk)], chunk)
                yield f"{len(chunk)} entries are in the metadata"
            for source, target in work.moves:
                if not files.exists(target):
                    await self._offload(files.move_directory, source, target)
                    yield f"{target} has its name"
            meta = self._checked(identity)
            assert meta is not None
            ready = msgspec.structs.replace(decode(meta.value, ClusterMeta), state=READY)
            await self._change(identity, [self._as_it_is(META)], [(META, encode(ready))])
            yield "the cluster is ready"
        meta = self._checked(identity)
        assert meta is not None
        cluster_id = decode(meta.value, ClusterMeta).cluster_id
        member = msgspec.structs.replace(identity, cluster_id=cluster_id, importing=False)
        await self._offload(save_identity, files, member)
        yield "the directory is a member's"

    def _checked(self, identity: Identity) -> MetadataEntry | None:
        """What the cluster is, None while it is not there. Raises ClusterRefused."""
        meta, directory = self._store.get(META), self._store.get(directory_key(self._broker_id))
        try:
            check_metadata(
                self._cluster,
                identity,
                decode(meta.value, ClusterMeta) if meta is not None else None,
                decode(directory.value, DirectoryRecord) if directory is not None else None,
            )
        except msgspec.MsgspecError as error:
            raise ClusterRefused(f"what etcd says of cluster '{self._cluster}' is not understood: {error}") from None
        return meta

    def _lacking(self, puts: Iterable[Put]) -> Iterator[Put]:
        """Those that have not been put. Raises ClusterRefused where something else is."""
        for put in puts:
            there = self._store.get(put[0])
            if there is None:
                yield put
            elif there.value != put[1]:
                raise ClusterRefused(f"etcd has something else of a cluster '{self._cluster}' already: {put[0]!r}")

    def _as_it_is(self, key: bytes) -> Guard:
        entry = self._store.get(key)
        return Guard(key, entry.mod_revision if entry is not None else 0)

    async def _change(self, identity: Identity, guards: Sequence[Guard], puts: Sequence[Put]) -> None:
        try:
            await self._store.change(guards, puts)
        except Conflict:
            self._checked(identity)
            raise ClusterRefused(f"cluster '{self._cluster}' is being changed by another broker: try again") from None


def _begin(files: Files, identity: Identity) -> None:
    """Note the import, when all that the stop has said of the logs is durable. Raises OSError."""
    for room in (_HOMES, TOPICS, _OFFSET_LOGS, _RETAINED_LOGS, "catalog", "transactions"):
        for name in logs_in(files, room):
            files.sync_directory(f"{room}/{name}")
    save_identity(files, identity)


def _chunks(puts: Iterable[Put]) -> Iterator[list[Put]]:
    chunk: list[Put] = []
    size = 0
    for key, value in puts:
        more = len(key) + len(value or b"")
        if chunk and (len(chunk) == _CHUNK_PUTS or size + more > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((key, value))
        size += more
    if chunk:
        yield chunk
