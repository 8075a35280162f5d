"""Messages that are published later: to an exchange as it is then, unlike those that wait in the queues they went to.

1. They are published to the exchange `NAME` of a virtual host, with a delay each. Their key is the one that they are
   published to `amq.topic` with when they are due; whoever is bound there then gets them.
2. They wait in the durable queue `NAME`, an ordinary one: `millrace delayed` lists and cancels, and in a cluster one
   broker at a time works on it. Exchange and queue are made when they are first wanted.
3. One that is due is settled when what it was published as is safe. A crash in between publishes it twice; it is never
   lost. A time to live does not go with it.
4. A protocol may have more to do than to publish: see `register_publisher`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import trio

from routing.errors import BrokerError
from routing.message import Slab
from routing.session import Consumer, Outcome, Session
from routing.topology.kinds import DELAYED
from routing.topology.parked import LATER, PUBLISHED_LATER_TO
from routing.topology.route import undelayed

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.topology.virtual_host import VirtualHost

logger = logging.getLogger(__name__)

NAME, _TARGET = LATER, PUBLISHED_LATER_TO
_LOOK_S = 1.0
_RETRY_S = 1.0
_PREFETCH = 1000

Publisher = Callable[[Session, Slab], None]
"""Publishes a slab, with confirms. Raises BrokerError."""

_publishers: dict[str, Publisher] = {}


def register_publisher(protocol: str, publisher: Publisher) -> None:
    """How messages whose properties are those of a protocol are published when they are due."""
    _publishers[protocol] = publisher


class Later:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._workers: dict[str, _Worker] = {}
        self._making = trio.Lock()
        broker.spawn(self._run)

    def is_ready(self, vhost: str) -> bool:
        """There is an exchange to publish to, and it leads to the queue: somebody may have deleted either."""
        worker, there = self._workers.get(vhost), self._broker.topology.vhosts.get(vhost)
        if worker is None or worker.gone or there is None:
            return False
        return any(one.exchange == NAME for one in there.bindings_to.get(("queue", NAME), ()))

    def under_way(self, home: QueuePartition) -> int:
        """How many messages that a home gave out are not known to be published."""
        queues = [vhost.queues[NAME] for vhost in self._broker.topology.vhosts.values() if NAME in vhost.queues]
        return sum(queue.outstanding for queue in queues if queue.partition is home)

    async def make_ready(self, vhost: str) -> None:
        """Have the exchange and its queue. Raises BrokerError."""
        broker = self._broker
        async with self._making:
            kind = {"x-delayed-type": "fanout"}
            await broker.declare_exchange(NAME, DELAYED, durable=True, arguments=kind, vhost=vhost)
            await broker.declare_queue(NAME, durable=True, arguments={"x-single-active-consumer": True}, vhost=vhost)
            await broker.bind("queue", NAME, NAME, "", {}, vhost=vhost)
            await self._work(broker.topology.vhost(vhost))

    async def _run(self) -> None:
        """Work on what was published before this process, or through other brokers."""
        while True:
            for vhost in list(self._broker.topology.vhosts.values()):
                if NAME in vhost.queues and NAME in vhost.exchanges:
                    try:
                        await self._work(vhost)
                    except BrokerError as error:
                        logger.warning("messages that are to be published later wait: %s", error)
            await trio.sleep(_LOOK_S)

    async def _work(self, vhost: VirtualHost) -> None:
        worker = self._workers.get(vhost.name)
        if worker is None or worker.gone:
            worker = _Worker(self._broker, vhost.name)
            await worker.begin()
            self._workers[vhost.name] = worker


class _Worker:
    """Publishes what has become due in a virtual host: the consumer of its queue, and the sink of its session."""

    def __init__(self, broker: Broker, vhost: str) -> None:
        self._broker = broker
        self.gone = False
        self._session: Session = broker.session(self, protocol="millrace", owner=self, vhost=vhost)
        self._due: list[tuple[int, Slab]] = []
        self._unsafe: deque[tuple[int, int]] = deque()
        """First and last delivery of messages that were published, in the order of their sequence numbers."""
        self._confirmed = 0

    async def begin(self) -> None:
        """Raises BrokerError."""
        self._session.set_prefetch(_PREFETCH, per_session=False)
        try:
            await self._session.consume(NAME, tag="later", no_ack=False)
        except BaseException:
            self.cancelled(None)
            raise

    def _publish(self) -> None:
        due, self._due = self._due, []
        for first_id, slab in due:
            if self._session.closed or self.gone:
                return
            last_id = first_id + len(slab.bodies) - 1
            found = Slab(_TARGET, slab.routing_key, slab.properties, slab.bodies, slab.size,
                         keys=slab.keys, raws=slab.raws, facts=slab.facts)  # fmt: skip
            publisher = _publishers.get(slab.properties.protocol, _publish)
            try:
                publisher(self._session, undelayed(found))
            except BrokerError as error:
                logger.warning("messages that are due wait: %s", error)
                self._later(partial(self._settle, first_id, last_id, Outcome.REQUEUE), _RETRY_S)
                continue
            self._unsafe.append((first_id, last_id))

    def _later(self, call: Callable[[], None], wait_s: float) -> None:
        self._broker.timers.at(trio.current_time() + wait_s, call)

    def _settle(self, first_id: int, last_id: int, outcome: Outcome) -> None:
        if not self._session.closed and not self.gone:
            self._session.settle(first_id, last_id, outcome)

    # --- the sink ----------------------------------------------------------------------

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """See `DeliverySink`: queues are being pumped, so publishing is for a moment later."""
        if not self._due:
            self._later(self._publish, 0)
        self._due.append((first_id, slab.part(start, stop)))

    def confirm(self, up_to: int) -> None:
        """See `DeliverySink`."""
        for first_id, last_id in self._taken(up_to):
            self._settle(first_id, last_id, Outcome.ACK)

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """See `DeliverySink`."""
        for first_id, last_id in self._taken(last):
            self._later(partial(self._settle, first_id, last_id, Outcome.REQUEUE), _RETRY_S)

    def _taken(self, up_to: int) -> Iterator[tuple[int, int]]:
        """The deliveries that were published with the sequence numbers up to this one."""
        count, self._confirmed = up_to - self._confirmed, up_to
        while count:
            first_id, last_id = self._unsafe.popleft()
            here = min(count, last_id - first_id + 1)
            if first_id + here <= last_id:
                self._unsafe.appendleft((first_id + here, last_id))
            yield first_id, first_id + here - 1
            count -= here

    def cancelled(self, consumer: Consumer | None) -> None:
        """See `DeliverySink`."""
        self.gone = True
        self._later(self._session.close, 0)

    def returned(self, slab: Slab, reason: str) -> None:
        """See `DeliverySink`."""

    def writable(self) -> bool:
        """See `DeliverySink`."""
        return True


def _publish(session: Session, slab: Slab) -> None:
    session.publish(slab, confirm=True)
