"""The engine as protocols see it.

1. Everything about data is synchronous and takes effect when the turn ends (`turns.py`).
2. The control plane is asynchronous only because a durable change is answered when it is durable.
3. Whoever calls back into the engine outside a socket read (flusher, timers, cold reads) ends a turn too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from core_log.disk_space import DiskSpace
from core_log.files import Files
from core_log.log_flusher import LogFlusher
from core_log.metadata.store import MetadataStore
from core_log.partition_log import PartitionLog
from core_log.wall_clock import wall_clock_ms
from delay.timer_service import Timer, TimerService
from routing import directories
from routing.access.bans import Bans
from routing.access.rights import Rights
from routing.alarms import Alarms
from routing.clients import Client, close_some
from routing.cluster.clients.clients_elsewhere import ClientsElsewhere
from routing.cluster.clients.engine import Engine
from routing.cluster.clients.keeping import Keeping, SharedWills
from routing.cluster.cluster import Cluster
from routing.cluster.homes import Homes
from routing.cluster.metadata.health import Health, called, names_by_id
from routing.cluster.metadata.leftovers import Leftovers, partitions_by_id
from routing.cluster.topic_logs import TopicLogs
from routing.cluster.trash import KEPT_MS
from routing.commits import CommitWaiter
from routing.config import BrokerConfig
from routing.declaring.control import Control
from routing.declaring.ordered_splits import OrderedSplits
from routing.declaring.policy_control import PolicyControl
from routing.declaring.topic_control import TopicControl
from routing.disk_stalls import DiskStalls
from routing.errors import LimitExceeded, StorageUnavailable
from routing.groups.coordinator import Coordinator
from routing.groups.lag_rules import LagRules
from routing.housekeeping import close, halve_caches, housekeep
from routing.kept.giving_out import GivingOut
from routing.kept.retained import Retained
from routing.kept.wills import Wills
from routing.log_transactions.coordinator import TransactionCoordinator
from routing.message import Slab
from routing.queue_host import Clock, Host
from routing.queues.homes.checkpoints import Checkpoints
from routing.queues.homes.cold_reads import ColdReads
from routing.queues.homes.home_status import HomeStatus
from routing.queues.queue import Queue
from routing.republishing.dead_letters import DeadLetters
from routing.republishing.delayed_records import DelayedRecords
from routing.republishing.later import Later
from routing.republishing.poison_records import PoisonRecords
from routing.session import DeliverySink, Session
from routing.storage import Storage, fitted
from routing.topics.leases import Leases
from routing.topics.log_care import look_after_logs
from routing.topics.stream import Stream
from routing.topics.topic import Topic
from routing.topics.topic_ids import Topics
from routing.topics.topic_partition import TopicPartition
from routing.topology.catalog import DEFAULT_VHOST
from routing.topology.route import Route
from routing.turns import Turns

logger = logging.getLogger(__name__)


class Broker(Turns):
    """See the module. Use `open_broker`."""

    def __init__(
        self,
        files: Files,
        config: BrokerConfig,
        flusher: LogFlusher,
        timers: TimerService,
        nursery: trio.Nursery,
        users: Mapping[str, str],
        wall_clock_ms: Callable[[], int] = wall_clock_ms,
        metadata: MetadataStore | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        super().__init__(config, flusher, timers)
        self.files = files
        self.commits = CommitWaiter()
        self.sessions: dict[Session, None] = {}
        self.ended: dict[str, tuple[int, int]] = {}
        """How many messages came and went through sessions that are over, by protocol."""
        self.message_bytes_max = config.message_bytes_max
        self.refused_messages = 0  # what a failing log could not take (who asked for confirms was told), or was shed
        self.looked_bytes = self.left_out_bytes = 0
        """What fetches that look for something looked at, and what of that had nothing of it."""
        self.spawn = nursery.start_soon
        self.leased: set[TopicPartition] = set()
        """Partitions that readers have leases of."""
        self.homes_kept_until_s = 0.0
        """Until then (trio's time) nothing goes from the logs of homes."""
        self.browsed: dict[tuple[str, str], Leases] = {}
        """Who browses which queues, by virtual host and name (`queue_lag.py`)."""
        self.clock = Clock(wall_clock_ms)
        self._begin_storage(cluster, wall_clock_ms)
        self.metadata = metadata
        self._recover(metadata)
        self._begin_services(users, wall_clock_ms)
        flusher.after_turn, timers.after_turn = self._flushed, self.end_turn

    def _begin_storage(self, cluster: Cluster | None, wall_clock_ms: Callable[[], int]) -> None:
        """What all logs have in common, and this broker's part in a cluster. Raises OSError."""
        files, config, flusher, spawn = self.files, self.config, self.flusher, self.spawn
        files.make_directory("")
        space = DiskSpace(files, config.disk_reserve_bytes)
        self.alarms = Alarms(config, space, flusher)
        self.stalls = DiskStalls(lambda: self.logs)
        flusher.execute, flusher.account = space.execute, space.account
        with suppress(OSError):  # tried again each second
            space.tend(self.alarms.disk_free_bytes_min)
        self.cluster = cluster
        if cluster is not None:
            cluster.begin(files, flusher, spawn=spawn, want_turn=self.want_turn, wall_clock_ms=wall_clock_ms)
        self.engine = None
        self.wait_for_room = flusher.wait_for_room
        """Returns when clients may go on."""
        self.wait_to_publish: Callable[[], Awaitable[None]] | None = None
        """Returns when publishers may go on; None: they need not wait for anybody else."""
        if cluster is not None:
            self.engine = Engine(cluster, spawn=spawn, want_turn=self.want_turn)
            self.wait_to_publish = self.engine.wait_for_room
        self.checkpoints = Checkpoints(files, space, self.commits, config.checkpoint_interval_bytes, spawn)
        self.cold_reads = ColdReads(spawn, self.end_turn, config.catch_up_ms_max)
        self.storage = Storage(
            files,
            fitted(config, space.total_bytes),
            flusher,
            spawn=spawn,
            mark_dirty=self._mark_dirty,
            reads=self.cold_reads,
            defer=self._defer,
            now_ms=self.clock.now_ms,
        )
        if cluster is not None and self.engine is not None:
            self.storage.topic_logs = TopicLogs(cluster, self.fail_waiting)
            self.storage.topic_logs.go_through(self.engine.forwarding)

    def _recover(self, metadata: MetadataStore | None) -> None:
        """What the disk has, or the cluster: `open_broker` says what is raised."""
        cluster, runnable, self.dead_letters = self.cluster, self._runnable.append, DeadLetters(self)
        dead, refused = self.dead_letters.add, self.dead_letters.add_refused
        self.host = host = Host(
            self.timers, self.clock, runnable=runnable, dead_letter=dead, refused=refused, unused=self._unused
        )
        homes = positions = None
        if cluster is not None and self.engine is not None:
            homes = [self.engine.forwarding.home(index) for index in range(cluster.members.meta.homes)]
            positions = self.engine.keep_offsets(self.storage, self._topic_id)
        self.topology, self.offsets = self.storage.recover(host, metadata, homes, positions)
        self.clock.look_back(max((home.log.segments[-1].max_timestamp_ms for home in self.topology.led), default=0))
        self.homes = None
        if cluster is not None and self.engine is not None:
            self.homes = Homes(self, cluster, elsewhere=self.engine.forwarding.home)
            self.engine.serve(self)
            self.topology.catalog.spread = cluster.revisions.everywhere
            self.topology.topic_gone = self._topic_gone
            self.topology.partitions_gone = self._partitions_gone
        self.topology.queue_gone = self._queue_gone
        self.topology.vhost_gone = lambda name: self.traces.pop(name, None)

    def _begin_services(self, users: Mapping[str, str], wall_clock_ms: Callable[[], int]) -> None:
        """What stands on queues and topics: `open_broker` says what is raised."""
        self.alarms.halve_caches = partial(halve_caches, self)
        halve_caches(self, self.alarms.caches_halved)
        iterations = self.config.scram_iterations
        self.rights = Rights(self.topology, users, kind_of=self._kind_of, scram_iterations=iterations)
        self.rights.user_deleted = self._user_deleted
        self.bans = Bans(
            self.topology.catalog, lambda: self.clients, self._close_clients, self.clock.wall_ms, self.config.bans_max
        )
        self.transactions = self.storage.open_transactions(self.topology, self.commits, alone=self.cluster is None)
        if self.transactions.store is not None:
            self.clock.begin_after([self.transactions.store.log])
        if self.engine is not None:
            self.engine.keep_transactions(self)
        self.keeping: Keeping | None = None
        """What brokers of a cluster keep together of retained messages and wills."""
        self._keep_retained()
        self.giving_out = GivingOut(self.spawn)
        self.groups = Coordinator(self, self._timer, wall_clock_ms)
        topics = TopicControl(self)
        self.coordinator = TransactionCoordinator(self)  # of transactional producers
        self.delayed, self.poison, self.later = DelayedRecords(self), PoisonRecords(self), Later(self)
        self.lag_rules = LagRules(self)
        OrderedSplits(self)
        self._hand_on(Control(self, topics), topics, PolicyControl(self.topology))

    def _keep_retained(self) -> None:
        self.wills: Wills | SharedWills
        if self.engine is not None:
            self.keeping = self.engine.keep_retained(self)
            self._retained, self.wills = self.keeping.none, self.keeping.wills
        else:
            kept = self.storage.open_retained()
            self.clock.begin_after([kept.log])
            self._retained = Retained(kept, self.config, self.clock.now_ms)
            self.wills = Wills(self, kept, self._retained, self.config.will_grace_ms)

    @property
    def retained(self) -> Retained:
        """What is retained here; of a cluster, what this broker knows of it."""
        return self._retained if self.keeping is None else self.keeping.retained

    @property
    def elsewhere(self) -> ClientsElsewhere | None:
        """Clients that other brokers may have; a single broker has no others."""
        return None if self.engine is None else self.engine.elsewhere

    def _hand_on(self, control: Control, topics: TopicControl, policies: PolicyControl) -> None:
        """The control plane's calls are the broker's own."""
        self.set_vhost = control.set_vhost
        self.delete_vhost = control.delete_vhost
        self.connect = control.connect
        self.attend = control.attend
        self.declare_exchange = control.declare_exchange
        self.check_exchange = control.check_exchange
        self.delete_exchange = control.delete_exchange
        self.declare_queue = control.declare_queue
        self.alter_queue = control.alter_queue
        self.check_queue = control.check_queue
        self.until_gone = control.until_gone
        self.see_off = control.see_off
        self.delete_queue = control.delete_queue
        self.purge_queue = control.purge_queue
        self.bind = control.bind
        self.unbind = control.unbind
        self.change_bindings = control.change_bindings
        self.create_topic = topics.create_topic
        self.topic_control = topics
        self.create_partitions = topics.create_partitions
        self.delete_topic = topics.delete_topic
        self.set_policy = policies.set_policy
        self.delete_policy = policies.delete_policy

    async def close(self) -> None:
        """Write down where everything stands. Sessions must be closed."""
        await close(self)

    # --- logs --------------------------------------------------------------------------

    def fail_waiting(self, log: PartitionLog, error: StorageUnavailable) -> None:
        """Nobody knows whether what was appended to a log will stay: tell who waits, this turn's publishers too."""
        for session in self.confirming:
            session.confirms.lost(log, error)
        self.dead_letters.lost(log)
        self.commits.fail(log, error)

    def forget_partition(self, partition: TopicPartition, *, lost: bool = False) -> None:
        """A topic is deleted: nothing is written to its logs any more, and nobody has to wait for what was to be there,
        unless it is `lost`, and may be back.
        """
        if lost:
            self.commits.forget(partition.log)
        else:
            for log in (partition.log, *partition.drop_forwards()):
                for session in self.confirming:
                    session.confirms.let_go(log)
                self.commits.forget(log, deleted=True)
        self._dirty.pop(partition, None)
        self.leased.discard(partition)

    def _topic_id(self, name: str) -> bytes | None:
        topic = self.topology.topics.get(name)
        return None if topic is None else topic.id

    def _topic_gone(self, topic: Topic) -> None:
        """A topic that brokers share is deleted, by any of them: what is here of it goes. Where this broker did not see
        it being deleted the files stay, for the next start to set aside.
        """
        if self.storage.topic_logs is None or not topic.uid:
            return
        places = [partition.log.directory for partition in topic.partitions if partition.log.directory]
        keep = self.metadata is not None and self.metadata.reads_anew
        for partition in topic.partitions:
            self.forget_partition(partition, lost=keep)
        self.storage.topic_logs.close(topic, topic.partitions, keep=keep)
        self.offsets.forget_topic(topic.name)
        if keep:
            logger.warning("topic '%s' is gone, deleted or lost with etcd's data: its files stay", topic.name)
        else:
            self.spawn(directories.remove_later, self.files, places)

    def _partitions_gone(self, topic: Topic, partitions: Sequence[TopicPartition]) -> None:
        """A topic has fewer of them than before: etcd was put back, and their files stay."""
        if self.storage.topic_logs is None:
            return
        for partition in partitions:
            self.forget_partition(partition, lost=True)
        self.storage.topic_logs.close(topic, partitions, keep=True)
        numbers = ", ".join(str(partition.index) for partition in partitions)
        logger.warning("partitions %s of topic '%s' are lost with etcd's data: their files stay", numbers, topic.name)

    def _queue_gone(self, queue: Queue) -> None:
        """A durable queue is deleted, by any broker. Where this one did not see it being deleted what was in it stays
        for a while: who has the latest state of etcd may put that back.
        """
        if self.metadata is not None and self.metadata.reads_anew:
            self.homes_kept_until_s = trio.current_time() + KEPT_MS / 1000
            text = (
                "queue '%s' in vhost '%s' is gone, deleted or lost with etcd's data: what was in it stays for an hour"
            )
            logger.warning(text, queue.name, queue.vhost)

    def looked(self, looked_bytes: int, sent_bytes: int) -> None:
        """A fetch looked for something in so many bytes, and is answered with so many of them."""
        self.looked_bytes += looked_bytes
        self.left_out_bytes += max(looked_bytes - sent_bytes, 0)

    def _timer(self, wait_ms: int, callback: Callable[[], None]) -> Timer:
        return self.timers.at(trio.current_time() + wait_ms / 1000, callback)

    def outdated(self) -> StorageUnavailable | None:
        """Why this broker cannot say what the topology is now, if it cannot (`Cluster.is_outdated`)."""
        if self.cluster is None or not self.cluster.is_outdated:
            return None
        return StorageUnavailable("the broker is cut off from etcd, and does not know what was declared since")

    def outdated_for(self, route: Route, slab: Slab) -> StorageUnavailable | None:
        """The same of where messages go: a queue that is known here is known to be there."""
        return self.outdated() if slab.exchange or not route.homes else None

    @property
    def blocked(self) -> str | None:
        """Why publishers have to wait, None if they need not; `alarms.listeners` are told when it changes."""
        return self.alarms.blocked

    # --- data --------------------------------------------------------------------------

    def session(self, sink: DeliverySink, *, protocol: str, owner: object, vhost: str = DEFAULT_VHOST) -> Session:
        """A new session in a virtual host; `owner` is the identity of the client connection. Raises NotFound."""
        session = Session(self, sink, protocol=protocol, owner=owner, vhost=self.topology.vhost(vhost))
        self.sessions[session] = None
        return session

    def session_ended(self, session: Session) -> None:
        """It is closed."""
        self.sessions.pop(session, None)
        self.confirming.pop(session, None)
        came, went = self.ended.get(session.protocol, (0, 0))
        self.ended[session.protocol] = came + session.published, went + session.next_id - 1

    @property
    def clients(self) -> list[Client]:
        """Who is connected."""
        return [client for vhost in self.topology.vhosts.values() for client in vhost.connections.values()]

    def _user_deleted(self, name: str) -> None:
        reason = f"user '{name}' is deleted"
        self._close_clients([(client, reason) for client in self.clients if client.user == name])

    def send_on(self, reason: str) -> None:
        """Who leads what is not known here any more: clients that ask for it are to ask others."""
        self._end([(client, partial(client.send_on, reason)) for client in self.clients if client.send_on is not None])

    def _close_clients(self, closing: Iterable[tuple[Client, str]]) -> None:
        """End connections, each for a reason."""
        self._end((client, partial(client.close, reason)) for client, reason in closing)

    def _end(self, ending: Iterable[tuple[Client, Callable[[], None]]]) -> None:
        """Many in bites, so that others have their turns in between."""
        left = deque(ending)
        close_some(left, self.clients)
        if left:
            self.spawn(self._close_rest, left)

    async def _close_rest(self, left: deque[tuple[Client, Callable[[], None]]]) -> None:
        while left:
            self.end_turn()
            await trio.lowlevel.checkpoint()
            close_some(left, self.clients)
        self.end_turn()

    def _kind_of(self, vhost: str, exchange: str) -> str | None:
        found = self.topology.vhosts.get(vhost)
        return found.exchanges[exchange].kind if found is not None and exchange in found.exchanges else None

    def release(self, owner: object) -> None:
        """A client connection is gone: its exclusive queues go with it. Close its sessions first."""
        for queue in list(self.topology.owned.get(owner, ())):
            self.topology.drop_queue(queue)
        for vhost in self.topology.vhosts.values():
            vhost.connections.pop(owner, None)
            vhost.attending.discard(owner)

    def require_size(self, bodies: Sequence[bytes]) -> None:
        """Raises LimitExceeded if one of these bodies of messages is larger than the configured maximum."""
        size = max(map(len, bodies))
        if size > self.message_bytes_max:
            raise LimitExceeded(f"message size {size} is larger than configured max size {self.message_bytes_max}")

    def consumer_gone(self, queue: Queue | Stream) -> None:
        """A queue lost a consumer; one that was declared auto-delete goes with its last."""
        gone = queue.auto_delete and not queue.consumers and not queue.deleted
        if gone and isinstance(queue, Queue) and not queue.elsewhere:
            self.topology.drop_queue(queue)
        else:
            if isinstance(queue, Queue):
                queue.rules.consumer_gone()
                if gone and queue.durable:
                    self.see_off(queue)
            queue.wake()

    def _unused(self, queue: Queue) -> None:
        """A queue has not been used for as long as it lives without."""
        self.topology.drop_queue(queue)

    @property
    def topics(self) -> Topics:
        """All topics by name, and by id."""
        return self.topology.topics

    @property
    def logs(self) -> list[PartitionLog]:
        """All that are kept here."""
        if self.cluster is not None:
            replicas = [replica.log for replica in self.cluster.replicas.by_name.values()]
            return [*self.storage.stores, *replicas]
        logs = [partition.log for topic in self.topics.values() for partition in topic.partitions]
        return [*self.storage.stores, *logs, *(home.log for home in self.topology.stripes)]

    def home_statuses(self) -> list[HomeStatus]:
        """Every home partition in figures; stripe -1 is that of transient queues."""
        return [partition.status for partition in (*self.topology.led, self.topology.transient)]


@asynccontextmanager
async def open_broker(
    files: Files,
    config: BrokerConfig | None = None,
    users: Mapping[str, str] | None = None,
    *,
    wall_clock_ms: Callable[[], int] = wall_clock_ms,
    metadata: MetadataStore | None = None,
    cluster: Cluster | None = None,
) -> AsyncIterator[Broker]:
    """Recover the engine from `files` and run it; on leaving, everything is written down.

    `users` are those of the configuration, passwords by name; without it there is `guest`. `metadata` is for a broker
    that shares its topology with others, `cluster` for one that has replicas.
    """
    config = config or BrokerConfig()
    flusher = LogFlusher(
        retry_interval_s=config.flush_retry_interval_ms / 1000,
        unflushed_bytes_max=config.unflushed_bytes_max,
        tails_bytes_max=config.tails_bytes_max,
    )
    timers = TimerService()
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        nursery.start_soon(timers.run)
        broker = Broker(
            files,
            config,
            flusher,
            timers,
            nursery,
            {"guest": "guest"} if users is None else users,
            wall_clock_ms,
            metadata,
            cluster,
        )
        nursery.start_soon(housekeep, broker)
        nursery.start_soon(look_after_logs, flusher, config, broker.topology.topics.values)
        nursery.start_soon(broker.stalls.run)
        if cluster is not None:
            cluster.is_stalled = lambda: broker.stalls.stalled
            cluster.is_low_on_disk = lambda: broker.alarms.disk_low or broker.alarms.space.misplaced
            cluster.call_logs(lambda log: called(log, names_by_id(broker.topics.values())))
            nursery.start_soon(Health(cluster, lambda: names_by_id(broker.topics.values())).run)
            nursery.start_soon(Leftovers(cluster, lambda: partitions_by_id(broker.topics.values())).run)
        try:
            yield broker
        finally:
            with trio.CancelScope(shield=True):
                await broker.close()
            nursery.cancel_scope.cancel()
