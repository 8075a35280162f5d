"""A broker as `millrace serve --cluster` assembles it, but for the doors of clients: on a simulated machine.

1. `run` goes through the steps of `gateway/cluster.py` and `gateway/member.py` with what is the product's own: store,
   members, elections, engine, peers.
2. `end` is a kill: connections are reset, etcd is out of reach, of what the threads are at a part is done, and from
   then on nothing that the tasks still do while they are cancelled reaches anybody.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from core_log.errors import MetadataUnavailable
from core_log.files import MemoryFiles
from core_log.metadata.etcd_client import EtcdClient
from core_log.metadata.etcd_store import EtcdStore
from core_log.replication.isr import ReplicationConfig
from core_log.replication.leader import Leader
from gateway.config import Limits
from gateway.outbox import Outboxes
from gateway.peers import MembersDirectory, Peers
from protocols.peer.config import PeerConfig
from routing.broker import Broker, open_broker
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.controller import Candidate
from routing.cluster.metadata.elections import Elections
from routing.cluster.metadata.members import Members
from routing.cluster.metadata.records import BrokerRecord
from routing.cluster.metadata.standing import Standing
from routing.config import BrokerConfig
from tests.simulation.brokers.disks import Plan, SimFiles, Trouble
from tests.simulation.brokers.sockets import PORT, Listener, SimSocket
from tests.simulation.brokers.threads import Threads
from tests.simulation.brokers.truth import WatchedLog
from tests.simulation.brokers.virtual import CURRENT, EPOCH_S, go_on, offload
from tests.simulation.etcd_model import ModelTransport

if TYPE_CHECKING:
    from tests.simulation.brokers.world import World

HOMES = 2
OFFSETS = 1
LEASE_S = 2
PEERS = PeerConfig(secret="shared", heartbeat_ms=200, silence_ms_max=700, redial_ms_max=400)
REPLICATION = ReplicationConfig(replica_lag_time_max_s=2.0, link_down_max_s=0.5, grant_s=0.5)


class Machine:
    """What stays when a process ends."""

    def __init__(self, me: int) -> None:
        self.me = me
        self.disk = MemoryFiles()
        self.boot = 0
        self.slow_s = 0.001
        self.failing: dict[str, int] = {}
        self.room_bytes: int | None = None
        self.troubles: list[Trouble] = []
        self.plan: Plan | None = None
        self.asked_by_starts = 0
        """How often the last start asked for something."""
        self.process: Process | None = None
        self.starts = 0

    def repair(self) -> None:
        """The disk is well again."""
        self.slow_s, self.failing, self.room_bytes = 0.001, {}, None


class Process:
    """See the module."""

    broker: Broker
    cluster: Cluster
    nursery: trio.Nursery

    def __init__(self, world: World, machine: Machine) -> None:
        machine.starts += 1
        self.world, self.machine, self.me = world, machine, machine.me
        self.name = f"broker {machine.me}.{machine.starts}"
        self.ended = self.ready = self.is_powerless = self.is_stopped = False
        self.put_aside: list[Any] = []
        self.when_it_goes_on: list[Callable[[], None]] = []
        self.files = SimFiles(self)
        self.threads = Threads(self)
        self.sockets: dict[SimSocket, None] = {}
        self.listener = Listener()
        self.logs: dict[str, WatchedLog] = {}
        self.transport = ModelTransport(world.etcd, delay_s=world.agenda.dice.uniform(0.0005, 0.003))
        self.over = trio.Event()
        self._scope = trio.CancelScope()
        self.obey()

    def note(self, text: str) -> None:
        """For the story."""
        self.world.agenda.note(f"{self.name}: {text}")

    def obey(self) -> None:
        """The disk is as the machine says, the way to etcd as the world does."""
        self.files.failing = dict(self.machine.failing)
        self.files.room_bytes = self.machine.room_bytes

    # ---- a life

    def start(self, nursery: trio.Nursery) -> None:
        """Begin."""

        def begin() -> None:
            CURRENT.set(self)
            nursery.start_soon(self._live)

        contextvars.copy_context().run(begin)

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start a task of it."""

        def begin() -> None:
            CURRENT.set(self)
            self.nursery.start_soon(function, *arguments)

        contextvars.copy_context().run(begin)

    async def _live(self) -> None:
        try:
            with self._scope:
                await self._run()
        except* (OSError, MetadataUnavailable) as group:
            if not self.ended:
                if self.ready:
                    self.world.fail(f"{self.name} ends by itself: {group.exceptions}")
                self.note(f"cannot start: {group.exceptions}")
        except* Exception as group:
            if not self.ended:
                self.world.fail(f"{self.name} ends by itself: {group.exceptions!r}")
                raise
        if not self.ended:
            self.end(power=False)
            self.world.agenda.after(0.3, lambda: self.world.start(self.machine))
        self.over.set()

    async def _run(self) -> None:
        files = self.files
        files.make_directory("")
        store = EtcdStore(EtcdClient(self.transport), b"/millrace/c/", lease_ttl_s=LEASE_S)
        record = BrokerRecord("", f"boot{self.machine.boot}", "1.0", {"peer": f"10.0.0.{self.me}:{PORT}"})
        members = Members(
            store, files, cluster="c", broker_id=self.me, record=record, homes=HOMES, offsets=OFFSETS, offload=offload
        )
        candidate = Candidate(store, members)
        elections = Elections(store, members, candidate)
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            await nursery.start(store.run)
            await members.prepare()
            self.cluster = Cluster(store, members, elections, replication=REPLICATION)
            opened = open_broker(
                files,
                self.world.config,
                {},
                wall_clock_ms=lambda: int((EPOCH_S + trio.current_time()) * 1000),
                metadata=store,
                cluster=self.cluster,
            )
            async with opened as broker:
                self.broker = broker
                broker.close = _nothing  # type: ignore[method-assign]
                outboxes = Outboxes(Limits(), nursery.start_soon)
                broker.after_turn = outboxes.flush
                flusher = broker.flusher
                peers = Peers(
                    PEERS,
                    MembersDirectory(members),
                    self.cluster.replicas,
                    limits=Limits(),
                    outboxes=outboxes,
                    timers=broker.timers,
                    end_turn=broker.end_turn,
                    turn_is_due=broker.turn_is_due,
                    has_room=lambda: flusher.unflushed_bytes <= flusher.unflushed_bytes_max,
                    revision=lambda: store.revision,
                    engine=broker.engine,
                )
                self.cluster.begun()
                await members.register(lost=self.cluster.lost, unopened=self.cluster.unopened)
                self.note(
                    f"registered, epoch {members.epoch}, lost {self.cluster.lost}, unopened {self.cluster.unopened}"
                )
                for task in (members.run, candidate.run, elections.run, Standing(self.cluster).run):
                    nursery.start_soon(task)
                nursery.start_soon(outboxes.run, broker.end_turn)
                await nursery.start(peers.run, self.listener)
                self.ready, self.machine.asked_by_starts = True, self.files.asked
                await trio.sleep_forever()

    # ---- what befalls it

    def stop(self) -> None:
        """As by SIGSTOP."""
        self.is_stopped = True

    def go_on(self) -> None:
        """As by SIGCONT."""
        if self.is_stopped:
            self.is_stopped = False
            go_on(self.put_aside)
            waiting, self.when_it_goes_on = self.when_it_goes_on, []
            for action in waiting:
                action()
            self.world.goes_on(self)

    def end(self, *, power: bool) -> None:
        """Killed, or the machine has lost its power."""
        if self.ended:
            return
        self.note("has lost power" if power else "is killed")
        dice = self.world.agenda.dice
        self.ended, self.is_powerless, self.ready = True, power, False
        self.transport.cut_off = True
        self.world.etcd.notify()
        self.listener.close()
        self.threads.break_off(dice.randrange(20))
        if power:
            self.machine.disk = self.machine.disk.crash(dice if dice.random() < 0.7 else None)
            self.machine.boot += 1
        if self.machine.process is self:
            self.machine.process = None
        for sock in list(self.sockets):
            if not power:
                self.world.network.reset(sock)
            sock.fail()
        self.go_on()
        self._scope.cancel()

    # ---- what it is

    def may_serve(self, directory: str) -> bool:
        """Whether it may serve as the leader of a log."""
        log = self.logs.get(directory)
        if self.ended or not self.ready or log is None:
            return False
        for replica in self.cluster.replicas.by_name.values():
            if replica.log is log:
                return isinstance(replica.role, Leader) and self.cluster.may_serve(replica.role)
        return False


async def _nothing() -> None:
    """In place of a clean stop."""


def config(dice: Any) -> BrokerConfig:
    """Settings of the engine that are the same at all brokers."""
    return BrokerConfig(
        fsync=dice.choice(["commit"] * 6 + ["never"]),
        queue_segment_bytes=dice.choice([4000, 20_000, 1 << 20]),
        topic_segment_bytes=dice.choice([4000, 1 << 20]),
        stripe_cache_bytes=dice.choice([2000, 16 << 20]),
        checkpoint_interval_bytes=dice.choice([3000, 20_000, 64 << 20]),
        cold_read_bytes=dice.choice([1000, 512 << 10]),
        settle_delay_ms=dice.choice([0, 10, 10, 200]),
        memory_bytes_max=0,
        reclaim_interval_ms=3000,
    )
