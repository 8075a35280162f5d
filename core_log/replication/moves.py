"""What the controller asks for so that logs are led, and lie, where they should: on purpose, not because somebody died.

1. A leader is asked (`transfer`), never replaced while it lives; it says no by taking the wish back. Only a member of
   the ISR that can work is named.
2. A leader that drains, that finds its files of the log damaged, or that is not among the replicas that the log shall
   have, is to go. Else the first replica is to lead, if it can.
3. Replicas move by copy, join, switch, drop: the old ones go when all new ones are in sync and one of them leads. Fewer
   than the minimum never remain. Of a move that is taken back the new ones go as soon as as many of the old ones are in
   sync as can commit: who is away was away before.
4. A few leaders are asked at a time, each log not again for a while; who leads well enough only when the first replica
   has been able to for some seconds. A wish that is not answered is taken back, so that it holds up no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from core_log.replication.state import Brokers, LogState, is_trusted


def may_lead(log: str, state: LogState, broker: int, brokers: Brokers) -> bool:
    """Whether a broker has all of a log and can work."""
    epoch, found = dict(state.isr).get(broker), brokers.get(broker)
    if epoch is None or found is None or found.refusing or found.draining or log in found.unreadable:
        return False
    return is_trusted(log, (broker, epoch), brokers)


def must_go(log: str, state: LogState, brokers: Brokers) -> bool:
    """Whether the leader shall not be the leader any longer."""
    leader = brokers.get(state.leader) if state.leader is not None else None
    if leader is None:
        return False
    return leader.draining or log in leader.unreadable or (state.leader not in wanted(state) and has_joined(state))


def successor(log: str, state: LogState, brokers: Brokers) -> int | None:
    """Who may lead instead of the leader: the first of the replicas that the log shall have, else of those it has."""
    line = dict.fromkeys((*wanted(state), *state.replicas))
    return next((one for one in line if one != state.leader and may_lead(log, state, one, brokers)), None)


def preferred(log: str, state: LogState, brokers: Brokers) -> int | None:
    """Who should lead instead of the leader, who does well; None when nobody should."""
    first = state.replicas[0] if state.replicas else None
    if first is None or state.leader in (None, first) or state.target is not None:
        return None
    return first if may_lead(log, state, first, brokers) else None


def asked(state: LogState, to: int) -> LogState:
    """The leader is to hand over to a member of the ISR."""
    return msgspec.structs.replace(state, transfer=to)


def wanted(state: LogState) -> tuple[int, ...]:
    """The replicas that the log shall have."""
    return state.replicas if state.target is None else state.target


def lasting_insync(state: LogState) -> int:
    """How many replicas are in sync, and no more than the log shall have: so many may have to be."""
    return min(len(state.isr), len(wanted(state)))


def has_joined(state: LogState) -> bool:
    """Whether all replicas that the log shall have are in sync; enough of them, where it had them before."""
    there = set(wanted(state)).intersection(state.isr_brokers)
    if state.target is not None and state.target == state.origin:
        return len(there) >= state.min_insync
    return len(there) == len(wanted(state))


def begun(state: LogState, target: Iterable[int]) -> LogState:
    """The log shall have these replicas; those that it has not are added."""
    target = tuple(dict.fromkeys(target))
    replicas = tuple(dict.fromkeys((*state.replicas, *target)))
    if target == state.replicas:
        return msgspec.structs.replace(state, replicas=replicas, target=None, origin=None, origin_factor=0)
    return msgspec.structs.replace(state, replicas=replicas, target=target, origin=state.origin or state.replicas)


def switched(log: str, state: LogState, brokers: Brokers) -> LogState | None:
    """The log without the replicas that it shall not have; None as long as it cannot be."""
    target = state.target
    if target is None or len(target) < state.min_insync or state.leader not in target or not has_joined(state):
        return None
    isr = tuple(member for member in state.isr if member[0] in target)
    if not all(broker in brokers and is_trusted(log, (broker, epoch), brokers) for broker, epoch in isr):
        return None
    elr = tuple(member for member in state.elr if member[0] in target)
    found = msgspec.structs.replace(state, replicas=target, target=None, origin=None, origin_factor=0)
    found = found.with_isr(isr, elr)
    if set(state.replicas).issubset(target):
        return found
    return msgspec.structs.replace(found, leader_epoch=state.leader_epoch + 1)


class MoveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, and how much at a time."""

    transfers_max: int = 2
    """Leaders that are asked at one time."""
    restore_after_s: float = 5.0
    ask_again_s: float = 2.0
    answered_within_s: float = 3.0


class Mover:
    """What a controller makes of rules 2 to 4, look by look; a new controller begins with a new one."""

    def __init__(self, config: MoveConfig) -> None:
        self.config = config
        self._asked_s: dict[str, float] = {}
        """When a leader was asked; of wishes of the controller before, when this one began."""
        self._preferred_since_s: dict[str, float] = {}

    def due(self, logs: Mapping[str, LogState], brokers: Brokers, now_s: float) -> dict[str, LogState]:
        """What the state of logs should be now, of those that are not as they should be."""
        self._forget_gone(logs)
        found: dict[str, LogState] = {}
        under_way = sum(state.transfer is not None for state in logs.values())
        for log, state in logs.items():
            if self._is_fine(log, state, brokers):
                if self._preferred_since_s:
                    self._preferred_since_s.pop(log, None)
                continue
            done = switched(log, state, brokers)
            if state.transfer is not None and done is None:
                if now_s - self._asked_s.setdefault(log, now_s) >= self.config.answered_within_s:
                    self._asked_s[log] = now_s
                    found[log] = msgspec.structs.replace(state, transfer=None)
                continue
            to = self._to_lead(log, state, brokers, now_s) if done is None else None
            if done is not None:
                found[log] = done
            elif to is not None and under_way < self.config.transfers_max:
                under_way += 1
                self._asked_s[log] = now_s
                found[log] = asked(state, to)
        return found

    @staticmethod
    def _is_fine(log: str, state: LogState, brokers: Brokers) -> bool:
        """As nearly all are nearly always."""
        leader = brokers.get(state.leader) if state.leader is not None else None
        if state.target is not None or state.transfer is not None or leader is None or leader.draining:
            return False
        return state.leader == state.replicas[0] and log not in leader.unreadable

    def _to_lead(self, log: str, state: LogState, brokers: Brokers, now_s: float) -> int | None:
        if now_s - self._asked_s.get(log, -self.config.ask_again_s) < self.config.ask_again_s:
            return None
        if must_go(log, state, brokers):
            return successor(log, state, brokers)
        first = preferred(log, state, brokers)
        if first is None:
            self._preferred_since_s.pop(log, None)
        elif now_s - self._preferred_since_s.setdefault(log, now_s) >= self.config.restore_after_s:
            return first
        return None

    def _forget_gone(self, logs: Mapping[str, LogState]) -> None:
        for noted in (self._asked_s, self._preferred_since_s):
            if len(noted) > len(logs):
                for log in noted.keys() - logs.keys():
                    del noted[log]
