"""Three brokers, a network, etcd, clients, and what befalls them, all from one seed.

A schedule: the cluster comes up, then some seconds of faults, up to two at a time, then none, in which all must come
together; queues are emptied in part, one broker is killed once more, and what is left must be what the ledger says.
"""

from __future__ import annotations

import errno
import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import trio

import gateway.connection
import gateway.peers
import gateway.readers
import routing.broker
import routing.cluster.cluster
from core_log.kernel_sync import KernelSync
from core_log.replication.state import LOGS, decode
from routing.cluster.metadata.log_names import home_log
from routing.errors import BrokerError
from routing.session import Outcome, Session
from tests.simulation.brokers import sockets, users
from tests.simulation.brokers.groups import Group
from tests.simulation.brokers.harsh import KINDS, Harsh
from tests.simulation.brokers.hooks import seen
from tests.simulation.brokers.ledger import TTL_S, Ledger
from tests.simulation.brokers.process import HOMES, Machine, Process, config
from tests.simulation.brokers.steps import Steps
from tests.simulation.brokers.threads import SimFlusher
from tests.simulation.brokers.truth import Truth, WatchedLog
from tests.simulation.brokers.users import HARSH_QUEUES, QUEUES, User
from tests.simulation.brokers.virtual import Agenda, run
from tests.simulation.checker import Violation
from tests.simulation.etcd_model import EtcdModel

SETTLE_S = 45.0
_ROUNDS_MAX = 10


class _Truths(defaultdict[str, Truth]):
    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__()
        self._fail = fail

    def __missing__(self, name: str) -> Truth:
        self[name] = Truth(name, self._fail)
        return self[name]


