"""Transactions of a session: its publishes and settlements take effect together, or not at all, also across a crash.

1. Until the commit publishes are only collected, with the exchange and the size of each checked; what is settled is
   taken out of the session's unsettled deliveries and still counts as outstanding. A rollback puts it back.
2. A commit whose durable part is one batch of one log (publishes to one home partition, or settlements of one) is
   appended as that batch: a torn batch is no batch.
3. Every other commit is first written as one redo record to `transactions/0`. When it is durable the commit is decided:
   the whole is applied in one go, and the record goes when the logs it concerns are durable: with the next one's sync.
4. At a start what is still recorded is applied again. What a crash left of the first time may come twice, and is marked
   redelivered; settlements of messages that are gone change nothing.
   Those of steps that take effect once (`published_once.py`) are put only where they are missing.
   In a cluster it is `cluster/clients/transactions.py` that has records, with replicas, and sees to it.
5. A rejected message that goes to a dead letter exchange leaves its queue when its copy is committed, as always: a
   crash before brings it back.
6. If the disk refuses before the commit is decided, nothing has happened, and the session has its settlements back. If
   it refuses what is decided, the commit is answered when it has taken it.
7. So it is if a queue would refuse some of the messages because it is full; who leads it elsewhere is asked. Once it is
   decided every queue takes them, whatever came into it meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import trio

from core_log.errors import BatchTooLarge, LogUnavailable
from core_log.keyed_store import KeyedStore
from core_log.partition_log import PartitionLog
from routing.commits import CommitWaiter
from routing.errors import BrokerError, LimitExceeded, PreconditionFailed, QueueFull, StorageUnavailable
from routing.log_transactions.store import is_redo_record
from routing.message import Slab
from routing.publishing.deduplication import put
from routing.publishing.published_once import Step
from routing.publishing.step_parts import BodiesFound, Part, parts_of, put_home, put_topic
from routing.publishing.writers import Writers
from routing.queues.homes.home import for_others
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.limits import room
from routing.queues.queue import Queue
from routing.redo_records import Places, Settled, decode_step, encode, published
from routing.topology.route import Route
from routing.topology.topology import Topology
from routing.unsettled import Outcome, Unsettled

if TYPE_CHECKING:
    from core_log.files import BytesLike
    from routing.cluster.clients.transactions import SharedTransactions
    from routing.queues.homes.home import Home
    from routing.session import Session

logger = logging.getLogger(__name__)

_MESSAGE_BYTES = 128
"""What a collected message takes besides body, key and properties, about."""
_SETTLED_BYTES = 256
"""What a collected run of settlements takes, about."""
_BATCH_ROOM_BYTES = 1 << 20
_RETRY_S = 0.1
_READ_BYTES = 1 << 20
_ENDING = (Outcome.ACK, Outcome.DISCARD)
"""After these a message is gone; after the others it is back, as it is after a crash."""


class Transaction:
    """What a session has collected since it began or last ended one."""

    def __init__(self, bytes_max: int) -> None:
        self.publishes: list[tuple[Slab, bool, Sequence[str]]] = []
        """Slab, mandatory, copies."""
        self.taken: list[tuple[Unsettled, Outcome]] = []
        self.size_bytes = 0
        self._bytes_max = bytes_max

    def publish(self, slab: Slab, mandatory: bool, copies: Sequence[str]) -> None:
        """Collect a slab. Raises LimitExceeded, and does not then."""
        count = len(slab.bodies)
        keys = len(slab.routing_key) * count if slab.keys is None else sum(map(len, slab.keys))
        raws = len(slab.properties.raw) * count if slab.raws is None else sum(map(len, slab.raws))
        self.size_bytes += slab.size + keys + raws + _MESSAGE_BYTES * count
        self.require_size()
        self.publishes.append((slab, mandatory, copies))

    def take(self, entry: Unsettled, outcome: Outcome) -> None:
        """Collect deliveries that are settled, however many; see `require_size`."""
        last, last_outcome = self.taken[-1] if self.taken else (None, None)
        if last is not None and last_outcome is outcome and last.continues(entry):
            last.end = entry.end
            return
        self.taken.append((entry, outcome))
        self.size_bytes += _SETTLED_BYTES + 8 * len(entry.offsets or ())

    def require_size(self) -> None:
        """Raises LimitExceeded if it is too large: when all that belongs together was taken, else the rest would be
        nobody's.
        """
        if self.size_bytes > self._bytes_max:
            raise LimitExceeded(f"the transaction is larger than configured max size {self._bytes_max}")


class Plan:
    """What a commit comes to: routed publishes, and what they and the settlements concern."""

    def __init__(self, session: Session, transaction: Transaction) -> None:
        self.session = session
        self.transaction = transaction
        self.routed: list[tuple[Route, Slab, bool]] = []
        for slab, mandatory, copies in transaction.publishes:
            self.routed += [(route, part, mandatory) for route, part in _routed(session, slab, copies)]
        self.routes = list({route: None for route, _, _ in self.routed})
        self.topics = [partition for route in self.routes for topic in route.topics for partition in topic.partitions]
        self.published = {home: None for route in self.routes for home in route.durable_homes}
        self.settled: dict[Home, None] = {queue.partition: None for queue, _, _ in self.endings()}

    def endings(self) -> Iterator[tuple[Queue, Unsettled, bool]]:
        """Settlements that outlive the process: of which queue, and whether they are rejections."""
        for entry, outcome in self.transaction.taken:
            queue = entry.queue
            if outcome in _ENDING and isinstance(queue, Queue) and queue.partition.durable and not queue.deleted:
                yield queue, entry, outcome is Outcome.DISCARD

    def require_logs(self) -> None:
        """Raises StorageUnavailable if a log that the commit concerns refuses writes, or is being handed over."""
        for home in {**self.published, **self.settled}:
            if isinstance(home, QueuePartition):
                home.look_again()
        for route, slab, _ in self.routed:
            failed = route.error() or self.session.broker.outdated_for(route, slab)
            if failed is not None:
                raise failed
        for home in self.settled:
            if home.error is not None:
                raise home.error

    def require_deliveries(self) -> None:
        """Raises PreconditionFailed if what is settled was delivered by a leader that leads no more: it comes again."""
        for entry, outcome in self.transaction.taken:
            queue = entry.queue
            if outcome in _ENDING and isinstance(queue, Queue) and queue.deleted:
                there = self.session.broker.topology.vhost(queue.vhost).queues.get(queue.name)
                if there is not None and there.id == queue.id:
                    raise taken_back(queue)

    def require_room(self) -> None:
        """Raises QueueFull if a queue here refuses some of the messages."""
        for queue, bodies in self.refusing(elsewhere=False).items():
            if room(queue, bodies)[0] < len(bodies):
                raise full(queue)

    def refusing(self, *, elsewhere: bool) -> dict[Queue, list[BytesLike]]:
        """The queues that refuse what is too much, here or led by others, and the bodies that each is to take."""
        found: dict[Queue, list[BytesLike]] = {}
        for route, slab, _ in self.routed:
            for queue in route.guarded:
                if queue.settings.overflow != "drop-head" and queue.elsewhere is elsewhere:
                    found.setdefault(queue, []).extend(slab.bodies)
        return found

    def prepare(self) -> None:
        """See to it that nothing can be refused any more. Raises LogUnavailable."""
        for route in self.routes:
            for home, destinations in route.homes:
                home.prepare(destinations)

    def apply(self) -> None:
        """Do everything. What is settled goes first: it makes room in queues that have a limit."""
        session = self.session
        for entry, outcome in self.transaction.taken:
            session.finish(entry, outcome)
        with for_others(self.published):
            for route, slab, mandatory in self.routed:
                session.deliver_to(route, slab, mandatory, decided=True)

    def places(self, marker: bytes) -> Places:
        """Where the logs here end that it publishes to."""
        homes: list[Sequence[int]] = [
            (home.index, home.next_offset, *self.queue_ids(home))
            for home in self.published
            if isinstance(home, QueuePartition)
        ]
        return Places(
            marker, homes, [(one.topic_name, one.index, one.next_offset) for one in dict.fromkeys(self.topics)]
        )

    def queue_ids(self, home: Home) -> list[int]:
        """The queues of a home that it publishes to."""
        return list({queue.id: None for route in self.routes for queue in route.queues if queue.partition is home})

    def seal(self) -> list[QueuePartition]:
        """Write what was applied to the home partitions and topics here; these home partitions."""
        homes = [home for home in {**self.published, **self.settled} if isinstance(home, QueuePartition)]
        for home in homes:
            home.seal_all()
        for partition in self.topics:
            partition.seal()
        return homes


def taken_back(queue: Queue) -> PreconditionFailed:
    """A leader that is gone had delivered what a transaction settles, or the link to it is."""
    return PreconditionFailed(f"a message that the transaction settles is back in queue '{queue.name}'")


def full(queue: Queue) -> QueueFull:
    """It refuses some of what a transaction publishes."""
    return QueueFull(f"queue '{queue.name}' in vhost '{queue.vhost}' is full: nothing of the transaction took effect")


def _routed(session: Session, slab: Slab, copies: Sequence[str]) -> list[tuple[Route, Slab]]:
    try:
        return session.vhost.router.routed(slab, copies)
    except BrokerError:  # the exchange has gone since the publish
        return [(Route([], []), slab)]


class Transactions:
    """The transactions of a broker; see the module. `store` has the redo records of a single one."""

    def __init__(
        self,
        store: KeyedStore | None,
        topology: Topology,
        commits: CommitWaiter,
        bytes_max: int,
        now_ms: Callable[[], int],
        writers_kept_ms: int = 604_800_000,
    ) -> None:
        self.store = store
        self.writers = None if store is None else Writers(store, writers_kept_ms)
        """Who publishes in steps that take effect once."""
        self._topology = topology
        self._commits = commits
        self._bytes_max = bytes_max
        self._now_ms = now_ms
        keys = [int.from_bytes(key, "big") for key, _ in self._records()]
        self._next_id = 1 + max(keys, default=0)
        self.shared: SharedTransactions | None = None
        """Who sees to what concerns several logs in a cluster."""
        self.under_way: dict[Transaction, None] = {}
        """Those whose commit waits for a leader: what they have taken may come back."""
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._applied: set[bytes] = set()
        """Records that are only waiting to be removed."""
        self._late: dict[bytes, list[tuple[PartitionLog, int]]] = {}
        """Those of them that the disk did not let go when it was time, and what has to be durable before."""

    def _records(self) -> list[tuple[bytes, bytes]]:
        """The redo records: transactional ids of producers have theirs in the same store."""
        return [one for one in self.store.items() if is_redo_record(one[0])] if self.store is not None else []

    def begin(self) -> Transaction:
        """An empty one."""
        return Transaction(self._bytes_max)

    def lock(self, writer: str) -> trio.Lock:
        """Who does a step of a writer here holds this."""
        found = self._locks.get(writer)
        if found is None:
            found = self._locks[writer] = trio.Lock()
        return found

    def is_done(self, step: Step) -> bool:
        """Whether a step is known here to have taken effect."""
        return self.writers is not None and self.writers.last(step.writer).number >= step.number

    async def commit(self, session: Session, transaction: Transaction, step: Step | None = None) -> bool:
        """Let it take effect; returns when that cannot be lost any more. As a `step` it takes effect once: False if it,
        or a later one, had before. Raises StorageUnavailable, LimitExceeded or, in a cluster, PreconditionFailed, and
        then the session has back what it had settled.
        """
        try:
            self.under_way[transaction] = None
            try:
                plan = await self._planned(session, transaction)
            finally:
                del self.under_way[transaction]
            plan.prepare()
            direct = None if step else self._direct_home(plan)
            if direct is not None:
                await self._commit_directly(plan, direct)
                return True
            if not (plan.published or plan.settled or plan.topics or step):
                plan.apply()
                return True
            await self._secure_settled(plan)
            if self.shared is None:
                with trio.CancelScope(shield=True):
                    await self._commit_by_record(plan, step)
                return True
        except (LogUnavailable, BatchTooLarge, StorageUnavailable) as error:
            session.take_back(transaction)
            raise StorageUnavailable(str(error)) from error
        except (PreconditionFailed, LimitExceeded):
            session.take_back(transaction)
            raise
        if step is not None:
            return await self.shared.steps.commit(plan, step)
        await self.shared.commit(plan)
        return True

    async def _planned(self, session: Session, transaction: Transaction) -> Plan:
        """What it comes to; in a cluster a home that has no leader now is waited for. Raises StorageUnavailable,
        PreconditionFailed, QueueFull.
        """
        until = trio.current_time() + (self.shared.publish_patience_s if self.shared is not None else 0)
        has_asked = False
        while True:
            plan = Plan(session, transaction)
            plan.require_deliveries()
            try:
                try:
                    plan.require_logs()
                    plan.require_room()
                    if has_asked or self.shared is None:
                        return plan
                    await self.shared.require_room(plan)
                    has_asked = True
                except StorageUnavailable:
                    if trio.current_time() >= until or session.closed:
                        raise
                    await trio.sleep(_RETRY_S / 2)
            except trio.Cancelled:
                session.take_back(transaction)
                raise

    async def _secure_settled(self, plan: Plan) -> None:
        """What is settled here, and that views took it, is in its log before it is decided on: else what came in its
        place after a crash would be settled, or nobody could settle it once more. Raises StorageUnavailable.
        """
        late: dict[PartitionLog, int] = {}
        for queue, entry, _ in plan.endings():
            home, is_view = queue.partition, queue.settings.view_of is not None
            if isinstance(home, QueuePartition) and (is_view or entry.end_offset > home.log.committed_offset):
                home.seal_all()
                late[home.log] = home.log.log_end_offset
        with trio.CancelScope(shield=True):
            await self._commits.committed(late.items())

    def _direct_home(self, plan: Plan) -> QueuePartition | None:
        """The partition here whose log alone is concerned, by one batch."""
        homes = [*plan.published, *plan.settled]
        if len(homes) != 1 or plan.topics or not isinstance(homes[0], QueuePartition):
            return None
        fits = plan.transaction.size_bytes <= homes[0].log.config.message_bytes_max - _BATCH_ROOM_BYTES
        return homes[0] if fits else None

    async def _commit_directly(self, plan: Plan, home: QueuePartition) -> None:
        home.seal()
        with home.together():
            plan.apply()
        # It has happened, to all who look: if the disk refuses now, the answer comes when it does no more.
        while True:
            home.seal_all()
            if home.log.error is None and await self._committed(home.log):
                return
            if home.retired:
                raise StorageUnavailable(str(home.error))
            await trio.sleep(_RETRY_S)

    async def _committed(self, log: PartitionLog) -> bool:
        """Wait for all of a log; False: the disk refuses."""
        try:
            await self._commits.committed([(log, log.log_end_offset)])
        except StorageUnavailable:
            return False
        return True

    # --- by record ---------------------------------------------------------------------------

    async def _commit_by_record(self, plan: Plan, step: Step | None) -> None:
        assert self.store is not None
        key = self._next_id.to_bytes(8, "big")
        self._next_id += 1
        settled = [
            Settled(queue.id, list(entry.offsets_of(entry.first, entry.end)), rejected)
            for queue, entry, rejected in plan.endings()
        ]
        puts, places, ends = [], None, []
        if step is not None and self.writers is not None:
            ends, places = self._sealed(plan), plan.places(step.marker)
            self._look_behind(key, places)
            puts = [self.writers.note(*step, key, self._now_ms())]
        puts.append((key, encode(published(plan.routed), settled, places)))
        try:
            await self._commits.committed(ends)  # a start looks for the step behind them, so they have to be there
            await self.store.change(puts, together=True)
        except BaseException:
            self._forget(key)
            raise
        while True:
            try:
                plan.prepare()
                break
            except LogUnavailable:
                await trio.sleep(_RETRY_S)  # decided is decided
        plan.apply()
        self._applied.add(key)
        self._remove_when_durable(key, self._sealed(plan))

    def _sealed(self, plan: Plan) -> list[tuple[PartitionLog, int]]:
        """The logs that it concerns, and where they end, with all that was put there before."""
        homes = plan.seal()
        logs = [*(home.log for home in homes), *(partition.log for partition in plan.topics)]
        return [(log, log.log_end_offset) for log in logs]

    def _remove_when_durable(self, key: bytes, positions: list[tuple[PartitionLog, int]]) -> None:
        def done(error: StorageUnavailable | None) -> None:
            if error is not None or not self._remove(key):
                self._late[key] = positions

        self._commits.when_committed(positions, done, moves=True)

    def _remove(self, key: bytes) -> bool:
        assert self.store is not None
        try:
            self.store.put(key, None)
        except LogUnavailable:
            return False  # `tidy` and `close` come back to it
        self._applied.discard(key)
        self._forget(key)
        return True

    def _look_behind(self, key: bytes, places: Places) -> None:
        for index, since, *_ in places.homes:
            self._topology.led[index].looked_behind[key] = since

    def _forget(self, key: bytes) -> None:
        for home in self._topology.led:
            home.looked_behind.pop(key, None)

    def tidy(self) -> None:
        """Remove what the disk did not let go before: it would be applied again, whenever the process ends."""
        late, self._late = self._late, {}
        if late:
            topics = self._topology.topics.values()
            logs = {home.log for home in self._topology.led} | {one.log for topic in topics for one in topic.partitions}
            for key, positions in late.items():
                self._remove_when_durable(key, [one for one in positions if one[0] in logs])

    def close(self) -> None:
        """The logs of queues and topics are durable: what was applied needs no record any more."""
        for key in list(self._applied):
            self._remove(key)

    # --- at a start --------------------------------------------------------------------------

    def recover(self) -> None:
        """Apply again what is still recorded; queues and topics are as their logs say. Raises CorruptBatch,
        LogUnavailable.
        """
        queues = {queue.id: queue for home in self._topology.led for queue in home.queues.values()}
        for key, value in self._records():
            publishes, settled, places = decode_step(value)
            logs: dict[PartitionLog, None] = {}
            for entry in settled:
                queue = queues.get(entry.queue_id)
                if queue is not None:
                    queue.settle_waiting(entry.offsets, rejected=entry.rejected)
                    logs[queue.partition.log] = None
            if places is not None:
                self._look_behind(key, places)
                parts, publishes = parts_of(publishes, places, self._topology.topics), []
                logs |= dict.fromkeys(map(self._redo, parts))
            for one in publishes:
                there = [queues[queue_id] for queue_id in one.queue_ids if queue_id in queues]
                found = one.there(self._topology.topics)
                route = Route(there, found, delayed=one.delayed)
                route.remembering = [queue for queue in there if queue.seen is not None]
                targets = put(route, one.slab, self._now_ms)
                logs |= dict.fromkeys(log for log, _ in targets)
                for queue in there:
                    queue.redelivered_before = queue.partition.next_offset
                for partition in (partition for topic in found for partition in topic.partitions):
                    partition.seal()
            for home in self._topology.led:
                home.seal_all()
            logger.warning("a transaction that was committed before the stop is applied again")
            self._applied.add(key)
            self._remove_when_durable(key, [(log, log.log_end_offset) for log in logs])

    def _redo(self, part: Part) -> PartitionLog:
        """Have a log hold all of its part of a step; blocks. Raises CorruptBatch, LogUnavailable, OSError."""
        topics = self._topology.topics
        home = self._topology.led[part.home] if part.home >= 0 else None
        log = home.log if home is not None else part.partition(topics).log
        if log.log_start_offset > part.since:
            return log  # so much was done since that it is there, or gone again
        found, since = BodiesFound(part), min(part.since, log.log_end_offset)
        while batches := log.read_blocking(since, _READ_BYTES):
            since = found.take(batches)
        if home is not None:
            put_home(home, part, found.bodies, self._now_ms)
        else:
            put_topic(topics, part, found.bodies)
        return log
