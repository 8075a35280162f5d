"""RabbitMQ's firehose: copies of everything that is published and delivered in a virtual host, for who watches.

1. While tracing is on, a copy of each message goes to the exchange `amq.rabbitmq.trace` with the routing key
   `publish.<exchange>` or `deliver.<queue>`; body as it is, all else in headers with RabbitMQ's names. What comes from
   that exchange is not traced again.
2. Copies are noted where it happens and published when the turn's deliveries are done (`flush`). They are transient:
   nobody is told when one is lost.
3. It is off after a start, and costs one branch a slab while it is.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from routing.message import NAME_ENCODING_ERRORS, NeutralProperties, Properties, Slab
from routing.property_editors import NEUTRAL, to_neutral_raw

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.session import Session
    from routing.topology.route import Route
    from routing.topology.virtual_host import VirtualHost

EXCHANGE = "amq.rabbitmq.trace"
PEER = "peer"
"""The protocol of sessions that stand for consumers of other brokers."""
_PROPERTIES = {
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "headers": "headers",
    "priority": "priority",
    "reply_to": "reply_to",
    "message_id": "message_id",
    "timestamp_s": "timestamp",
    "type": "type",
    "user_id": "user_id",
    "app_id": "app_id",
}
"""RabbitMQ's names of what messages have."""


class Trace:
    """See the module; of one virtual host in which tracing is on."""

    def __init__(self, vhost: VirtualHost) -> None:
        self._vhost = vhost
        self._node = f"millrace@{platform.node()}"
        self._noted: list[Slab] = []

    def published(self, session: Session, slab: Slab, route: Route) -> None:
        """A session publishes a slab that goes where the route leads."""
        queues = [queue.name for queue in route.queues] + [topic.name for topic in route.topics]
        self._note(f"publish.{slab.exchange}", session, slab, 0, len(slab.bodies), {"routed_queues": queues})

    def delivered(self, session: Session, queue: str, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """A session gets messages of a queue. Those of other brokers' clients are traced there."""
        if session.protocol == PEER:
            return
        self._note(f"deliver.{queue}", session, slab, start, stop, {"redelivered": int(redelivered)})

    def _note(self, key: str, session: Session, slab: Slab, start: int, stop: int, more: dict[str, Any]) -> None:
        exchange = self._vhost.exchanges[EXCHANGE]
        if slab.exchange == EXCHANGE or not self._vhost.is_used(exchange):
            return
        client = self._vhost.connections.get(session.owner)
        about = {
            "node": self._node,
            "vhost": self._vhost.name,
            "connection": "" if client is None else client.peer,
            "channel": session.number,
            "user": "" if client is None else client.user,
            **more,
        }
        raws: list[bytes] | None = None
        if slab.keys is None and slab.raws is None:
            common = self._raw(slab, start, about)
        else:
            raws = [self._raw(slab, index, about) for index in range(start, stop)]
            common = raws[0]
        properties = Properties(NEUTRAL, common, persistent=False)
        self._noted.append(Slab(EXCHANGE, key, properties, slab.bodies[start:stop], raws=raws))

    @staticmethod
    def _raw(slab: Slab, index: int, about: dict[str, Any]) -> bytes:
        neutral = slab.properties_of(index).neutral
        values = {said: getattr(neutral, name) for name, said in _PROPERTIES.items()}
        found = {said: value for said, value in values.items() if value is not None and value != {}}
        if neutral.correlation_id is not None:
            found["correlation_id"] = neutral.correlation_id.decode("utf-8", NAME_ENCODING_ERRORS)
        if neutral.persistent:
            found["delivery_mode"] = 2
        if neutral.expiration_ms is not None:
            found["expiration"] = str(neutral.expiration_ms)
        further = neutral.headers.get("CC")
        keys = [slab.key_of(index), *(further if isinstance(further, (list, tuple)) else ())]
        headers = {"exchange_name": slab.exchange, "routing_keys": keys, "properties": found, **about}
        return to_neutral_raw(NeutralProperties(headers=headers))

    def flush(self) -> bool:
        """Publish what was noted; whether there was anything."""
        noted, self._noted = self._noted, []
        for slab in noted:
            for route, part in self._vhost.router.routed_inside(slab):
                if route.error() is None:
                    self._vhost.send(route, part)
        return bool(noted)


def trace(broker: Broker, vhost: str, on: bool) -> None:
    """Begin or end to send copies of all messages of a virtual host to its firehose. Raises NotAllowed."""
    found = broker.topology.vhost(vhost)
    if not on:
        found.trace = None
        broker.traces.pop(vhost, None)
    elif found.trace is None:
        found.trace = broker.traces[vhost] = Trace(found)


def flush(traces: Iterable[Trace]) -> bool:
    """As `Trace.flush`, of all of them."""
    return sum(trace.flush() for trace in traces) > 0
