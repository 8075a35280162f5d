"""What has happened to the replicated logs since this broker was started, in numbers that may be read at any time.

A change of a log counts at the broker that leads it then, so that the sum over all brokers is what has happened.
Nothing is counted per message: the metadata tells of changes, and what is sent to replicas that catch up is added up
once a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core_log.metadata.store import MetadataEntry
from core_log.replication.state import LOGS, LogState
from routing.cluster.metadata.health import is_leaderless, is_single_copy, is_under_replicated

if TYPE_CHECKING:
    from routing.cluster.cluster import Cluster


class Counters:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.leader_changes = 0
        self.unclean_elections = 0
        self._cluster = cluster
        self._before: dict[str, LogState] = {log: known.state for log, known in cluster.elections.logs.items()}
        cluster.store.listeners.append(self._applied)

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        for entry in entries:
            if entry.key.startswith(LOGS):
                self._changed(entry.key[len(LOGS) :].decode())

    def _changed(self, log: str) -> None:
        state, before = self._cluster.state_of(log), self._before.pop(log, None)
        if state is None:
            return
        self._before[log] = state
        if before is None or self._cluster.broker_id not in (state.leader, before.leader):
            return
        if state.leader is not None and state.leader != self._cluster.broker_id:
            return
        now, then = set(state.isr_brokers), set(before.isr_brokers)
        self.isr_shrinks += bool(then - now)
        self.isr_expands += bool(now - then)
        self.leader_changes += state.leader_epoch != before.leader_epoch
        self.unclean_elections += state.unclean_epoch > before.unclean_epoch

    def snapshot(self) -> dict[str, int]:
        """By name; `leaderless`, `under_replicated` and `single_copy` are of now, of logs that have or should have a
        replica here.
        """
        cluster = self._cluster
        here = [known.state for known in cluster.elections.logs.values() if cluster.broker_id in known.state.replicas]
        return {
            "replicas": len(here),
            "leaders": sum(state.leader == cluster.broker_id for state in here),
            "leaderless": sum(map(is_leaderless, here)),
            "under_replicated": sum(map(is_under_replicated, here)),
            "single_copy": sum(map(is_single_copy, here)),
            "isr_shrinks": self.isr_shrinks,
            "isr_expands": self.isr_expands,
            "leader_changes": self.leader_changes,
            "unclean_elections": self.unclean_elections,
            "catch_up_bytes": cluster.replicas.catch_up.taken_bytes,
        }
