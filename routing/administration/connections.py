"""Operations on client connections and consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from routing.administration.operations import LOOKS, operation, table
from routing.administration.topology import vhosts_of
from routing.errors import NotFound

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue
    from routing.topics.stream import Stream


@operation("connections.list", tags=LOOKS)
async def list_connections(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """Who is connected, with the number of channels and of unacknowledged messages."""
    channels: Counter[object] = Counter()
    unacknowledged: Counter[object] = Counter()
    for session in broker.sessions:
        channels[session.owner] += 1
        unacknowledged[session.owner] += session.outstanding
    columns = ("peer", "user", "vhost", "protocol", "name", "channels", "unacknowledged", "connected_at_ms")
    rows = (
        (
            one.peer, one.user, one.vhost, one.protocol, one.name, channels[owner], unacknowledged[owner],
            one.connected_at_ms,
        )
        for found in vhosts_of(broker, vhost)
        for owner, one in found.connections.items()
    )  # fmt: skip
    return table(columns, rows, start)


@operation("connections.close")
async def close_connections(
    broker: Broker, user: str, peer: str | None = None, name: str | None = None, reason: str = "closed by an operator"
) -> int:
    """Close the connection of a peer ("host:port"), or all of the user `name`; how many there were."""
    found = [
        one
        for one in broker.clients
        if (peer is not None or name is not None) and peer in (None, one.peer) and name in (None, one.user)
    ]
    if not found:
        raise NotFound(f"no connection of {peer or name}")
    for one in found:
        one.close(reason)
    return len(found)


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
