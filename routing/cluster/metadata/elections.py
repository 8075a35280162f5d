"""What the controller does: whenever brokers come and go, each log gets the leader and the ISR that it should have.

1. What should be is decided by `core_log/replication/election.py`, from the log's state and the brokers that are
   registered. A state that is as it should be is not written, so whoever looks again does no harm.
2. Decisions are written many at a time, under the controller's epoch and each log's revision. If one log was changed
   meanwhile, by its leader, the batch is decided anew and in smaller pieces, so that one log cannot hold up the others.
3. It makes the logs that every cluster has, homes of queues and group offsets, and gives logs more replicas when there
   are more brokers (`placement.py`).
4. A new controller looks at all logs, as after any change of the brokers; else only logs that were changed are looked
   at. One that is not the controller looks at none.
5. When etcd was put back to an earlier state, everybody keeps the latest one that it has heard of (`lost`), until that
   is put again (rule 6 of `replica.py`): which brokers have a log goes by that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import trio

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.store import Guard, LeasedStore, MetadataEntry
from core_log.replication.election import elect
from core_log.replication.state import BEYOND_EPOCHS, LOGS, BrokerState, LogState, decode, encode, is_later, log_key
from routing.cluster.metadata.controller import Candidate
from routing.cluster.metadata.members import Broker, Members
from routing.cluster.metadata.moves import Moves
from routing.cluster.metadata.placement import (
    FACTOR,
    Place,
    grown,
    internal_logs,
    minimum_of,
    new_state,
    ring,
    start_of,
)
from routing.cluster.metadata.records import ClusterMeta
from routing.cluster.metadata.waiting import Waiting

logger = logging.getLogger(__name__)

BATCH_LOGS = 100
"""Decisions in one change: etcd takes 128 operations."""
_RETRY_S = 0.5


class Known(NamedTuple):
    """A log's state, and the revision at which it was put."""

    state: LogState
    mod_revision: int


def broker_states(brokers: Iterable[Broker]) -> dict[int, BrokerState]:
    """The registered brokers as elections see them."""
    return {
        broker.broker_id: BrokerState(
            broker.epoch,
            broker.record.lost,
            broker.record.refusing,
            broker.draining or broker.record.low_on_disk,
            broker.record.unopened,
            broker.record.unreadable,
            broker.record.unreachable,
        )
        for broker in brokers
    }


def decisions(
    logs: Iterable[str], known: Mapping[str, Known], brokers: dict[int, BrokerState], places: Sequence[Place] = ()
) -> list[tuple[Guard, LogState]]:
    """What is to be written for these logs; nothing for those that are as they should be."""
    found: list[tuple[Guard, LogState]] = []
    for log in logs:
        if log in known:
            before = known[log].state
            state = grown(elect(log, before, brokers) or before, places, start_of(log))
            if state != before:
                found.append((Guard(log_key(b"", log), known[log].mod_revision), state))
    return found


def places_of(brokers: Iterable[Broker]) -> list[Place]:
    """The brokers that may be given replicas."""
    return [
        Place(broker.broker_id, broker.epoch, broker.record.rack)
        for broker in brokers
        if not (broker.draining or broker.record.refusing)
    ]


def missing(known: Mapping[str, Known], meta: ClusterMeta, places: Sequence[Place]) -> list[tuple[Guard, LogState]]:
    """The logs that every cluster has and that are not there yet."""
    if not places:
        return []
    return [
        (Guard(log_key(b"", log), 0), new_state(ring(places, start, FACTOR), factor=FACTOR, minimum=minimum_of(FACTOR)))
        for log, start in internal_logs(meta.homes, meta.offsets, meta.transactions, meta.retained)
        if log not in known
    ]


def say_unclean(log: str, state: LogState) -> None:
    """Somebody leads who may lack what was committed."""
    logger.error(
        "%s: UNCLEAN ELECTION: broker %s leads in epoch %d, as allowed, though nobody is left who has all that "
        "was committed: what it lacks is lost",
        log, state.leader, state.leader_epoch,
    )  # fmt: skip


