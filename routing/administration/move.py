"""Messages from one queue to another, as a client would move them: consumed, published, confirmed, and then settled.

Deliveries and publishes are numbered alike in a session of their own, so a confirm up to a number settles up to it.
What goes wrong on the way leaves messages where they were, at worst in both places.

Of what waits the queue's consumers get nothing meanwhile, whatever their priorities are: with a single active consumer
nothing else would ever be moved. What that one holds it settles first, and of a group that is held the rest waits.

A copy has the exchange and routing key by which the message came: an MQTT client has no other way to know its topic.
One that died at the destination before comes back as it had come there. What came by the default exchange, where the
key is the name of a queue, goes as it did before it first died, or else is published to the destination by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import trio

from routing.errors import BrokerError, PreconditionFailed, StorageUnavailable, TimedOut
from routing.facts import without_delay
from routing.message import Slab
from routing.property_editors import editor_of
from routing.queues.death_history import DEATHS, came_by
from routing.queues.queue import Queue
from routing.session import Outcome

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.consumer import Consumer

_UNDER_WAY_MAX = 1000
_TIMEOUT_S = 20
"""For one request: the client waits for its answer."""
_LOOK_S = 0.5
"""So often it is looked whether others had what still waited, or it has expired."""
_PRIORITY = (1 << 63) - 1
"""No consumer has a higher one."""


class _Mover:
    """The sink of the session: takes what is delivered, and notes what became of the copies."""

    def __init__(self) -> None:
        self.arrived: list[Slab] = []
        self.delivered = 0
        self.confirmed = 0
        self.failure: BrokerError | None = None
        self.changed = trio.Event()

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        assert isinstance(consumer.queue, Queue)
        if consumer.queue.elsewhere:  # by now: it is given back
            self.changed.set()
            return
        part = slab.part(start, stop)
        facts = consumer.queue.store.facts
        if facts:
            # Slabs of what waits need not know what their messages asked for.
            offsets = consumer.session.unsettled[-1].offsets_of(first_id, first_id + stop - start)
            each = list(map(without_delay, facts.each(offsets, int(part.properties.persistent))))
            part = Slab(
                part.exchange, part.routing_key, part.properties, part.bodies, part.size,
                keys=part.keys, raws=part.raws, facts=each,
            )  # fmt: skip
        self.arrived.append(part)
        self.delivered += stop - start
        self.changed.set()

    def confirm(self, up_to: int) -> None:
        self.confirmed = up_to
        self.changed.set()

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        self._fail(StorageUnavailable(f"{last - first + 1} messages were not taken by the destination"))

    def returned(self, slab: Slab, reason: str) -> None:
        self._fail(PreconditionFailed("the destination is gone"))

    def cancelled(self, consumer: Consumer) -> None:
        self._fail(PreconditionFailed("the source is gone"))

    def writable(self) -> bool:
        return True

    def _fail(self, error: BrokerError) -> None:
        self.failure = self.failure or error
        self.changed.set()


def _way(exchange: str, key: str, deaths: Any, destination: str) -> tuple[str, str]:
    """Exchange and routing key of a copy; see the module."""
    way = came_by(deaths, destination)
    if way is None and not exchange:
        way = came_by(deaths)
        return way if way is not None and way[0] else ("", destination)
    return way or (exchange, key)


def _copies(slab: Slab, destination: str) -> Iterator[Slab]:
    """The messages as the destination gets them, in order."""
    editor, count = editor_of(slab.properties.protocol), len(slab.bodies)
    raws = [slab.properties.raw] if slab.raws is None else slab.raws
    histories: list[Any] = [None] * len(raws)
    if editor is not None:  # else they have not died
        histories = [editor.headers(raw, (DEATHS,)).get(DEATHS) for raw in raws]
    if slab.raws is None:
        histories *= count
    ways = [_way(slab.exchange, slab.key_of(at), histories[at], destination) for at in range(count)]
    start = 0
    for exchange, group in groupby(ways, lambda way: way[0]):
        keys = [key for _, key in group]
        part = slab.part(start, start + len(keys))
        yield Slab(
            exchange, keys[0], part.properties, part.bodies, part.size,
            keys=None if keys.count(keys[0]) == len(keys) else keys, raws=part.raws, facts=part.facts,
        )  # fmt: skip
        start += len(keys)


async def move(broker: Broker, vhost: str, source: Queue, destination: str, count: int) -> int:
    """Move up to `count` messages that wait now, and no more once another broker leads the source; how many were moved.
    Raises BrokerError if something went wrong, or none could be moved in time.
    """
    count = min(count, source.message_count)
    if count <= 0:
        return 0
    if source.auto_delete and not source.consumers:
        raise PreconditionFailed(f"queue '{source.name}' in vhost '{vhost}' would be deleted with its last consumer")
    mover = _Mover()
    session = broker.session(mover, protocol="administration", owner=source.owner, vhost=vhost)
    settled = published = 0
    try:
        session.set_prefetch(min(count, _UNDER_WAY_MAX), per_session=True)
        consumer = await session.consume(source.name, tag="move", no_ack=False, arguments={"x-priority": _PRIORITY})
        with trio.move_on_after(_TIMEOUT_S):
            while settled < count and mover.failure is None and not source.deleted:
                mover.changed = trio.Event()
                broker.end_turn()
                arrived, mover.arrived = mover.arrived, []
                for slab in arrived:
                    published += len(slab.bodies)
                    for copy in _copies(slab, destination):
                        session.publish_into(destination, copy)
                    if broker.wait_to_publish is not None:  # else queues that end with another broker could lose some
                        await broker.wait_to_publish()
                if arrived:
                    broker.end_turn()
                if mover.confirmed > settled and mover.failure is None:
                    settled = mover.confirmed
                    if settled >= count:
                        session.cancel(consumer)
                    elif count - settled < _UNDER_WAY_MAX:
                        session.set_prefetch(count - settled, per_session=True)
                    session.settle_up_to(settled, Outcome.ACK)
                    continue
                if mover.failure is None and not mover.arrived:
                    if settled == mover.delivered and not source.message_count:
                        break
                    with trio.move_on_after(_LOOK_S):
                        await mover.changed.wait()
        session.cancel(consumer)
    finally:
        session.close()
        broker.end_turn()
    if mover.failure is not None:
        raise mover.failure
    if not settled and mover.delivered and not source.deleted:
        raise TimedOut(f"{mover.delivered} messages are not safe in {_TIMEOUT_S} s: they may be in both queues")
    if not settled and source.message_count and not source.deleted:
        why = f"its consumers hold messages that have to be settled first, or none could be read in {_TIMEOUT_S} s"
        raise PreconditionFailed(f"no message of queue '{source.name}' in vhost '{vhost}' could be moved: {why}")
    return settled
