"""Operations on the sessions of clients, connected or not (`client_sessions.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing.administration.connections import close_connections
from routing.administration.figures import Figures, figures_of
from routing.administration.forwarded import ask_others
from routing.administration.operations import LOOKS, ROWS_MAX, operation, page, plain, table
from routing.administration.topology import vhosts_of
from routing.client_sessions import (
    ClientSession,
    protocols,
    sessions_in,
    sessions_of_client,
    subscriptions_of,
)
from routing.errors import NotFound

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.clients import Client
    from routing.queues.queue import Queue
    from routing.topology.virtual_host import VirtualHost

_COLUMNS = (
    "client_id", "user", "vhost", "peer", "connected", "protocol", "version", "expiry_s", "waiting", "unacknowledged",
    "subscriptions", "connected_at_ms",
)  # fmt: skip
_ENDED = "the session was deleted by an operator"

_Place = tuple[str, str, str]
"""Virtual host, protocol and client."""
_Who = tuple[str, str, str, int]
"""User, peer, version of the protocol, and when it connected, in ms since 1970."""
_Found = tuple["VirtualHost", ClientSession]


@operation("sessions.list", tags=LOOKS)
async def list_sessions(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """Sessions of clients: all that outlive connections, and of others those of who is connected to the broker that is
    asked. `expiry_s` is for how long one is kept once its client is gone: 0 if not at all, None for ever. Figures are
    None where another broker has them and does not say, and so is who is connected there.
    """
    everything = ((found, one) for found in vhosts_of(broker, vhost) for one in sessions_in(found))
    return table(_COLUMNS, await _rows(broker, list(page(everything, start))), 0)


@operation("sessions.describe", tags=LOOKS)
async def describe_session(broker: Broker, user: str, client_id: str, vhost: str = "/") -> dict[str, Any]:
    """What `sessions.list` says of the session of a client, with all that it is subscribed to as `subscriptions`."""
    found = broker.topology.vhost(vhost)
    session = _session(found, client_id)
    (row,) = await _rows(broker, [(found, session)])
    subscriptions = plain([dict(one) for one in subscriptions_of(found, session)])
    return {**dict(zip(_COLUMNS, map(plain, row), strict=True)), "subscriptions": subscriptions}


@operation("sessions.delete")
async def delete_session(broker: Broker, user: str, client_id: str, vhost: str = "/") -> int:
    """End the session of a client, with its connection, wherever that is; how many messages waited for it."""
    found = broker.topology.vhost(vhost)
    waited, there = 0, False
    for session in sessions_of_client(found, client_id):
        queue = session.queue
        if queue is not None and session.lasts:
            there = True
            waited += await broker.delete_queue(queue.name, owner=queue.owner, vhost=vhost)
            broker.wills.returned(vhost, client_id, afresh=True)  # one that still waits does so for the session
        elif session.client is not None:
            there = True
            session.client.close(_ENDED)
    if not there:  # another broker may have a client whose session ends with the connection
        for protocol in protocols():
            try:
                await close_connections(
                    broker, user, client_id=client_id, vhost=vhost, protocol=protocol, reason=_ENDED
                )
            except NotFound:
                raise _unknown(client_id, vhost) from None
    return waited


def _session(vhost: VirtualHost, client_id: str) -> ClientSession:
    """Raises NotFound."""
    for session in sessions_of_client(vhost, client_id):
        return session
    raise _unknown(client_id, vhost.name, "that lasts or is connected here")


def _unknown(client_id: str, vhost: str, more: str = "") -> NotFound:
    return NotFound(f"no session of client '{client_id}' in vhost '{vhost}' {more}".rstrip())


async def _rows(broker: Broker, sessions: list[_Found]) -> list[tuple[Any, ...]]:
    figures = await figures_of(broker, (one.queue for _, one in sessions if one.queue is not None))
    elsewhere = await _elsewhere(broker, sessions)
    return [_row(vhost, one, figures, elsewhere) for vhost, one in sessions]


def _row(
    vhost: VirtualHost, session: ClientSession, figures: dict[Queue, Figures], elsewhere: dict[_Place, _Who]
) -> tuple[Any, ...]:
    queue, protocol, client_id = session.queue, session.protocol, session.client_id
    waiting: int | None = 0
    unacknowledged: int | None = 0
    consumed: bool | None = False
    if queue is not None:
        told = figures.get(queue)
        waiting, unacknowledged, consumed = (
            (None, None, None) if told is None else (told.ready, told.unacknowledged, told.consumers > 0)
        )
    expiry_s: int | None = 0
    if queue is not None and session.lasts:
        expires_ms = queue.settings.expires_ms
        expiry_s = expires_ms // 1000 if expires_ms else None
    who = elsewhere.get((vhost.name, protocol, client_id)) if session.client is None else _who(session.client)
    # Who consumes it without being known is connected to a broker that has not said so.
    user, peer, version, since_ms = who or (("", "", "", None) if consumed is False else (None,) * 4)
    return (
        client_id, user, vhost.name, peer, consumed if who is None else True, protocol, version, expiry_s, waiting,
        unacknowledged, len(subscriptions_of(vhost, session)), since_ms,
    )  # fmt: skip


def _who(client: Client) -> _Who:
    return client.user, client.peer, client.version, client.connected_at_ms


async def _elsewhere(broker: Broker, sessions: list[_Found]) -> dict[_Place, _Who]:
    """Who of the clients that are not connected here is so to another broker."""
    names = [[vhost.name, one.protocol, one.client_id] for vhost, one in sessions if one.client is None]
    if not names:
        return {}
    told = await ask_others(broker, "sessions.connected", {"clients": names})
    return {(vhost, protocol, name): who for answer in told.answers for (vhost, protocol, name), who in answer}


@operation("sessions.connected", tags=LOOKS)
async def list_connected(broker: Broker, user: str, clients: list[tuple[str, str, str]]) -> list[tuple[_Place, _Who]]:
    """Which of some clients, named by virtual host, protocol and what they call themselves, are connected to the broker
    that is asked: with user, peer, version of the protocol, and since when in ms since 1970.
    """
    asked = set(clients[:ROWS_MAX])
    found: list[tuple[_Place, _Who]] = []
    for client in broker.clients:
        place = client.vhost, client.protocol, client.name
        if place in asked:
            found.append((place, _who(client)))
    return found
