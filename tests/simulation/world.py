"""Brokers, a network, etcd, clients, and what befalls them, all from one seed.

A schedule has some seconds of faults, up to two at a time, and then some without any, in which all must come together.
"""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable

import msgspec

from core_log import checkpoint
from core_log.files import FaultyFiles, MemoryFiles
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.record_batch import parse_header
from core_log.replication.isr import ReplicationConfig
from core_log.replication.state import BrokerState, LogState, encode, log_key
from tests.simulation import moving
from tests.simulation.broker import Process
from tests.simulation.checker import Checker, Violation
from tests.simulation.clients import consume, produce
from tests.simulation.clockwork import Clockwork
from tests.simulation.machine import Link, Machine, Notes
from tests.simulation.metadata import Metadata

FAULTS_S = 7.0
SETTLE_S = 20.0


class World:
    """See the module."""

    def __init__(self, seed: int, *, moves: bool = False, until: int | None = None, trace: bool = False) -> None:
        self.seed = seed
        self.moves = moves
        """Four brokers, and an operator: `moving.py`."""
        self.clockwork = Clockwork(seed, until=until, trace=trace)
        dice = self.clockwork.dice
        self.metadata = Metadata(self.clockwork, self._etcd_reachable)
        self.metadata.changed = self._tell_watchers
        rounds = random.Random(f"rounds {seed}")  # followers are uneven where these limits are low
        self.config = ReplicationConfig(
            replica_lag_time_max_s=2.0,
            link_down_max_s=0.5,
            grant_s=0.5,
            round_max_s=rounds.choice([0.0, 0.0, 0.01, 0.1]),
            round_bytes_max=rounds.choice([500, 256 << 10]),
        )
        room = random.Random(f"room {seed}")
        fsync = dice.choice(["commit"] * 7 + ["interval", "never"])
        self.min_insync = dice.choice([2, 2, 2, 1])
        self.logs = {
            name: LogConfig(
                fsync=fsync,  # type: ignore[arg-type]
                segment_bytes=dice.choice([500, 3000, 100_000]),
                tail_cache_bytes=dice.choice([0, 1000, 100_000]),
                recovery_bytes=dice.choice([1, 1000, 100_000]),
                room_syncs_min=room.choice([0, 3, 1000]),
                room_bytes_min=room.choice([100, 1000]),
            )
            for name in ("x", "y")[: dice.choice([1, 1, 2])]
        }
        self.machines = {broker: Machine(broker, dice.uniform(0.95, 1.05)) for broker in range(1, 5 if moves else 4)}
        self.checker = Checker(self)
        self.touched: set[Process] = set()
        self.cut: set[tuple[int, int]] = set()
        self.no_etcd: set[int] = set()
        self.faults = True
        self.links: list[Link] = []
        self.power_losses_left = 1000 if fsync == "commit" else self.min_insync - 1
        """More of them may lose what was confirmed, and then nobody may lead."""
        self.new_disks_left = 1 if self.min_insync > 1 else 0
        self._values = 0
        for number, name in enumerate(self.logs):
            replicas = tuple(range(1, 4)) if not number else (2, 3, 1)
            state = LogState(replicas=replicas, isr=tuple((b, 0) for b in replicas), min_insync=self.min_insync)
            self.metadata.commit((), ((log_key(b"", name), encode(state)),))
        for machine in self.machines.values():
            checkpoint.save(machine.disk, "cluster", msgspec.msgpack.encode(Notes(0, [], None)))
            self.start(machine)
        self.clockwork.after_event = self._check

    def _check(self) -> None:
        if self.touched:
            touched = sorted(self.touched, key=lambda process: process.me)
            self.touched.clear()
            self.checker.check(touched)

    # ---- brokers and etcd

    def start(self, machine: Machine) -> None:
        """A new process; tried again while the disk does not even read."""
        if machine.process is not None:
            return
        process = Process(self, machine)
        try:
            process.start()
        except OSError:
            process.alive = False
            self.clockwork.after(0.3, lambda: self.start(machine))
        else:
            machine.process = process

    def registered(self) -> dict[int, BrokerState]:
        """Who is, in truth."""
        return {
            int(key.partition(b"/")[2]): BrokerState(entry.create_revision, msgspec.msgpack.decode(entry.value))
            for key, entry in self.metadata.entries.items()
            if key.startswith(b"brokers/") and entry.value is not None
        }

    def _etcd_reachable(self, broker: int) -> bool:
        return broker not in self.no_etcd and 0 not in self.no_etcd

    def _tell_watchers(self) -> None:
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.run(self.clockwork.dice.uniform(0.001, 0.02), machine.process.watch)

    def read(self, log: PartitionLog, *, unwritten: bool = False) -> list[tuple[int, int, bytes]]:
        """What the file of a log has, as its mirror would."""
        offset, found = log.log_start_offset, []
        files = log.files
        assert isinstance(files, FaultyFiles)
        failing, files.failing = files.failing, {}
        while batches := log.read_blocking(offset, 1 << 20, unsynced=True):
            for batch in batches:
                header = parse_header(batch)
                offset = header.next_offset
                found.append((offset, header.leader_epoch, bytes(batch)))
        files.failing = failing
        return [] if unwritten and log.written_offset < log.log_end_offset else found

    # ---- the network

    def hello(self, dialer: Process, broker: int) -> None:
        """A dialer's first bytes, and the answer."""
        acceptor = self.machines[broker].process
        if acceptor is None or self._is_cut(dialer.me, broker) or self._is_cut(broker, dialer.me):
            return
        link = Link(dialer, acceptor, dialer.broker_epoch)
        self.links.append(link)
        self.links = [old for old in self.links if all(old.open)]

        def arrived() -> None:
            acceptor.connected(link, 1)
            self.send(link, 1, lambda: dialer.connected(link, 0))

        self.send(link, 0, arrived)

    def _is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self.cut

    def send(self, link: Link, side: int, action: Callable[[], None], *, closing: bool = False) -> None:
        """From a side to the other: late, in order, and not at all once one of them has hung up."""
        if not closing and not link.open[side]:
            return
        if self._is_cut(link.ends[side].me, link.ends[1 - side].me):
            link.held[side].append(action)
            return
        dice = self.clockwork.dice
        delay_s = dice.uniform(0.0002, 0.004) if dice.random() < 0.97 else dice.uniform(0.01, 0.15)
        link.arrives_s[side] = max(link.arrives_s[side], self.clockwork.now_s + delay_s)
        receiver = link.ends[1 - side]

        def arrive() -> None:
            if link.open[1 - side]:
                link.heard_s[1 - side] = receiver.local_s()
                action()

        receiver.run(link.arrives_s[side] - self.clockwork.now_s, arrive)

    def heal(self, pair: tuple[int, int]) -> None:
        """What was held up comes late."""
        self.cut.discard(pair)
        for link in self.links:
            for side in (0, 1):
                if (link.ends[side].me, link.ends[1 - side].me) == pair:
                    held = link.held[side][:]
                    link.held[side].clear()
                    for action in held:
                        self.send(link, side, action)

    # ---- clients

    def client(self) -> None:
        """A batch from time to time, and a read."""
        dice = self.clockwork.dice
        self.clockwork.after(dice.uniform(0.0, 0.12) if self.faults else 0.3, self.client)
        for machine in dice.sample(list(self.machines.values()), 3):
            process = machine.process
            if process is None or self.clockwork.now_s < process.paused_until_s:
                continue
            name = dice.choice(list(self.logs))
            if dice.random() < 0.7:
                self._values += 1
                values = [b"%d " % self._values * dice.choice([1, 10])] * dice.choice([1, 1, 3])
                gap = dice.choice([0] * 9 + [2])
                waits = dice.random() < 0.75 or not self.faults
                process.run(0.0, lambda p=process, n=name, v=values, g=gap, w=waits: produce(p, n, v, g, w))  # type: ignore[misc]
            else:
                share = dice.random()
                process.run(0.0, lambda p=process, n=name, s=share: consume(p, n, s))  # type: ignore[misc]

    # ---- faults

    def fault(self) -> None:
        """Something befalls somebody, and then another thing."""
        if not self.faults:
            return
        dice = self.clockwork.dice
        self.clockwork.after(dice.expovariate(1 / 0.6), self.fault)
        machine = dice.choice(list(self.machines.values()))
        lasts_s = dice.choice([0.05, 0.3, 1.0, 2.5]) * dice.uniform(0.5, 1.5)
        kinds = ["kill", "kill", "power", "power", "all", "disk", "pause", "cut", "cut", "isolate", "etcd", "no etcd"]
        kinds += ["slow", "slow", "EIO", "ENOSPC", "etcd leader"]
        self.befall(dice.choice(kinds), machine, lasts_s)

    def befall(self, kind: str, machine: Machine, lasts_s: float) -> None:
        """One fault."""
        clockwork, dice = self.clockwork, self.clockwork.dice
        clockwork.note(f"FAULT {kind} at broker {machine.broker} for {lasts_s:.2f} s")
        if kind in ("kill", "power", "disk"):
            self._end(machine, kind, lasts_s)
        elif kind == "all":
            if self.power_losses_left > 1:
                for other in self.machines.values():
                    self._end(other, "power", lasts_s * dice.random())
        elif kind == "pause":
            if machine.process is not None:
                machine.process.paused_until_s = clockwork.now_s + lasts_s
        elif kind in ("cut", "isolate"):
            others = [broker for broker in self.machines if broker != machine.broker]
            if kind == "cut":
                others = [dice.choice(others)]
            pairs = [(machine.broker, other) for other in others] + [(other, machine.broker) for other in others]
            if dice.random() < 0.4:
                pairs = dice.sample(pairs, max(1, len(pairs) // 2))
            self.cut.update(pairs)
            for pair in pairs:
                clockwork.after(lasts_s, lambda pair=pair: self.heal(pair))  # type: ignore[misc]
            if kind == "isolate" and dice.random() < 0.6:
                self._lose_etcd(machine.broker, lasts_s)
        elif kind in ("etcd", "no etcd"):
            self._lose_etcd(machine.broker if kind == "etcd" else 0, lasts_s)
        elif kind == "slow":
            machine.slow_s = dice.choice([0.02, 0.2])
            clockwork.after(lasts_s, lambda: self._repair(machine))
        elif kind == "EIO":
            operation = dice.choice(["write", "sync", "sync", "open", "rename", "sync_directory", "truncate"])
            if operation == "sync" and "never" in [config.fsync for config in self.logs.values()]:
                operation = "write"
            machine.failing = {operation: errno.EIO}
            clockwork.after(lasts_s, lambda: self._repair(machine))
        elif kind == "ENOSPC":
            machine.room_bytes = dice.randrange(2000)
            clockwork.after(lasts_s, lambda: self._repair(machine))
        elif kind == "etcd leader":
            self._lose_etcd(0, 0.3)
            clockwork.after(0.3, self.metadata.new_leader)
        if machine.process is not None:
            machine.process.stops_refusing()

    def _end(self, machine: Machine, kind: str, lasts_s: float) -> None:
        process = machine.process
        if process is None:
            return
        power = kind != "kill"
        if power:
            if not self.power_losses_left:
                return
            self.power_losses_left -= 1
        if kind == "disk" and not self.new_disks_left:
            return
        process.end(power=power)
        if kind == "disk":
            self.new_disks_left -= 1
            machine.disk = MemoryFiles()
        self._repair(machine)
        self.clockwork.after(lasts_s, lambda: self.start(machine))

    def _repair(self, machine: Machine) -> None:
        machine.slow_s, machine.failing, machine.room_bytes = 0.001, {}, None

    def _lose_etcd(self, broker: int, lasts_s: float) -> None:
        self.no_etcd.add(broker)
        self.clockwork.after(lasts_s, lambda: self.no_etcd.discard(broker))

    # ---- a schedule

    def run(self) -> None:
        """Raises Violation."""
        clockwork = self.clockwork
        clockwork.after(1.0, self.client)
        clockwork.after(1.2, self.fault)
        if self.moves:
            clockwork.after(1.3, lambda: moving.operate(self))
        clockwork.run(1.2 + FAULTS_S)
        clockwork.note("no more faults")
        self.faults = False
        self.cut_all_short()
        deadline_s = clockwork.now_s + SETTLE_S
        missing: str | None = "all"
        while missing is not None and clockwork.now_s < deadline_s:
            clockwork.run(clockwork.now_s + 1.0)
            if clockwork.until is not None and clockwork.events >= clockwork.until:
                return
            missing = None if all(m.process for m in self.machines.values()) else "a broker"
            missing = missing or self.checker.settled()
        if missing is not None:
            raise Violation(f"8: {SETTLE_S:.0f} s after the last fault: {missing}")
        self.checker.at_the_end()

    def cut_all_short(self) -> None:
        """Everything works from now on."""
        for pair in list(self.cut):
            self.heal(pair)
        self.no_etcd.clear()
        moving.no_more(self)
        for machine in self.machines.values():
            self._repair(machine)
            if machine.process is not None:
                machine.process.paused_until_s = min(machine.process.paused_until_s, self.clockwork.now_s + 0.5)


def run_seed(seed: int, *, moves: bool = False, until: int | None = None, trace: bool = False) -> World:
    """One schedule. Raises Violation with the end of its story."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    world = World(seed, moves=moves, until=until, trace=trace)
    try:
        world.run()
    except Exception as error:
        story = "\n".join(world.clockwork.story[-40:])
        raise Violation(f"{error}\nseed {seed}, event {world.clockwork.events}\n{story}") from error
    finally:
        logging.disable(level)
    return world
