"""States of logs that no topic has, which the controller removes.

What is too much for one change of the metadata, a topic of some hundred partitions, is made in several: its logs first,
then its entry; and when it goes, its entry first. Where the broker that does it ends in between, or begins anew as
another one came or went, logs are left. Nobody opens them, so who leads them hands nothing over, and who has them could
never be removed.

1. Logs that no topic has may be of one that is being made. They go when none of that topic's has changed for `KEPT_S`;
   whoever makes it relies on its own registration (`TopicLogs.states`), so nobody goes on who stood still for so long.
2. What was changed meanwhile stays, by the guards.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import trio

from core_log.errors import Conflict, MetadataUnavailable
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.elections import BATCH_LOGS, Known
from routing.cluster.metadata.log_names import TOPIC, parsed
from routing.cluster.metadata.placement import internal_logs
from routing.topics.topic import Topic

logger = logging.getLogger(__name__)

KEPT_S = 120.0
_LOOK_S = 15.0


def partitions_by_id(topics: Iterable[Topic]) -> dict[str, int]:
    """What `Leftovers` goes by."""
    return {topic.uid: len(topic.partitions) for topic in topics}


class Leftovers:
    """See the module; `run` it beside the engine. `topics` says how many partitions topics have, by their ids."""

    def __init__(self, cluster: Cluster, topics: Callable[[], Mapping[str, int]]) -> None:
        self._cluster = cluster
        self._topics = topics
        self._since: dict[str, tuple[int, float]] = {}
        """By ids of topics that are not there: the latest revision of their logs, and when it was seen first."""

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await trio.sleep(_LOOK_S)
            try:
                await self._look()
            except (Conflict, MetadataUnavailable):
                pass  # at the next look

    async def _look(self) -> None:
        if not self._due():
            return
        await self._cluster.store.barrier()
        for uid, logs in self._due().items():
            names = sorted(logs)
            for start in range(0, len(names), BATCH_LOGS):
                await self._cluster.elections.remove({log: logs[log] for log in names[start : start + BATCH_LOGS]})
            what = "%d partitions of topic %s are removed, which was not made, or not deleted, to the end"
            logger.warning(what, len(names), uid)

    def _due(self) -> dict[str, dict[str, Known]]:
        """What is to be removed, by topics."""
        found, now_s = self._found(), trio.current_time()
        latest = {uid: max(known.mod_revision for known in logs.values()) for uid, logs in found.items()}
        seen = self._since
        self._since = {
            uid: seen[uid] if uid in seen and seen[uid][0] == revision else (revision, now_s)
            for uid, revision in latest.items()
        }
        return {uid: logs for uid, logs in found.items() if now_s - self._since[uid][1] >= KEPT_S}

    def _found(self) -> dict[str, dict[str, Known]]:
        elections, meta = self._cluster.elections, self._cluster.members.meta
        if not elections.decides:
            return {}
        topics = self._topics()
        internal = len(internal_logs(meta.homes, meta.offsets, meta.transactions, meta.retained))
        found: dict[str, dict[str, Known]] = defaultdict(dict)
        if len(elections.logs) > internal + sum(topics.values()):
            for log, known in elections.logs.items():
                kind, uid, index = parsed(log)
                if kind == TOPIC and index is not None and index >= topics.get(uid, 0):
                    found[uid][log] = known
        return found
