"""The home partitions of durable queues, as a broker of a cluster has them: led here, followed, or elsewhere.

1. A home is a replicated log. Where this broker leads it, its queues are in a `ReplicatedPartition`; where it follows,
   a standby goes along with the log; and for all that is not led here something stands in the topology that has the
   same names (`elsewhere`).
2. *Promotion*: the standby takes in all that the log has, which nobody may cut off any more, queues are made of it and
   of what the topology says of them, and take the place of what stood for them. Nobody knows what the leader before had
   given out, so everything is marked as redelivered. Nothing goes out until all of it is committed.
3. *Retirement* is at once, in the call that tells of it. Publishers of this broker wait on, for what the next leader
   makes of it: what it has is confirmed when it is committed, what it has not is sent to it (`publishes.py`). Consumers
   are cancelled. A standby goes along again.
4. One task for each log here sees to both, so that they never overlap. When a role is gone before a promotion has
   ended, what it has made was seen by nobody.
5. Whether this broker may serve is asked once a turn (`begin_turn`), before anything is given out; and by whoever gives
   something out before the turn ends (`ReplicatedPartition.look_again`).
6. After an unclean election something is cut off that a standby, or its checkpoint, may have taken in, or all of it:
   both are dropped before that, and another begins with the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from core_log.errors import CorruptBatch, LogUnavailable, MetadataUnavailable, OffsetOutOfRange
from core_log.replica_log import ReplicaLog
from core_log.replication.leader import Leader
from routing.cluster.clients.publishes import Waiting
from routing.cluster.clients.remote_home import led_by
from routing.cluster.metadata.log_names import HOME, directory_of, home_log, number_of
from routing.cluster.metadata.queue_placement import home_for_queue
from routing.errors import StorageUnavailable
from routing.queues.history import HISTORY_BIT
from routing.queues.homes.replay import filling, unclean
from routing.queues.homes.replicated_partition import ReplicatedPartition
from routing.queues.homes.standby_feed import Known, StandbyFeed

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.cluster import Cluster
    from routing.queues.homes.home import Home

logger = logging.getLogger(__name__)

_BITE_S = 0.01
_RETRY_S = 1.0
_BARRIER_TIMEOUT_S = 2.0
_WELL = (True, True, True, True)


class _Here:
    """A home of which this broker has a replica."""

    def __init__(self, index: int, log: ReplicaLog, waiting: Waiting) -> None:
        self.index = index
        self.log = log
        self.waiting = waiting
        self.role: Leader | None = None
        self.partition: ReplicatedPartition | None = None
        """While it is led here and has been promoted."""
        self.feed: StandbyFeed | None = None
        self.changed = trio.Event()
        self.closed = False
        self.over = trio.Event()
        self.said: tuple[bool, bool, bool, bool] | None = None
        """What its partition was told last."""
        self.silent_since_s: float | None = None
        self.lost = False
        """Its standby knows of what is not in the log any more."""

    def wake(self) -> None:
        """There is something new for its task."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()


