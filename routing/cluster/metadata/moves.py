"""The controller's other part: leaders hand over, and replicas move, because somebody wants that.

1. What is due is decided by `core_log/replication/moves.py`, from the logs' states and the brokers that are registered:
   brokers that drain, preferred leaders, replicas that a log shall have. Nobody sends commands.
2. It looks when something of that has changed, and now and then because time has passed. A new controller begins anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.store import Guard, LeasedStore, MetadataEntry
from core_log.replication.moves import MoveConfig, Mover
from core_log.replication.state import LOGS, BrokerState, LogState, log_key
from routing.cluster.metadata.controller import Candidate
from routing.cluster.metadata.records import BROKERS, DRAINS
from routing.cluster.metadata.waiting import Waiting

Written = list[tuple[Guard, LogState]]

_INTERVAL_S = 0.5
_SETTLED_S = 0.002
"""What changes at the same time is looked at together."""
_BATCH_LOGS = 50


class Moves:
    """See the module. `states` are those of all logs, with their revisions; `write` writes as the controller."""

    def __init__(
        self,
        store: LeasedStore,
        candidate: Candidate,
        *,
        states: Callable[[], Mapping[str, tuple[LogState, int]]],
        brokers: Callable[[], dict[int, BrokerState]],
        write: Callable[[Written], Awaitable[None]],
        config: MoveConfig | None = None,
    ) -> None:
        self._candidate = candidate
        self._states = states
        self._brokers = brokers
        self._write = write
        self._config = config or MoveConfig()
        self._waiting = Waiting("moves of replicas")
        self._woken = trio.Event()
        store.listeners.append(self._applied)
        candidate.listeners.append(self._wake)

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        if any(entry.key.startswith((LOGS, BROKERS, DRAINS)) for entry in entries):
            self._wake()

    def _wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Move what is to be moved as long as this broker is the controller, until cancelled."""
        epoch, mover = 0, Mover(self._config)
        while True:
            if epoch != self._candidate.epoch:
                epoch, mover = self._candidate.epoch, Mover(self._config)
            with trio.move_on_after(_INTERVAL_S if epoch else float("inf")):
                await self._woken.wait()
                await trio.sleep(_SETTLED_S)
            self._woken = trio.Event()
            if self._candidate.epoch:
                try:
                    await self._look(mover)
                    self._waiting.over()
                except MetadataUnavailable as error:
                    self._waiting.failed(error)

    async def _look(self, mover: Mover) -> None:
        known = self._states()
        due = mover.due({log: state for log, (state, _) in known.items()}, self._brokers(), trio.current_time())
        found = [(Guard(log_key(b"", log), known[log][1]), state) for log, state in due.items()]
        for start in range(0, len(found), _BATCH_LOGS):
            batch = found[start : start + _BATCH_LOGS]
            try:
                await self._write(batch)
            except Conflict:
                for one in batch:
                    try:
                        await self._write([one])
                    except Conflict:
                        pass  # its leader was quicker: at the next look
