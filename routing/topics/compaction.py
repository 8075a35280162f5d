"""Compaction of topics' logs, one at a time, in a thread that takes no more than its part of a processor.

1. Every `compaction_check_interval_ms` each log that is to be compacted is looked at; those that are due are compacted,
   the dirtiest first. Every replica compacts its own log, whoever leads.
2. What is older than `max.compaction.lag.ms` must not wait for its segment to be full: a new one is begun.
3. A log with a damaged batch is left alone for `_AGAIN_S`, and named in the log of the process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import trio

from core_log.compaction import state as states
from core_log.compaction.compactor import CompactionLimits, Dirt, compact, look
from core_log.compaction.state import CompactionState
from core_log.errors import CorruptBatch
from core_log.flusher import Flusher
from core_log.partition_log import PartitionLog
from core_log.threads import in_thread
from routing.config import BrokerConfig
from routing.topics.topic import Topic, logs_here

logger = logging.getLogger(__name__)

_BITE_S = 0.002
_AGAIN_S = 600.0


class Pacer:
    """What a pass calls in its thread: works for a bite, sleeps for the rest, and ends when whoever waits gives up."""

    def __init__(self, cpu_percent: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._rest = (100 - cpu_percent) / cpu_percent
        self._clock = clock
        self._began_s = clock()

    def __call__(self) -> None:
        """Raises trio.Cancelled."""
        worked_s = self._clock() - self._began_s
        if worked_s >= _BITE_S:
            trio.from_thread.check_cancelled()
            if self._rest:
                time.sleep(worked_s * self._rest)
            self._began_s = self._clock()


class Compaction:
    """See the module."""

    def __init__(self, flusher: Flusher, config: BrokerConfig, topics: Callable[[], Iterable[Topic]]) -> None:
        self._flusher = flusher
        self._config = config
        self._topics = topics
        self._states: dict[PartitionLog, CompactionState] = {}
        self._not_before: dict[PartitionLog, float] = {}
        self._limits = CompactionLimits(memory_bytes_max=config.compaction_memory_bytes_max)

    async def run(self) -> None:
        """For ever."""
        while True:
            await trio.sleep(self._config.compaction_check_interval_ms / 1000)
            await self.round()

    async def round(self) -> None:
        """Look at all logs, and compact those that are due."""
        logs = [log for log in logs_here(self._topics()) if log.config.compacts]
        for known in self._states.keys() - set(logs):
            del self._states[known]
            self._not_before.pop(known, None)
        due: list[tuple[float, int, PartitionLog]] = []
        for number, log in enumerate(logs):
            dirt = await self._look(log)
            if dirt is not None and dirt.is_due:
                due.append((-dirt.ratio, number, log))
        for _, _, log in sorted(due):
            await self._compact(log)

    async def _look(self, log: PartitionLog) -> Dirt | None:
        config = log.config
        if log.closed or log.error is not None or trio.current_time() < self._not_before.get(log, 0.0):
            return None
        active = log.segments[-1]
        roll_ms = min(config.compaction_lag_max_ms, config.segment_ms)
        if active.size and not log.truncating and active.age_ms(log.wall_clock_ms()) >= roll_ms:
            log.roll()
        if len(log.segments) < 2:
            return None
        try:
            if log not in self._states:
                self._states[log] = await in_thread(states.load, log.files, log.directory)
            return await in_thread(look, log, self._states[log], log.wall_clock_ms())
        except (OSError, CorruptBatch) as error:
            logger.warning("%s: cannot see what there is to compact: %s", log.directory, error)
            return None

    async def _compact(self, log: PartitionLog) -> None:
        try:
            done = await compact(
                log,
                self._flusher,
                self._states[log],
                limits=self._limits,
                in_thread=self._flusher.in_thread,
                pause=Pacer(self._config.compaction_cpu_percent),
            )
        except (OSError, CorruptBatch) as error:
            if not log.closed:
                self._not_before[log] = trio.current_time() + _AGAIN_S
                logger.error("%s cannot be compacted, which is tried again in 10 minutes: %s", log.directory, error)
            return
        if done is not None:
            text = "%s: compacted below %d after %d new records, %d records are gone, %d bytes of %d are left"
            sizes = done.bytes_after, done.bytes_before
            logger.info(text, log.directory, done.end, done.records, done.dropped_records, *sizes)
