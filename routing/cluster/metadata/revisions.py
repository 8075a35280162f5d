"""Which revision of the metadata each broker has applied: whoever changes the topology is answered when all have.

So a client reads what it wrote, at any broker. Each broker says over its links what it has applied, at once when it is
a change of the topology. One whose lease has ended is not waited for, and nobody longer than `patience_s`: a broker
that lives and cannot be reached looks again, by itself, before it says that something is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from core_log.metadata.store import MetadataEntry, MetadataStore
from routing.cluster.metadata.members import Members
from routing.cluster.replicas import Replicas
from routing.topology.catalog import SHARED_PREFIX


class Revisions:
    """See the module. `want_turn` has a turn soon."""

    def __init__(
        self,
        store: MetadataStore,
        members: Members,
        replicas: Replicas,
        *,
        want_turn: Callable[[], None],
        patience_s: float = 3.0,
    ) -> None:
        self._members = members
        self._replicas = replicas
        self._want_turn = want_turn
        self._patience_s = patience_s
        self._applied: dict[int, int] = {}
        self._changed: trio.Event | None = None
        replicas.heard = self._heard
        store.listeners.append(self._put)
        members.listeners.append(self._wake)

    async def everywhere(self, revision: int) -> None:
        """Wait until all brokers have applied it."""
        with trio.move_on_after(self._patience_s):
            while self._missing(revision):
                if self._changed is None:
                    self._changed = trio.Event()
                await self._changed.wait()

    def _missing(self, revision: int) -> bool:
        members = self._members
        return any(self._applied.get(broker, 0) < revision for broker in members.brokers if broker != members.broker_id)

    def _put(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        if any(entry.key.startswith(SHARED_PREFIX) for entry in entries):
            self._replicas.revision_due = True
            self._want_turn()

    def _heard(self, broker: int, revision: int) -> None:
        if revision > self._applied.get(broker, 0):
            self._applied[broker] = revision
            self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None
