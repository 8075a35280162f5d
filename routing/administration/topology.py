"""Operations on virtual hosts, exchanges and bindings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from routing.access.grants import EVERYTHING
from routing.administration.figures import figures_of
from routing.administration.operations import LOOKS, operation, table
from routing.errors import InvalidArgument, NotFound
from routing.publishing.published_once import publish_once
from routing.tracing import trace

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.topology.virtual_host import VirtualHost

Arguments = dict[str, Any]


def vhosts_of(broker: Broker, vhost: str | None) -> list[VirtualHost]:
    """One virtual host, or all. Raises NotAllowed."""
    return list(broker.topology.vhosts.values()) if vhost is None else [broker.topology.vhost(vhost)]


# --- virtual hosts -----------------------------------------------------------------------


@operation("vhosts.list", tags=LOOKS)
async def list_vhosts(broker: Broker, user: str, start: int = 0) -> dict[str, Any]:
    """All virtual hosts, with what is in them. Messages of queues do not count whose leader does not say."""
    figures = await figures_of(broker, broker.topology.all_queues())

    def rows() -> Iterator[tuple[Any, ...]]:
        for vhost in broker.topology.vhosts.values():
            known = [figures[queue] for queue in vhost.queues.values() if queue in figures]
            messages = sum(one.ready + one.unacknowledged for one in known)
            queues = len(vhost.queues) + len(vhost.streams)
            yield (
                vhost.name, vhost.description, queues, messages, len(vhost.connections), dict(vhost.limits),
                vhost.trace is not None,
            )  # fmt: skip

    return table(("name", "description", "queues", "messages", "connections", "limits", "tracing"), rows(), start)


@operation("vhosts.add")
async def add_vhost(broker: Broker, user: str, name: str, description: str | None = None) -> None:
    """Make a virtual host, or describe the one there is; who made it may do everything in it."""
    new = name not in broker.topology.vhosts
    await broker.set_vhost(name, description=description)
    if new:
        await broker.rights.set_permission(name, user, EVERYTHING)


@operation("vhosts.limits")
async def limit_vhost(broker: Broker, user: str, name: str, limits: dict[str, int]) -> None:
    """Limits of a virtual host: "max-connections" and "max-queues", -1 for none."""
    found = broker.topology.vhost(name)
    await broker.set_vhost(name, limits={**found.limits, **limits})


@operation("vhosts.trace")
async def trace_vhost(broker: Broker, user: str, name: str, on: bool) -> None:
    """Switch the firehose of a virtual host on or off; it is off after a start."""
    trace(broker, name, on)


@operation("vhosts.delete")
async def delete_vhost(broker: Broker, user: str, name: str) -> None:
    """Delete a virtual host with everything in it; its connections are closed."""
    await broker.delete_vhost(name)


# --- exchanges ---------------------------------------------------------------------------


_WRITER_BYTES_MAX = 255


@operation("exchanges.publish_once", tags=None)
async def publish_step(
    broker: Broker, user: str, name: str, writer: str, number: int, batches: list[bytes], vhost: str = "/"
) -> int:
    """Publish the records of batches to an exchange as a step of a writer, unless a step of this number or a later one
    was published before: how many messages, -1 if it was.
    """
    if number < 0 or not 0 < len(writer.encode("utf-8", "replace")) <= _WRITER_BYTES_MAX:
        raise InvalidArgument(f"a number from 0, and a writer's name of 1 to {_WRITER_BYTES_MAX} bytes are needed")
    return await publish_once(broker, broker.rights.grants(user, vhost), name, writer, number, batches)


@operation("exchanges.list", tags=LOOKS)
async def list_exchanges(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """All exchanges, or those of one virtual host."""
    columns = ("vhost", "name", "type", "durable", "auto_delete", "internal", "bindings", "arguments")
    rows = (
        (
            found.name, one.name, one.kind, one.durable and not one.transient, one.auto_delete, one.internal,
            len(one.bindings), one.arguments,
        )
        for found in vhosts_of(broker, vhost)
        for one in found.exchanges.values()
    )  # fmt: skip
    return table(columns, rows, start)


@operation("exchanges.add")
async def add_exchange(
    broker: Broker,
    user: str,
    name: str,
    kind: str = "direct",
    vhost: str = "/",
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
    arguments: Arguments | None = None,
) -> None:
    """Declare an exchange."""
    await broker.declare_exchange(
        name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments, vhost=vhost
    )


@operation("exchanges.delete")
async def delete_exchange(broker: Broker, user: str, name: str, vhost: str = "/", if_unused: bool = False) -> None:
    """Delete an exchange with its bindings."""
    broker.check_exchange(name, vhost=vhost)
    await broker.delete_exchange(name, if_unused=if_unused, vhost=vhost)


# --- bindings ----------------------------------------------------------------------------


@operation("bindings.list", tags=LOOKS)
async def list_bindings(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """All bindings, or those of one virtual host, without the one every queue has to the default exchange."""
    columns = ("vhost", "source", "destination", "destination_kind", "routing_key", "arguments")
    rows = (
        (found.name, one.exchange, one.destination[1], one.destination[0], one.pattern, one.arguments)
        for found in vhosts_of(broker, vhost)
        for exchange in found.exchanges.values()
        for one in exchange.bindings
    )
    return table(columns, rows, start)


@operation("bindings.add")
async def add_binding(
    broker: Broker,
    user: str,
    source: str,
    destination: str,
    routing_key: str = "",
    kind: Literal["queue", "exchange", "topic"] = "queue",
    vhost: str = "/",
    arguments: Arguments | None = None,
) -> None:
    """Bind a queue, an exchange or a topic to an exchange."""
    owner = _owner(broker, vhost, kind, destination)
    await broker.bind(kind, destination, source, routing_key, arguments, owner=owner, vhost=vhost)


@operation("bindings.delete")
async def delete_binding(
    broker: Broker,
    user: str,
    source: str,
    destination: str,
    routing_key: str = "",
    kind: Literal["queue", "exchange", "topic"] = "queue",
    vhost: str = "/",
    arguments: Arguments | None = None,
) -> None:
    """Remove a binding, which must be there."""
    exchange = broker.topology.vhost(vhost).exchange(source)
    wanted = ((kind, destination), routing_key)
    if not any((one.destination, one.pattern) == wanted for one in exchange.bindings):
        raise NotFound(f"no binding '{routing_key}' from exchange '{source}' to {kind} '{destination}'")
    owner = _owner(broker, vhost, kind, destination)
    await broker.unbind(kind, destination, source, routing_key, arguments, owner=owner, vhost=vhost)


def _owner(broker: Broker, vhost: str, kind: str, name: str) -> object:
    """Who an exclusive queue belongs to: an operator may do what its owner may."""
    queue = broker.topology.vhost(vhost).queues.get(name) if kind == "queue" else None
    return None if queue is None else queue.owner
