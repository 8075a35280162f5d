"""The engine around the queues, as they see it (`queues/host.py`)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakSet

import trio

from core_log.batch_header import parse_header
from core_log.errors import LogError
from core_log.partition_log import PartitionLog
from delay.timer_service import Timer, TimerService
from routing.message import Slab
from routing.queues.queue import Queue
from routing.queues.view import TopicFeed
from routing.queues.view_queue import ViewQueue

log = logging.getLogger(__name__)


_APART_MS = 30_000
"""Which a wall clock is put right by without a word."""
_SET_FROM_MS = 1_767_225_600_000
"""A wall clock that says less than the beginning of 2026 has not been set: nobody had this broker then."""


class Clock:
    """Time in ms since the epoch that goes on evenly while the process lives, whatever is done to the wall clock."""

    def __init__(self, wall_clock_ms: Callable[[], int]) -> None:
        self._wall_clock_ms = wall_clock_ms
        self._start_ms = wall_clock_ms() - trio.current_time() * 1000
        self._apart_ms = 0
        """How far the wall clock was ahead when that was said last."""

    def look_back(self, written_ms: int) -> None:
        """Say that the wall clock is far behind `written_ms`, when the logs of queues were written to last."""
        behind_ms = written_ms - self.now_ms()
        if behind_ms > _APART_MS:
            log.warning(
                "the wall clock is %d s behind the time at which queues were written to last: what waits in them since "
                "then expires, and is due, so much later",
                behind_ms // 1000,
            )

    def look(self) -> None:
        """Say that the wall clock was set by much: the next start, and other brokers, go by that one."""
        apart_ms = self._wall_clock_ms() - self.now_ms()
        if abs(apart_ms - self._apart_ms) <= _APART_MS:
            return
        self._apart_ms = apart_ms
        if abs(apart_ms) <= _APART_MS:
            log.warning("the wall clock agrees again with the time that queues go by")
            return
        ahead = apart_ms > 0
        log.warning(
            "the wall clock is %d s %s the time that queues go by, which is that of this start: after the next one "
            "what waits now expires, and is due, so much %s",
            abs(apart_ms) // 1000, "ahead of" if ahead else "behind", "earlier" if ahead else "later",
        )  # fmt: skip

    def begin_after(self, logs: Sequence[PartitionLog]) -> None:
        """A wall clock that nobody has set yet, as of a machine without a battery for it, is not gone by if these logs,
        which have the times of this clock, were written to later: time goes on from there. Call it before what they
        have is read back.
        """
        if self.now_ms() >= _SET_FROM_MS:
            return
        written_ms = max(map(_written_ms, logs), default=0)
        if self.now_ms() < written_ms:
            said_s = self._wall_clock_ms() // 1000
            self._start_ms = written_ms - trio.current_time() * 1000
            self._apart_ms = self._wall_clock_ms() - written_ms
            log.warning(
                "the wall clock has not been set (%d s since 1970): queues go on from the time at which something was "
                "written last, as if this broker had stopped for no time", said_s,
            )  # fmt: skip

    def wall_ms(self) -> int:
        """What the wall clock says now: for times that others name, who go by theirs."""
        return self._wall_clock_ms()

    def now_ms(self) -> int:
        """The time."""
        return int(self._start_ms + trio.current_time() * 1000)

    def seconds(self, time_ms: float) -> float:
        """A time as `trio.current_time` tells it."""
        return (time_ms - self._start_ms) / 1000


def _written_ms(written: PartitionLog) -> int:
    """When a log was written to last; 0 if it does not say. What is before that may be of a clock that was ahead."""
    try:
        batches = written.read_blocking(written.log_end_offset - 1, 1, unsynced=True)
        return parse_header(batches[-1]).max_timestamp_ms if batches else 0
    except (LogError, OSError):
        return 0


class Runnable(Protocol):
    """Something to be looked at when the turn ends."""

    awake: bool
    """Set by who calls `Host.runnable`, so that it is not called again until then."""

    def pump(self) -> None:
        """The turn ends; `awake` has been cleared."""


class Host:
    """See the module."""

    drops_seen: list[Callable[[Queue, int], None]]
    """Told of messages that had to leave a queue because of its length, as a number."""

    def __init__(
        self,
        timers: TimerService,
        clock: Clock,
        *,
        runnable: Callable[[Runnable], None],
        dead_letter: Callable[[Queue, Sequence[int], str], None],
        refused: Callable[[Queue, Slab], None],
        unused: Callable[[Queue], None],
    ) -> None:
        self.runnable = runnable
        self.dead_letter = dead_letter
        self.refused = refused
        self.unused = unused
        self.impatient: WeakSet[Queue] = WeakSet()
        self.views: WeakSet[ViewQueue] = WeakSet()
        self.open_feed: Callable[[str, Callable[[], None]], TopicFeed] | None = None
        """Gives views their topics, as soon as there are any."""
        self.drops_seen = []
        self.deaths: Counter[str] = Counter()
        self.clock = clock
        self.now_ms = clock.now_ms
        self._timers = timers
        self._clock = clock

    def at_ms(self, due_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back at a time of the clock; a turn ends afterwards."""
        return self._timers.at(self._clock.seconds(due_ms), callback)

    def gave_way(self, queue: Queue, count: int) -> None:
        """See `QueueHost`. The log says it of the first, the tenth, the hundredth message, and so on."""
        before = queue.gave_way - count
        if len(str(before)) < len(str(queue.gave_way)) or not before:
            log.warning(
                "queue '%s' in vhost '%s' is full: %d of its messages have given way (%s)",
                queue.name, queue.vhost, queue.gave_way, queue.settings.overflow,
            )  # fmt: skip
        for told in self.drops_seen:
            told(queue, count)

    def topics_changed(self) -> None:
        """See `QueueHost`."""
        for queue in self.views:
            queue.view.advanced()

    def topic_feed(self, topic: str, advanced: Callable[[], None]) -> TopicFeed:
        """See `QueueHost`."""
        assert self.open_feed is not None
        return self.open_feed(topic, advanced)
