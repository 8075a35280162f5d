"""The logs of a data directory: how each kind is opened, and how the engine's state is read back from them at a start.

Nothing here runs afterwards but `open_topic` and `open_partitions`, for what is made later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import trio

from core_log.errors import LogUnavailable
from core_log.files import Files
from core_log.keyed_store import KeyedStore
from core_log.log_flusher import LogFlusher
from core_log.metadata.embedded import EmbeddedStore
from core_log.metadata.store import MetadataStore
from core_log.partition_log import LogConfig, PartitionLog
from core_log.wall_clock import wall_clock_ms
from routing.cluster.clients.led_stores import LedStores
from routing.cluster.clients.offsets import ReplicatedOffsets
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.log_names import RETAINED, TRANSACTIONS
from routing.cluster.topic_logs import TopicLogs
from routing.commits import CommitWaiter
from routing.config import BrokerConfig
from routing.directories import (
    CATALOG,
    HOMES,
    OFFSETS,
    STORES,
    half_deleted,
    lacking,
    require_present,
    require_undamaged,
    tidy_topics,
    topic_directory,
)
from routing.directories import RETAINED as OWN_RETAINED
from routing.directories import TRANSACTIONS as OWN_TRANSACTIONS
from routing.queue_host import Host
from routing.queues.homes.cold_reads import ColdReads
from routing.queues.homes.home import Home
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.homes.replay import restore
from routing.topics.offset_store import OffsetStore
from routing.topics.stream import StreamHost
from routing.topics.topic import Topic
from routing.topics.topic_config import log_config
from routing.topics.topic_feed import TopicFeed
from routing.topics.topic_ids import id_of
from routing.topics.topic_partition import TopicPartition
from routing.topology.catalog import Catalog
from routing.topology.mirror import CatalogMirror
from routing.topology.topology import Topology
from routing.transactions import Transactions

if TYPE_CHECKING:
    from routing.cluster.clients.keeping import LedKeeping

logger = logging.getLogger(__name__)

STORE_BATCH_BYTES_MAX = LogConfig().message_bytes_max
"""The largest batch of a keyed store."""
_STORE = LogConfig(
    fsync="commit",
    retention_ms=-1,
    retention_bytes=-1,
    tail_cache_bytes=0,
    message_bytes_max=STORE_BATCH_BYTES_MAX,
    room_syncs_min=-1,
)
_REPLICA_CACHE_BYTES = 1 << 20
"""Of group offsets, for followers."""
_SCRATCH = "scratch"
_BATCH_ROOM_BYTES = 32 << 20
"""What a batch of a home partition may be larger than the largest body: properties and key, or 1 MiB of others."""

_REPLICATED_TAIL_BYTES = 8 << 20
_Home = TypeVar("_Home", bound=QueuePartition)
_Led = TypeVar("_Led")

_RETRY_S = 1.0
_SEGMENT_SHARE = 32
"""A segment takes no more than this part of the disk, """
_SEGMENT_BYTES_MIN = 1 << 20
"""and need not be smaller than this."""


def fitted(config: BrokerConfig, total_bytes: int) -> BrokerConfig:
    """The settings for a disk of that size: where it is small, so are segments, that draining makes room early."""
    share = max(total_bytes // _SEGMENT_SHARE, _SEGMENT_BYTES_MIN) if total_bytes else 1 << 62
    return msgspec.structs.replace(
        config,
        queue_segment_bytes=min(config.queue_segment_bytes, share),
        topic_segment_bytes=min(config.topic_segment_bytes, share),
    )


class Storage:
    """See the module; the callbacks are those of `QueuePartition`."""

    def __init__(
        self,
        files: Files,
        config: BrokerConfig,
        flusher: LogFlusher,
        *,
        spawn: Callable[..., Any],
        mark_dirty: Callable[[QueuePartition | TopicPartition], None],
        reads: ColdReads,
        defer: Callable[[QueuePartition], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.stores: list[PartitionLog] = []
        """The logs of keyed stores."""
        self._learning: set[TopicPartition] = set()
        """Partitions whose ids are being read."""
        self.topic_logs: TopicLogs | None = None
        """Of a broker in a cluster."""
        self._files = files
        self._config = config
        self._flusher = flusher
        self._spawn = spawn
        self._mark_dirty = mark_dirty
        self._reads = reads
        self._defer = defer
        self._now_ms = now_ms

    def recover(
        self,
        host: Host,
        metadata: MetadataStore | None = None,
        homes: Sequence[Home] | None = None,
        offsets: ReplicatedOffsets | None = None,
    ) -> tuple[Topology, OffsetStore | ReplicatedOffsets]:
        """Read everything back; blocks. The topology, homes of durable queues and group offsets are this broker's own,
        unless others share them: then `homes` are what stands for these.

        Raises LogDamaged, CorruptBatch, OSError.
        """
        files, config = self._files, self._config
        if files.exists(_SCRATCH):
            files.remove_directory(_SCRATCH)
        # What a shared store says is written to it again.
        own = self._open_store(CATALOG, accept_damage=metadata is not None)
        if metadata is None:
            catalog = Catalog(EmbeddedStore(own))
            named = chain(catalog.entries("queue"), catalog.entries("topic"))
            lacks = lacking(files, own.log.log_end_offset, named)
            require_present(lacks, accept_damage=config.accept_damage)
            for store in STORES:
                files.make_directory(store)
        else:
            catalog = Catalog(metadata, shared=True)
            CatalogMirror(metadata, own, self._spawn)
        positions = offsets or OffsetStore(self._open_store(OFFSETS))
        stripes: list[Home] = list(homes or ())
        if homes is None:
            count = max([config.stripes, *(e["stripe"] + 1 for _, e in catalog.entries("queue"))])
            own_homes = [self._open_home(f"{HOMES}/{index}", index) for index in range(count)]
            host.clock.begin_after([home.log for home in own_homes])
            stripes += own_homes
        transient = self._open_home(f"{_SCRATCH}/0", -1)
        stream_host = StreamHost(
            config, positions, runnable=host.runnable, spawn=self._spawn, turn=self._reads.end_turn
        )
        topology = Topology(
            config,
            catalog,
            stripes=stripes,
            transient=transient,
            host=host,
            spawn=self._spawn,
            stream_host=stream_host,
            open_topic=self.open_topic,
            open_partitions=self.open_partitions,
        )
        host.open_feed = lambda topic, advanced: TopicFeed(topic, topology.topics, stream_host, advanced)
        topology.recover_queues()
        for partition in topology.led:
            catalog.ids.skip(restore(files, partition))
        for partition in topology.led if homes is None else ():
            partition.numbers.keep({queue.id for queue in topology.all_queues()})
        for (_, name), entry in catalog.entries("topic"):
            topology.add_topic(self.open_topic(name, entry), entry)
        known = {partition.log.directory for topic in topology.topics.values() for partition in topic.partitions}
        half = half_deleted(files, known) - topology.topics.keys()
        if half and isinstance(positions, OffsetStore):
            for name in half:
                positions.forget_topic(name)
            positions.log.flush_blocking()
        tidy_topics(files, known, with_ids=metadata is not None)
        topology.recover_bindings()
        return topology, positions

    def open_offsets(self, cluster: Cluster, topic_id: Callable[[str], bytes | None]) -> ReplicatedOffsets:
        """Group offsets that a cluster shares. Raises OSError."""
        settings = msgspec.structs.replace(_STORE, tail_cache_bytes=_REPLICA_CACHE_BYTES)
        return ReplicatedOffsets(
            cluster,
            count=cluster.members.meta.offsets,
            settings=settings,
            spawn=self._spawn,
            topic_id=topic_id,
        )

    def open_shared_transactions(self, cluster: Cluster) -> LedStores[KeyedStore]:
        """The records of transactions that a cluster shares. Raises OSError."""
        bytes_max = self._config.transaction_bytes_max
        return self._open_shared(
            TRANSACTIONS, cluster.members.meta.transactions, cluster, bytes_max, lambda store: store
        )

    def open_shared_retained(self, cluster: Cluster, read: Callable[[KeyedStore], LedKeeping]) -> LedStores[LedKeeping]:
        """What a cluster shares of retained messages and wills. Raises OSError."""
        bytes_max = self._config.message_bytes_max
        return self._open_shared(RETAINED, cluster.members.meta.retained, cluster, bytes_max, read)

    def _open_shared(
        self, name: str, count: int, cluster: Cluster, bytes_max: int, read: Callable[[KeyedStore], _Led]
    ) -> LedStores[_Led]:
        settings = msgspec.structs.replace(
            _STORE, tail_cache_bytes=_REPLICA_CACHE_BYTES, message_bytes_max=bytes_max + _BATCH_ROOM_BYTES
        )
        return LedStores(name, count, cluster, settings=settings, read=read, spawn=self._spawn)

    def open_transactions(self, topology: Topology, commits: CommitWaiter, *, alone: bool) -> Transactions:
        """Open the store of transactions of a broker that is alone, and apply again what is still in it. Raises as
        `recover`, LogUnavailable.
        """
        bytes_max = self._config.transaction_bytes_max
        room, now_ms = bytes_max + _BATCH_ROOM_BYTES, self._now_ms
        store = self._open_store(OWN_TRANSACTIONS, batch_bytes_max=room, clock_ms=now_ms) if alone else None
        transactions = Transactions(
            store, topology, commits, bytes_max, self._now_ms, self._config.group_offsets_retention_ms
        )
        transactions.recover()
        return transactions

    def open_retained(self) -> KeyedStore:
        """The store of retained messages and of wills. Raises LogDamaged, CorruptBatch, OSError."""
        room = self._config.message_bytes_max + _BATCH_ROOM_BYTES
        return self._open_store(OWN_RETAINED, batch_bytes_max=room, clock_ms=self._now_ms)

    def _open(self, directory: str, settings: LogConfig, clock_ms: Callable[[], int] = wall_clock_ms) -> PartitionLog:
        return PartitionLog.open(self._files, directory, settings, self._flusher, wall_clock_ms=clock_ms)

    def _open_store(
        self,
        directory: str,
        batch_bytes_max: int = STORE_BATCH_BYTES_MAX,
        *,
        accept_damage: bool = False,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> KeyedStore:
        require_undamaged(self._files, directory, accept_damage=accept_damage or self._config.accept_damage)
        log = self._open(directory, msgspec.structs.replace(_STORE, message_bytes_max=batch_bytes_max), clock_ms)
        self.stores.append(log)
        return KeyedStore(log)

    def _open_home(self, directory: str, index: int) -> QueuePartition:
        settings = self.home_settings()
        if index < 0:
            settings = msgspec.structs.replace(settings, fsync="never")
        return self.make_home(index, self._open(directory, settings))

    def home_settings(self, *, replicated: bool = False) -> LogConfig:
        """The settings of a home's log; followers read what it has in memory."""
        config = self._config
        return LogConfig(
            segment_bytes=config.queue_segment_bytes,
            retention_ms=-1,
            retention_bytes=-1,
            fsync=config.fsync,
            fsync_interval_ms=config.fsync_interval_ms,
            message_bytes_max=config.message_bytes_max + _BATCH_ROOM_BYTES,
            tail_cache_bytes=_REPLICATED_TAIL_BYTES if replicated else 0,
        )

    def make_home(self, index: int, log: PartitionLog, kind: type[_Home] = QueuePartition) -> _Home:  # type: ignore[assignment]
        """The home partition of a log that is led here, without its queues."""
        return kind(
            index,
            log,
            self._config,
            reads=self._reads,
            mark_dirty=self._mark_dirty,
            now_ms=self._now_ms,
            defer=self._defer if self._config.settle_delay_ms else None,
        )

    def open_topic(self, name: str, value: Mapping[str, Any]) -> Topic:
        """Open the logs of a topic as its entry says, made where they are not there. Raises OSError."""
        opened = self.open_partitions(name, value, range(value["partitions"]))
        return Topic(name, value["config"], opened, id_of(name, value), value.get("uid", ""))

    def open_partitions(self, name: str, value: Mapping[str, Any], indexes: range) -> list[TopicPartition]:
        """The same of some of its partitions. Raises OSError."""
        settings = log_config(value["config"], self._config)
        opened: list[TopicPartition] = []
        try:
            for index in indexes:
                uid = value.get("uid", "")
                opened.append(self._open_partition(name, index, uid, settings.of_partition(index)))
        except OSError:
            for partition in opened:
                partition.log.close()
            raise
        return opened

    def _open_partition(self, name: str, index: int, uid: str, settings: LogConfig) -> TopicPartition:
        directory = topic_directory(name, index, uid)
        if self.topic_logs is not None and uid:
            return self.topic_logs.open(name, uid, index, directory, settings, self._mark_dirty, self._learn)
        return TopicPartition(name, index, self._open(directory, settings), self._mark_dirty, learn=self._learn)

    def _learn(self, partition: TopicPartition) -> None:
        if partition not in self._learning:
            self._learning.add(partition)
            self._spawn(self._read_ids, partition)

    async def _read_ids(self, partition: TopicPartition) -> None:
        """Have what waits to be appended go on."""
        known = partition.known
        try:
            if known is not None:
                await known.read()
        except LogUnavailable as error:
            logger.warning("the ids of records cannot be read, which is tried again: %s", error)
            await trio.sleep(_RETRY_S)
        finally:
            self._learning.discard(partition)
        self._mark_dirty(partition)
        self._reads.end_turn()
        partition.log.request_sync()  # whoever waits for it has asked when it was not there

    def new_topic(self, name: str, value: Mapping[str, Any], partitions: list[TopicPartition]) -> Topic:
        """`open_topic` for one that is new, with the partitions that were made for it."""
        return Topic(name, value["config"], partitions, id_of(name, value))
