"""Which change of the topology each broker has applied: whoever makes one is answered when all have.

1. So a client reads what it wrote, at any broker. Each broker says over its links at which revision of the metadata the
   topology has changed last for all that it knows (`topology`), at once when it changes.
2. One whose lease has ended is not waited for, and nobody longer than `patience_s`: a broker that lives and cannot be
   reached looks again, by itself, before it says that something is not there.
3. A broker that etcd does not reach hears from the others that it lags. When its lease has ended they know of no such
   broker, and say nothing to it any more: so who hears nobody `lags` as well, as far as it can know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import trio

from core_log.metadata.store import MetadataEntry, MetadataStore
from routing.cluster.metadata.members import Members
from routing.cluster.replicas import Replicas
from routing.topology.catalog import SHARED_PREFIX

_SILENCE_S = 2.0
"""Others say something several times as often; when etcd is back for all it may take some of it until they do again."""


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
        self.topology = store.revision
        """Where the topology has changed last, or may have."""
        self._store = store
        self._heard_s = -math.inf
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

    @property
    def lags(self) -> bool:
        """Whether another broker knows of a change of the topology that is not applied here, or none says anything."""
        if any(revision > self._store.revision for revision in self._applied.values()):
            return True
        has_others = any(broker != self._members.broker_id for broker in self._members.brokers)
        return has_others and trio.current_time() > self._heard_s + _SILENCE_S

    def _missing(self, revision: int) -> bool:
        members = self._members
        return any(self._applied.get(broker, 0) < revision for broker in members.brokers if broker != members.broker_id)

    def _put(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        if self._store.reads_anew or any(entry.key.startswith(SHARED_PREFIX) for entry in entries):
            self.topology = revision
            self._replicas.revision_due = True
            self._want_turn()

    def _heard(self, broker: int, revision: int) -> None:
        self._heard_s = trio.current_time()
        if revision > self._applied.get(broker, 0):
            self._applied[broker] = revision
            self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None
