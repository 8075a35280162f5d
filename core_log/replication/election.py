"""What the controller makes of a log's state when brokers come and go.

1. Leaders come from the ISR, else from the ELR: only these have all that was committed. From elsewhere they come only
   where the log allows an unclean election, and nobody of ISR and ELR is there (KIP-966): whichever replica can work,
   rather one that has not lost the log.
2. A leader whose lease lives keeps its place; it is asked (`leader.py`), never dismissed.
3. Who is gone leaves the ISR, but the last ones stay: they are whom to wait for.
4. A leader that came back in another process leads in another epoch.
5. Who is registered and has lost the log leaves ISR and ELR, even the last. Who could not open it is taken for away: it
   may turn out to have lost it, or nothing.
6. A leader whose lease lives and whom enough others say that they cannot reach, who reach each other, gives way to them
   once it can commit nothing.
"""

from __future__ import annotations

from core_log.replication.state import Brokers, BrokerState, LogState, Members, is_here, is_trusted


def elect(log: str, state: LogState, brokers: dict[int, BrokerState]) -> LogState | None:
    """What the log's state should be; None when it is that already."""
    isr = tuple(member for member in state.isr if is_trusted(log, member, brokers))
    elr = tuple(member for member in state.elr if is_trusted(log, member, brokers))
    found = state if (isr, elr) == (state.isr, state.elr) else state.with_isr(isr, elr)
    here = tuple(member for member in isr if is_here(log, member, brokers))
    if here and here != isr:
        found = found.with_isr(here, elr + tuple(member for member in isr if member not in here))
    leader = found.leader
    keeps = leader in found.isr_brokers and leader in brokers and brokers[leader].epoch == found.leader_broker_epoch
    if not keeps:
        found = _with_leader(log, found, here, brokers)
    return None if found == state else found


def _with_leader(log: str, state: LogState, here: Members, brokers: dict[int, BrokerState]) -> LogState:
    if not here:
        eligible = tuple(member for member in state.elr if is_here(log, member, brokers))
        if not eligible:
            return _uncleanly(log, state, brokers)
        chosen = best(log, state, eligible, brokers)
        state = state.with_isr(tuple(m for m in eligible if m[0] == chosen), state.isr + state.elr)
    else:
        chosen = best(log, state, here, brokers)
    return state.led_by(chosen, brokers[chosen].epoch)


def without(log: str, state: LogState, leader: int, brokers: Brokers) -> LogState | None:
    """The log as led by one of those who cannot reach the leader; None unless nothing can be committed with it, and can
    be among them.
    """
    if len(state.isr) >= state.min_insync:
        return None
    among = [
        broker for broker in state.replicas
        if broker in brokers and leader in brokers[broker].unreachable and not brokers[broker].refusing
    ]  # fmt: skip
    able = tuple(
        member for member in dict.fromkeys(state.isr + state.elr)
        if member[0] in among and is_here(log, member, brokers) and is_trusted(log, member, brokers)
        and sum(one not in brokers[member[0]].unreachable for one in among) >= state.min_insync
    )  # fmt: skip
    if not able:
        return None
    chosen = best(log, state, able, brokers)
    isr = tuple(member for member in able if member[0] == chosen)
    return state.with_isr(isr, state.isr + state.elr).led_by(chosen, brokers[chosen].epoch)


def _uncleanly(log: str, state: LogState, brokers: dict[int, BrokerState]) -> LogState:
    there = [(broker, brokers[broker].epoch) for broker in state.replicas if broker in brokers]
    able = [
        (broker, epoch) for broker, epoch in there
        if not brokers[broker].refusing and log not in brokers[broker].unopened
    ]  # fmt: skip
    if not (state.unclean and able):
        return state.led_by_nobody()
    whole = tuple(member for member in able if log not in brokers[member[0]].lost)
    chosen = best(log, state, whole or tuple(able), brokers)
    return state.led_uncleanly_by(chosen, brokers[chosen].epoch)


def best(log: str, state: LogState, eligible: Members, brokers: Brokers) -> int:
    """Whom to take: who can work, first; of these the one that stands first among the replicas."""

    def rank(member: tuple[int, int]) -> tuple[bool, bool, bool, int]:
        broker = brokers[member[0]]
        place = state.replicas.index(member[0]) if member[0] in state.replicas else len(state.replicas)
        return broker.refusing, log in broker.unreadable, broker.draining, place

    return min(eligible, key=rank)[0]
