"""What the metadata says of logs, to their replicas here; and what leaders here wish, to the metadata.

1. A replica is told of each state once, in the order in which they were put, and of this broker's registration.
2. A wish is tried until it is known what became of it: its guards let it come true once at most. If something else
   came first the leader hears of that before it may wish again.
3. When etcd was put back to an earlier state, states from before are told as well. Who was in sync by a later one puts
   that again (rule 6 of `replica.py`), and who is named the leader by one that its log is beyond leads in an epoch far
   beyond what it has: others may have later ones, which are not to be taken for the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import trio

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.store import Guard, LeasedStore, MetadataEntry
from core_log.replication.leader import Leader
from core_log.replication.replica import Replica
from core_log.replication.state import BEYOND_EPOCHS, LOGS, Change, LogState, decode, encode, log_key
from routing.cluster.metadata.elections import broker_states
from routing.cluster.metadata.members import Members
from routing.cluster.metadata.waiting import Waiting
from routing.cluster.replicas import Replicas

logger = logging.getLogger(__name__)

_RETRY_S = 0.5


class LogStates:
    """See the module. `spawn` starts a task."""

    def __init__(
        self,
        store: LeasedStore,
        members: Members,
        replicas: Replicas,
        *,
        spawn: Callable[..., Any],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._store = store
        self._members = members
        self._replicas = replicas
        self._spawn = spawn
        self._clock = clock
        self._waiting = Waiting("changes of ISRs", clock=clock, called=lambda log: self.called(log))
        self._epoch = members.epoch
        self.called: Callable[[str], str] = str
        """See `Elections.called`."""
        replicas.decide = self._decide
        store.listeners.append(self._applied)
        members.listeners.append(self._registered)

    def add(self, replica: Replica, latest: LogState | None = None) -> None:
        """A log that this broker has a replica of; `latest` as in `Elections.lost`."""
        replica.registered(self._epoch)
        replica.lost_state = latest
        self._replicas.add(replica)
        entry = self._store.get(log_key(b"", replica.name))
        if entry is not None:
            self._tell(entry)
        if latest is not None and replica.lost_state is latest:
            self._spawn(self._put_again, replica, latest)

    def _registered(self) -> None:
        if self._members.epoch != self._epoch:
            self._epoch = self._members.epoch
            self._replicas.registered(self._epoch)

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        for entry in entries:
            if entry.key.startswith(LOGS):
                self._tell(entry)

    def _tell(self, entry: MetadataEntry) -> None:
        name = entry.key[len(LOGS) :].decode()
        if entry.value is None or name not in self._replicas.by_name:
            return
        replica = self._replicas.by_name[name]
        try:
            state = decode(entry.value)
        except msgspec.MsgspecError as error:
            logger.error("the state of log %s is not understood: %s", name, error)
            return
        knew = replica.lost_state
        self._replicas.on_state(name, state, entry.mod_revision, put_back=self._store.reads_anew)
        if replica.lost_state is not knew and replica.lost_state is not None:
            self._spawn(self._put_again, replica, replica.lost_state)
        if replica.is_beyond:
            self._spawn(self._go_beyond, replica, state, entry.mod_revision)

    async def _put_again(self, replica: Replica, latest: LogState) -> None:
        """Have the metadata say who is in sync as it said last, before it was put back: rule 3."""
        name, key = self.called(replica.name), log_key(b"", replica.name)
        text = "%s: etcd was put back, from leader epoch %d, when brokers %s were in sync; %s"
        what = "that is put again" if replica.knows_better else "they have to say so before anybody leads it"
        logger.error(text, name, latest.leader_epoch, ", ".join(map(str, latest.isr_brokers)), what)
        while replica.knows_better and replica.lost_state is latest:
            entry, revision = self._store.get(key), replica.revision
            if entry is None or replica.state is None or self._replicas.by_name.get(replica.name) is not replica:
                break
            try:
                try:
                    again = encode(replica.put_again(replica.state))
                    await self._store.change([Guard(key, mod_revision=revision)], [(key, again)])
                except Conflict:
                    await self._store.barrier()
            except MetadataUnavailable as error:
                self._waiting.failed(error, replica.name)
                await trio.sleep(_RETRY_S)
        self._waiting.over(replica.name)

    async def _go_beyond(self, replica: Replica, state: LogState, revision: int) -> None:
        """Lead a log in an epoch that it does not have yet: rule 3."""
        epoch, latest = state.leader_epoch, replica.log.epochs.latest
        text = "%s: etcd was put back: it has leader epoch %d, the log %d; what was put meanwhile may be missing"
        logger.error(text, self.called(replica.name), epoch, latest)
        later = msgspec.structs.replace(state, leader_epoch=latest + BEYOND_EPOCHS, resigned=False, transfer=None)
        key = log_key(b"", replica.name)
        while replica.is_beyond and replica.revision == revision:
            try:
                await self._store.change([Guard(key, mod_revision=revision)], [(key, encode(later))])
            except Conflict:
                break  # that will be told, or was
            except MetadataUnavailable as error:
                self._waiting.failed(error, replica.name)
                await trio.sleep(_RETRY_S)
        self._waiting.over(replica.name)

    def _decide(self, role: Leader) -> None:
        if self._epoch:
            change = role.wish(broker_states(self._members.brokers.values()), self._clock())
            if change is not None:
                if role.handing_over and role.log.error is None and role.disk.is_late(role.config):
                    text = "%s: the disk has not kept what it should for %g s, broker %s is to lead"
                    logger.warning(
                        text, self.called(role.name), role.config.replica_lag_time_max_s, change.state.leader
                    )
                self._spawn(self._swap, role, change)

    async def _swap(self, role: Leader, change: Change) -> None:
        key = log_key(b"", role.name)
        while role.pending is change:
            try:
                try:
                    await self._store.change(list(change.guards), [(key, encode(change.state))])
                except Conflict:
                    await self._store.barrier()
            except MetadataUnavailable as error:
                self._waiting.failed(error, role.name)
                await trio.sleep(_RETRY_S)
                continue
            if role.pending is change:
                role.refused()
        self._waiting.over(role.name)
