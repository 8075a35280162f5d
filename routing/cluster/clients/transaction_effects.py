"""What a transaction comes to, home by home: what it puts there, and what it settles there.

A *place* is a home's number, or `TOPICS`: all topics together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from routing.cluster.clients.remote_home import RemoteHome
from routing.cluster.clients.streams import Stream
from routing.cluster.clients.transaction_links import Settlement, each_in, ranges_of
from routing.publishing.deduplication import put
from routing.queues.homes.home import for_others
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.passed import Passed
from routing.queues.queue import Queue
from routing.queues.runs_of import runs_of
from routing.redo_records import Published, Settled
from routing.topology.route import Route
from routing.unsettled import Unsettled

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.queues.homes.home import Home
    from routing.session import Session
    from routing.topics.topic_partition import TopicPartition
    from routing.topology.topology import Topology
    from routing.transactions import Plan, Transaction

TOPICS = -1


class Target(NamedTuple):
    """How far a log has to get; not `stands()`: what was put there may be gone."""

    log: PartitionLog
    end: int
    stands: Callable[[], bool]

    @classmethod
    def of_home(cls, topology: Topology, home: Home) -> Target:
        """All that a home has been given."""
        if not isinstance(home, QueuePartition):
            return cls.of_log(home.log, home.next_offset)
        return cls(home.log, home.next_offset, lambda: topology.stripes[home.index] is home)

    @classmethod
    def of_log(cls, log: PartitionLog, end: int, partition: TopicPartition | None = None) -> Target:
        """What was put into a topic's partition here, or sent."""
        log.request_sync()
        if isinstance(log, Stream):
            return cls(log, end, lambda: log.given_up < end)
        epoch = log.leader_epoch
        return cls(log, end, lambda: log.leader_epoch == epoch and (partition is None or partition.forward is None))


class Effects:
    """See the module."""

    def __init__(
        self, publishes: Sequence[Published] = (), homes: Iterable[Home] = (), topics: Iterable[TopicPartition] = ()
    ) -> None:
        self.publishes = publishes
        self.settlements: dict[int, list[Settlement]] = {}
        self.places = [home.index for home in homes]
        """Where it puts something."""
        self._homes = list(homes)
        if any(True for _ in topics):
            self.places.append(TOPICS)

    @classmethod
    def found(cls, topology: Topology, publishes: Sequence[Published], settled: Sequence[Settled]) -> Effects:
        """What a record says, as far as its queues are there."""
        queues = {queue.id: queue for home in topology.stripes for queue in home.queues.values()}
        ids = {queue_id for one in publishes for queue_id in one.queue_ids}
        effects = cls(publishes)
        effects.places = sorted({queues[queue_id].partition.index for queue_id in ids if queue_id in queues})
        if any(one.topics for one in publishes):
            effects.places.append(TOPICS)
        for queue_id, offsets, rejected in settled:
            if queue_id in queues:
                home = queues[queue_id].partition.index
                effects.settle(home, Settlement(queue_id, 0, (), ranges_of(offsets), rejected))
        return effects

    @property
    def settled(self) -> list[Settled]:
        """What it settles, as a record says it."""
        return [
            Settled(one.queue_id, each_in(one.offsets), one.rejected)
            for settlements in self.settlements.values()
            for one in settlements
        ]

    def settle(self, home: int, settlement: Settlement) -> None:
        """Settle something there, too."""
        self.settlements.setdefault(home, []).append(settlement)

    def is_current(self, topology: Topology) -> bool:
        """The homes that it was routed to have the same leaders still."""
        return all(topology.stripes[home.index] is home for home in self._homes)

    def deliver(self, plan: Plan, *, again: bool) -> Mapping[int, Sequence[Target]]:
        """Put it where it was routed to, once it is prepared; by place, what to wait for. `again`: some may
        be there.
        """
        targets: list[tuple[PartitionLog, int]] = []
        with _told(self._homes, again=again), for_others(self._homes):
            for route, slab, mandatory in plan.routed:
                targets += plan.session.deliver_to(route, slab, mandatory, decided=True)
        if again:
            _mark(queue for route in plan.routes for queue in route.queues)
        plan.seal()
        topology = plan.session.broker.topology
        found = {home.index: [Target.of_home(topology, home)] for home in self._homes}
        homes = {home.log for home in self._homes}
        partitions = {partition.log: partition for partition in plan.topics}
        ends = {log: end for log, end in targets if log not in homes}
        if ends:
            found[TOPICS] = [Target.of_log(log, end, partitions.get(log)) for log, end in ends.items()]
        return found

    def put_again(self, topology: Topology, place: int, now_ms: Callable[[], int]) -> list[Target]:
        """Put what the record says of a place there, wherever it is led now; what to wait for. Raises LogUnavailable,
        StorageUnavailable.
        """
        home = topology.stripes[place] if place != TOPICS else None
        if isinstance(home, QueuePartition):
            home.look_again()
        queues = home.queues if home is not None else {}
        ends: dict[PartitionLog, int] = {}
        touched: dict[TopicPartition, None] = {}
        for said in self.publishes:
            there = [queues[queue_id] for queue_id in said.queue_ids if queue_id in queues]
            topics = said.there(topology.topics) if place == TOPICS else []
            if not (there or topics):
                continue
            route = Route(there, topics, delayed=said.delayed)
            failed = route.error()
            if failed is not None:
                raise failed
            route.remembering = [queue for queue in there if queue.seen is not None]
            for one, destinations in route.homes:
                one.prepare(destinations)
            with _told([home] if home is not None else [], again=True), for_others(route.durable_homes):
                ends |= put(route, said.slab, now_ms)
            _mark(there)
            touched |= {partition: None for topic in topics for partition in topic.partitions}
        for partition in touched:
            partition.seal()
        if isinstance(home, QueuePartition):
            home.seal()
        if home is not None:
            return [Target.of_home(topology, home)]
        partitions = {partition.log: partition for partition in touched}
        return [Target.of_log(log, end, partitions.get(log)) for log, end in ends.items()]


