"""Which of the brokers is the controller: whoever has made the key `controller`, under its lease.

1. Every registered broker makes the key when it is not there; its guards let one of them win.
2. What a controller writes has a guard on that key (`guard`), so one that was replaced, and does not know it yet,
   writes nothing. Nobody is sent commands: what is decided stands in the metadata, and brokers act on what they see.
3. A controller ends with its lease. Nobody takes the part away from one that lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.store import Guard, LeasedStore, MetadataEntry, Put
from routing.cluster.metadata.members import Members
from routing.cluster.metadata.records import CONTROLLER, ControllerRecord, decode, encode
from routing.cluster.metadata.waiting import Waiting

logger = logging.getLogger(__name__)

_RETRY_S = 0.5


def candidacy(controller: MetadataEntry | None, broker_id: int, me: Guard) -> tuple[list[Guard], list[Put]] | None:
    """The change that makes a broker the controller, None where there is one. `me` guards the broker's registration."""
    if controller is not None or not me.create_revision:
        return None
    return [Guard(CONTROLLER, 0), me], [(CONTROLLER, encode(ControllerRecord(broker_id)))]


class Candidate:
    """A broker that is the controller, or would be if there were none; `run` it beside `Members.run`."""

    def __init__(self, store: LeasedStore, members: Members) -> None:
        self.listeners: list[Callable[[], None]] = []
        """Called when the controller has changed."""
        self._store = store
        self._members = members
        self._waiting = Waiting("elections of a controller")
        self._changed = trio.Event()
        store.listeners.append(self._applied)
        members.listeners.append(self._tell)

    @property
    def controller(self) -> int | None:
        """The broker that is it, None while there is none."""
        entry = self._store.get(CONTROLLER)
        return decode(entry.value, ControllerRecord).broker if entry is not None else None

    @property
    def epoch(self) -> int:
        """The controller epoch if it is this broker, else 0."""
        entry = self._store.get(CONTROLLER)
        mine = entry is not None and self._members.epoch and self.controller == self._members.broker_id
        return entry.create_revision if entry is not None and mine else 0

    @property
    def guard(self) -> Guard:
        """For changes that only the controller may make, as long as this broker is it; else it never holds."""
        return Guard(CONTROLLER, create_revision=self.epoch or -1)

    async def run(self) -> None:
        """Be there for the part, until cancelled."""
        while True:
            changed = self._changed
            change = candidacy(self._store.get(CONTROLLER), self._members.broker_id, self._members.guard)
            if change is None:
                self._waiting.over()
                await changed.wait()
                continue
            try:
                await self._store.change(*change, lease=True)
                self._waiting.over()
                logger.info("broker %d is the controller, epoch %d", self._members.broker_id, self.epoch)
            except Conflict:
                continue
            except MetadataUnavailable as error:
                self._waiting.failed(error)
                await trio.sleep(_RETRY_S)

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        if any(entry.key == CONTROLLER for entry in entries):
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        for listener in self.listeners:
            listener()
