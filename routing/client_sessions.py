"""Sessions of clients as an operator sees them: what belongs to the name of a client, whether it is connected or not.

A protocol whose clients have them registers how: a session is what the queue named after its client holds, or the
connection alone while there is no such queue. One that lasts is a durable queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from routing.clients import Client
from routing.queues.queue import Queue

if TYPE_CHECKING:
    from routing.topology.virtual_host import VirtualHost

Subscription = Mapping[str, Any]
"""What a client is subscribed to, in the words of its protocol: `filter`, `qos` and what else it said."""


class SessionKind(NamedTuple):
    """How the clients of a protocol have sessions."""

    prefix: str
    """Queues of sessions are named so, and then as the client is."""
    subscriptions: Callable[[VirtualHost, str, object], list[Subscription]]
    """Those of the queue of this name; the owner of its connection is asked, or None if that is not here."""


class ClientSession(NamedTuple):
    """A session as far as this broker knows it."""

    protocol: str
    client_id: str
    queue: Queue | None
    owner: object = None
    """Of the connection, if that is here."""
    client: Client | None = None

    @property
    def lasts(self) -> bool:
        """Whether it outlives its connection."""
        return self.queue is not None and is_lasting(self.queue)


_kinds: dict[str, SessionKind] = {}


def register_sessions(protocol: str, kind: SessionKind) -> None:
    """Make sessions of a protocol's clients known."""
    _kinds[protocol] = kind


def protocols() -> list[str]:
    """Those whose clients have sessions."""
    return list(_kinds)


def is_lasting(queue: Queue) -> bool:
    """Whether the queue of a session outlives the connection."""
    return queue.partition.durable and not queue.exclusive


def sessions_in(vhost: VirtualHost) -> Iterator[ClientSession]:
    """All sessions known here: those that have a queue, then clients that have none."""
    for protocol, kind in _kinds.items():
        connected = {one.name: (owner, one) for owner, one in vhost.connections.items() if one.protocol == protocol}
        for name, queue in vhost.queues.items():
            if name.startswith(kind.prefix):
                client_id = name.removeprefix(kind.prefix)
                owner, client = connected.pop(client_id, (None, None))
                if is_lasting(queue) or client is not None:
                    yield ClientSession(protocol, client_id, queue, owner, client)
        for client_id, (owner, client) in connected.items():
            yield ClientSession(protocol, client_id, None, owner, client)


def sessions_of_client(vhost: VirtualHost, client_id: str) -> list[ClientSession]:
    """Those of one client, at most one for each protocol."""
    found: list[ClientSession] = []
    for protocol, kind in _kinds.items():
        queue = vhost.queues.get(kind.prefix + client_id)
        here = (
            (owner, one)
            for owner, one in vhost.connections.items()
            if one.protocol == protocol and one.name == client_id
        )
        owner, client = next(here, (None, None))
        if client is not None or (queue is not None and is_lasting(queue)):
            found.append(ClientSession(protocol, client_id, queue, owner, client))
    return found


def subscriptions_of(vhost: VirtualHost, session: ClientSession) -> list[Subscription]:
    """What its client is subscribed to, as far as that is known here."""
    kind = _kinds[session.protocol]
    return kind.subscriptions(vhost, kind.prefix + session.client_id, session.owner)