class World:
    """See the module."""

    def __init__(self, seed: int, *, harsh: bool = False, until: int | None = None, trace: bool = False) -> None:
        self.seed = seed
        self.agenda = Agenda(seed, until=until, trace=trace)
        dice = self.agenda.dice
        self.harsh = Harsh(self) if harsh else None
        self.queues = HARSH_QUEUES if harsh else QUEUES
        self.config = config(dice)
        self.pause_s = dice.choice([0.1, 0.2, 0.4])
        """Between two slabs of a publisher."""
        self.faults_s = dice.choice([5.0, 7.0, 10.0] if harsh else [3.0, 4.0, 7.0])
        self.machines = {me: Machine(me) for me in (1, 2, 3)}
        self.network = sockets.Network(self.agenda, lambda me: self.machines[me].process)
        self.truths = _Truths(self.fail)
        self.ledger = Ledger(self)
        self.group = Group(self)
        self.steps = Steps(self) if harsh else None
        self.quiet = False
        """Clients stop."""
        self.faults = False
        self.violation: str | None = None
        self._broken = trio.Event()

    # ---- what is asked

    def fail(self, text: str) -> None:
        """An invariant does not hold. The first counts."""
        if self.violation is None:
            self.violation = text
            self.agenda.note(f"VIOLATION {text}")
            self._broken.set()

    def processes(self) -> Iterator[Process]:
        """All that run."""
        for machine in self.machines.values():
            if machine.process is not None and machine.process.ready:
                yield machine.process

    def any_process(self) -> Process | None:
        """One of them."""
        there = list(self.processes())
        return self.agenda.dice.choice(there) if there else None

    # ---- a schedule

    async def main(self) -> None:
        """All of it, until it ends or something is broken."""
        self.etcd = EtcdModel()
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self.etcd.run)
            self.agenda.when_over = self._broken.set
            self.nursery.start_soon(self._schedule)
            await self._broken.wait()
            for machine in self.machines.values():
                if machine.process is not None:
                    machine.process.end(power=True)
            self.nursery.cancel_scope.cancel()

    async def _schedule(self) -> None:
        agenda = self.agenda
        for machine in self.machines.values():
            agenda.after(agenda.dice.uniform(0, 0.2), partial(self.start, machine))
        await self._set_up()
        for process in self.processes():
            self.clients(process)
        self.faults = True
        self.group.begin()
        if self.steps is not None:
            self.steps.begin()
        agenda.after(agenda.dice.uniform(0.3, 1.0), self.fault)
        await trio.sleep(self.faults_s)
        agenda.note("no more faults")
        self.faults = False
        self._heal_all()
        if self.harsh is not None:
            self.harsh.put_right()
        await trio.sleep(1.0)
        self.quiet = True
        await self._settled()
        await self._empty(0.5)
        await self._kill_one()
        await self._settled()
        await self._empty(1.0)
        if self.harsh is not None:  # what has become too old meanwhile is somewhere else now
            await trio.sleep(TTL_S)
            await self._empty(1.0)
        await self._settled()
        if self.steps is not None:
            await self.steps.check()
        self._compare()
        self._broken.set()

    async def _until(self, condition: Callable[[], str | None], limit_s: float = SETTLE_S) -> None:
        until_s = self.agenda.now_s + limit_s
        while (missing := condition()) is not None:
            if self.agenda.now_s > until_s:
                self.fail(f"8: after {limit_s:.0f} s: {missing}")
                await trio.sleep_forever()
            await trio.sleep(0.1)

    async def _set_up(self) -> None:
        await self._until(self._missing)
        process = next(self.processes())
        finished = trio.Event()

        async def declare() -> None:
            broker = process.broker
            await broker.declare_exchange("all", "fanout", durable=True)
            for name, arguments in self.queues.items():
                await broker.declare_queue(name, durable=True, arguments=arguments)
            await broker.create_topic("t")
            for kind, name in (("queue", "plain"), ("queue", "shared"), ("topic", "t")):
                await broker.bind(kind, name, "all", "")
            if self.steps is not None:
                await self.steps.declare(process)
            finished.set()

        process.spawn(declare)
        await finished.wait()
        topology = process.broker.topology
        for name in self.queues:
            queue = topology.queues[name]
            index = next(index for index, home in enumerate(topology.stripes) if queue.id in home.queues)
            self.ledger.homes[name], self.ledger.ids[name] = f"queues/{index}", queue.id
        self.ledger.topic = process.broker.topics["t"].partitions[0].log.directory
        await self._until(self._missing)

    def clients(self, process: Process) -> None:
        """Those of a broker that is there."""
        for number in range(2):
            process.spawn(users.publishes, self, process, number)
            process.spawn(users.consumes, self, process, number)
        for number in range(1 if self.harsh is None else 2):
            process.spawn(users.gets, self, process, number)
        process.spawn(users.reads, self, process, 0)

    def goes_on(self, process: Process) -> None:
        """A process has stood still."""
        if self.harsh is None or process.ended or not process.ready or self.quiet:
            return
        for number in range(2):
            process.spawn(users.asks_for_messages, self, process, self.agenda.events * 2 + number)
        process.spawn(users.asks_for_counts, self, process)
        process.spawn(users.read, self, process)
        process.spawn(self.group.check, process)

    # ---- the end

    def _missing(self) -> str | None:
        """What there should be when nothing fails; None: all of it is there."""
        there = list(self.processes())
        if len(there) < 3:
            return f"only {[process.name for process in there]} run"
        prefix = b"/millrace/c/" + LOGS
        states = {key[len(prefix) :].decode(): kv.value for key, kv in self.etcd.keys.items() if key.startswith(prefix)}
        if len(states) < HOMES + 1:
            return f"only {list(states)} are there"
        for name, value in states.items():
            state = decode(value)
            if state.leader is None or len(state.isr) < 3:
                return f"{name}: leader {state.leader}, ISR {state.isr}, ELR {state.elr}"
            replicas = [process.cluster.replicas.by_name.get(name) for process in there]
            logs = [replica.log for replica in replicas if replica is not None]
            if len(logs) < len(replicas):
                return f"{name} is not open everywhere"
            ends = [(log.log_end_offset, log.high_watermark) for log in logs]
            if len({end for pair in ends for end in pair}) > 1:
                for log in logs:
                    log.request_sync()  # settlements alone have nobody who waits for them
                return f"{name}: ends and watermarks {ends}"
        for index in range(HOMES):
            leader = decode(states[home_log(index)]).leader
            assert leader is not None
            process = self.machines[leader].process
            assert process is not None
            home = process.broker.topology.stripes[index]
            if home not in process.broker.topology.led or home.suspended:
                return f"home {index} is not served by {process.name}"
        return self.harsh.missing() if self.harsh is not None else None

    async def _settled(self) -> None:
        await trio.sleep(0.3)
        await self._until(self._missing)

    async def _empty(self, share: float) -> None:
        """Take everything there is, and keep (with a share below 1) some of it."""
        last_due_s = max((message.due_s for message in self.ledger.messages.values()), default=0.0)
        await trio.sleep_until(last_due_s + 0.1)
        left = dict.fromkeys(self.queues)
        for queue in self.queues:
            process = self.any_process()
            assert process is not None
            process.spawn(self._take_all, process, queue, share, partial(left.pop, queue))
        await self._until(lambda: f"{list(left)} cannot be emptied" if left else None)

    async def _take_all(self, process: Process, queue: str, share: float, finished: Callable[[], object]) -> None:
        """A settlement that was not replicated before the queue's leader changed makes a delivery more."""
        broker = process.broker
        count, rounds = 1, 0
        while count and rounds < _ROUNDS_MAX:
            rounds += 1
            await self._take(User(process, f"e{queue}.{share}.{rounds}"), queue, share)
            await trio.sleep(0.3)
            try:
                count = (await broker.check_queue(queue)).message_count if share == 1 else 0
            except BrokerError as error:
                process.note(f"{queue}: {error}")
        if count:
            self.fail(f"8: {count} messages stay in {queue}")
        finished()

    async def _take(self, user: User, queue: str, share: float) -> None:
        dice = self.agenda.dice
        try:
            await user.session.consume(queue, tag="e", no_ack=False)
        except BrokerError as error:
            user.process.note(f"{queue}: {error}")
        user.broker.end_turn()
        last, quiet_since_s = -1, self.agenda.now_s
        while self.agenda.now_s - quiet_since_s < 0.5:
            await trio.sleep(0.05)
            if len(user.pending) != last:
                last, quiet_since_s = len(user.pending), self.agenda.now_s
        for delivery_id, name, body in user.pending:
            if dice.random() < share:
                self.ledger.settled(name, body)
                user.session.settle(delivery_id, delivery_id, Outcome.ACK)
        user.broker.end_turn()
        user.close()

    async def _kill_one(self) -> None:
        await self._settled()
        machine = self.agenda.dice.choice(list(self.machines.values()))
        assert machine.process is not None
        self.agenda.note("one more is killed")
        machine.process.end(power=False)
        self.agenda.after(0.5, partial(self.start, machine))

    def _compare(self) -> None:
        lacking = self.ledger.lacking()
        if lacking:
            self.fail(f"1: {len(lacking)} were confirmed and never came, such as {lacking[0]}")
        for name, truth in self.truths.items():
            truth.compare([process.logs[name] for process in self.processes() if name in process.logs])
        if self.harsh is not None and (found := self.harsh.set_aside()) is not None:
            self.fail(f"10: {found}")

    # ---- faults

    def start(self, machine: Machine) -> None:
        """A new process."""
        if machine.process is None:
            machine.process = Process(self, machine)
            machine.process.start(self.nursery)
            if self.faults:
                self.agenda.after(0.5, partial(self._clients_later, machine.process))

    def _clients_later(self, process: Process) -> None:
        if process.ready and not self.quiet:
            self.clients(process)
        elif not process.ended and not self.quiet:
            self.agenda.after(0.5, partial(self._clients_later, process))

    def fault(self) -> None:
        """Something befalls somebody, and then another thing."""
        if not self.faults:
            return
        dice = self.agenda.dice
        self.agenda.after(dice.expovariate(1 / 0.9), self.fault)
        machine = dice.choice(list(self.machines.values()))
        lasts_s = dice.choice([0.05, 0.3, 1.0, 3.0]) * dice.uniform(0.5, 1.5)
        kinds = ["kill", "kill", "power", "all", "pause", "pause", "cut", "cut", "isolate", "etcd", "no etcd"]
        kinds += ["slow", "EIO", "ENOSPC", "etcd leader", "reset", "lost answers"]
        self.befall(dice.choice(kinds + [*KINDS] * (self.harsh is not None)), machine, lasts_s)

    def befall(self, kind: str, machine: Machine, lasts_s: float) -> None:
        """One fault."""
        agenda, process = self.agenda, machine.process
        agenda.note(f"FAULT {kind} at broker {machine.me} for {lasts_s:.2f} s")
        if kind in ("kill", "power"):
            self.end(machine, kind == "power", lasts_s)
        elif kind == "all":
            for other in self.machines.values():
                self.end(other, True, lasts_s * agenda.dice.random())
        elif kind == "pause" and process is not None:
            process.stop()
            agenda.after(lasts_s, process.go_on)
        elif kind in ("cut", "isolate", "reset"):
            self._befall_network(kind, machine, lasts_s)
        elif kind in ("etcd", "no etcd", "etcd leader"):
            for one in [machine] if kind == "etcd" else list(self.machines.values()):
                self._lose_etcd(one, 0.3 if kind == "etcd leader" else lasts_s)
            if kind == "etcd leader":
                agenda.after(0.3, self.etcd.change_leader)
        elif kind == "lost answers":
            self.etcd.lose_answers += 1
        elif kind in ("slow", "EIO", "ENOSPC"):
            self._befall_disk(kind, machine, lasts_s)
        elif self.harsh is not None:
            self.harsh.befall(kind, machine)

    def _befall_network(self, kind: str, machine: Machine, lasts_s: float) -> None:
        dice = self.agenda.dice
        others = [me for me in self.machines if me != machine.me]
        if kind != "isolate":
            others = [dice.choice(others)]
        if kind == "reset":
            self.network.break_links(machine.me, others[0])
            return
        pairs = [(machine.me, other) for other in others] + [(other, machine.me) for other in others]
        if dice.random() < 0.4:
            pairs = dice.sample(pairs, max(1, len(pairs) // 2))
        for pair in pairs:
            self.network.cut_off(pair)
            self.agenda.after(lasts_s, partial(self.network.heal, pair))
        if kind == "isolate" and dice.random() < 0.6:
            self._lose_etcd(machine, lasts_s)

    def _befall_disk(self, kind: str, machine: Machine, lasts_s: float) -> None:
        dice = self.agenda.dice
        if kind == "slow":
            machine.slow_s = dice.choice([0.02, 0.2])
        elif kind == "ENOSPC":
            machine.room_bytes = dice.randrange(5000)
        else:
            operation = dice.choice(["write", "sync", "sync", "open", "rename", "sync_directory", "truncate"])
            if operation == "sync" and self.config.fsync == "never":
                operation = "write"
            machine.failing = {operation: errno.EIO}
        self._obey(machine)
        self.agenda.after(lasts_s, partial(self._repair, machine))

    def _obey(self, machine: Machine) -> None:
        if machine.process is not None:
            machine.process.obey()

    def _repair(self, machine: Machine) -> None:
        machine.repair()
        self._obey(machine)

    def end(self, machine: Machine, power: bool, lasts_s: float) -> None:
        """A process ends, and another one is there after a while."""
        process = machine.process
        if process is None:
            return
        if power and self.config.fsync == "never":
            return  # what was confirmed may be lost
        process.end(power=power)
        machine.repair()
        self.agenda.after(lasts_s, partial(self.start, machine))

    def _lose_etcd(self, machine: Machine, lasts_s: float) -> None:
        process = machine.process
        if process is None:
            return
        process.transport.cut_off = True
        self.etcd.notify()
        self.agenda.after(lasts_s, partial(self._find_etcd, process))

    def _find_etcd(self, process: Process) -> None:
        if not process.ended:
            process.transport.cut_off = False
            self.etcd.notify()

    def _heal_all(self) -> None:
        for pair in list(self.network.cut):
            self.network.cut[pair] = 1
            self.network.heal(pair)
        self.etcd.lose_answers = 0
        for machine in self.machines.values():
            machine.troubles.clear()
            self._repair(machine)
            if machine.process is not None:
                machine.process.go_on()
                self._find_etcd(machine.process)

    # ---- for whoever ran it

    @property
    def digest(self) -> str:
        """Of all that happened."""
        return hashlib.sha256("\n".join(self.agenda.story).encode()).hexdigest()


class _Quiet:
    """In place of a logger."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **fields: None


@contextmanager
def _seams() -> Iterator[None]:
    """Where the simulation takes the place of what a process has around it."""

    def patch(target: Any, name: str, value: object) -> None:
        stack.enter_context(mock.patch.object(target, name, value))

    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with ExitStack() as stack:
        stack.callback(logging.disable, level)
        patch(routing.broker, "LogFlusher", SimFlusher)
        patch(KernelSync, "open", lambda: None)
        patch(routing.cluster.cluster, "ReplicaLog", WatchedLog)
        patch(gateway.connection, "perf_counter", trio.current_time)
        patch(gateway.readers, "open_epoll", lambda: None)
        patch(trio.lowlevel, "wait_readable", sockets.wait_readable)
        patch(trio.lowlevel, "wait_writable", sockets.wait_writable)
        patch(trio.lowlevel, "notify_closing", sockets.notify_closing)
        for module in (gateway.peers, gateway.connection):
            patch(module, "log", _Quiet())
        stack.enter_context(seen(Session))
        yield


def run_seed(seed: int, *, harsh: bool = False, until: int | None = None, trace: bool = False) -> World:
    """One schedule. Raises Violation with the end of its story."""
    world = World(seed, harsh=harsh, until=until, trace=trace)
    with _seams(), mock.patch.object(gateway.peers, "connect", world.network.connect):
        try:
            run(seed, world.agenda, world.main)
        except BaseException as error:
            if world.violation is None:
                raise Violation(_story(world, f"0: {error!r}")) from error
    if world.violation is not None or world.agenda.error is not None:
        raise Violation(_story(world, world.violation or f"0: {world.agenda.error!r}")) from world.agenda.error
    return world


def _story(world: World, text: str) -> str:
    story = "\n".join(world.agenda.story[-40:])
    return f"{text}\nseed {world.seed}, event {world.agenda.events}\n{story}"
