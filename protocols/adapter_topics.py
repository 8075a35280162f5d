"""What doors with topics ask of the engine: where brokers are, which topics a user sees, and topics by their use; what
partitions know of producers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core_log.batch_header import HEADER_BYTES, has_producer
from protocols.buffers import BytesLike
from routing.access.grants import Access, Grants
from routing.broker import Broker
from routing.cluster.cluster import Cluster
from routing.errors import NotLeader, PreconditionFailed
from routing.topics.producers import Producers, know_all
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
    for member in cluster.members.advertised:
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


async def know_producers(
    broker: Broker, grants: Grants | None, batches: Iterable[tuple[str, int, BytesLike | None]]
) -> None:
    """Wait for it where the batches of a request, which nobody has looked at, will be asked for it: the first one of a
    partition takes two syncs. What is to be refused is left alone, and refused in its turn.
    """
    unknown: dict[Producers, None] = {}
    for topic, index, batch in batches:
        found = broker.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            continue
        partition = found.partitions[index]
        if partition.producers.are_known or not batch or len(batch) < HEADER_BYTES or not has_producer(batch):
            continue
        led = partition.leadership is None or partition.leadership.refusal() is None
        if led and grants is not None and grants.allows("write", topic):
            unknown[partition.producers] = None
    if len(unknown) > 1 and broker.blocked is None:
        await know_all(unknown)
