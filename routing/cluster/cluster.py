"""A broker's part in its cluster, as the engine has it. A single broker has none, and then nothing here costs anything.

1. A broker holds a `ReplicaLog` for each log that names it among its replicas, and for no others: `open_log`. Whose the
   log is (a topic, a home, group offsets) is known to whoever opens it.
2. Who leads a log is what the metadata says (`leader_of`); whether this broker may act as its leader now is asked once
   a turn or request, never per message (`may_append`), with a clock that is read then.
3. `moved` is told of every log of the cluster whose leader changed, of those here whose role did, and of those led here
   when this broker's promises not to lead them are over: then it is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio

from core_log import high_watermarks
from core_log.files import Files
from core_log.log_config import LogConfig
from core_log.log_flusher import LogFlusher
from core_log.metadata.store import LeasedStore, MetadataEntry
from core_log.replica_log import ReplicaLog
from core_log.replication.isr import ReplicationConfig
from core_log.replication.leader import Leader
from core_log.replication.moves import successor
from core_log.replication.replica import Replica
from core_log.replication.state import LOGS, LogState
from core_log.threads import in_thread
from routing.cluster.metadata import age
from routing.cluster.metadata.counters import Counters
from routing.cluster.metadata.elections import Elections, broker_states
from routing.cluster.metadata.log_names import directory_of
from routing.cluster.metadata.log_states import LogStates
from routing.cluster.metadata.members import Members
from routing.cluster.metadata.records import SETTINGS, BrokerThrottle, ClusterSettings, decode, throttle_key
from routing.cluster.metadata.revisions import Revisions
from routing.cluster.metadata.trust import Trust
from routing.cluster.replicas import CATCH_UP_BYTES_PER_S, Replicas
from routing.cluster.trash import keep_empty, put_aside

logger = logging.getLogger(__name__)

_SAVE_INTERVAL_S = 5.0
_RESIGN_POLL_S = 0.02
_CLOSE_POLL_S = 0.05
_Settings = TypeVar("_Settings", ClusterSettings, BrokerThrottle)


class Cluster:
    """See the module. `begin` is the engine's, before it opens any log."""

    replicas: Replicas
    states: LogStates
    revisions: Revisions
    counters: Counters

    def __init__(
        self,
        store: LeasedStore,
        members: Members,
        elections: Elections,
        *,
        replication: ReplicationConfig | None = None,
        clock: Callable[[], float] = trio.current_time,
        publish_patience_s: float = 10.0,
    ) -> None:
        self.broker_id = members.broker_id
        self.publish_patience_s = publish_patience_s
        """How long publishers wait for a log's next leader before they are refused."""
        self.store = store
        self.members = members
        self.elections = elections
        self.moved: list[Callable[[str], None]] = []
        """Called with the name of a log whose leader, or whose role here, has changed: to be a replica is one."""
        self.throttle = BrokerThrottle()
        """What operators have set for this broker alone."""
        self._replication = replication or ReplicationConfig()
        self._clock = clock
        self.is_low_on_disk: Callable[[], bool] = lambda: False
        """Whether publishers wait for room on this broker's disk; known once the broker looks after that."""
        self.is_stalled: Callable[[], bool] = lambda: False
        """Whether this broker's disk does not answer; likewise."""
        self._known: dict[str, tuple[int | None, int, bool, object]] = {}
        self._saved: dict[str, int] = {}
        self._closing: set[str] = set()
        self._unopened: dict[str, bool] = {}
        """Logs that could not be opened, or that nobody tried to open; whether what is reported of them is synced."""

    def begin(
        self,
        files: Files,
        flusher: LogFlusher,
        *,
        spawn: Callable[..., Any],
        want_turn: Callable[[], None],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        """There are a disk and tasks now. `want_turn` has a turn soon."""
        self._listened = [(told, len(told)) for told in (self.store.listeners, self.members.listeners)]
        self._files = files
        self._flusher = flusher
        self._spawn = spawn
        self._want_turn = want_turn
        self._wall_clock_ms = wall_clock_ms
        saved = high_watermarks.find(files, "")
        self._saved = saved or {}
        self._forgot = saved is None and files.exists(age.PATH)
        """Which logs there should be is not known from the directory: the metadata have to say it."""
        if self._forgot:
            logger.warning("%s is gone: a log in sync here that has no directory is lost", high_watermarks.FILE_NAME)
        self._trust = Trust(files, self.members.record.boot)
        self.replicas = Replicas(clock=self._clock, spawn=spawn, want_turn=want_turn, flusher=flusher)
        self.replicas.assumed = self._look
        self.revisions = Revisions(self.store, self.members, self.replicas, want_turn=want_turn)
        self.states = LogStates(self.store, self.members, self.replicas, spawn=spawn, clock=self._clock)
        for log in self.elections.logs:
            self._known[log] = (*self.leader_of(log), self.is_replica(log), None)
            if (directory := directory_of(log)) and not self.is_replica(log):
                self.left_over(log, directory)
        self._take_settings()
        self.counters = Counters(self)
        self.store.listeners.append(self._applied)
        spawn(self._keep_watermarks)
        spawn(keep_empty, files, wall_clock_ms)

    def call_logs(self, called: Callable[[str], str]) -> None:
        """What operators call a log is known now: lines in the log say it so."""
        self.elections.called = self.states.called = called

    def close(self) -> None:
        """Write down how far everything is committed, and close the logs that are still open. Blocks."""
        for told, others in self._listened:
            del told[others:]  # whoever listens since `begin` is of the broker that ends; store and members go on
        self._save_watermarks()
        logs = [replica.log for replica in self.replicas.by_name.values()]
        self._flusher.close(logs)
        if all(log.error is None for log in logs):
            try:
                self._trust.ended(self.lost)
            except OSError as error:
                logger.warning("the stop is not noted as a clean one: %s", error)

    # ---- logs

    def open_log(self, name: str, directory: str, settings: LogConfig) -> ReplicaLog:
        """Have a replica of a log from now on. Raises OSError."""
        if directory in self._closing:
            raise OSError(f"{directory} is still being closed")
        watermark, synced = self._saved.get(name, 0), settings.fsync == "commit"
        self._unopened[name] = synced
        damaged = {*self.lost, name}
        if self._was_here(name) and not self._files.exists(directory):
            self._trust.note(damaged)  # once it is made again nobody can see that it was gone
        log = ReplicaLog.open_replica(
            self._files,
            directory,
            settings,
            self._flusher,
            wall_clock_ms=self._wall_clock_ms,
            high_watermark=watermark,
            on_damage=lambda: self._trust.note(damaged),
        )
        log.may_hand_over = partial(self.may_hand_over, name)
        log.is_led = lambda: self.role_of(name) is not None
        log.is_everywhere = partial(self.is_everywhere, name)
        replica = Replica(name, log, self.broker_id, self._replication, now_s=self._clock())
        lost = self._trust.is_lost(name, synced=synced)
        if lost or watermark > log.log_end_offset or replica.lost:
            replica.lost = True
            self._trust.note({*self.lost, name})
        del self._unopened[name]
        self.states.add(replica, self.elections.lost.get(name))
        return log

    def _was_here(self, name: str) -> bool:
        """Whether an earlier process may have reported something of a log that is being opened."""
        state = self.state_of(name) if self._forgot else None
        return name in self._saved or (
            state is not None and any(one == self.broker_id for one, _ in (*state.isr, *state.elr))
        )

    @property
    def lost(self) -> list[str]:
        """Logs of which the replica here may lack what was reported of it."""
        there = self.replicas.by_name
        unopened = [name for name in self._trust.lost if name not in there and self.is_replica(name)]
        return [*(name for name, replica in there.items() if replica.lost), *unopened]

    @property
    def unopened(self) -> list[str]:
        """Logs that have a replica here which could not be opened: nobody knows whether they are lost."""
        return [name for name in self._unopened if self.is_replica(name)]

    @property
    def unreadable(self) -> list[str]:
        """Logs of which the files here were found damaged."""
        return [name for name, replica in self.replicas.by_name.items() if replica.log.unreadable]

    def may_hand_over(self, name: str) -> bool:
        """Whether this broker leads a log that somebody else could lead."""
        state = self.state_of(name)
        if state is None or self.role_of(name) is None:
            return False
        return successor(name, state, broker_states(self.members.brokers.values())) is not None

    def is_everywhere(self, name: str) -> bool:
        """Whether all replicas of a log are in sync."""
        state = self.state_of(name)
        return state is not None and set(state.replicas) <= set(state.isr_brokers)

    def begun(self) -> None:
        """All logs are open that can be: what is lost is written down, and the broker may register. Raises OSError."""
        for name in self.elections.logs:
            if name not in self.replicas.by_name and self.is_replica(name):
                self._unopened.setdefault(name, False)
        lost = [name for name in self.unopened if self._trust.is_lost(name, synced=self._unopened[name])]
        self._trust.begun({*self.lost, *lost})
        self._forgot = False
        self._save_watermarks()

    def note_lost(self) -> list[str]:
        """`lost`, after it was written down. Blocks where it has changed. Raises OSError."""
        lost = self.lost
        self._trust.note(lost)
        return lost

    def close_log(self, name: str, *, keep: bool = True) -> None:
        """Have none any more. If others are its replicas now, what is in it is moved aside (`trash.py`), else it stays
        where it is. Blocks. Without `keep` its files are to go.
        """
        replica = self.replicas.by_name.get(name)
        if replica is None:
            return
        self.replicas.remove(name)
        self._known.pop(name, None)  # its role has the log, which would stay in memory
        log = replica.log
        if log.truncating:
            self._closing.add(log.directory)
            self._spawn(self._close_later, name, log)
            return
        log.close(keep=keep)
        self._put_aside(name, log.directory)

    async def _close_later(self, name: str, log: ReplicaLog) -> None:
        while log.truncating:
            await trio.sleep(_CLOSE_POLL_S)
        log.close()
        self._put_aside(name, log.directory)
        self._closing.discard(log.directory)
        self._tell(name)  # it may be wanted again

    def left_over(self, name: str, directory: str) -> bool:
        """Whether something lies, and stays, where a log would that this broker has no replica of. What it had before
        it was away, and others have since, is moved aside as in `close_log`. Blocks.
        """
        if directory in self._closing or not self._files.exists(directory):
            return False
        self._put_aside(name, directory)
        return self._files.exists(directory)

    def _put_aside(self, name: str, directory: str) -> None:
        self._saved.pop(name, None)
        if self.state_of(name) is None or self.is_replica(name):
            return
        try:
            where = put_aside(self._files, directory, self._wall_clock_ms())
        except OSError as error:
            logger.warning("%s: %s cannot be moved aside: %s", name, directory, error)
        else:
            logger.info("%s: this broker has no replica of it any more, %s is moved to %s", name, directory, where)

    async def resign(self) -> None:
        """Have others lead what is led here, as far as somebody else can or is about to. Raises MetadataUnavailable."""
        await self.members.update(draining=True)
        while self._has_successors():
            self.replicas.tick()
            await trio.sleep(_RESIGN_POLL_S)

    def _has_successors(self) -> bool:
        brokers, now_s = broker_states(self.members.brokers.values()), self._clock()
        roles = [role for replica in self.replicas.by_name.values() if isinstance(role := replica.role, Leader)]
        return any(role.resignation(brokers, now_s)[0] or role.is_followed_up(brokers, now_s) for role in roles)

    # ---- who leads

    def state_of(self, name: str) -> LogState | None:
        """What the metadata says of a log."""
        known = self.elections.logs.get(name)
        return known.state if known is not None else None

    def leader_of(self, name: str) -> tuple[int | None, int]:
        """(broker, leader epoch) of any log of the cluster; (None, 0) of one that is not there."""
        state = self.state_of(name)
        return (state.leader, state.leader_epoch) if state is not None else (None, 0)

    def is_replica(self, name: str) -> bool:
        """Whether the metadata names this broker among the replicas of a log, or did so last before it was put back."""
        state = self.elections.lost.get(name) or self.state_of(name)
        return state is not None and self.broker_id in state.replicas

    def role_of(self, name: str) -> Leader | None:
        """This broker's part in a log that it leads, for what is asked of it often: see `may_serve`."""
        replica = self.replicas.by_name.get(name)
        role = replica.role if replica is not None else None
        return role if isinstance(role, Leader) else None

    def may_serve(self, role: Leader) -> bool:
        """Whether it may act as the leader that it is, now."""
        return role.may_serve(*self.lease())

    def lease(self) -> tuple[float, float]:
        """Now, and until when this broker has its lease: for `Leader.may_serve`, where it is asked of several."""
        return self._clock(), self.store.lease_deadline

    @property
    def has_no_lease(self) -> bool:
        """Others decide whether it may serve, as long as their word is fresh."""
        return self._clock() >= self.store.lease_deadline

    @property
    def is_outdated(self) -> bool:
        """Whether this broker alone has no word of etcd: exchanges, queues and bindings may not be what it knows any
        more, as whoever declares them does not wait for it.
        """
        return self.has_no_lease and self.revisions.lags

    @property
    def serves(self) -> bool:
        """Whether it has its lease, or goes on without, as where etcd is away for all: it leads something by the fresh
        word of others, or leads nothing, and has a link to some of them; not if it is outdated.
        """
        if not self.has_no_lease:
            return True
        if self.revisions.lags:
            return False
        now_s = self._clock()
        roles = (replica.role for replica in self.replicas.by_name.values())
        led = [role for role in roles if isinstance(role, Leader) and role.followers]
        if not led:
            return bool(self.replicas.leaders)
        return any(len(role.insync) > 1 and role.may_serve(now_s, now_s) for role in led)

    def may_append(self, name: str) -> bool:
        """Whether this broker leads a log and may serve now. Whether what is appended can be committed, too, is
        `Leader.may_append`: see `role_of`.
        """
        role = self.role_of(name)
        return role is not None and self.may_serve(role)

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        for entry in entries:
            if entry.key.startswith(LOGS):
                self._look(entry.key[len(LOGS) :].decode())
            elif entry.key in (SETTINGS, throttle_key(self.broker_id)):
                self._take_settings()

    def _take_settings(self) -> None:
        found = self._set(SETTINGS, ClusterSettings())
        self.throttle = self._set(throttle_key(self.broker_id), BrokerThrottle())
        rate = self.throttle.sent or found.catch_up_bytes_per_s
        self.replicas.catch_up.bytes_per_s = rate or CATCH_UP_BYTES_PER_S

    def _set(self, key: bytes, default: _Settings) -> _Settings:
        entry = self.store.get(key)
        if entry is None or entry.value is None:
            return default
        try:
            return decode(entry.value, type(default))
        except msgspec.MsgspecError as error:
            logger.error("the settings of the cluster are not understood: %s", error)
            return default

    def _look(self, name: str) -> None:
        """Tell of a log if there is news."""
        replica = self.replicas.by_name.get(name)
        found = (*self.leader_of(name), self.is_replica(name), replica.role if replica is not None else None)
        if name not in self.elections.logs and replica is None:
            self._known.pop(name, None)
        elif self._known.get(name) == found:
            return
        else:
            self._known[name] = found
            role = found[-1]
            if isinstance(role, Leader) and self._clock() < role.serve_from_s:
                self._spawn(self._look_again, name, role)
        self._tell(name)

    async def _look_again(self, name: str, role: Leader) -> None:
        await trio.sleep(max(0.0, role.serve_from_s - self._clock()))
        if self.role_of(name) is role:
            self._tell(name)

    def _tell(self, name: str) -> None:
        for listener in tuple(self.moved):
            listener(name)
        self._want_turn()

    # ---- watermarks

    async def _keep_watermarks(self) -> None:
        while True:
            await trio.sleep(_SAVE_INTERVAL_S)
            found = self._watermarks()
            if found != self._saved:
                try:
                    await in_thread(high_watermarks.save, self._files, "", found)
                    self._saved = found
                except OSError as error:
                    logger.warning("the high watermarks cannot be saved: %s", error)

    def _save_watermarks(self) -> None:
        try:
            high_watermarks.save(self._files, "", self._watermarks())
        except OSError as error:
            logger.warning("the high watermarks cannot be saved: %s", error)

    def _watermarks(self) -> dict[str, int]:
        """Of all logs here, and of those that could not be opened."""
        kept = {name: offset for name, offset in self._saved.items() if self.is_replica(name)}
        return kept | {name: replica.log.high_watermark for name, replica in self.replicas.by_name.items()}
