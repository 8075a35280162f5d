"""A broker that serves as a member of a cluster: what comes around its engine, and in which order it begins and ends.

    join                    etcd, refusals, a word with the brokers that run
      (the engine opens)
        link                registered; links to all others; what is said of this broker is kept true
          (the doors listen)
          step_aside        what is led here is led by others, while clients are still served

1. The peer address is bound first and listened on last, as the doors are.
2. A stop gives leadership up before clients are told, the links end after them, and the registration after those.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

import trio

from core_log.errors import MetadataUnavailable
from core_log.files import OsFiles
from core_log.replication.isr import ReplicationConfig
from gateway.cluster import Membership, advertised, joining, registered
from gateway.config import Config, parse_address
from gateway.importing import import_directory
from gateway.listener import Listener, open_listener
from gateway.outbox import Outboxes
from gateway.peer_tls import PeerCertificates
from gateway.peers import DOOR, MembersDirectory, Peers, probe
from gateway.readers import Readers
from gateway.tls import Terms
from protocols.peer.connection import PeerId
from routing.broker import Broker
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.members import Members
from routing.cluster.metadata.standing import Standing

logger = logging.getLogger(__name__)

_RESIGN_TIMEOUT_S = 5.0
_ETCD_RELOAD_MS = 5000


class Member:
    """See the module; made by `join`."""

    def __init__(
        self, config: Config, part: Membership, listener: Listener, certificates: PeerCertificates | None
    ) -> None:
        self.part = part
        self.certificates = certificates
        watched = ((certificates, config.peer_tls.reload_interval_ms), (part.certificates, _ETCD_RELOAD_MS))
        self.watched: dict[Terms, int] = {terms: interval for terms, interval in watched if terms is not None}
        """Whose files are looked at, and how often (ms)."""
        self.listener = listener
        lag_s = config.cluster.replica_lag_time_max_ms / 1000
        replication = ReplicationConfig(replica_lag_time_max_s=lag_s)
        self.cluster = Cluster(
            part.store,
            part.members,
            part.elections,
            replication=replication,
            publish_patience_s=config.cluster.publish_patience_ms / 1000,
            clock=trio.lowlevel.current_clock().current_time,
        )
        self._config = config

    @asynccontextmanager
    async def link(self, broker: Broker, outboxes: Outboxes, readers: Readers, stopping: str) -> AsyncIterator[None]:
        """Be there for the others until the block is left. Raises StartError, OSError."""
        flusher = broker.flusher
        peers = Peers(
            self._config.peer,
            MembersDirectory(self.part.members),
            self.cluster.replicas,
            limits=self._config.limits,
            outboxes=outboxes,
            timers=broker.timers,
            end_turn=broker.end_turn,
            turn_is_due=broker.turn_is_due,
            has_room=lambda: flusher.unflushed_bytes <= flusher.unflushed_bytes_max,
            revision=lambda: self.cluster.revisions.topology,
            engine=broker.engine,
            certificates=self.certificates,
            readers=readers,
        )
        self.cluster.begun()
        said = {"lost": self.cluster.lost, "unopened": self.cluster.unopened}
        async with registered(self.part, **said), trio.open_nursery() as nursery:
            await nursery.start(peers.run, self.listener)
            nursery.start_soon(Standing(self.cluster).run)
            try:
                yield
            finally:
                peers.say_goodbye(stopping)
                peers.shell.end_turn()
                nursery.cancel_scope.cancel()

    async def step_aside(self) -> None:
        """The broker is about to stop. Does what can be done within five seconds."""
        with trio.move_on_after(_RESIGN_TIMEOUT_S, shield=True):
            try:
                await self.cluster.resign()
            except MetadataUnavailable as error:
                logger.warning("stopping without a word to the others: %s", error)


@asynccontextmanager
async def join(config: Config, listeners: Iterable[Listener]) -> AsyncIterator[Member]:
    """Become able to register, until the block is left. Raises StartError, ConfigError."""
    address = parse_address(config.cluster.peer, setting="cluster.peer")
    assert address is not None
    certificates = PeerCertificates(config.peer_tls) if config.peer_tls.cert else None
    listener = open_listener(DOOR, *address, certificates)
    listener.keeps_some = False
    try:
        trusted = bool(config.peer.secret) or certificates is not None
        kafka, native = ((door.advertised_host, door.advertised_port) for door in (config.kafka, config.native))
        said = {"kafka": kafka, "kafkas": kafka, "native": native, "natives": native}
        addresses = advertised(config.cluster, [*listeners, listener], trusted=trusted, said=said)
        if certificates is not None:
            certificates.dialled_at(addresses[DOOR])
        meet = partial(_meet, config, certificates)
        before = partial(import_directory, config) if config.cluster.import_data else None
        async with joining(config.cluster, OsFiles(config.data_dir), addresses, meet, before) as part:
            yield Member(config, part, listener, certificates)
    finally:
        listener.close()


async def _meet(config: Config, certificates: PeerCertificates | None, members: Members) -> None:
    """A word with the brokers that run, before anything is changed. Raises StartError."""
    me = PeerId(members.meta.cluster_id, members.broker_id, 0, members.identity.directory_id)
    others = {
        broker.broker_id: broker.record.addresses.get(DOOR, "")
        for broker in members.brokers.values()
        if broker.broker_id != members.broker_id
    }
    await probe(config.peer, me, others, certificates)
