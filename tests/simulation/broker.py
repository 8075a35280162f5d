"""A broker as far as its logs go: roles on real logs, a lease, links, and the controller's work if it is its turn.

It is what `routing` will be to the roles, in virtual time. A `Machine` has a disk and a clock, a `Process` runs on it
until it is killed; a process that is paused does what it has to do later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from core_log import checkpoint, high_watermarks
from core_log.errors import LogUnavailable, OffsetOutOfRange
from core_log.files import BytesLike, FaultyFiles
from core_log.metadata.store import Guard, MetadataEntry
from core_log.replica_log import ReplicaLog
from core_log.replication.follower import Follower
from core_log.replication.leader import Leader
from core_log.replication.messages import Batches, Diverging, Position, Refused
from core_log.replication.moves import Mover
from core_log.replication.replica import Replica
from core_log.replication.state import BrokerState, Change, LogState, broker_key, decode, encode, log_key
from tests.simulation import moving
from tests.simulation.clockwork import drive
from tests.simulation.control import PREFIX, control
from tests.simulation.disk import SimFlusher
from tests.simulation.machine import Link, Machine, Notes, SimLog
from tests.simulation.metadata import LEASE_S

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_S = 0.2
SILENCE_MAX_S = 0.7


class Process:
    """See the module."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine, self.me = world, machine, machine.broker
        self.alive = True
        self.paused_until_s = 0.0
        self.files = FaultyFiles(machine.disk)
        self.flusher = SimFlusher(world.clockwork, self.files, self.run)
        self.flusher.after_turn = self.turn
        self.replicas: dict[str, Replica] = {}
        self.links_in: dict[int, Link] = {}
        self.links_out: dict[int, Link] = {}
        self.brokers: dict[int, BrokerState] = {}
        self.entries: dict[bytes, MetadataEntry] = {}
        self.applied = 0
        self.lease: int | None = None
        self.lease_until_s = 0.0
        self.renewed_s = -1e9
        self.broker_epoch = 0
        self.waiting: list[tuple[Leader, int, bytes]] = []
        self.busy: set[object] = set()
        self.mover = Mover(moving.CONFIG)
        self.stops_refusing()

    def stops_refusing(self) -> None:
        """The disk is as the machine says."""
        self.files.failing = self.machine.failing
        self.files.room_bytes = self.machine.room_bytes
        self.flusher.delay_s = self.machine.slow_s

    # ---- time

    def local_s(self) -> float:
        return self.world.clockwork.now_s * self.machine.rate + 1000 * self.me

    def run(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something in a while, unless the process ends; a pause holds it up."""

        def due() -> None:
            if not self.alive:
                return
            if self.world.clockwork.now_s < self.paused_until_s:
                self.world.clockwork.at(self.paused_until_s, due)
                return
            self.world.touched.add(self)
            action()

        self.world.clockwork.after(delay_s, due)

    def note(self, text: str) -> None:
        self.world.clockwork.note(f"broker {self.me}: {text}")

    # ---- start and end

    def start(self) -> None:
        """Open the logs. Raises OSError."""
        data = checkpoint.load(self.files, "cluster")
        notes = None if data is None else msgspec.msgpack.decode(data, type=Notes)
        saved = high_watermarks.load(self.files, "")
        for name, config in self.world.logs.items():
            if not moving.is_here(self, name):
                continue
            replica = self.open(name, saved.get(name, 0))
            if notes is None or name in notes.lost or (notes.boot != self.machine.boot and config.fsync != "commit"):
                replica.lost = True
        self.lease = None if notes is None else notes.lease
        self.save_notes()
        lost = [name for name, replica in self.replicas.items() if replica.lost]
        self.note(f"starts, {[r.log.log_end_offset for r in self.replicas.values()]}, lost {lost}")
        self.run(0.0, self.tick)

    def open(self, name: str, watermark: int) -> Replica:
        """Have a replica of a log. Raises OSError."""
        log = SimLog.open_replica(
            self.files,
            moving.directory(self, name),
            self.world.logs[name],
            self.flusher,
            wall_clock_ms=lambda: 0,
            high_watermark=watermark,
        )
        assert isinstance(log, SimLog)
        log.mirror = self.world.read(log)
        replica = self.replicas[name] = Replica(name, log, self.me, self.world.config, now_s=self.local_s())
        log.waits = partial(self._disk_waits, replica)
        log.listeners.append(lambda _: self.run(0.0, self.turn))
        return replica

    def _disk_waits(self, replica: Replica) -> bool:
        return isinstance(replica.role, Leader) and replica.role.disk_waits(self.local_s())

    def save_notes(self) -> None:
        lost = [name for name, replica in self.replicas.items() if replica.lost]
        notes = Notes(self.machine.boot, lost, self.lease)
        checkpoint.save(self.files, "cluster", msgspec.msgpack.encode(notes))

    def end(self, *, power: bool) -> None:
        """Killed, or the machine has lost its power."""
        dice = self.world.clockwork.dice
        self.alive = False
        self.flusher.break_off(steps=dice.randrange(20))
        if power:
            self.machine.disk = self.machine.disk.crash(dice if dice.random() < 0.7 else None)
            self.machine.boot += 1
        self.machine.process = None
        for links, side in ((self.links_in, 1), (self.links_out, 0)):
            for link in list(links.values()):
                link.open[side] = False

    # ---- metadata

    def tick(self) -> None:
        self.run(TICK_S, self.tick)
        now_s = self.local_s()
        self.stops_refusing()
        if now_s - self.renewed_s > LEASE_S / 4:
            self.renewed_s = now_s
            self._renew(now_s)
        self.watch()
        self._look_after_links(now_s)
        self.dial()
        for replica in self.replicas.values():
            if isinstance(replica.role, Leader):
                replica.role.tick(now_s)
        if self.world.clockwork.dice.random() < 0.1:
            try:
                high_watermarks.save(
                    self.files, "", {name: replica.log.high_watermark for name, replica in self.replicas.items()}
                )
            except OSError:
                pass
        self.turn(again=True)
        control(self)

    def _renew(self, sent_s: float) -> None:
        metadata = self.world.metadata
        if self.broker_epoch:
            lease = self.lease
            assert lease is not None

            def renewed(found: object, known: bool) -> None:
                if known and self.lease == lease:
                    if found:
                        self.lease_until_s = max(self.lease_until_s, sent_s + 0.9 * LEASE_S)
                    else:
                        self._lapsed()

            self.ask(lambda: metadata.renew(lease), renewed)
            return
        value = msgspec.msgpack.encode([name for name, replica in self.replicas.items() if replica.lost])
        before = self.lease

        def register() -> tuple[int, int | None]:
            if before is not None:
                metadata.revoke(before)
            lease = metadata.grant()
            key = broker_key(PREFIX, self.me)
            return lease, metadata.commit((Guard(key, create_revision=0),), ((key, value),), lease)

        def registered(found: object, known: bool) -> None:
            if not known or self.broker_epoch:
                return
            assert isinstance(found, tuple)
            lease: int = found[0]
            revision: int | None = found[1]
            if revision is None:
                metadata.revoke(lease)
                return
            self.lease, self.broker_epoch = lease, revision
            self.lease_until_s = sent_s + 0.9 * LEASE_S
            self.note(f"is registered, epoch {revision}")
            for link in [*self.links_out.values()]:
                self.hang_up(link, 0)
            for replica in self.replicas.values():
                replica.registered(revision)
            self.waiting.clear()
            try:
                self.save_notes()
            except OSError:
                pass
            self.watch()

        self.ask(register, registered)

    def _lapsed(self) -> None:
        self.note("its lease is over")
        self.broker_epoch = 0
        self.lease = None
        for replica in self.replicas.values():
            replica.registered(0)
        self.waiting.clear()

    def ask(self, work: Callable[[], object], answer: Callable[[object, bool], None]) -> None:
        """Something of etcd."""
        self.world.metadata.request(
            self.me, work, lambda found, known: self.run(0.0, lambda: self._answered(answer, found, known))
        )

    def _answered(self, answer: Callable[[object, bool], None], found: object, known: bool) -> None:
        answer(found, known)
        self.turn()

    def watch(self) -> None:
        """All that is new, if it gets through."""
        if not self.world.metadata.reachable(self.me) or not self.broker_epoch:
            return
        news = [item for item in moving.history(self) if item[0] > self.applied]
        for revision, entries in news:
            self.applied = revision
            for entry in entries:
                self._apply(entry)
        if news:
            self.turn()
            control(self)

    def _apply(self, entry: MetadataEntry) -> None:
        if entry.value is None:
            self.entries.pop(entry.key, None)
        else:
            self.entries[entry.key] = entry
        if entry.key.startswith(b"brokers/"):
            broker = int(entry.key.partition(b"/")[2])
            if entry.value is None:
                self.brokers.pop(broker, None)
            else:
                lost = msgspec.msgpack.decode(entry.value)
                self.brokers[broker] = BrokerState(entry.create_revision, lost, draining=moving.drains(self, broker))
        elif entry.key.startswith(moving.DRAINS):
            moving.on_drain(self, int(entry.key.partition(b"/")[2]))
        elif entry.key.startswith(b"p/") and entry.value is not None:
            self._on_state(entry.key[2:].decode(), decode(entry.value), entry.mod_revision)

    def _on_state(self, name: str, state: LogState, revision: int) -> None:
        moving.keep(self, name, state)
        replica = self.replicas.get(name)
        if replica is None:
            return
        lost, before = replica.lost, replica.role
        epoch = before.epoch if isinstance(before, Leader) else 0
        replica.on_state(state, revision, self.local_s())
        if replica.role is before and isinstance(before, Leader) and before.epoch != epoch:
            self.world.checker.leads(self, name, before)
        if lost and not replica.lost:
            try:
                self.save_notes()
            except OSError:
                replica.lost = True
        if replica.role is not before:
            self._assumed(name, replica)

    def _assumed(self, name: str, replica: Replica) -> None:
        role = replica.role
        if isinstance(role, Leader):
            self.note(f"leads {name} in epoch {role.epoch} from {role.epoch_start}")
            self.world.checker.leads(self, name, role)
            for broker, link in self.links_in.items():
                role.link_up(broker, link.epoch, self.local_s())
        self.waiting = [wait for wait in self.waiting if any(r.role is wait[0] for r in self.replicas.values())]

    # ---- links

    def dial(self) -> None:
        """A link to each broker that there is none to."""
        for broker in self.world.machines:
            if broker != self.me and broker not in self.links_out and self.broker_epoch:
                self.world.hello(self, broker)

    def connected(self, link: Link, side: int) -> None:
        """A link stands; `side` is ours."""
        other = link.ends[1 - side].me
        old = (self.links_out, self.links_in)[side].pop(other, None)
        if old is not None:
            self.hang_up(old, side)
        if side == 0:
            self.links_out[other] = link
            for replica in self.replicas.values():
                if isinstance(replica.role, Follower) and replica.role.leader == other:
                    replica.role.link_up()
        else:
            self.links_in[other] = link
            for replica in self.replicas.values():
                if isinstance(replica.role, Leader):
                    replica.role.link_up(other, link.epoch, self.local_s())
        self.turn(again=True)

    def hang_up(self, link: Link, side: int) -> None:
        """Give a link up."""
        if not link.open[side]:
            return
        link.open[side] = False
        other = link.ends[1 - side]
        links = (self.links_out, self.links_in)[side]
        if links.get(other.me) is link:
            del links[other.me]
            if side == 1:
                for replica in self.replicas.values():
                    if isinstance(replica.role, Leader):
                        replica.role.link_down(other.me, self.local_s())
        self.world.send(link, side, lambda: other.hang_up(link, 1 - side), closing=True)

    def _look_after_links(self, now_s: float) -> None:
        for links, side in ((self.links_out, 0), (self.links_in, 1)):
            for link in list(links.values()):
                old = side == 0 and self.broker_epoch not in (0, link.epoch)  # said hello before it registered anew
                if old or now_s - link.heard_s[side] > SILENCE_MAX_S:
                    self.hang_up(link, side)

    # ---- the turn

    def turn(self, *, again: bool = False) -> None:
        """Send what there is to send, confirm what is committed."""
        now_s = self.local_s()
        for name, replica in self.replicas.items():
            if replica.role is None or isinstance(replica.role, Leader) or not replica.log.truncating:
                before = replica.role
                replica.assume(now_s)
                if replica.role is not before:
                    self._assumed(name, replica)
            role = replica.role
            if isinstance(role, Leader):
                role.log_advanced()
                self._lead(role, now_s)
                replica.log.write_on()
            elif isinstance(role, Follower):
                role.log_advanced()
                self._follow(replica, role, again)
        waiting = []
        for role, end, batch in self.waiting:
            if role.log.high_watermark < end or not role.may_serve(now_s, self.lease_until_s):
                waiting.append((role, end, batch))
            else:
                self.world.checker.confirmed(self, role, end, batch)
        self.waiting = waiting

    def _lead(self, role: Leader, now_s: float) -> None:
        for broker, link in self.links_in.items():
            message = role.due(broker, now_s, bytes_max=2000)
            if message is not None:
                self.world.send(link, 1, partial(self._deliver, link, message))
            elif (cold := role.cold(broker)) is not None and (role, broker) not in self.busy:
                self.busy.add((role, broker))
                drive(
                    self.flusher.in_thread(partial(self._read, role.log, cold[0])),
                    partial(self._read_cold, role, broker, *cold),
                )
        change = role.wish(self.brokers, now_s, PREFIX) if self.broker_epoch else None
        if change is not None:
            self._swap(role, change)

    def _read(self, log: ReplicaLog, offset: int) -> list[BytesLike] | None:
        try:
            return log.read_blocking(offset, 2000, unsynced=True)
        except OffsetOutOfRange:
            return None

    def _read_cold(
        self,
        role: Leader,
        broker: int,
        offset: int,
        written: int,
        batches: list[BytesLike] | None,
        error: BaseException | None,
    ) -> None:
        self.busy.discard((role, broker))
        if error is not None and not isinstance(error, OSError):
            raise error
        link = self.links_in.get(broker)
        cold = role.cold(broker)
        if link is not None and batches is not None and cold is not None and cold[0] == offset:
            message = role.sending(broker, tuple(batches), self.local_s(), end=written)
            self.world.send(link, 1, partial(self._deliver, link, message))

    def _swap(self, role: Leader, change: Change) -> None:
        key = log_key(PREFIX, role.name)
        metadata = self.world.metadata
        self.note(f"wishes {role.name}: {change.state.isr} {change.state.elr}, leader {change.state.leader}")

        def answer(found: object, known: bool) -> None:
            if role.pending is not change:
                return
            if not known:
                self._swap(role, change)  # until it is known: the guard holds once at most
            elif found is None:
                self.watch()
                if role.pending is change:
                    role.refused()
            else:
                self.watch()

        self.ask(partial(metadata.commit, change.guards, ((key, encode(change.state)),)), answer)

    def _follow(self, replica: Replica, role: Follower, again: bool) -> None:
        log = replica.log
        if role.needs_repair and (log.half_cut or not log.truncating) and role not in self.busy:
            self.busy.add(role)
            self.note(f"repairs {role.name}: cut to {role.cut_to}, restart at {role.restart_at}")
            drive(role.repair(), partial(self._repaired, role))
        link = self.links_out.get(role.leader)
        if link is None:
            return
        position = role.position(again=again)
        if position is not None:
            replica.promise(self.local_s())
            self.world.send(link, 0, partial(link.ends[1].on_position, link, position))

    def _repaired(self, role: Follower, result: None, error: BaseException | None) -> None:
        self.busy.discard(role)
        if error is not None and not isinstance(error, (OSError, LogUnavailable)):
            raise error
        if error is None:
            self.run(0.0, self.turn)

    def on_position(self, link: Link, position: Position) -> None:
        """A follower's order."""
        replica = self.replicas.get(position.log)
        role = replica.role if replica is not None else None
        other = link.ends[0].me
        if isinstance(role, Leader):
            answer = role.on_position(other, position, self.local_s())
        else:
            answer = Refused(position.log, "not_leader", None, 0)
        if answer is not None:
            self.world.send(link, 1, partial(self._deliver, link, answer))
        self.turn()

    def _deliver(self, link: Link, message: Batches | Diverging | Refused) -> None:
        """At the other end."""
        link.ends[0].on_message(link, message)

    def on_message(self, link: Link, message: Batches | Diverging | Refused) -> None:
        """What a leader sent."""
        replica = self.replicas.get(message.log)
        role = replica.role if replica is not None else None
        if isinstance(role, Follower) and role.leader == link.ends[1].me:
            if isinstance(message, Batches):
                role.on_batches(message)
            elif isinstance(message, Diverging):
                role.on_diverging(message)
            else:
                role.on_refused(message)
        self.turn()
