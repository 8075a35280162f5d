"""Schedules of a kind of their own (`--harsh`): what else befalls brokers, and what operators ask for meanwhile.

1. A file or directory is in trouble, while a broker starts or while it runs (`disks.py`), and all others are well.
2. Brokers stand still for longer than their lease and the lag that a replica may have: one, or one after the other, or
   at the moment in which a log goes from one to the other. When they go on they are asked everything at once.
3. Replicas and leaders move: also those of a broker that is away, which finds out when it is back.
4. A queue has dead letters (`HARSH_QUEUES`).
5. Writers publish in steps that take effect once (`steps.py`).
6. A start ends, or meets an error, at one of the things that it asks of the disk, any of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from core_log.replication.state import LOGS, LogState, decode
from routing.cluster.cluster import Cluster
from routing.cluster.metadata import operating
from routing.cluster.metadata.records import DRAINS
from routing.errors import BrokerError
from tests.simulation.brokers.disks import Plan, Trouble

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Machine, Process
    from tests.simulation.brokers.world import World

KINDS = (
    *("failing start",) * 8,
    *("blind start", "trouble") * 3,
    *("long pause", "pauses", "away", "hand-over", "move") * 2,
    *("drain", "rebalance"),
)
_LOOK_S = 0.003
_HAND_OVER_S = 3.0
_PUT_RIGHT_S = 0.5
_PREFIX = b"/millrace/c/"


class Harsh:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = world.agenda.dice

    def befall(self, kind: str, machine: Machine) -> None:
        """One of `KINDS`."""
        dice = self.dice
        if kind == "failing start":
            machine.plan = Plan.drawn(dice, machine.asked_by_starts)
            self.world.agenda.note(f"PLANNED at broker {machine.me}: {machine.plan}")
            self.world.end(machine, dice.random() < 0.3, dice.uniform(0.1, 0.5))
        elif kind == "blind start":
            self._trouble(machine, starting=True)
            self.world.end(machine, dice.random() < 0.3, dice.uniform(0.1, 1.5))
        elif kind == "trouble":
            self._trouble(machine, starting=False)
        elif kind == "long pause":
            self._pause(machine, dice.uniform(2.2, 6))
        elif kind == "pauses":
            self._pauses()
        elif kind == "away":
            self._away(machine)
        elif kind == "hand-over":
            self._drain(machine, dice.uniform(1, 4))
            self._at_hand_over(self.world.agenda.now_s + _HAND_OVER_S, dict.fromkeys(self.states()))
        elif kind == "drain":
            self._drain(machine, dice.uniform(0.5, 5))
        elif kind == "move":
            self._move(dice.sample(sorted(self.world.machines), dice.choice([2, 2, 3])))
        else:
            self._ask("rebalances", partial(operating.rebalance, dry_run=False))

    # ---- disks

    def _trouble(self, machine: Machine, *, starting: bool) -> None:
        for _ in range(self.dice.choice([1, 1, 2])):
            trouble = Trouble.drawn(self.dice, starting=starting and self.dice.random() < 0.5)
            self.give(machine, trouble, self.dice.uniform(0.3, 5))

    def give(self, machine: Machine, trouble: Trouble, lasts_s: float) -> None:
        """Have a machine's disk be in trouble for a while."""
        self.world.agenda.note(f"TROUBLE at broker {machine.me}: {trouble}")
        machine.troubles.append(trouble)
        self.world.agenda.after(lasts_s, partial(self._well, machine, trouble))

    @staticmethod
    def _well(machine: Machine, trouble: Trouble) -> None:
        if trouble in machine.troubles:
            machine.troubles.remove(trouble)

    # ---- pauses

    def _pause(self, machine: Machine, lasts_s: float) -> None:
        process = machine.process
        if process is not None and self.world.faults:
            process.note(f"stands still for {lasts_s:.2f} s")
            process.stop()
            self.world.agenda.after(lasts_s, process.go_on)

    def _pauses(self) -> None:
        machines = list(self.world.machines.values())
        self.dice.shuffle(machines)
        begin_s = 0.0
        for machine in machines:
            self.world.agenda.after(begin_s, partial(self._pause, machine, self.dice.uniform(0.5, 4)))
            begin_s += self.dice.uniform(0.2, 3)

    def _at_hand_over(self, until_s: float, seen: dict[str, tuple[int, int | None] | None]) -> None:
        """Who hands a log over, or takes it, stands still as soon as it is seen, or soon."""
        world = self.world
        if not world.faults or world.agenda.now_s > until_s:
            return
        for name, state in self.states().items():
            now = state.leader_epoch, state.transfer
            before, seen[name] = seen.get(name), now
            if before in (None, now) or self.dice.random() < 0.3:
                continue
            machine = world.machines.get(self.dice.choice([state.leader, state.transfer, state.leader]) or 0)
            if machine is not None:
                pause = partial(self._pause, machine, self.dice.choice([0.3, 2.5, 4.0]) * self.dice.uniform(0.7, 1.5))
                world.agenda.after(self.dice.choice([0, 0.002, 0.01, 0.05]) * self.dice.random(), pause)
                return
        world.agenda.after(_LOOK_S, partial(self._at_hand_over, until_s, seen))

    # ---- operators

    def states(self) -> dict[str, LogState]:
        """Of all logs, as etcd has them."""
        prefix = _PREFIX + LOGS
        keys = self.world.etcd.keys
        return {key[len(prefix) :].decode(): decode(kv.value) for key, kv in keys.items() if key.startswith(prefix)}

    def _drained(self) -> list[int]:
        prefix = _PREFIX + DRAINS
        return [int(key[len(prefix) :]) for key in self.world.etcd.keys if key.startswith(prefix)]

    def _ask(self, what: str, command: Callable[[Cluster], Awaitable[object]]) -> None:
        """Have any broker do something, as long as there are faults."""
        if self.world.faults:
            self._do_now(what, command)

    def _do_now(self, what: str, command: Callable[[Cluster], Awaitable[object]]) -> None:
        process = self.world.any_process()
        if process is not None:
            process.spawn(self._do, process, what, command)

    async def _do(self, process: Process, what: str, command: Callable[[Cluster], Awaitable[object]]) -> None:
        process.note(f"OPERATOR {what}")
        try:
            await command(process.cluster)
        except BrokerError as error:
            process.note(f"OPERATOR {what}: {error}")

    def _drain(self, machine: Machine, lasts_s: float) -> None:
        me = machine.me
        self._ask(f"drains {me}", partial(operating.drain, broker_id=me, on=True))
        undrain = partial(self._ask, f"undrains {me}", partial(operating.drain, broker_id=me, on=False))
        self.world.agenda.after(lasts_s, undrain)

    def _move(self, replicas: list[int], *, share: float = 0.0) -> None:
        """Have a log, and so many others, lie there."""
        names = sorted(self.states())
        for name in {self.dice.choice(names): None} | {name: None for name in names if self.dice.random() < share}:
            self._ask(f"moves {name} to {replicas}", partial(operating.move, log=name, replicas=replicas))

    def _away(self, machine: Machine) -> None:
        """A broker is gone, or stands still, for long enough that its replicas can be elsewhere when it is back."""
        dice, agenda = self.dice, self.world.agenda
        lasts_s = dice.uniform(2.5, 7)
        if dice.random() < 0.6:
            if dice.random() < 0.3:
                self._trouble(machine, starting=True)
            self.world.end(machine, dice.random() < 0.3, lasts_s)
        else:
            self._pause(machine, lasts_s)
        others = [me for me in self.world.machines if me != machine.me]
        for _ in range(dice.randrange(1, 4)):
            dice.shuffle(others)
            agenda.after(dice.uniform(0.3, lasts_s), partial(self._move, list(others), share=0.5))
        back = [*others, machine.me]
        dice.shuffle(back)
        agenda.after(lasts_s + dice.uniform(-0.1, 2), partial(self._move, back, share=0.7))

    # ---- the end

    def missing(self) -> str | None:
        """What operators would put right."""
        if self.world.steps is not None and (waiting := self.world.steps.missing()):
            return waiting
        if drained := self._drained():
            return f"{drained} are drained"
        for name, state in self.states().items():
            if state.target is not None or len(state.replicas) < len(self.world.machines):
                return f"{name} is at {state.replicas}, shall be at {state.target}"
        return None

    def put_right(self) -> None:
        """All brokers have all logs again, once that can be; what was asked for before may still be done."""
        for me in self._drained():
            self._do_now(f"undrains {me}", partial(operating.drain, broker_id=me, on=False))
        everywhere = sorted(self.world.machines)
        for name, state in self.states().items():
            if state.target is not None or len(state.replicas) < len(everywhere):
                self.dice.shuffle(everywhere)
                moves = partial(operating.move, log=name, replicas=list(everywhere))
                self._do_now(f"moves {name} everywhere", moves)
        self.world.agenda.after(_PUT_RIGHT_S, self.put_right)

    def set_aside(self) -> str | None:
        """What a broker has taken for unknown; the catalog names all there is."""
        for machine in self.world.machines.values():
            if found := machine.disk.list("unknown"):
                return f"broker {machine.me} does not know {', '.join(found)}"
        return None
