"""What clients ask of a leader."""

from __future__ import annotations

from core_log.errors import LogUnavailable
from core_log.replication.leader import Leader
from tests.core_log.helpers import make_batch
from tests.simulation.broker import Process
from tests.simulation.machine import SimLog


def produce(process: Process, name: str, values: list[bytes], gap: int, waits: bool) -> None:
    """A client's batch, if this is the leader."""
    replica = process.replicas.get(name)
    role = replica.role if replica is not None else None
    if replica is None or not isinstance(role, Leader) or not role.may_append():
        return
    if not role.may_serve(process.local_s(), process.lease_until_s):
        return
    log = replica.log
    try:
        base = log.append(make_batch(values), base_offset=log.log_end_offset + gap)
    except LogUnavailable:
        return
    assert isinstance(log, SimLog)
    process.world.checker.appended(process, role, base)
    if waits:
        log.request_sync()
        process.waiting.append((role, log.log_end_offset, log.mirror[-1][2]))
    process.turn()


def consume(process: Process, name: str, share: float) -> None:
    """A reader that follows epochs."""
    replica = process.replicas.get(name)
    role = replica.role if replica is not None else None
    if replica is None or not isinstance(role, Leader) or not role.may_serve(process.local_s(), process.lease_until_s):
        return
    log = replica.log
    offset = log.log_start_offset + int(share * (log.high_watermark - log.log_start_offset))
    try:
        batches = log.read(offset, 2000)
        if batches is None:
            batches = log.read_blocking(offset, 2000)
    except OSError:
        return
    process.world.checker.given(process, role, [bytes(batch) for batch in batches])
    if process.world.clockwork.dice.random() < 0.1:
        log.delete_prefix(offset)
