"""Steps of writers in a cluster (`routing/publishing/published_once.py`): each takes effect once, whoever leads what.

1. All steps of a writer are decided in the same log `transactions-N`. Who leads it keeps the redo record of a step in
   one batch with the writer's last number, and only where that is below its own. What was decided before is waited for:
   until its record is gone it has not taken effect.
2. What goes to a log is put there by who leads it, as a whole, and by nothing else: he looks for it behind where the
   log ended before the decision, and puts what is missing (`step_parts.py`) in one go. So a part that comes late or
   twice, also from a broker that was taken for dead, changes nothing. What was put by this broker since it leads the
   log is remembered as well, so that it may be gone from there meanwhile.
3. Parts are handed to leaders until all are committed; then the record is forgotten. Who leads the log of records does
   the same for processes that are gone.
4. Queues that end with a broker get it once, or not at all where a broker dies meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary
from zlib import crc32

import trio

from core_log.errors import BatchTooLarge, CorruptBatch, LogUnavailable
from core_log.files import BytesLike
from core_log.keyed_store import KeyedStore
from core_log.replica_log import ReplicaLog
from routing.cluster.clients.transaction_effects import Target
from routing.cluster.clients.transaction_links import OutcomeUnknown
from routing.cluster.metadata.log_names import HOME, home_log, number_of, topic_log
from routing.errors import BrokerError, StorageUnavailable
from routing.message import NAME_ENCODING_ERRORS
from routing.publishing.published_once import Step
from routing.publishing.step_parts import BodiesFound, Part, parts_of, put_home, put_topic
from routing.publishing.writers import Writers
from routing.queues.homes.queue_partition import QueuePartition
from routing.redo_records import Places, Published, decode_step, encode, published
from routing.topics.topic_partition import TopicPartition
from routing.topology.interest import Elsewhere
from routing.topology.route import Route
from routing.transactions import Plan

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.clients.engine import Engine
    from routing.cluster.clients.transactions import SharedTransactions

PATIENCE_S = 15.0
_RETRY_S = 0.1
_LOOK_S = 0.02
_READ_BYTES = 1 << 20
_REMEMBERED = 1 << 16


class _Commit:
    """One that is under way."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.is_new = True
        self.error: StorageUnavailable | None = None


