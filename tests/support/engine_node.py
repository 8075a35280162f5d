"""Brokers of one cluster as far as their clients go: engines on disks in memory, real links and an AMQP door each.

Who leads a home is what a test says (`Town.lead`); nothing is replicated. Their metadata is one store in memory.
"""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import trio

from core_log.files import MemoryFiles
from core_log.keyed_store import KeyedStore
from core_log.log_flusher import LogFlusher
from core_log.metadata.embedded import EmbeddedStore
from core_log.partition_log import LogConfig, PartitionLog
from gateway.authentication import authenticator
from gateway.config import Config, Limits
from gateway.connection import Shell
from gateway.listener import open_listener
from gateway.outbox import Outboxes
from gateway.peers import Peers
from gateway.server import adapter_makers
from protocols.peer.adapter_forwarding import ForwardingAdapter
from protocols.peer.config import PeerConfig
from protocols.peer.connection import PeerId
from routing.broker import Broker, open_broker
from routing.cluster.clients.engine import Engine
from routing.cluster.replicas import Replicas
from routing.config import BrokerConfig
from routing.queues.homes.home import Home
from tests.support.replica_node import StaticDirectory

QUICK = PeerConfig(redial_ms_min=5, redial_ms_max=20, heartbeat_ms=50, silence_ms_max=2000)


class _Revisions:
    async def everywhere(self, revision: int) -> None:
        """All brokers see a change at once."""


class _Elections:
    decides = False
    logs: Mapping[str, Any] = {}


class StaticCluster:
    """`routing.cluster.cluster.Cluster` without replicas: leaders are what a test says."""

    has_no_lease = is_outdated = False

    def __init__(
        self, broker_id: int, store: EmbeddedStore, leaders: dict[str, tuple[int | None, int]], homes: int
    ) -> None:
        self.members = SimpleNamespace(
            meta=SimpleNamespace(homes=homes, offsets=1, transactions=0, retained=0),
            broker_id=broker_id,
            epoch=0,
            brokers={},
            listeners=[],
        )
        self.broker_id = broker_id
        self.store = store
        self.moved: list[Callable[[str], None]] = []
        self.revisions = _Revisions()
        self.elections = _Elections()
        self.may_serve = True
        self.publish_patience_s = 10.0
        self._leaders = leaders

    def begin(self, files: Any, flusher: Any, *, spawn: Any, want_turn: Any, wall_clock_ms: Any) -> None:
        """See `Cluster`."""
        self.replicas = Replicas(clock=trio.current_time, spawn=spawn, want_turn=want_turn)

    def call_logs(self, called: Any) -> None:
        """See `Cluster`."""

    def close(self) -> None:
        """See `Cluster`."""

    def state_of(self, name: str) -> None:
        """Nothing is replicated."""

    def is_replica(self, name: str) -> bool:
        """Nothing is replicated."""
        return False

    def lease(self) -> tuple[float, float]:
        """It has no end."""
        return 0.0, math.inf

    def role_of(self, name: str) -> None:
        """Nothing is replicated."""

    def leader_of(self, name: str) -> tuple[int | None, int]:
        """See `Cluster`."""
        return self._leaders.get(name, (None, 0))

    def may_append(self, name: str) -> bool:
        """See `Cluster`."""
        return self.may_serve and self.leader_of(name)[0] == self.broker_id


class EngineNode:
    """One broker."""

    def __init__(self, broker: Broker, cluster: StaticCluster, shell: Shell, peers: Peers, amqp_port: int) -> None:
        self.broker = broker
        self.cluster = cluster
        self.shell = shell
        self.peers = peers
        self.port = amqp_port
        self.address = ""
        self.directory: StaticDirectory
        assert broker.engine is not None
        self.engine: Engine = broker.engine
        open_home = broker.storage._open_home
        self.led: dict[int, Home] = {
            index: open_home(f"queues/{index}", index) for index in range(len(broker.topology.stripes))
        }
        """Homes as they are where they are led."""

    @property
    def id(self) -> int:
        """Its broker id."""
        return self.cluster.broker_id

    def cut(self, to: int) -> None:
        """The link that it has dialled to another breaks."""
        for connection in self.peers.shell.connections:
            adapter = connection.adapter
            if isinstance(adapter, ForwardingAdapter) and adapter.broker == to:
                connection._socket.shutdown(socket.SHUT_RDWR)


