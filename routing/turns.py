"""What has come together until a turn ends, and the order in which it goes out (docs/architecture.md, "A turn").

1. Queues that may have something to deliver ask to be pumped, logs that were written to ask to be sealed, sessions that
   publish with confirms ask to be looked at: each once a turn, however often it asks.
2. What is given out may let more be given out, and what is sealed may make something committed; that is gone through a
   few times within a turn, the rest is another turn's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from core_log.log_flusher import LogFlusher
from delay.timer_service import TimerService
from routing.config import BrokerConfig
from routing.tracing import Trace, flush

if TYPE_CHECKING:
    from routing.alarms import Alarms
    from routing.cluster.clients.engine import Engine
    from routing.cluster.cluster import Cluster
    from routing.cluster.homes import Homes
    from routing.cluster.replicas import Replicas
    from routing.groups.coordinator import Coordinator
    from routing.queue_host import Runnable
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.republishing.dead_letters import DeadLetters
    from routing.session import Session
    from routing.topics.topic_partition import TopicPartition

_PASSES_MAX = 4
"""What is given out may let more be given out within a turn, but not for ever."""


class Turns:
    """See the module; `Broker` is one, and has what turns are about."""

    alarms: Alarms
    cluster: Cluster | None
    """What this broker is part of; None for a single one."""
    engine: Engine | None
    """What the brokers of a cluster do for each other's clients."""
    homes: Homes | None
    """The home partitions as a member of a cluster has them."""
    groups: Coordinator
    dead_letters: DeadLetters

    def __init__(self, config: BrokerConfig, flusher: LogFlusher, timers: TimerService) -> None:
        self.config = config
        self.flusher = flusher
        self.timers = timers
        self.confirming: dict[Session, None] = {}
        self.traces: dict[str, Trace] = {}
        """Of virtual hosts in which tracing is on."""
        self.after_turn: Callable[[], None] | None = None
        """Sends what was written to outboxes."""
        self._runnable: deque[Runnable] = deque()
        self._dirty: dict[QueuePartition | TopicPartition, None] = {}
        self._deferred: dict[QueuePartition, None] = {}

    def _mark_dirty(self, partition: QueuePartition | TopicPartition) -> None:
        self._dirty[partition] = None

    def _defer(self, partition: QueuePartition) -> None:
        """Have a partition write its settlements a little later, together with all that ask for it meanwhile."""
        if not self._deferred:
            self.timers.at(trio.current_time() + self.config.settle_delay_ms / 1000, self._deferred_due)
        self._deferred[partition] = None

    def _deferred_due(self) -> None:
        deferred, self._deferred = self._deferred, {}
        for partition in deferred:
            partition.settlements_due()

    def _pump(self) -> None:
        runnable = self._runnable
        while runnable:
            queue = runnable.popleft()
            queue.awake = False
            queue.pump()

    def end_turn(self) -> None:
        """Deliver, write and confirm what has come together."""
        homes, flusher, dead_letters = self.homes, self.flusher, self.dead_letters
        if homes is not None:
            homes.begin_turn()
            flusher.hold()  # what replicas have to write is written when it is on its way to the others
        if self._runnable:
            self._pump()
        if dead_letters.due:
            dead_letters.run()
            self._pump()
        if self.traces and flush(self.traces.values()):
            self._pump()
        if self.after_turn is not None:
            self.after_turn()  # deliveries wait neither for confirms, nor for the disk's threads, nor for a look around
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for partition in dirty:
                partition.seal()
        if self.groups.saver.unsaved:
            self.groups.flush()
        if self.cluster is not None:
            due = self._runnable or self._dirty or dead_letters.due
            if due or self.cluster.replicas.has_news:
                self._replicate(self.cluster.replicas)
        if dead_letters.published:
            dead_letters.note_commits()
        if flusher.unflushed_bytes > self.alarms.room_bytes:
            self.alarms.check()
        if self.confirming:
            confirming, self.confirming = self.confirming, {}
            for session in confirming:
                session.confirms.note()
        if self.engine is not None:
            self.engine.end_turn()
            if homes is not None:
                homes.end_turn()
        if self.after_turn is not None:
            self.after_turn()
        if homes is not None:
            flusher.end_turn()

    def turn_is_due(self) -> bool:
        """Whether there is anything that the end of a turn would bring out, in a broker of a cluster. Most of what
        replicas say to each other brings nothing.
        """
        cluster, engine, dead_letters = self.cluster, self.engine, self.dead_letters
        ours = self._runnable or self._dirty or self.confirming or self.traces or self.groups.saver.unsaved
        if ours or dead_letters.due or dead_letters.published or cluster is None or engine is None:
            return True
        behind = self.homes is not None and self.homes.is_behind
        return behind or cluster.replicas.has_news or cluster.has_no_lease or engine.has_news

    def _replicate(self, replicas: Replicas) -> None:
        """Tell other brokers what is new. What that makes committed is given out."""
        replicas.end_turn()
        for _ in range(_PASSES_MAX):
            if not self._runnable and not self._dirty:
                break
            self._pump()
            dirty, self._dirty = self._dirty, {}
            for partition in dirty:
                partition.seal()
            replicas.end_turn()
        if self.after_turn is not None:
            self.after_turn()  # nor do followers wait for confirms
        if self._runnable or self._dirty or self.dead_letters.due:
            self.want_turn()

    def _flushed(self) -> None:
        self.alarms.check()
        if self.cluster is not None:
            self.cluster.replicas.look_at_kept()
        if self.turn_is_due():
            self.end_turn()
        elif self.after_turn is not None:
            self.after_turn()  # others have to keep it, too

    def want_turn(self) -> None:
        """Have a turn end soon."""
        self.timers.at(trio.current_time(), lambda: None)
