"""Whether the disk answers: one that stands still, as a remote one may, refuses nothing; whoever waits for it waits on.

A job of a log that is still under way after `LOOKS` looks, a second apart, is a sign of that. Looks are counted, not
time: when the process itself stood still, what its disk had done meanwhile is taken before the next look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import trio

from core_log.flush_job import FlushJob
from core_log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

LOOKS = 5
_INTERVAL_S = 1.0


class DiskStalls:
    """See the module; `run` it beside the engine. `logs` are those that are kept here."""

    def __init__(self, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        self.stalled = False
        self._logs = logs
        self._under_way: dict[PartitionLog, tuple[FlushJob, int]] = {}
        """And how many looks have seen the job."""

    async def run(self) -> None:
        """Look every second, until cancelled."""
        while True:
            await trio.sleep(_INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Say what has changed."""
        before, self._under_way = self._under_way, {}
        for log in self._logs():
            if (job := log.job) is not None:
                seen, looks = before.get(log, (job, 0))
                self._under_way[log] = job, looks + 1 if seen is job else 1
        stalled = [log.directory for log, (_, looks) in self._under_way.items() if looks > LOOKS]
        if stalled and not self.stalled:
            logger.error("the disk has not answered for %d s: %s waits, and others may", LOOKS, stalled[0])
        elif self.stalled and not stalled:
            logger.warning("the disk answers again")
        self.stalled = bool(stalled)