class Town:
    """See the module."""

    def __init__(self) -> None:
        self.nodes: dict[int, EngineNode] = {}
        self.leaders: dict[str, tuple[int | None, int]] = {}

    def lead(self, index: int, broker: int | None, *, anew: bool = True) -> None:
        """Have a broker lead a home from now on; what is in it elsewhere is lost."""
        log = f"home-{index}"
        epoch = self.leaders.get(log, (None, 0))[1] + (1 if anew else 0)
        self.leaders[log] = broker, epoch
        for node in self.nodes.values():
            topology = node.broker.topology
            there = topology.stripes[index]
            wanted = node.led[index] if node.id == broker else None
            if wanted is None and there is node.led[index]:
                topology.rehome(index, node.engine.forwarding.home(index))
            elif wanted is not None and there is not wanted:
                topology.rehome(index, wanted)
            for listener in node.cluster.moved:
                listener(log)
            node.broker.end_turn()

    def introduce(self, **through: str) -> None:
        """Everybody knows everybody's address, or another that leads there."""
        addresses = {node.id: through.get(f"to{node.id}", node.address) for node in self.nodes.values()}
        for node in self.nodes.values():
            node.directory.tell(addresses)

    async def linked(self) -> None:
        """Wait until there is a link between any two."""
        others = len(self.nodes) - 1
        with trio.fail_after(20):
            for node in self.nodes.values():
                while len(node.engine.forwarding.links) < others or len(node.engine.serving.links) <= others:
                    await trio.sleep(0.002)


async def _shared_store(nursery: trio.Nursery) -> EmbeddedStore:
    flusher = LogFlusher(retry_interval_s=0.1)
    await nursery.start(flusher.run)
    settings = LogConfig(retention_ms=-1, tail_cache_bytes=0)
    log = PartitionLog.open(MemoryFiles(), "catalog", settings, flusher, wall_clock_ms=lambda: 0)
    return EmbeddedStore(KeyedStore(log))


@asynccontextmanager
async def _running(town: Town, broker_id: int, store: EmbeddedStore, config: BrokerConfig) -> AsyncIterator[EngineNode]:
    cluster: Any = StaticCluster(broker_id, store, town.leaders, config.stripes)
    async with AsyncExitStack() as stack:
        opened = open_broker(MemoryFiles(), config, metadata=store, cluster=cluster)
        broker = await stack.enter_async_context(opened)
        nursery = await stack.enter_async_context(trio.open_nursery())
        limits = Limits(close_linger_ms=100)
        outboxes = Outboxes(limits, nursery.start_soon)
        broker.after_turn = outboxes.flush
        shell = Shell(limits, outboxes, broker.timers, broker.end_turn, broker.flusher)
        shell.wait_to_publish = broker.wait_to_publish
        nursery.start_soon(outboxes.run, broker.end_turn)
        directory = StaticDirectory(PeerId("cluster", broker_id, 1, f"d{broker_id}"))
        peers = Peers(
            QUICK,
            directory,
            cluster.replicas,
            limits=limits,
            outboxes=outboxes,
            timers=broker.timers,
            end_turn=broker.end_turn,
            engine=broker.engine,
        )
        door, peer_door = open_listener("amqp", "127.0.0.1", 0), open_listener("peer", "127.0.0.1", 0)
        node = EngineNode(broker, cluster, shell, peers, door.port)
        node.directory, node.address = directory, peer_door.address
        makers = adapter_makers(broker, Config(), authenticator(broker.rights), {"amqp"})
        door.listen()
        nursery.start_soon(door.run, shell, makers["amqp"], nursery.start_soon)
        await nursery.start(peers.run, peer_door)
        try:
            yield node
        finally:
            for connection in list(shell.connections):
                connection.shut_down("over")
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def town_of(*brokers: int, stripes: int = 2, leader: int | None = None, **also: Any) -> AsyncIterator[Town]:
    """Brokers that are linked; one of them leads everything, the first if it is not said which."""
    town = Town()
    config = BrokerConfig(stripes=stripes, **also)
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        store = await _shared_store(nursery)
        stack.callback(nursery.cancel_scope.cancel)
        for broker in brokers:
            town.nodes[broker] = await stack.enter_async_context(_running(town, broker, store, config))
        for index in range(stripes):
            town.lead(index, brokers[0] if leader is None else leader)
        town.introduce()
        await town.linked()
        yield town
