"""The index of keys (`core_log/key_index.py`) of topics that ask for one, one log at a time, in a thread that takes no
more than its part of a processor. Every replica indexes its own log, whoever leads.

A log with a damaged batch, or on a disk that refuses, is left alone for `_AGAIN_S`: it is looked through instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import trio

from core_log.errors import CorruptBatch
from core_log.key_index import extend
from core_log.partition_log import PartitionLog
from core_log.threads import in_thread
from routing.config import BrokerConfig
from routing.topics.compaction import Pacer
from routing.topics.topic import Topic, logs_here

logger = logging.getLogger(__name__)

_AGAIN_S = 600.0


class KeyIndexing:
    """See the module."""

    def __init__(self, config: BrokerConfig, topics: Callable[[], Iterable[Topic]]) -> None:
        self._config = config
        self._topics = topics
        self._seen: dict[PartitionLog, int] = {}
        """Up to where they were committed the last time."""
        self._not_before: dict[PartitionLog, float] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            await trio.sleep(self._config.key_index_interval_ms / 1000)
            await self.round()

    async def round(self) -> None:
        """Look at all logs."""
        logs = [log for log in logs_here(self._topics()) if log.config.key_index]
        for known in self._seen.keys() - set(logs):
            del self._seen[known]
            self._not_before.pop(known, None)
        for log in logs:
            end = log.high_watermark
            idle = self._seen.get(log) == end
            self._seen[log] = end
            if not log.closed and not log.truncating and trio.current_time() >= self._not_before.get(log, 0.0):
                await self._extend(log, idle)

    async def _extend(self, log: PartitionLog, idle: bool) -> None:
        def work() -> None:
            extend(log, Pacer(self._config.key_index_cpu_percent, time.thread_time), idle=idle)

        try:
            await in_thread(work)
        except (OSError, CorruptBatch) as error:
            if not log.closed:
                self._not_before[log] = trio.current_time() + _AGAIN_S
                logger.warning(
                    "the keys of %s are not indexed, which is tried again in 10 minutes: %s", log.directory, error
                )
