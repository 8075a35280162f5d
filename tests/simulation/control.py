"""The controller's part of a broker, whenever it is its turn."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from core_log.metadata.store import Guard
from core_log.replication import election
from core_log.replication.state import BrokerState, broker_key, decode, encode, log_key
from tests.simulation import moving

if TYPE_CHECKING:
    from tests.simulation.broker import Process

CONTROLLER = b"controller"
PREFIX = b""


def control(process: Process) -> None:
    """Be the controller, if it is this one."""
    if not process.broker_epoch or process.brokers.get(process.me, BrokerState(0)).epoch != process.broker_epoch:
        return
    metadata, mine = process.world.metadata, process.entries.get(CONTROLLER)
    lease = process.lease
    if mine is None:
        if CONTROLLER not in process.busy:
            process.busy.add(CONTROLLER)
            create = (Guard(CONTROLLER, create_revision=0),)
            process.ask(
                lambda: metadata.commit(create, ((CONTROLLER, b"%d" % process.me),), lease),
                lambda *_: process.busy.discard(CONTROLLER),
            )
        return
    if mine.value != b"%d" % process.me:
        return
    due = moving.due(process)
    for name in process.world.logs:
        entry = process.entries.get(log_key(PREFIX, name))
        if entry is None or entry.value is None or (name, entry.mod_revision) in process.busy:
            continue
        state = decode(entry.value)
        wanted = election.elect(name, state, process.brokers) or due.get(name)
        if wanted is None:
            continue
        key = (name, entry.mod_revision)
        process.busy.add(key)
        guards = [
            Guard(entry.key, mod_revision=entry.mod_revision),
            Guard(CONTROLLER, create_revision=mine.create_revision),
        ]
        if wanted.leader is not None:
            guards.append(Guard(broker_key(PREFIX, wanted.leader), create_revision=wanted.leader_broker_epoch))
        process.ask(
            partial(metadata.commit, guards, ((entry.key, encode(wanted)),)),
            lambda *_, key=key: process.busy.discard(key),  # type: ignore[misc]
        )