class Homes:
    """See the module. `elsewhere` makes what stands for a home that is not led here."""

    def __init__(self, broker: Broker, cluster: Cluster, *, elsewhere: Callable[[int], Home]) -> None:
        self._broker = broker
        self._cluster = cluster
        self._elsewhere = elsewhere
        self._topology = broker.topology
        self._here: dict[int, _Here] = {}
        self._led: list[_Here] = []
        self._behind: dict[_Here, None] = {}
        self._closed = False
        self._topology.place_queue = self._place
        cluster.moved.append(self._moved)
        for index in range(len(self._topology.stripes)):
            self._look(index)

    def _place(self, queue_id: int, arguments: Mapping[str, Any]) -> int:
        stripes = self._topology.stripes
        leaders = {index: self._cluster.leader_of(home_log(index))[0] for index in range(len(stripes))}
        counts = {index: len(home.queues) for index, home in enumerate(stripes)}
        balanced = arguments.get("x-queue-leader-locator") == "balanced"
        return home_for_queue(leaders, counts, self._cluster.broker_id, balanced=balanced)

    # --- what the metadata says ----------------------------------------------------------

    def _moved(self, name: str) -> None:
        index = number_of(name, HOME)
        if index is not None:
            self._look(index)

    def _look(self, index: int) -> None:
        """See to it that a home is here what the metadata says."""
        if self._closed or index >= len(self._topology.stripes):
            return
        name = home_log(index)
        here = self._here.get(index)
        if not self._cluster.is_replica(name):
            if here is not None:
                self._leave(here, name)
            return
        if here is None:
            if name in self._cluster.replicas.by_name:
                return  # it is being opened
            try:
                log = self._cluster.open_log(
                    name, directory_of(name), self._broker.storage.home_settings(replicated=True)
                )
            except OSError as error:
                logger.error("%s cannot be opened: %s", name, error)
                self._broker.spawn(self._look_again, index)
                return
            log.needed_from = log.log_start_offset  # until its standby knows better
            here = self._here[index] = _Here(index, log, Waiting(self._broker, log, name))
            log.on_lost = partial(self._forget, here)
            self._broker.spawn(self._conduct, here)
        role = self._cluster.role_of(name)
        if role is not here.role:
            self._retire(here)
            here.role = role
            here.wake()

    async def _look_again(self, index: int) -> None:
        await trio.sleep(_RETRY_S)
        self._look(index)

    def _leave(self, here: _Here, name: str) -> None:
        """This broker shall have no replica of it any more."""
        self._retire(here)
        del self._here[here.index]
        here.role, here.closed = None, True
        here.wake()
        here.waiting.close()
        self._broker.commits.forget(here.log)
        self._cluster.close_log(name)

    async def _conduct(self, here: _Here) -> None:
        try:
            while not here.closed:
                changed, role = here.changed, here.role
                if role is not None:
                    await self._lead(here, role)
                else:
                    if here.feed is None:
                        here.feed = self._feed(here)
                    self._broker.spawn(here.feed.run)
                if not changed.is_set():
                    await changed.wait()
                if here.feed is not None:
                    await here.feed.stop()
                    if here.lost:
                        here.feed, here.lost = None, False
                        self._broker.checkpoints.drop(here.log)  # it may have saved one meanwhile
                    elif here.role is None and not here.closed:
                        here.feed = None  # its task is over; another takes up from the last checkpoint
        finally:
            here.over.set()

    def _forget(self, here: _Here) -> None:
        logger.warning("%s: what was committed is cut off, its queues are what the log says", home_log(here.index))
        here.lost = True
        here.log.needed_from = here.log.log_start_offset
        self._broker.checkpoints.drop(here.log)
        here.wake()

    def _feed(self, here: _Here) -> StandbyFeed:
        broker = self._broker

        async def known() -> Known:
            return await self._known(here.index)

        return StandbyFeed(
            broker.files,
            here.log,
            checkpoint_interval_bytes=broker.config.checkpoint_interval_bytes,
            save=broker.checkpoints.save,
            known=known,
        )

    async def _known(self, index: int) -> Known:
        """Which queues a home has, all of those among them that its log may name."""
        with trio.move_on_after(_BARRIER_TIMEOUT_S):
            try:
                await self._cluster.store.barrier()
                return self._known_now(index)
            except MetadataUnavailable:
                pass
        return Known(None)

    def _known_now(self, index: int) -> Known:
        queues = self._topology.stripes[index].queues.values()
        ids = {queue.id for queue in queues}
        ids |= {queue.id | HISTORY_BIT for queue in queues if queue.settings.retain_ms}
        longest_ms = max(
            max((queue.settings.deduplication_window_ms for queue in queues), default=0),
            max(
                exchange.once_in_ms for vhost in self._topology.vhosts.values() for exchange in vhost.exchanges.values()
            ),
        )
        return Known(ids, self._broker.clock.now_ms() - 2 * longest_ms)

    # --- promotion -------------------------------------------------------------------------

    async def _lead(self, here: _Here, role: Leader) -> None:
        """Have the queues of a home, unless the role is gone meanwhile."""
        while here.role is role and not here.closed:
            began_s = time.perf_counter()
            feed = here.feed or self._feed(here)
            here.feed = None
            try:
                await feed.finish(role.epoch_start, self._known_now(here.index))
                if here.role is role and not here.closed:
                    partition = await self._made(here, role, feed)
                    if partition is not None:
                        self._begin(here, partition)
                        count = sum(queue.message_count for queue in partition.queues.values())
                        took_s = time.perf_counter() - began_s
                        logger.info("%s is led here, %d messages, %.3f s", home_log(here.index), count, took_s)
                    return
            except (OSError, CorruptBatch, OffsetOutOfRange, LogUnavailable) as error:
                logger.error("%s cannot be led: %s", home_log(here.index), error)
                await trio.sleep(_RETRY_S)

    async def _made(self, here: _Here, role: Leader, feed: StandbyFeed) -> ReplicatedPartition | None:
        """The partition with its queues, made in bites; None if the role is gone."""
        broker = self._broker
        partition = broker.storage.make_home(here.index, here.log, ReplicatedPartition)
        self._topology.adopt(here.index, partition)
        until_s = time.perf_counter() + _BITE_S
        standby, end = feed.standby, role.epoch_start
        for _ in filling(partition, standby, lambda queue: unclean(standby, queue, end)):
            if time.perf_counter() > until_s:
                await trio.lowlevel.checkpoint()
                if here.role is not role or here.closed:
                    for queue in list(partition.queues.values()):
                        queue.retire()
                    return None
                until_s = time.perf_counter() + _BITE_S
        partition.sets.define_anew()
        return partition

    def _begin(self, here: _Here, partition: ReplicatedPartition) -> None:
        """From now on these are the home's queues."""
        self._topology.adopt(here.index, partition)
        self._topology.rehome(here.index, partition)
        if self._broker.engine is not None:
            for client, epoch in partition.numbers.epochs.items():
                self._broker.engine.forwarding.connections.fence(client, epoch)
        here.partition, here.said, here.silent_since_s = partition, None, None
        here.log.on_hand_over = partial(self._finish, partition)
        partition.ask = partial(self._look_at, here)
        self._led.append(here)
        self._broker.end_turn()

    def _finish(self, partition: ReplicatedPartition) -> bool:
        """Have all in the log that is to be there before it is handed over; whether that is so."""
        broker = self._broker
        found = sum(one.under_way(partition) for one in (broker.dead_letters, broker.delayed, broker.later))
        if broker.transactions.shared is not None:
            found += broker.transactions.shared.under_way(partition)
        return partition.finish(found)

    # --- retirement ------------------------------------------------------------------------

    def _retire(self, here: _Here) -> None:
        """This broker leads a home no more, if it did."""
        partition, here.partition = here.partition, None
        if partition is None:
            return
        self._led.remove(here)
        self._behind.pop(here, None)
        name = home_log(here.index)
        error = StorageUnavailable(f"home partition {here.index} {led_by(self._cluster.leader_of(name)[0])}")
        logger.info("%s is not led here any more", name)
        here.log.on_hand_over = None
        here.waiting.keep(partition)
        partition.retire(error)
        here.waiting.hand_on(error)
        self._broker.dead_letters.lost(here.log)
        self._topology.rehome(here.index, self._elsewhere(here.index))
        self._broker.want_turn()

    # --- serving ---------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Look whether this broker may serve what it leads."""
        if not self._led:
            return
        now_s, lease_until_s = self._cluster.lease()
        for here in self._led:
            role, partition = here.role, here.partition
            if role is None or partition is None:
                continue
            if self._told(here, partition, role, now_s, lease_until_s):
                pass
            elif role.begun_late is not None and here.silent_since_s is None:
                self._carry(partition, role, role.begun_late)
            elif here.silent_since_s is not None and now_s - here.silent_since_s > self._cluster.publish_patience_s:
                here.silent_since_s = None
                self._broker.commits.fail(here.log, StorageUnavailable("other brokers are out of reach"))

    def _look_at(self, here: _Here) -> None:
        if here.role is not None and here.partition is not None:
            self._told(here, here.partition, here.role, *self._cluster.lease())

    def _told(
        self, here: _Here, partition: ReplicatedPartition, role: Leader, now_s: float, lease_until_s: float
    ) -> bool:
        """Tell a partition what this broker may do, unless that is what it was told last; whether it was not."""
        if here.said == _WELL and here.log.error is None and role.is_well(now_s, lease_until_s):
            return False
        serves = role.may_serve(now_s, lease_until_s)
        said = (serves, role.may_append(), serves and role.watermark_is_known, here.log.error is None)
        if said == here.said:
            return False
        here.said = said
        self._say(here, partition, *said)
        return True

    def _carry(self, partition: ReplicatedPartition, role: Leader, begins_at: int) -> None:
        try:
            if partition.carry_states(begins_at):
                role.begun_late = None
            else:
                self._broker.want_turn()
        except LogUnavailable:
            pass  # another turn

    @property
    def is_behind(self) -> bool:
        """Whether `end_turn` has something to do."""
        return bool(self._behind)

    def end_turn(self) -> None:
        """What waited for homes that may be published to again was sent: it goes on as if they had not stood still."""
        for here in list(self._behind):
            if here.partition is None or here.waiting.is_over:
                del self._behind[here]
                if here.partition is not None:
                    here.partition.serve(not here.partition.suspended, None)

    def _say(
        self, here: _Here, partition: ReplicatedPartition, serves: bool, in_sync: bool, delivers: bool, writes: bool
    ) -> None:
        refusal = None
        if not serves:
            refusal = StorageUnavailable(f"home partition {here.index} is not led by anybody for certain now")
        elif not in_sync:
            refusal = StorageUnavailable(f"home partition {here.index} has too few replicas in sync")
        stands_still = refusal is not None or not writes
        if not stands_still:
            here.silent_since_s = None
        elif here.silent_since_s is None:
            here.silent_since_s = trio.current_time()
        self._behind.pop(here, None)
        if stands_still:
            here.waiting.keep(partition)
        else:
            here.waiting.retry()
        if stands_still or not here.waiting.is_over:
            partition.serve(delivers, refusal, self._elsewhere(here.index))
            if not stands_still:
                self._behind[here] = None
        else:
            partition.serve(delivers, None)

    # --- stopping --------------------------------------------------------------------------

    async def close(self) -> None:
        """No more changes; standbys are written down. What is led is the engine's to write down."""
        self._closed = True
        self._cluster.moved.remove(self._moved)
        for here in self._here.values():
            here.closed = True
            here.wake()
        for here in self._here.values():
            await here.over.wait()
            if here.feed is not None:
                await here.feed.close()
