"""What operators change of a cluster, through any broker: written as metadata, and acted upon by whoever sees it there.

1. Nobody is sent commands. What is asked for is checked against what this broker knows, and written under guards of
   what was seen; if that has changed meanwhile it is looked at again.
2. What is answered is that it is written, not that it is done: see `copying`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import trio

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.store import Guard, Put
from core_log.replication.election import elect
from core_log.replication.leader import Leader
from core_log.replication.moves import asked, begun, lasting_insync, preferred, wanted
from core_log.replication.state import LogState, encode, log_key
from routing.cluster.metadata import records
from routing.cluster.metadata.elections import Known, broker_states, places_of, say_unclean
from routing.cluster.metadata.placement import minimum_now
from routing.cluster.metadata.rebalance import Shape, plan
from routing.cluster.metadata.records import (
    SETTINGS,
    BrokerThrottle,
    ClusterSettings,
    broker_key,
    directory_key,
    drain_key,
    throttle_key,
)
from routing.errors import InvalidArgument, NotFound, PreconditionFailed, StorageUnavailable

if TYPE_CHECKING:
    from core_log.replica_log import ReplicaLog
    from routing.cluster.cluster import Cluster

REPLICAS_MAX = 32
_BATCH_LOGS = 50
_ATTEMPTS_MAX = 20
_NAMED_MAX = 3
_LOOK_S = 0.02


async def drain(cluster: Cluster, broker_id: int, *, on: bool) -> None:
    """Have a broker lead nothing, or no longer so; it keeps its replicas. Raises NotFound, StorageUnavailable."""
    still = _require_known(cluster, broker_id)
    await _change(cluster, [still], [(drain_key(broker_id), b"" if on else None)])


async def remove(cluster: Cluster, broker_id: int, *, called: Callable[[str], str]) -> None:
    """Forget a broker that is gone for good; its id may be used by another data directory then. `called` is what
    operators call a log.

    Raises NotFound, PreconditionFailed when it runs or a log names it, StorageUnavailable.
    """
    with _in_reach():
        await cluster.store.barrier()
    still = _require_known(cluster, broker_id)
    if broker_id in cluster.members.brokers:
        raise PreconditionFailed(f"broker {broker_id} runs: stop it first")
    named = [log for log, known in cluster.elections.logs.items() if broker_id in _all_of(known.state)]
    if named:
        text = (
            f"{len(named)} partitions have replicas on broker {broker_id} ({_some(named, called)}): move them first, "
        )
        text += "or rebalance"
        leaderless = [log for log in named if cluster.elections.logs[log].state.leader is None]
        if leaderless:
            text += (
                f"; nobody can copy what has no leader ({_some(leaderless, called)}) before a broker that has it is "
                "back, or unclean elections are allowed"
            )
        raise PreconditionFailed(text)
    gone = Guard(broker_key(broker_id), 0)
    await _change(cluster, [still, gone], [(key(broker_id), None) for key in (directory_key, drain_key, throttle_key)])


async def move(cluster: Cluster, log: str, replicas: Sequence[int]) -> None:
    """Have other replicas of a log, the preferred leader first.

    Raises NotFound, InvalidArgument, StorageUnavailable.
    """
    for _ in range(_ATTEMPTS_MAX):
        known = _known(cluster, log)
        _check_replicas(cluster, known.state, replicas)
        before = known.state.origin_factor or known.state.factor
        if await _begin(cluster, log, known, replicas, factor=len(replicas), before=before):
            return
    raise StorageUnavailable(f"'{log}' changes all the time: try again")


async def cancel_move(cluster: Cluster, log: str) -> bool:
    """Have a log go back to the replicas that it had, also those that are away; False: it is not moving. Raises
    NotFound, StorageUnavailable.
    """
    for _ in range(_ATTEMPTS_MAX):
        known = _known(cluster, log)
        state = known.state
        if state.target is None or state.origin is None:
            return False
        factor = state.origin_factor or max(state.factor, len(state.origin))
        if await _begin(cluster, log, known, state.origin, factor=factor, before=factor):
            return True
    raise StorageUnavailable(f"'{log}' changes all the time: try again")


async def _begin(
    cluster: Cluster, log: str, known: Known, replicas: Sequence[int], *, factor: int, before: int
) -> bool:
    state = begun(known.state, replicas)
    if state.factor:
        origin_factor = 0 if state.target is None else before
        state = msgspec.structs.replace(state, factor=factor, origin_factor=origin_factor)
    return await _write(cluster, [(log, known, state)])


class Elected(Enum):
    """What has become of an election that somebody asked for."""

    DONE = "done"
    NOT_NEEDED = "not needed"
    UNAVAILABLE = "nobody can lead who should"
    UNDER_WAY = "not yet done"


async def elect_preferred(cluster: Cluster, log: str, *, timeout_s: float) -> Elected:
    """Have the first replica lead, if it can: the leader hands over. Raises NotFound, StorageUnavailable."""
    for _ in range(_ATTEMPTS_MAX):
        known = _known(cluster, log)
        first = known.state.replicas[0]
        if known.state.leader == first:
            return Elected.NOT_NEEDED
        if preferred(log, known.state, broker_states(cluster.members.brokers.values())) is None:
            return Elected.UNAVAILABLE
        if await _write(cluster, [(log, known, asked(known.state, first))]):
            return await _led(cluster, log, first, timeout_s)
    raise StorageUnavailable(f"'{log}' changes all the time: try again")


async def elect_uncleanly(cluster: Cluster, log: str) -> Elected:
    """Have a replica lead that may lack what was committed, where nobody leads and nobody else can: this once, whether
    the log allows that or not. Raises NotFound, StorageUnavailable.
    """
    for _ in range(_ATTEMPTS_MAX):
        known, brokers = _known(cluster, log), broker_states(cluster.members.brokers.values())
        if known.state.leader is not None:
            return Elected.NOT_NEEDED
        allowed = msgspec.structs.replace(known.state, unclean=True)
        state = msgspec.structs.replace(elect(log, allowed, brokers) or allowed, unclean=known.state.unclean)
        if state.leader is None:
            return Elected.UNAVAILABLE
        epochs = {one: brokers[one].epoch if one in brokers else 0 for one in _all_of(known.state)}
        relied = [Guard(broker_key(one), create_revision=epoch) for one, epoch in epochs.items()]
        if await _write(cluster, [(log, known, state)], relied):
            if state.unclean_epoch > known.state.unclean_epoch:
                say_unclean(cluster.elections.called(log), state)
            return Elected.DONE
    raise StorageUnavailable(f"'{log}' changes all the time: try again")


async def _led(cluster: Cluster, log: str, by: int, timeout_s: float) -> Elected:
    with trio.move_on_after(timeout_s):
        while _known(cluster, log).state.leader != by:
            await trio.sleep(_LOOK_S)
        return Elected.DONE
    return Elected.UNDER_WAY


def _known(cluster: Cluster, log: str) -> Known:
    known = cluster.elections.logs.get(log)
    if known is None:
        raise NotFound(f"there is no replicated log '{log}'")
    return known


class Rebalanced(NamedTuple):
    """What comes of a rebalance."""

    changes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """The replicas of logs, before and after."""
    kept: list[str]
    """Logs that stay as they are: there are fewer brokers than have to be in sync."""


async def rebalance(cluster: Cluster, *, dry_run: bool) -> Rebalanced:
    """Have equally many replicas and preferred leaders on all brokers that run and do not drain. Raises
    StorageUnavailable.
    """
    logs = cluster.elections.logs
    shapes = {log: Shape(wanted(known.state), factor_of(known.state)) for log, known in logs.items()}
    planned = plan(shapes, places_of(cluster.members.brokers.values()))
    kept = [log for log, target in planned.items() if len(target) < _replicas_min(logs[log].state)]
    for log in kept:
        del planned[log]

    def changes(names: Sequence[str]) -> list[tuple[str, Known, LogState]]:
        here = {log: logs[log] for log in names if log in logs}
        return [
            (log, known, begun(known.state, planned[log]))
            for log, known in here.items()
            if len(planned[log]) >= _replicas_min(known.state)  # it may have risen meanwhile
        ]

    names = [] if dry_run else sorted(planned)
    for start in range(0, len(names), _BATCH_LOGS):
        batch = names[start : start + _BATCH_LOGS]
        if await _write(cluster, changes(batch)):
            continue
        for log in batch:
            for _ in range(_ATTEMPTS_MAX):
                if await _write(cluster, changes([log])):
                    break
    found = {log: (shapes[log].replicas, target) for log, target in planned.items()}
    return Rebalanced(found, kept)


async def allow_unclean(cluster: Cluster, logs: Sequence[str], *, on: bool) -> None:
    """Whether replicas that may lack what was committed lead these logs where nobody else can: at once, if nobody does.

    Raises StorageUnavailable.
    """
    await _alter(cluster, logs, lambda state: msgspec.structs.replace(state, unclean=on))


async def require_insync(cluster: Cluster, logs: Sequence[str], minimum: int, *, firm: bool = True) -> None:
    """So many replicas of these logs have to be in sync for anything to be committed. More than are in sync now, and
    stay, is asked for once they are; where it is not `firm`, once they have all their replicas. Raises
    StorageUnavailable.
    """

    def changed(state: LogState) -> LogState:
        state = msgspec.structs.replace(state, minimum=minimum, firm=firm)
        wanted = minimum_now(state)
        now = wanted if lasting_insync(state) >= wanted else min(state.min_insync, wanted)
        return msgspec.structs.replace(state, min_insync=now).with_isr(state.isr, state.elr)

    await _alter(cluster, logs, changed)


async def _alter(cluster: Cluster, logs: Sequence[str], change: Callable[[LogState], LogState]) -> None:
    for log in logs:
        for _ in range(_ATTEMPTS_MAX):
            known = cluster.elections.logs.get(log)
            if known is None or await _write(cluster, [(log, known, change(known.state))]):
                break
        else:
            raise StorageUnavailable(f"'{log}' changes all the time: try again")


async def throttle(cluster: Cluster, catch_up_bytes_per_s: int | None) -> None:
    """What each leader sends at most to replicas that are not in sync; None: as configured. Raises InvalidArgument,
    StorageUnavailable.
    """
    check_throttle(catch_up_bytes_per_s)
    await _change(cluster, [], [(SETTINGS, records.encode(ClusterSettings(catch_up_bytes_per_s)))])


def check_throttle(bytes_per_s: int | None) -> None:
    """Raises InvalidArgument."""
    if bytes_per_s is not None and not 1 << 10 <= bytes_per_s <= 1 << 40:
        raise InvalidArgument("the throttle is a number of bytes a second, from 1024 on")


async def throttle_broker(cluster: Cluster, change: Callable[[BrokerThrottle], BrokerThrottle]) -> None:
    """What is set for this broker alone. Raises InvalidArgument, PreconditionFailed, StorageUnavailable."""
    changed = change(cluster.throttle)
    for bytes_per_s in msgspec.structs.astuple(changed):
        check_throttle(bytes_per_s)
    key = throttle_key(cluster.broker_id)
    known = cluster.store.get(key)
    guard = Guard(key, mod_revision=0 if known is None else known.mod_revision)
    await _change(cluster, [guard], [(key, None if changed == BrokerThrottle() else records.encode(changed))])


class Copying(NamedTuple):
    """A log that has replicas which are not in sync, or shall have others."""

    log: str
    state: LogState
    missing: tuple[int, ...]
    """Replicas that are not in sync."""
    bytes_left: int | None
    """What these still need, all together; None where another broker knows."""


def copying(cluster: Cluster) -> Iterator[Copying]:
    """What is still under way."""
    for log, known in sorted(cluster.elections.logs.items()):
        state = known.state
        missing = tuple(one for one in state.replicas if one not in state.isr_brokers)
        if not missing and state.target is None:
            continue
        replica = cluster.replicas.by_name.get(log)
        role = replica.role if replica is not None else None
        left: int | None = None
        if isinstance(role, Leader):
            found = [(one, role.followers.get(one)) for one in missing]
            reported = [max(progress.reported, 0) if progress is not None else 0 for _, progress in found]
            left = sum(bytes_after(role.log, offset) for offset in reported)
        yield Copying(log, state, missing, left)


def bytes_after(log: ReplicaLog, offset: int) -> int:
    """About how many bytes a log has from an offset on."""
    left, end = 0, log.log_end_offset
    for segment in reversed(log.segments):
        span = max(end - segment.base_offset, 1)
        share = min(max(end - offset, 0) / span, 1.0)
        left += int(segment.size * share)
        end = segment.base_offset
        if offset >= end:
            break
    return left


def _some(logs: Sequence[str], called: Callable[[str], str]) -> str:
    return ", ".join(sorted(map(called, logs))[:_NAMED_MAX]) + (" ..." if len(logs) > _NAMED_MAX else "")


def factor_of(state: LogState) -> int:
    """How many replicas a log should have."""
    return state.factor or len(wanted(state))


def _replicas_min(state: LogState) -> int:
    """How many replicas a log has to have: its minimum, also while too few are in sync for it to hold."""
    count = len(wanted(state))
    enough = state.minimum if state.firm else max(state.factor, state.minimum)
    return max(state.min_insync, state.minimum if count >= enough else 0)


def _all_of(state: LogState) -> tuple[int, ...]:
    return (*state.replicas, *(state.target or ()), *state.isr_brokers)


def _require_known(cluster: Cluster, broker_id: int) -> Guard:
    """That it is still the same one."""
    key = directory_key(broker_id)
    entry = cluster.store.get(key)
    if entry is None:
        raise NotFound(f"the cluster has no broker {broker_id}")
    return Guard(key, create_revision=entry.create_revision)


def _check_replicas(cluster: Cluster, state: LogState, replicas: Sequence[int]) -> None:
    if not replicas or len(set(replicas)) != len(replicas) or len(replicas) > REPLICAS_MAX:
        raise InvalidArgument("replicas are different brokers, the preferred leader first")
    if len(replicas) < (least := _replicas_min(state)):
        raise InvalidArgument(f"{len(replicas)} replicas are fewer than its min_insync_replicas, {least}")
    for broker in replicas:
        if broker not in cluster.members.brokers:
            raise InvalidArgument(f"broker {broker} does not run")


async def _write(
    cluster: Cluster, changes: Sequence[tuple[str, Known, LogState]], relied: Sequence[Guard] = ()
) -> bool:
    """Whether it is so now; not if one of these logs, or what else is relied on, was changed by somebody else."""
    due = [(log, known, state) for log, known, state in changes if state != known.state]
    if not due:
        return True
    guards = [*relied, *(Guard(log_key(b"", log), mod_revision=known.mod_revision) for log, known, _ in due)]
    with _in_reach():
        try:
            await cluster.store.change(guards, [(log_key(b"", log), encode(state)) for log, _, state in due])
        except Conflict:
            await cluster.store.barrier()
            return False
    return True


async def _change(cluster: Cluster, guards: list[Guard], puts: list[Put]) -> None:
    try:
        with _in_reach():
            await cluster.store.change(guards, puts)
    except Conflict:
        raise PreconditionFailed("somebody else has changed the same: look again") from None


@contextmanager
def _in_reach() -> Iterator[None]:
    """Raises StorageUnavailable if etcd is not."""
    try:
        yield
    except MetadataUnavailable as error:
        raise StorageUnavailable(f"the cluster's metadata cannot be changed now: {error}") from None
