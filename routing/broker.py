"""The engine as protocols see it.

1. Everything about data is synchronous and takes effect when the turn ends (`end_turn`): queues are pumped, partitions
   sealed, confirms noted, and then the gateway sends the outboxes (`after_turn`).
2. The control plane is asynchronous only because a durable change is answered when it is durable.
3. Whoever calls back into the engine outside a socket read (flusher, timers, cold reads) ends a turn too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import trio

from core_log.errors import LogUnavailable
from core_log.files import Files
from core_log.keyed_store import KeyedStore
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from delay.timer_service import TimerService
from routing.commits import CommitWaiter, storage_errors
from routing.config import BrokerConfig
from routing.errors import InvalidArgument, LimitExceeded, PreconditionFailed, StorageUnavailable
from routing.message import Slab
from routing.queues.queue import Queue
from routing.queues.queue_partition import HomeStatus, QueuePartition
from routing.queues.replay import restore, save_checkpoint, snapshot
from routing.session import DeliverySink, Session
from routing.topics.offset_store import OffsetStore
from routing.topics.topic import Topic, TopicPartition
from routing.topics.topic_config import log_config
from routing.topology.catalog import Catalog
from routing.topology.exchange import Binding
from routing.topology.router import Router
from routing.topology.topology import QueueInfo, Topology, require_valid_topic_name

logger = logging.getLogger(__name__)

_SCRATCH = "scratch"
_BATCH_ROOM_BYTES = 32 << 20
"""What a batch of a home partition may be larger than the largest body: properties and key, or 1 MiB of others."""


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Broker:
    """See the module. Use `open_broker`."""

    def __init__(
        self, files: Files, config: BrokerConfig, flusher: LogFlusher, timers: TimerService, nursery: trio.Nursery
    ) -> None:
        self.files = files
        self.config = config
        self.flusher = flusher
        self.timers = timers
        self.commits = CommitWaiter()
        self.sessions: dict[Session, None] = {}
        self.confirming: dict[Session, None] = {}
        self.after_turn: Callable[[], None] | None = None
        self.message_bytes_max = config.message_bytes_max
        self.refused_messages = 0
        """Messages that a failing log could not take (who asked for confirms was told), or that were shed."""
        self._nursery = nursery
        self._runnable: list[Queue] = []
        self._dirty: dict[QueuePartition | TopicPartition, None] = {}
        self._deferred: dict[QueuePartition, None] = {}
        self._changing: set[str] = set()
        """Names of topics that are being created or deleted."""
        self._stores: list[PartitionLog] = []
        self._saving = trio.Lock()
        self._closing = False
        self._recover()
        flusher.after_turn = timers.after_turn = self.end_turn

    # --- start and stop ----------------------------------------------------------------

    def _recover(self) -> None:
        files, config = self.files, self.config
        if files.exists(_SCRATCH):
            files.remove_directory(_SCRATCH)
        catalog = Catalog(self._open_store("catalog/0"))
        self.offsets = OffsetStore(self._open_store("offsets/0"))
        stripe_count = max([config.stripes, *(e["stripe"] + 1 for _, e in catalog.entries("queue"))])
        stripes = [self._open_home(f"queues/{index}", index, config.fsync) for index in range(stripe_count)]
        transient = self._open_home(f"{_SCRATCH}/0", -1, "never")
        self.topology = Topology(
            config,
            catalog,
            stripes=stripes,
            transient=transient,
            runnable=self._runnable_queue,
            changed=lambda: self.router.forget(),
        )
        self.router = Router(self.topology, config.routes_cached_max)
        self.topology.recover_queues()
        for partition in stripes:
            catalog.skip_queue_ids(restore(files, partition))
        for (name,), entry in catalog.entries("topic"):
            self.topology.topics[name] = self._open_topic(name, entry["partitions"], entry["config"])
        self._remove_unknown_topics()
        self.topology.recover_bindings()

    def _open_store(self, directory: str) -> KeyedStore:
        settings = LogConfig(fsync="commit", retention_ms=-1, retention_bytes=-1, tail_cache_bytes=0)
        log = PartitionLog.open(self.files, directory, settings, self.flusher, wall_clock_ms=_wall_clock_ms)
        self._stores.append(log)
        return KeyedStore(log)

    def _open_store_log(self, directory: str) -> PartitionLog:
        settings = LogConfig(fsync="commit", retention_ms=-1, retention_bytes=-1, tail_cache_bytes=0)
        return PartitionLog.open(self.files, directory, settings, self.flusher, wall_clock_ms=_wall_clock_ms)

    def _open_home(self, directory: str, index: int, fsync: Literal["commit", "interval", "never"]) -> QueuePartition:
        config = self.config
        settings = LogConfig(
            segment_bytes=config.queue_segment_bytes,
            retention_ms=-1,
            retention_bytes=-1,
            fsync=fsync,
            fsync_interval_ms=config.fsync_interval_ms,
            message_bytes_max=config.message_bytes_max + _BATCH_ROOM_BYTES,
            tail_cache_bytes=0,
        )
        log = PartitionLog.open(self.files, directory, settings, self.flusher, wall_clock_ms=_wall_clock_ms)
        return QueuePartition(
            index,
            log,
            config,
            spawn=self._nursery.start_soon,
            mark_dirty=self._mark_dirty,
            loaded=self.end_turn,
            defer=self._defer if config.settle_delay_ms else None,
        )

    def _open_topic(self, name: str, partitions: int, config: dict[str, str]) -> Topic:
        settings = log_config(config, self.config)
        opened = []
        for index in range(partitions):
            directory = f"topics/{name}-{index}"
            log = PartitionLog.open(self.files, directory, settings, self.flusher, wall_clock_ms=_wall_clock_ms)
            opened.append(TopicPartition(name, index, log, self._mark_dirty))
        return Topic(name, config, opened)

    def _remove_unknown_topics(self) -> None:
        """Finish deletions that a crash interrupted."""
        if not self.files.exists("topics"):
            return
        known = {
            f"{topic.name}-{partition.index}"
            for topic in self.topology.topics.values()
            for partition in topic.partitions
        }
        for directory in self.files.list("topics"):
            if directory not in known:
                self.files.remove_directory(f"topics/{directory}")

    async def close(self) -> None:
        """Write down where everything stands. Sessions must be closed; a log that refuses writes is left as it is."""
        self._closing = True
        for session in list(self.sessions):
            session.close()
        for partition in self.topology.stripes:
            partition.settlements_due()
        self.end_turn()
        logs = [*self._home_logs(), *self._topic_logs()]
        await self._settled_disk(logs)
        async with self._saving:
            pass  # a checkpoint that is being written must not replace the last one
        for partition in self.topology.stripes:
            log = partition.log
            if log.error is None and log.committed_offset >= partition.next_offset:
                try:
                    save_checkpoint(self.files, partition, snapshot(partition, (), clean=True))
                except OSError as error:
                    logger.warning("cannot save the checkpoint of %s: %s", log.directory, error)
        for log in [*logs, *self._stores]:
            log.close()

    async def _settled_disk(self, logs: list[PartitionLog]) -> None:
        finished = trio.Event()
        needed = [(log, log.log_end_offset) for log in logs if log.error is None]
        self.commits.when_committed(needed, lambda _error: finished.set())
        with trio.move_on_after(10):
            await finished.wait()

    def _home_logs(self) -> list[PartitionLog]:
        return [partition.log for partition in (*self.topology.stripes, self.topology.transient)]

    def _topic_logs(self) -> list[PartitionLog]:
        return [partition.log for topic in self.topology.topics.values() for partition in topic.partitions]

    # --- turns -------------------------------------------------------------------------

    def _runnable_queue(self, queue: Queue) -> None:
        self._runnable.append(queue)

    def _mark_dirty(self, partition: QueuePartition | TopicPartition) -> None:
        self._dirty[partition] = None

    def _defer(self, partition: QueuePartition) -> None:
        """Have a partition write its settlements a little later, together with all that ask for it meanwhile."""
        if not self._deferred:
            self.timers.at(trio.current_time() + self.config.settle_delay_ms / 1000, self._deferred_due)
        self._deferred[partition] = None

    def _deferred_due(self) -> None:
        deferred, self._deferred = self._deferred, {}
        for partition in deferred:
            partition.settlements_due()

    def end_turn(self) -> None:
        """Deliver, write and confirm what has come together; see the module's rule 1."""
        while self._runnable:
            runnable, self._runnable = self._runnable, []
            for queue in runnable:
                queue.awake = False
                queue.pump()
        if self._dirty:
            if self.after_turn is not None:
                # Deliveries do not wait for the disk: send them before the flusher's threads ask for the interpreter.
                self.after_turn()
            dirty, self._dirty = self._dirty, {}
            for partition in dirty:
                partition.seal()
        if self.confirming:
            confirming, self.confirming = self.confirming, {}
            for session in confirming:
                session.note_confirms()
        if self.after_turn is not None:
            self.after_turn()

    # --- data --------------------------------------------------------------------------

    def session(self, sink: DeliverySink, *, protocol: str, owner: object) -> Session:
        """A new session; `owner` is the identity of the client connection."""
        session = Session(self, sink, protocol=protocol, owner=owner)
        self.sessions[session] = None
        return session

    def release(self, owner: object) -> None:
        """A client connection is gone: its exclusive queues go with it. Close its sessions first."""
        for queue in list(self.topology.owned.get(owner, ())):
            self.topology.drop_queue(queue)

    def require_size(self, slab: Slab) -> None:
        """Raises LimitExceeded if a body of the slab is larger than the configured maximum."""
        size = max(map(len, slab.bodies))
        if size > self.message_bytes_max:
            raise LimitExceeded(f"message size {size} is larger than configured max size {self.message_bytes_max}")

    def queue(self, name: str, owner: object) -> Queue:
        """Look a queue up for a connection. Raises NotFound, ResourceLocked."""
        return self.topology.queue(name, owner)

    def consumer_gone(self, queue: Queue) -> None:
        """A queue lost a consumer; one that was declared auto-delete goes with its last."""
        if queue.auto_delete and not queue.consumers and not queue.deleted:
            with suppress(LogUnavailable):  # nobody asked for it: while the catalog cannot be written it stays
                self.topology.drop_queue(queue)
        else:
            queue.wake()

    # --- control plane -----------------------------------------------------------------

    async def _commit(self, durable: bool) -> None:
        if durable:
            try:
                await self.topology.catalog.commit()
            except LogUnavailable as error:
                raise StorageUnavailable(str(error)) from error

    async def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises AccessRefused, PreconditionFailed, UnknownExchangeType, NotImplementedYet, StorageUnavailable."""
        with storage_errors():
            concerned = self.topology.declare_exchange(
                name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
            )
        await self._commit(concerned)

    def check_exchange(self, name: str) -> None:
        """Raises NotFound."""
        self.topology.exchange(name)

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Raises AccessRefused, PreconditionFailed, StorageUnavailable; one that is not there is no error."""
        with storage_errors():
            concerned = self.topology.delete_exchange(name, if_unused=if_unused)
        await self._commit(concerned)

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        owner: object = None,
    ) -> QueueInfo:
        """Raises AccessRefused, PreconditionFailed, ResourceLocked, NotImplementedYet, LimitExceeded,
        StorageUnavailable.
        """
        with storage_errors():
            info, concerned = self.topology.declare_queue(
                name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments, owner=owner
            )
        await self._commit(concerned)
        return info

    def check_queue(self, name: str, owner: object = None) -> QueueInfo:
        """Raises NotFound, ResourceLocked."""
        queue = self.topology.queue(name, owner)
        return QueueInfo(name, queue.message_count, len(queue.consumers))

    async def delete_queue(
        self, name: str, *, if_unused: bool = False, if_empty: bool = False, owner: object = None
    ) -> int:
        """How many messages it held; 0 if it is not there. Raises ResourceLocked, PreconditionFailed,
        StorageUnavailable.
        """
        with storage_errors():
            count, concerned = self.topology.delete_queue(name, if_unused=if_unused, if_empty=if_empty, owner=owner)
        await self._commit(concerned)
        return count

    async def purge_queue(self, name: str, *, owner: object = None) -> int:
        """Settle all messages that are not delivered; how many there were. Raises NotFound, ResourceLocked."""
        return self.topology.queue(name, owner).purge()

    async def bind(
        self,
        destination_kind: str,
        destination: str,
        exchange: str,
        pattern: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        syntax: str = "amqp",
        owner: object = None,
    ) -> None:
        """Bind a "queue", "exchange" or "topic". Raises NotFound, AccessRefused, ResourceLocked, InvalidArgument,
        StorageUnavailable.
        """
        binding = Binding.make(exchange, (destination_kind, destination), pattern, arguments, syntax)
        with storage_errors():
            concerned = self.topology.bind(binding, owner)
        await self._commit(concerned)

    async def unbind(
        self,
        destination_kind: str,
        destination: str,
        exchange: str,
        pattern: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        syntax: str = "amqp",
        owner: object = None,
    ) -> None:
        """The inverse of `bind`; a binding that is not there is no error."""
        binding = Binding.make(exchange, (destination_kind, destination), pattern, arguments, syntax)
        with storage_errors():
            concerned = self.topology.unbind(binding, owner)
        await self._commit(concerned)

    # --- topics ------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, Topic]:
        """All topics by name."""
        return self.topology.topics

    async def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> Topic:
        """Raises InvalidArgument, PreconditionFailed (it exists), LimitExceeded, StorageUnavailable."""
        require_valid_topic_name(name)
        if not 1 <= partitions <= self.config.partitions_max:
            raise InvalidArgument(f"partitions must be 1 to {self.config.partitions_max}, not {partitions}")
        if name in self.topology.topics or name in self._changing:
            raise PreconditionFailed(f"topic '{name}' exists")
        if len(self.topology.topics) >= self.config.topics_max:
            raise LimitExceeded(f"there are {self.config.topics_max} topics already")
        settings = dict(config or {})
        log_config(settings, self.config)
        self._changing.add(name)
        try:
            with storage_errors():
                topic = self._open_topic(name, partitions, settings)
                self.topology.catalog.put_topic(name, partitions, settings)
            await self._commit(True)
            self.topology.topics[name] = topic
        finally:
            self._changing.discard(name)
        return topic

    async def delete_topic(self, name: str) -> None:
        """Raises NotFound, StorageUnavailable."""
        topic = self.topology.topic(name)
        with storage_errors():
            self.topology.remove_topic(topic)
            self.offsets.forget_topic(name)
        for partition in topic.partitions:
            self.commits.forget(partition.log)
            self._dirty.pop(partition, None)
            partition.log.close()
        self._changing.add(name)
        try:
            await self._commit(True)
            for partition in topic.partitions:
                await trio.to_thread.run_sync(self.files.remove_directory, partition.log.directory)
        finally:
            self._changing.discard(name)

    # --- housekeeping ------------------------------------------------------------------

    async def housekeep(self) -> None:
        """Checkpoints, dead prefixes and retention, for ever."""
        retention_due = 0.0
        while True:
            await trio.sleep(self.config.housekeeping_interval_ms / 1000)
            for partition in self.topology.stripes:
                self._checkpoint(partition)
                partition.delete_dead_prefix()
                partition.warn_of_pinned_bytes()
            transient = self.topology.transient
            self.refused_messages += transient.shed(self.config.scratch_bytes_max)
            transient.delete_dead_prefix()
            if trio.current_time() >= retention_due:
                retention_due = trio.current_time() + self.config.retention_check_interval_ms / 1000
                for log in self._topic_logs():
                    log.apply_retention(_wall_clock_ms())
            self.end_turn()

    def home_statuses(self) -> list[HomeStatus]:
        """Every home partition in figures; stripe -1 is that of transient queues."""
        return [partition.status for partition in (*self.topology.stripes, self.topology.transient)]

    def _checkpoint(self, partition: QueuePartition) -> None:
        log = partition.log
        if partition.unchecked_bytes < self.config.checkpoint_interval_bytes or log.error is not None:
            return
        partition.seal()
        partition.unchecked_bytes = 0
        outstanding = [
            (entry.queue, entry.offset, entry.end - entry.first)
            for session in self.sessions
            for entry in session.unsettled
        ]
        state = snapshot(partition, outstanding, clean=False)

        async def write() -> None:
            async with self._saving:
                if self._closing:
                    return
                try:
                    await trio.to_thread.run_sync(save_checkpoint, self.files, partition, state)
                except OSError as error:
                    logger.warning("cannot save the checkpoint of %s: %s", log.directory, error)

        def durable(error: StorageUnavailable | None) -> None:
            if error is None:
                self._nursery.start_soon(write)

        self.commits.when_committed([(log, log.log_end_offset)], durable)


@asynccontextmanager
async def open_broker(files: Files, config: BrokerConfig | None = None) -> AsyncIterator[Broker]:
    """Recover the engine from `files` and run it; on leaving, everything is written down."""
    config = config or BrokerConfig()
    flusher = LogFlusher(
        retry_interval_s=config.flush_retry_interval_ms / 1000, unflushed_bytes_max=config.unflushed_bytes_max
    )
    timers = TimerService()
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        nursery.start_soon(timers.run)
        broker = Broker(files, config, flusher, timers, nursery)
        nursery.start_soon(broker.housekeep)
        try:
            yield broker
        finally:
            with trio.CancelScope(shield=True):
                await broker.close()
            nursery.cancel_scope.cancel()
