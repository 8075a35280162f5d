"""Leaders and replicas that move on purpose: what an operator asks for, and what brokers and the controller make of it.

Only in worlds with `moves`: all others go on as they did, dice and all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from core_log.metadata.store import Guard, MetadataEntry
from core_log.replication import moves
from core_log.replication.state import LogState, decode, encode, log_key

if TYPE_CHECKING:
    from tests.simulation.broker import Process
    from tests.simulation.world import World

DRAINS = b"drains/"
CONFIG = moves.MoveConfig(transfers_max=1, restore_after_s=0.7, ask_again_s=0.4)


# ---- a broker


def is_here(process: Process, name: str) -> bool:
    """Whether a process that starts has a replica: the metadata that it begins with says so."""
    if not process.world.moves:
        return True
    if process.me in process.world.checker.state_of(name).replicas:
        return True
    process.machine.dropped[name] = process.machine.dropped.get(name, 0) + 1
    return False


def directory(process: Process, name: str) -> str:
    """Where a log lies; another place once it was moved aside."""
    dropped = process.machine.dropped.get(name, 0)
    return f"{name}.{dropped}" if dropped else name


def history(process: Process) -> list[tuple[int, list[MetadataEntry]]]:
    """What a watch tells: all that is there first."""
    metadata = process.world.metadata
    if process.world.moves and not process.applied:
        return [(metadata.revision, list(metadata.entries.values()))]
    return metadata.history


def keep(process: Process, name: str, state: LogState) -> None:
    """Have a replica of what names this broker, and of nothing else."""
    if not process.world.moves or (process.me in state.replicas) == (name in process.replicas):
        return
    if process.me in state.replicas:
        process.note(f"begins a replica of {name}")
        try:
            process.open(name, 0).registered(process.broker_epoch)
        except OSError:
            process.run(0.2, lambda: _again(process, name))
    else:
        process.note(f"drops {name}")
        log = process.replicas.pop(name).log
        log.listeners.clear()
        process.machine.dropped[name] = process.machine.dropped.get(name, 0) + 1
        process.waiting = [wait for wait in process.waiting if wait[0].log is not log]


def _again(process: Process, name: str) -> None:
    entry = process.entries[log_key(b"", name)]
    assert entry.value is not None
    process._on_state(name, decode(entry.value), entry.mod_revision)


def drains(process: Process, broker: int) -> bool:
    return DRAINS + b"%d" % broker in process.entries


def on_drain(process: Process, broker: int) -> None:
    found = process.brokers.get(broker)
    if found is not None:
        process.brokers[broker] = found._replace(draining=drains(process, broker))


def due(process: Process) -> dict[str, LogState]:
    """What the controller moves."""
    if not process.world.moves:
        return {}
    logs = {}
    for name in process.world.logs:
        entry = process.entries.get(log_key(b"", name))
        if entry is not None and entry.value is not None:
            logs[name] = decode(entry.value)
    return process.mover.due(logs, process.brokers, process.local_s())


# ---- the operator


def operate(world: World) -> None:
    """One thing, and then another."""
    if not world.faults:
        return
    dice = world.clockwork.dice
    world.clockwork.after(dice.expovariate(1 / 0.5), lambda: operate(world))
    broker = dice.choice(list(world.machines))
    kind = dice.choice(["drain", "transfer", "transfer", "move", "move", "back"])
    name = dice.choice(list(world.logs))
    state = world.checker.state_of(name)
    if kind == "drain":
        world.clockwork.note(f"OPERATOR drains {broker}")
        world.metadata.commit((), ((DRAINS + b"%d" % broker, b""),))
        world.clockwork.after(dice.uniform(0.3, 3), lambda: undrain(world, broker))
    elif kind == "transfer":
        others = [each for each in state.isr_brokers if each != state.leader]
        if others and state.leader is not None:
            put(world, name, moves.asked(state, dice.choice(others)))
    else:
        count = dice.choice([2, 3, 3]) if world.min_insync <= 2 else 3
        target = dice.sample(list(world.machines), count) if kind == "move" else list(state.replicas[:3])
        put(world, name, moves.begun(state, target))
        if kind == "move" and dice.random() < 0.5:
            hurry(world, name, state.replicas, world.clockwork.now_s + 2)


def hurry(world: World, name: str, replicas: tuple[int, ...], until_s: float) -> None:
    """Have the old replicas back as soon as they have gone."""
    state = world.checker.state_of(name)
    if state.target is None and not set(replicas).issubset(state.replicas):
        put(world, name, moves.begun(state, dict.fromkeys((*state.replicas, *replicas))), at_once=True)
    elif world.clockwork.now_s < until_s and world.faults:
        world.clockwork.after(0.002, lambda: hurry(world, name, replicas, until_s))


def put(world: World, name: str, state: LogState, *, at_once: bool = False) -> None:
    """What an operator's broker writes, if nobody is quicker."""
    before = world.metadata.entries[log_key(b"", name)]

    def write() -> None:
        guard = Guard(before.key, mod_revision=before.mod_revision)
        if world.metadata.commit((guard,), ((before.key, encode(state)),)) is not None:
            world.clockwork.note(f"OPERATOR {name}: {msgspec.to_builtins(state)}")

    world.clockwork.after(0 if at_once else world.clockwork.dice.uniform(0, 0.05), write)


def undrain(world: World, broker: int) -> None:
    world.clockwork.note(f"OPERATOR undrains {broker}")
    world.metadata.commit((), ((DRAINS + b"%d" % broker, None),))


def no_more(world: World) -> None:
    """All brokers may lead from now on."""
    for broker in world.machines if world.moves else ():
        undrain(world, broker)
