"""What the handlers of requests have in common: the connection that they are for, and the call that they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocols.adapter_topics import create_missing
from protocols.deadlines import Deadlines
from protocols.kafka.adapter_refusals import Refusals
from protocols.kafka.codec import Entity
from protocols.kafka.config import KafkaConfig
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.fetch_sessions import FetchSessions
from protocols.peers import Authenticate
from routing import errors
from routing.access.grants import Access, Grants
from routing.administration.operations import CHANGES, LOOKS
from routing.broker import Broker
from routing.clients import Client
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition


class Call:
    """A request that was read, until it is answered."""

    __slots__ = ("answer", "client_id", "version")

    def __init__(self, version: int, client_id: str | None, answer: Callable[[Entity | None], None]) -> None:
        self.version = version
        self.client_id = client_id
        self.answer = answer
        """To be called once, unless the handler returns the reply; with None there is none."""


class Door:
    """One connection, as the handlers of its requests see it."""

    def __init__(
        self,
        broker: Broker,
        *,
        peer: str,
        local: tuple[str, int],
        clock: Callable[[], float],
        config: KafkaConfig,
        authenticate: Authenticate | None,
        name: str,
        fetch_sessions: FetchSessions,
    ) -> None:
        self.broker = broker
        self.peer = peer
        self.local = local
        """Where the client has found this broker."""
        self.clock = clock
        self.config = config
        self.authenticate = authenticate
        self.name = name
        """Of the door: brokers of a cluster are told of by the same one."""
        self.client: Client | None = None
        """As the engine knows it, from the login on."""
        self.library = ""
        """What the client says it is made with, as soon as it has."""
        self.grants: Grants | None = None
        """What the user may do, from the login on."""
        self.login: Callable[[str], None]
        """Called with who the client is. Raises BrokerError."""
        self.sasl: Any = None
        """How the client has chosen to log in."""
        self.shown: str | None = None
        """Who the client has shown to be; whoever logs in again stays that."""
        self.bare_tokens = False
        """What comes is no requests now, but its tokens."""
        self.fetches: Any
        self.fetch_sessions = fetch_sessions
        """Of all connections."""
        self.deadlines = Deadlines(broker.timers, clock)
        self.refusals = Refusals()
        """Of batches."""
        self.end: Callable[[], None]
        """Closes the connection when all is answered."""

    @property
    def owner(self) -> tuple[str, str]:
        """Whose what this connection makes is that outlives it: the user, and the virtual host that its rights are of.
        After the login.
        """
        assert self.grants is not None
        return self.grants.user, self.grants.vhost

    @property
    def node_id(self) -> int:
        """This broker's."""
        return 0 if self.broker.cluster is None else self.broker.cluster.broker_id

    def allows(self, access: Access, topic: str) -> bool:
        """Whether the user may use a topic so."""
        return self.grants is not None and self.grants.allows(access, topic)

    def require(self, access: Access, topic: str) -> None:
        """Raises KafkaError."""
        if not self.allows(access, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def require_administrator(self, *, looks: bool = False) -> None:
        """For what concerns the whole cluster; who only `looks` may be somebody who monitors. Raises KafkaError."""
        user = None if self.grants is None else self.broker.rights.user(self.grants.user)
        if user is None or not any(tag in user.tags for tag in (LOOKS if looks else CHANGES)):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    @property
    def operations(self) -> int:
        """What the user may do with the cluster, as Kafka's set of bits."""
        user = None if self.grants is None else self.broker.rights.user(self.grants.user)
        tags = frozenset(() if user is None else user.tags)
        found = 1 << 12  # idempotent writes
        if tags.intersection(LOOKS):
            found |= 1 << 8 | 1 << 10  # describe, describe configs
        if tags.intersection(CHANGES):
            found |= 1 << 5 | 1 << 7 | 1 << 9 | 1 << 11  # create, alter, cluster action, alter configs
        return found

    def topic(self, name: str) -> Topic:
        """A topic that is there. Raises KafkaError."""
        found = self.broker.topics.get(name)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
        return found

    def led(self, name: str, index: int, *, leader_epoch: int = -1) -> TopicPartition:
        """A partition that this broker leads now, in that epoch if one is given. Raises KafkaError, BrokerError."""
        partitions = self.topic(name).partitions
        if not 0 <= index < len(partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} has {len(partitions)} partitions")
        partition = partitions[index]
        refused = partition.leadership.refusal() if partition.leadership is not None else None
        if refused is not None:
            raise refused
        if leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
            fenced = leader_epoch < partition.leader_epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH)
        partition.leases.used = True
        return partition

    def held(self, name: str, index: int) -> TopicPartition:
        """A partition that this broker leads now, or of which it has a replica. Raises KafkaError, BrokerError."""
        try:
            return self.led(name, index)
        except errors.NotLeader:
            partition = self.topic(name).partitions[index]
            if not partition.is_here:
                raise
            return partition

    async def create_missing(self, name: str) -> Topic | None:
        """A topic that somebody uses, made if that is allowed; None if not. Raises BrokerError, KafkaError."""
        if self.grants is None:
            return None
        try:
            return await create_missing(self.broker, self.grants, name)
        except errors.NotLeader as error:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(error)) from None