class Elections:
    """See the module; `run` it beside `Members.run` and `Candidate.run`."""

    def __init__(self, store: LeasedStore, members: Members, candidate: Candidate) -> None:
        self.logs: dict[str, Known] = {}
        """All replicated logs."""
        self.lost: dict[str, LogState] = {}
        """Rule 5."""
        self.called: Callable[[str], str] = str
        """What operators call one of them; known once the broker has its topics."""
        self._store = store
        self._members = members
        self._candidate = candidate
        self._due: dict[str, None] = {}
        self._epoch = 0
        """The controller epoch in which all logs have been looked at, or are due."""
        self._waiting = Waiting("elections")
        self._woken = trio.Event()
        store.listeners.append(self._applied)
        members.listeners.append(self._all_due)
        candidate.listeners.append(self._wake)
        self._note(entry for _, entry in store.items(LOGS))

    @property
    def leaderless(self) -> list[str]:
        """Logs that nobody leads."""
        return [log for log, known in self.logs.items() if known.state.leader is None]

    @property
    def under_replicated(self) -> list[str]:
        """Logs whose ISR lacks a replica."""
        return [log for log, known in self.logs.items() if len(known.state.isr) < len(known.state.replicas)]

    @property
    def decides(self) -> bool:
        """Whether this broker is the controller."""
        return bool(self._candidate.epoch)

    async def remove(self, logs: Mapping[str, Known]) -> None:
        """As the controller, have these be logs no more. Raises Conflict where one has changed, MetadataUnavailable."""
        keys = {log_key(b"", log): known.mod_revision for log, known in logs.items()}
        guards = [self._candidate.guard, *(Guard(key, revision) for key, revision in keys.items())]
        await self._store.change(guards, [(key, None) for key in keys])

    async def run(self) -> None:
        """Decide as long as this broker is the controller, until cancelled."""
        moves = Moves(
            self._store,
            self._candidate,
            states=lambda: self.logs,
            brokers=lambda: broker_states(self._members.brokers.values()),
            write=self._write,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(moves.run)
            await self._run()

    async def _run(self) -> None:
        batch_logs = BATCH_LOGS
        while True:
            woken = self._woken
            if self._candidate.epoch != self._epoch:
                self._epoch = self._candidate.epoch
                self._due = dict.fromkeys(self.logs)
            if not self._epoch or not (self._due or self._missing()):
                self._due.clear()
                self._waiting.over()
                await woken.wait()
                continue
            batch = list(self._due)[:batch_logs]
            for log in batch:
                del self._due[log]
            try:
                await self._write(self._missing()[:BATCH_LOGS])
                await self._decide(batch)
                self._waiting.over()
                batch_logs = min(2 * batch_logs, BATCH_LOGS)
            except Conflict:
                self._due = dict.fromkeys(batch) | self._due
                batch_logs = max(batch_logs // 2, 1)
            except MetadataUnavailable as error:
                self._waiting.failed(error)
                self._due = dict.fromkeys(batch) | self._due
                await trio.sleep(_RETRY_S)

    async def _decide(self, logs: Sequence[str]) -> None:
        brokers = self._members.brokers.values()
        found = decisions(logs, self.logs, broker_states(brokers), self._places())
        await self._write(found)

    def _places(self) -> list[Place]:
        return places_of(self._members.brokers.values())

    def _missing(self) -> list[tuple[Guard, LogState]]:
        return missing(self.logs, self._members.meta, self._places())

    async def _write(self, found: Sequence[tuple[Guard, LogState]]) -> None:
        if not found:
            return
        named = [(guard.key[len(LOGS) :].decode(), state) for guard, state in found]
        unclean = [
            (log, state)
            for log, state in named
            if log in self.logs and self.logs[log].state.unclean_epoch < state.unclean_epoch
        ]
        guards = [self._candidate.guard, *(guard for guard, _ in found)]
        await self._store.change(guards, [(guard.key, encode(state)) for guard, state in found])
        for log, state in unclean:
            say_unclean(self.called(log), state)
        leaderless = [log for log, state in named if state.leader is None]
        logger.info("%d logs have another leader or ISR", len(found))
        if leaderless:
            logger.error("nobody can lead %d logs, such as %s", len(leaderless), self.called(leaderless[0]))

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        if self._note(entry for entry in entries if entry.key.startswith(LOGS)):
            self._wake()

    def _note(self, entries: Iterable[MetadataEntry]) -> bool:
        noted = False
        for entry in entries:
            noted = True
            log = entry.key[len(LOGS) :].decode()
            self._due[log] = None
            before = self.logs.get(log)
            if entry.value is None:
                self.logs.pop(log, None)
                self.lost.pop(log, None)
                continue
            try:
                known = self.logs[log] = Known(decode(entry.value), entry.mod_revision)
            except msgspec.MsgspecError as error:
                logger.error("the state of log %s is not understood: %s", log, error)
                self.logs.pop(log, None)
                continue
            if before is not None and self._store.reads_anew and is_later(*before, *known):
                self.lost.setdefault(log, before.state)
            latest = self.lost.get(log)
            if latest is not None and known.state.leader_epoch >= latest.leader_epoch + BEYOND_EPOCHS:
                del self.lost[log]
        return noted

    def _all_due(self) -> None:
        self._due = dict.fromkeys(self.logs)
        self._wake()

    def _wake(self) -> None:
        woken, self._woken = self._woken, trio.Event()
        woken.set()
