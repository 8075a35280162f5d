"""What leaders give out, seen where it leaves a queue: in sessions, those of other brokers' consumers among them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from routing.cluster.clients.served import PeerConsumer
from routing.cluster.clients.served_broker import ServedBroker
from routing.queues.homes.replicated_partition import ReplicatedPartition
from routing.session import Session
from tests.simulation.brokers.truth import WatchedLog


def _tell(
    who: Any, queue: Any, bodies: list[bytes], offsets: list[int], redelivered: bool, *, no_ack: bool = False
) -> None:
    if getattr(queue, "elsewhere", False) or not isinstance(getattr(queue, "partition", None), ReplicatedPartition):
        return
    log: Any = queue.partition.log
    assert isinstance(log, WatchedLog)
    process = log.process
    if not process.ended:
        shown = bytes(bodies[0]).rstrip()
        process.note(f"gives {len(bodies)} of {queue.name} to {who}, from {shown!r}{' again' * redelivered}")
        process.world.ledger.given(log, queue, bodies, offsets, redelivered)
        for body in bodies if no_ack else ():
            process.world.ledger.settled(queue.name, bytes(body))  # though it may never get there


def _let_go(session: Session) -> None:
    """The link to a consumer is lost that acknowledges nothing: what it may have been given does not come again."""
    if not any(isinstance(consumer, PeerConsumer) and consumer.at_most_once for consumer in session.consumers):
        return
    for entry in session.unsettled:
        log: Any = getattr(entry.queue.partition, "log", None)
        if not isinstance(log, WatchedLog) or log.process.ended:
            continue
        offsets = {*entry.offsets_of(entry.first, entry.end)}
        for body, places in log.truth.offsets_of.items():
            if not offsets.isdisjoint(places):
                log.process.world.ledger.settled(entry.queue.name, body)


def _name(session: Session) -> str:
    sink: Any = session.sink
    return getattr(sink, "name", None) or f"broker {sink._link.broker}, number {sink.number & 0xFFFF}"


@contextmanager
def seen(session: type[Session]) -> Iterator[None]:
    """All sessions tell."""
    hand_over, scattered, get = session.hand_over, session.hand_over_scattered, session.get
    lost = ServedBroker.lost

    def hand_over_seen(
        self: Session, consumer: Any, slab: Any, start: int, stop: int, offset: int, redelivered: bool
    ) -> None:
        offsets = list(range(offset, offset + stop - start))
        _tell(_name(self), consumer.queue, slab.bodies[start:stop], offsets, redelivered, no_ack=consumer.no_ack)
        hand_over(self, consumer, slab, start, stop, offset, redelivered)

    def scattered_seen(
        self: Session, consumer: Any, queue: Any, slab: Any, offsets: list[int], redelivered: bool
    ) -> None:
        _tell(_name(self), queue, slab.bodies, list(offsets), redelivered, no_ack=consumer.no_ack)
        scattered(self, consumer, queue, slab, offsets, redelivered)

    async def get_seen(self: Session, queue_name: str, *, no_ack: bool) -> Any:
        got = await get(self, queue_name, no_ack=no_ack)
        for entry in reversed(self.unsettled if got is not None else ()):
            assert got is not None
            if entry.first <= got.delivery_id < entry.end:
                offset = entry.offset + got.delivery_id - entry.first
                _tell(_name(self), entry.queue, [got.slab.bodies[got.index]], [offset], got.redelivered)
        return got

    def lost_seen(self: ServedBroker) -> None:
        for served in self._sessions.values():
            _let_go(served)
        lost(self)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(ServedBroker, "lost", lost_seen))
        for name, value in (
            ("hand_over", hand_over_seen),
            ("hand_over_scattered", scattered_seen),
            ("get", get_seen),
        ):
            stack.enter_context(mock.patch.object(session, name, value))
        yield
