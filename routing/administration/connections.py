"""Operations on client connections and consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from routing.administration.forwarded import ask_others
from routing.administration.operations import LOOKS, operation, table
from routing.administration.topology import vhosts_of
from routing.errors import InvalidArgument, NotFound, StorageUnavailable

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue
    from routing.topics.stream import Stream


@operation("connections.list", tags=LOOKS)
async def list_connections(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """Who is connected to the broker that is asked, with the number of channels and of unacknowledged messages. `name`
    is what a client calls itself: MQTT's client identifier; `library` what AMQP's and Kafka's say they are made with.
    """
    channels: Counter[object] = Counter()
    unacknowledged: Counter[object] = Counter()
    for session in broker.sessions:
        channels[session.owner] += 1
        unacknowledged[session.owner] += session.outstanding
    columns = ("peer", "user", "vhost", "protocol", "name", "channels", "unacknowledged", "connected_at_ms", "library")
    rows = (
        (
            one.peer, one.user, one.vhost, one.protocol, one.name, channels[owner], unacknowledged[owner],
            one.connected_at_ms, one.library,
        )
        for found in vhosts_of(broker, vhost)
        for owner, one in found.connections.items()
    )  # fmt: skip
    return table(columns, rows, start)


@operation("connections.close")
async def close_connections(
    broker: Broker,
    user: str,
    peer: str | None = None,
    name: str | None = None,
    client_id: str | None = None,
    vhost: str | None = None,
    protocol: str | None = None,
    reason: str = "closed by an operator",
) -> int:
    """Close the connection of a peer ("host:port"), or all of the user `name`, or those of a client by what it calls
    itself, at all brokers of a cluster; how many there were.
    """
    if peer is None and name is None and client_id is None:
        raise InvalidArgument("which connections? Say peer, name or client_id")
    wanted = {"peer": peer, "user": name, "name": client_id, "vhost": vhost, "protocol": protocol}
    asked = [(attribute, value) for attribute, value in wanted.items() if value is not None]
    found = [one for one in broker.clients if all(getattr(one, attribute) == value for attribute, value in asked)]
    for one in found:
        one.close(reason)
    if not user:  # another broker asks, which asks all
        return len(found)
    told = await ask_others(
        broker,
        "connections.close",
        {"peer": peer, "name": name, "client_id": client_id, "vhost": vhost, "protocol": protocol, "reason": reason},
    )
    closed: int = len(found) + sum(told.answers)
    if not closed:
        if told.silent:
            raise StorageUnavailable(f"{told.silent} of the other brokers did not answer, the rest had no such client")
        raise NotFound(f"no connection of {peer or name or client_id}")
    return closed


@operation("consumers.list", tags=LOOKS)
async def list_consumers(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """All consumers of queues and streams."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for found in vhosts_of(broker, vhost):
            queues: list[Queue | Stream] = [*found.queues.values(), *found.streams.values()]
            for queue in queues:
                for consumer in queue.consumers:
                    client = found.connections.get(consumer.session.owner)
                    yield (
                        found.name, queue.name, consumer.tag, client.peer if client else "", not consumer.no_ack,
                        consumer.prefetch, consumer.outstanding, consumer.exclusive, consumer.priority,
                    )  # fmt: skip

    columns = (
        "vhost", "queue", "tag", "peer", "acknowledges", "prefetch", "unacknowledged", "exclusive", "priority",
    )  # fmt: skip
    return table(columns, rows(), start)
