"""A broker's part in one replicated log: leader, follower or neither, as the metadata has it.

1. Only what the metadata says makes a leader, and only for the process that it names (broker epoch). A broker that has
   registered anew leads nothing until it is named again.
2. A log that is being cut takes no new role until that is over.
3. A process begins with a promise: the one before it may have given one and died.
4. `lost` is kept on disk until the metadata names this process in the ISR: see `state.py`.
5. Nobody leads in an epoch that its log is beyond already, as it is when the metadata was put back to an earlier state
   and this process began after that: a later one is asked for first (`is_beyond`).
6. A state from before may count somebody as in sync who is not any more. Who has known a later one (`lost_state`) takes
   no role by it, until somebody who was in sync then has put that again, in an epoch `BEYOND_EPOCHS` further: the next
   ones may be given out twice, and are not to be taken for the same. Of two that know another, the later epoch wins.
   So does who has no log yet: whoever begins one is told of the latest state (`Elections.lost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from core_log.replication.follower import Follower
from core_log.replication.isr import ReplicationConfig
from core_log.replication.leader import Leader
from core_log.replication.state import BEYOND_EPOCHS, LogState, is_later

if TYPE_CHECKING:
    from core_log.replica_log import ReplicaLog


class Replica:
    """See the module."""

    def __init__(self, name: str, log: ReplicaLog, me: int, config: ReplicationConfig, *, now_s: float) -> None:
        self.name, self.log, self.me, self.config = name, log, me, config
        self.role: Leader | Follower | None = None
        self.lost = log.damaged
        """It may lack what this or an earlier process reported."""
        self.state: LogState | None = None
        self.revision = 0
        self.lost_state: LogState | None = None
        """The latest that the metadata has had, where it was put back: rule 6."""
        self.broker_epoch = 0
        self.promised_until_s = now_s + config.grant_s

    def registered(self, broker_epoch: int) -> None:
        """This process stands in the metadata, under an epoch of its own."""
        self.broker_epoch = broker_epoch
        if isinstance(self.role, Leader):
            self.role = None

    def on_state(self, state: LogState, revision: int, now_s: float, *, put_back: bool = False) -> None:
        """The log's key as it was at `revision`. With `put_back` it may be one from before: rule 6."""
        known = self.state
        if put_back and known is not None and is_later(known, self.revision, state, revision):
            self.role = None
            self.lost_state = self.lost_state or known
        elif revision < self.revision or (revision == self.revision and not put_back):
            return
        self.state, self.revision = state, revision
        if self.lost_state is not None and state.leader_epoch >= self.lost_state.leader_epoch + BEYOND_EPOCHS:
            self.lost_state = None
        if (self.me, self.broker_epoch) in state.isr:
            self.lost = False
        self.assume(now_s)

    def assume(self, now_s: float) -> None:
        """Take the role that the metadata says, unless the log is being cut: then call this again."""
        state, role = self.state, self.role
        if state is None or self.lost_state is not None or self.log.truncating or self.log.closed:
            return
        if state.leader == self.me and state.leader_broker_epoch == self.broker_epoch:
            if isinstance(role, Leader) and role.epoch == state.leader_epoch:
                role.on_state(state, self.revision)
            elif isinstance(role, Leader) and role.epoch + 1 == state.leader_epoch:
                role.renewed(state, self.revision)  # nobody can have led between
            elif self._log_is_beyond(state):
                self.role = None
            else:
                self._lead(state, now_s)
        elif state.leader is None or state.leader == self.me or self.me not in state.replicas:
            self.role = None
        elif not (isinstance(role, Follower) and (role.leader, role.epoch) == (state.leader, state.leader_epoch)):
            self.role = Follower(
                self.name, self.log, state.leader, state.leader_epoch, unclean_epoch=state.unclean_epoch
            )

    @property
    def is_beyond(self) -> bool:
        """Whether this process is to lead, in an epoch that is over: rule 5."""
        state = self.state
        named = state is not None and (state.leader, state.leader_broker_epoch) == (self.me, self.broker_epoch)
        beyond = state is not None and named and self._log_is_beyond(state)
        return self.role is None and self.lost_state is None and beyond

    @property
    def knows_better(self) -> bool:
        """Whether this broker was in sync by a state that the metadata has lost: rule 6."""
        return self.lost_state is not None and self.me in self.lost_state.isr_brokers

    def put_again(self, state: LogState) -> LogState:
        """What the metadata is to say instead of `state`."""
        latest = self.lost_state
        assert latest is not None
        epoch = max(latest.leader_epoch, state.leader_epoch, self.log.epochs.latest) + BEYOND_EPOCHS
        return msgspec.structs.replace(latest, leader_epoch=epoch, resigned=False, transfer=None)

    def _log_is_beyond(self, state: LogState) -> bool:
        return state.leader_epoch <= self.log.epochs.latest

    def _lead(self, state: LogState, now_s: float) -> None:
        # Who leads first of all had nobody to promise anything to.
        serve_from_s = now_s if state.resigned or state.leader_epoch == 1 else self.promised_until_s
        self.role = Leader(
            self.name, self.log, self.me, state, self.revision, self.config, now_s=now_s, serve_from_s=serve_from_s
        )

    def promise(self, now_s: float) -> None:
        """A position is sent now."""
        self.promised_until_s = max(self.promised_until_s, now_s + self.config.grant_s)