class SharedSteps:
    """See the module; of one broker."""

    def __init__(self, broker: Broker, engine: Engine, transactions: SharedTransactions) -> None:
        self._broker = broker
        self._engine = engine
        self._cluster = engine.cluster
        self._transactions = transactions
        self._writers: WeakKeyDictionary[KeyedStore, Writers] = WeakKeyDictionary()
        self._put: OrderedDict[tuple[str, int, bytes], None] = OrderedDict()
        """Log, leader epoch, and the marker of a step that was put there in it."""

    # ---- a commit

    async def commit(self, plan: Plan, step: Step) -> bool:
        """Let a step take effect; returns when all of it is committed. False: it, or a later one, had before. Raises
        StorageUnavailable: it has not, or, with OutcomeUnknown, nobody knows.
        """
        places = await self._places(plan, step.marker)
        under_way = _Commit()
        self._engine.spawn(self._carry_out, plan, step, places, under_way)
        with trio.move_on_after(PATIENCE_S):
            await under_way.answered.wait()
            if under_way.error is not None:
                raise under_way.error
            return under_way.is_new
        raise OutcomeUnknown("the step is not committed everywhere yet: it may take effect later, as a whole")

    async def _places(self, plan: Plan, marker: bytes) -> Places:
        """Raises StorageUnavailable."""
        uids = {one.name: one.uid for route in plan.routes for one in route.topics if not isinstance(one, Elsewhere)}
        homes: list[Sequence[int]] = [
            (home.index, await self._end(home_log(home.index)), *plan.queue_ids(home)) for home in plan.published
        ]
        partitions = [
            (one.topic_name, one.index, await self._end(topic_log(uids[one.topic_name], one.index)))
            for one in dict.fromkeys(plan.topics)
        ]
        return Places(marker, homes, partitions)

    async def _end(self, log: str) -> int:
        """An offset behind which a log has nothing yet that is decided from now on. Raises StorageUnavailable."""
        replica = self._cluster.replicas.by_name.get(log)
        if replica is not None:
            return replica.log.high_watermark
        leader, _ = self._cluster.leader_of(log)
        link = self._engine.transaction_links.get(leader) if leader is not None else None
        if link is None:
            raise StorageUnavailable(f"who leads {log} cannot be reached")
        return await link.put(log, b"")

    async def _carry_out(self, plan: Plan, step: Step, places: Places, under_way: _Commit) -> None:
        number = crc32(step.writer.encode("utf-8", NAME_ENCODING_ERRORS)) % self._transactions.stores.count
        key = self._transactions.new_key()
        publishes = published(plan.routed)
        record = encode(publishes, (), places)
        try:
            under_way.is_new = await self._decide(number, key, record, step)
        except StorageUnavailable as error:
            under_way.error = error
            under_way.answered.set()
            return
        if under_way.is_new:
            with suppress(BrokerError, LogUnavailable):
                for route, slab, _ in plan.routed:
                    plan.session.deliver_to(_fleeting(route), slab, False)
            self._engine.want_turn()
            await self.see_to(publishes, places)
        under_way.answered.set()
        if under_way.is_new:
            await self._transactions.forget(number, key)

    async def _decide(self, number: int, key: bytes, record: bytes, step: Step) -> bool:
        """Have it decided: rule 1. False: that was done before. Raises StorageUnavailable: it is not, by this."""
        certain = True
        while True:
            try:
                link = await self._transactions.keeper(number)
                keep = self.keep_here if link is None else link.keep_step
                return await keep(number, key, record, *step)
            except OutcomeUnknown:
                certain = False
            except StorageUnavailable:
                if certain:
                    raise
            await trio.sleep(_RETRY_S)

    # ---- taking effect

    async def see_to(self, publishes: Sequence[Published], places: Places) -> None:
        """Return when what a record says of a step is committed everywhere."""
        topics = self._broker.topology.topics
        async with trio.open_nursery() as nursery:
            for part in parts_of(publishes, places, topics):
                log = home_log(part.home)
                if part.home < 0:
                    name, index, _ = part.places.topics[0]
                    log = topic_log(topics[name].uid, index)
                nursery.start_soon(self._hand_over, log, encode(part.publishes, (), part.places))

    async def _hand_over(self, log: str, record: bytes) -> None:
        try_at_leader = self._transactions.try_at_leader
        while self._cluster.state_of(log) is not None:
            if await try_at_leader(log, partial(self.put_here, log, record), lambda link: link.put(log, record)):
                return

    # ---- what other brokers ask

    async def keep_here(self, number: int, key: bytes, record: bytes, writer: str, step: int) -> bool:
        """See `TransactionLink.keep_step`, of a log that is led here, or will be soon."""
        part, store = await self._transactions.store_here(number)
        writers = self._writers.get(store)
        if writers is None:
            kept_ms = self._broker.config.group_offsets_retention_ms
            writers = self._writers[store] = Writers(store, kept_ms)
        with part.while_led(), trio.move_on_after(PATIENCE_S / 3):
            last = writers.last(writer)
            is_new = last.number < step
            try:
                if is_new:
                    note = writers.note(writer, step, key, self._broker.clock.now_ms())
                    store.put_all([note, (key, record)], together=True)
            except (LogUnavailable, BatchTooLarge) as error:
                raise StorageUnavailable(str(error)) from error
            self._engine.want_turn()
            try:
                await store.commit()
            except LogUnavailable as error:
                raise OutcomeUnknown(str(error)) from error
            if is_new or last.record == key:
                return True
            while store.get(last.record) is not None:
                await trio.sleep(_LOOK_S)
            return False
        raise OutcomeUnknown("the step is not decided yet, or an earlier attempt is under way")

    async def put_here(self, log: str, record: bytes) -> int:
        """See `TransactionLink.put`, of a log that is led here."""
        leader_epoch = self._cluster.leader_of(log)[1]
        where = self._led(log, leader_epoch)
        if record:
            try:
                publishes, _, places = decode_step(record)
                assert places is not None
                await self._put_once(log, leader_epoch, where, Part(publishes, places))
            except (CorruptBatch, LogUnavailable, KeyError, OSError) as error:
                raise OutcomeUnknown(f"{log}: {error}") from error
        partition = where if isinstance(where, TopicPartition) else None
        if isinstance(where, QueuePartition):
            target = Target.of_home(self._broker.topology, where)
            where.log.request_sync()
        else:
            target = Target.of_log(where.log, where.log.log_end_offset, partition)
        self._engine.want_turn()
        if not await self._transactions.reached([target]):
            raise OutcomeUnknown(f"{log} has another leader")
        return target.end

    async def _put_once(self, log: str, leader_epoch: int, where: QueuePartition | TopicPartition, part: Part) -> None:
        name = (log, leader_epoch, part.places.marker)
        if name in self._put:
            return
        assert isinstance(where.log, ReplicaLog)
        bodies = await _bodies_behind(where, where.log, part)
        if self._led(log, leader_epoch) is not where:
            raise LogUnavailable("it is led anew")
        # From here on nothing is awaited: nobody puts it there meanwhile.
        if isinstance(where, QueuePartition):
            put_home(where, part, bodies, self._broker.clock.now_ms)
        else:
            put_topic(self._broker.topology.topics, part, bodies)
        _require_sealed(where)
        self._put[name] = None
        if len(self._put) > _REMEMBERED:
            self._put.popitem(last=False)

    def _led(self, log: str, leader_epoch: int) -> QueuePartition | TopicPartition:
        """What is led here in that epoch, and takes something now. Raises StorageUnavailable."""
        serving = self._engine.serving
        if number_of(log, HOME) is not None:
            home = serving.home(log, leader_epoch)
            if home is not None and home.refusal is None:
                return home
        else:
            partition = serving.partition(log, leader_epoch)
            if partition is not None and partition.error() is None:
                return partition
        raise StorageUnavailable(f"{log} is not led here, or takes nothing now")


async def _bodies_behind(where: QueuePartition | TopicPartition, log: ReplicaLog, part: Part) -> list[bytes]:
    """The bodies of a step's messages that a log has, all there are when this returns. Raises LogUnavailable,
    CorruptBatch, OSError.
    """
    found, since = BodiesFound(part), part.since
    while True:
        where.seal()
        _require_sealed(where)
        since = max(min(since, log.log_end_offset), log.log_start_offset)
        batches: list[BytesLike] | None = log.read_replica(since, _READ_BYTES)
        if batches is None:
            batches = await log.read_replica_cold(since, _READ_BYTES)
        elif not batches:
            return found.bodies
        if not batches:
            await trio.sleep(_LOOK_S)  # it is being written
            continue
        since = found.take(batches)


def _require_sealed(where: QueuePartition | TopicPartition) -> None:
    """Raises LogUnavailable if something that was put there is not in the log yet."""
    if where.log.error is not None or where.next_offset > where.log.log_end_offset:
        raise LogUnavailable("the disk refuses what was put there")


def _fleeting(route: Route) -> Route:
    """What of a route ends with a broker."""
    queues = [queue for queue in route.queues if not queue.partition.durable]
    topics = [one for one in route.topics if isinstance(one, Elsewhere)]
    return Route(queues, topics, delayed=route.delayed, histories=route.histories)