@contextmanager
def _told(homes: Iterable[Home], *, again: bool) -> Iterator[None]:
    """What is put meanwhile into homes that others lead may be there `again`."""
    elsewhere = [home for home in homes if isinstance(home, RemoteHome)]
    for home in elsewhere:
        home.again = again
    try:
        yield
    finally:
        for home in elsewhere:
            home.again = False


def _mark(queues: Iterable[Queue]) -> None:
    """All that is in these queues may have been there before."""
    for queue in queues:
        if not queue.elsewhere:
            queue.redelivered_before = max(queue.redelivered_before, queue.partition.next_offset)


def places_of(session: Session, ids: Sequence[int]) -> list[int] | None:
    """The offsets of unsettled deliveries, by ranges of ids; None if some are not there any more."""
    offsets: list[int] = []
    sought = 0
    for first, last in zip(ids[::2], ids[1::2], strict=True):
        sought += last + 1 - first
        for entry in session.unsettled:
            start, stop = max(entry.first, first), min(entry.end, last + 1)
            if start < stop:
                offsets += entry.offsets_of(start, stop)
    return offsets if len(offsets) == sought else None


def take_from_holders(queue: Queue, offsets: Collection[int], sessions: Iterable[Session]) -> list[int]:
    """Let what sessions say of messages that they hold mean nothing any more; which of them they hold."""
    taken: list[int] = []
    sought = set(offsets)
    for session in sessions if queue.outstanding else ():
        kept: list[Unsettled] = []
        for entry in session.unsettled:
            if entry.queue is queue:
                kept += _without(entry, sought, taken)
            else:
                kept.append(entry)
        session.unsettled = kept
    queue.outstanding += len(taken)  # they say so once more when they have done with them
    return sorted(taken)


def _without(entry: Unsettled, sought: set[int], taken: list[int]) -> Iterator[Unsettled]:
    """What becomes of a run of deliveries, some of which may be taken."""
    assert isinstance(entry.queue, Queue)
    there = entry.offsets_of(entry.first, entry.end)
    found = [entry.first + at for at, offset in enumerate(there) if offset in sought]
    taken += [there[delivery_id - entry.first] for delivery_id in found]
    passed, rest = Passed(entry.queue), entry
    for first, count in runs_of(found):
        offsets = rest.offsets_of(first, first + count)
        scattered = None if rest.offsets is None else list(offsets)
        behind = rest.cut(first, first + count)
        if rest.first < rest.end:
            yield rest
        yield Unsettled(first, first + count, offsets[0], passed, entry.consumer, scattered)
        if behind is None:
            return
        rest = behind
    yield rest


def held_by_transactions(queue: Queue, offsets: Collection[int], transactions: Iterable[Transaction]) -> bool:
    """Whether one that may give it back yet has taken one of these messages."""
    if not queue.outstanding:
        return False
    sought = set(offsets)
    entries = [entry for transaction in transactions for entry, _ in transaction.taken]
    return any(
        not sought.isdisjoint(entry.offsets_of(entry.first, entry.end)) for entry in entries if entry.queue is queue
    )
