"""What doors with topics ask of the engine: where brokers are, which topics a user sees, and topics by their use."""

from __future__ import annotations

from typing import NamedTuple

from routing.access.grants import Access, Grants
from routing.broker import Broker
from routing.cluster.cluster import Cluster
from routing.errors import NotLeader, PreconditionFailed
from routing.topics.topic import Topic

_ACCESSES: tuple[Access, ...] = ("read", "write", "configure")


class Node(NamedTuple):
    """A broker of a cluster, where one of its doors is."""

    broker_id: int
    host: str
    port: int
    rack: str


def nodes_of(cluster: Cluster, door: str) -> list[Node]:
    """All brokers with such a door, at the address that they advertise for it: who came by TLS is sent on by TLS."""
    found = []
    for member in sorted(cluster.members.brokers.values()):
        host, _, port = member.record.addresses.get(door, "").rpartition(":")
        if host:
            found.append(Node(member.broker_id, host.strip("[]"), int(port), member.record.rack))
    return found


def may_see(grants: Grants, topic: str) -> bool:
    """Whether a topic exists, as far as this user is concerned."""
    return any(grants.allows(access, topic) for access in _ACCESSES)


async def create_missing(broker: Broker, grants: Grants, name: str) -> Topic | None:
    """A topic that somebody uses, made if that is allowed; None if not. Raises BrokerError: NotLeader while somebody
    else is making it.
    """
    config = broker.config
    if not config.auto_create_topics:
        return None
    grants.require("configure", "topic", name)
    try:
        return await broker.create_topic(name, partitions=config.auto_create_partitions, config={})
    except PreconditionFailed:  # somebody else was faster, perhaps not done yet
        topic = broker.topics.get(name)
        if topic is None:
            raise NotLeader(f"topic {name!r} is being created") from None
        return topic
