"""What this broker says of itself to the controller, kept true: `lost`, `unopened`, `unreadable`, `refusing`,
`stalled`, `low_on_disk` and `unreachable` of its record.

A broker to which there has been no link for `UNREACHABLE_S` is unreachable; `refusing` is one that some disk of a
replica refuses, one that is low on disk has its publishers wait for room. What cannot be said now, because etcd is
away, is said later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from core_log.errors import MetadataUnavailable
from routing.cluster.cluster import Cluster

logger = logging.getLogger(__name__)

UNREACHABLE_S = 1.0
_INTERVAL_S = 0.5


class Standing:
    """See the module; `run` it as long as the broker is registered."""

    def __init__(self, cluster: Cluster, *, clock: Callable[[], float] = trio.current_time) -> None:
        self._cluster = cluster
        self._clock = clock
        self._away_since_s: dict[int, float] = {}

    async def run(self) -> None:
        """Look every half a second, until cancelled."""
        while True:
            await trio.sleep(_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Say what is so now."""
        cluster = self._cluster
        unreachable = self._unreachable()
        try:
            lost = cluster.note_lost()
            await cluster.members.update(
                lost=tuple(sorted(lost)),
                unopened=tuple(sorted(cluster.unopened)),
                unreadable=tuple(sorted(cluster.unreadable)),
                refusing=self._refusing(),
                stalled=cluster.is_stalled(),
                low_on_disk=cluster.is_low_on_disk(),
                unreachable=tuple(unreachable),
            )
        except MetadataUnavailable:
            pass  # `Members` says it when it can
        except OSError as error:
            logger.warning("what is lost of replicas cannot be written down: %s", error)

    def _refusing(self) -> bool:
        return any(replica.log.error is not None for replica in self._cluster.replicas.by_name.values())

    def _unreachable(self) -> list[int]:
        cluster, now_s = self._cluster, self._clock()
        away = [
            broker
            for broker in cluster.members.brokers
            if broker != cluster.broker_id and broker not in cluster.replicas.leaders
        ]
        self._away_since_s = {broker: self._away_since_s.get(broker, now_s) for broker in away}
        return sorted(broker for broker, since_s in self._away_since_s.items() if now_s - since_s >= UNREACHABLE_S)
