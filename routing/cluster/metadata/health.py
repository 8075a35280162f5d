"""What is said in the log of partitions that lack a leader or replicas, whenever that changes.

1. A broker names those that it has a replica of, or should have. It says what is so a second after a change, not each
   step on the way there: where a broker dies, all its logs change in turn.
2. Partitions are named as operators know them: homes of queues are those of `__queues`, group offsets of `__offsets`,
   transactions that were decided of `__transactions`, retained messages of `__retained`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from core_log.metadata.store import MetadataEntry
from core_log.replication.state import LOGS, LogState
from routing.cluster.metadata import log_names
from routing.topics.reserved_names import OFFSETS, QUEUES, RETAINED, TRANSACTIONS

if TYPE_CHECKING:
    from routing.cluster.cluster import Cluster
    from routing.topics.topic import Topic

logger = logging.getLogger(__name__)

_NAMES = {
    log_names.HOME: QUEUES,
    log_names.OFFSETS: OFFSETS,
    log_names.TRANSACTIONS: TRANSACTIONS,
    log_names.RETAINED: RETAINED,
}
_SETTLED_S = 1.0
_NAMED_MAX = 20


def place(log: str, topics: Mapping[str, str]) -> tuple[str, int]:
    """The topic and partition that a log is of; `topics` are the names of topics by their ids."""
    kind, uid, number = log_names.parsed(log)
    return (_NAMES.get(kind) or topics.get(uid, uid), number) if number is not None else (log, 0)


def called(log: str, topics: Mapping[str, str]) -> str:
    """What operators call a log, such as `orders-0`; see `place`."""
    topic, number = place(log, topics)
    return f"{topic}-{number}"


def names_by_id(topics: Iterable[Topic]) -> dict[str, str]:
    """What `place` goes by."""
    return {topic.uid: topic.name for topic in topics}


def is_leaderless(state: LogState) -> bool:
    """Nobody can write or read it."""
    return state.leader is None


def is_under_replicated(state: LogState) -> bool:
    """A replica is not in the ISR."""
    return len(state.isr) < len(state.replicas)


def is_single_copy(state: LogState) -> bool:
    """At most one replica is in the ISR: what is confirmed, be it with acks=all, is on one disk."""
    return len(state.isr) <= 1


def needs(state: LogState, broker: int) -> bool:
    """Whether one of several replicas is in sync without which too few would be for anything to be confirmed."""
    return len(state.replicas) > 1 and broker in state.isr_brokers and len(state.isr) <= max(state.min_insync, 1)


class Health:
    """See the module; `run` it beside the engine. `topics` are names by id."""

    def __init__(self, cluster: Cluster, topics: Callable[[], Mapping[str, str]]) -> None:
        self._cluster = cluster
        self._topics = topics
        self._leaderless: Collection[str] = frozenset()
        self._under_replicated: Collection[str] = frozenset()
        self._changed = trio.Event()
        cluster.store.listeners.append(self._applied)

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        if any(entry.key.startswith(LOGS) for entry in entries):
            self._changed.set()

    async def run(self) -> None:
        """Say what changes, until cancelled."""
        while True:
            self.look()
            await self._changed.wait()
            await trio.sleep(_SETTLED_S)
            self._changed = trio.Event()

    def look(self) -> None:
        """Say what is so, unless it is as it was."""
        mine = {
            name: known.state
            for name, known in self._cluster.elections.logs.items()
            if self._cluster.broker_id in known.state.replicas
        }
        leaderless = {name for name, state in mine.items() if is_leaderless(state)}
        lacking = {name for name, state in mine.items() if is_under_replicated(state)}
        if leaderless != self._leaderless:
            self._say(logging.ERROR, leaderless, "without a leader")
        if lacking != self._under_replicated:
            self._say(logging.WARNING, lacking, "under-replicated")
        self._leaderless, self._under_replicated = leaderless, lacking

    def _say(self, level: int, logs: Collection[str], what: str) -> None:
        if not logs:
            logger.info("no partition is %s any more", what)
            return
        topics = self._topics()
        places = sorted(place(log, topics) for log in logs)
        names = ", ".join(f"{topic}-{index}" for topic, index in places[:_NAMED_MAX])
        logger.log(level, "%s: %d partitions, %s%s", what, len(logs), names, " ..." if len(logs) > _NAMED_MAX else "")
