"""The engine around the queues, as they see it (`queues/host.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakSet

import trio

from delay.timer_service import Timer, TimerService
from routing.queues.queue import Queue
from routing.queues.view import TopicFeed
from routing.queues.view_queue import ViewQueue


class Clock:
    """Time in ms since the epoch that goes on evenly while the process lives, whatever is done to the wall clock."""

    def __init__(self, wall_clock_ms: Callable[[], int]) -> None:
        self._start_ms = wall_clock_ms() - trio.current_time() * 1000

    def now_ms(self) -> int:
        """The time."""
        return int(self._start_ms + trio.current_time() * 1000)

    def seconds(self, time_ms: float) -> float:
        """A time as `trio.current_time` tells it."""
        return (time_ms - self._start_ms) / 1000


class Runnable(Protocol):
    """Something to be looked at when the turn ends."""

    awake: bool
    """Set by who calls `Host.runnable`, so that it is not called again until then."""

    def pump(self) -> None:
        """The turn ends; `awake` has been cleared."""


class Host:
    """See the module."""

    def __init__(
        self,
        timers: TimerService,
        clock: Clock,
        *,
        runnable: Callable[[Runnable], None],
        dead_letter: Callable[[Queue, Sequence[int], str], None],
        unused: Callable[[Queue], None],
    ) -> None:
        self.runnable = runnable
        self.dead_letter = dead_letter
        self.unused = unused
        self.impatient: WeakSet[Queue] = WeakSet()
        self.views: WeakSet[ViewQueue] = WeakSet()
        self.open_feed: Callable[[str, Callable[[], None]], TopicFeed] | None = None
        """Gives views their topics, as soon as there are any."""
        self.now_ms = clock.now_ms
        self._timers = timers
        self._clock = clock

    def at_ms(self, due_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back at a time of the clock; a turn ends afterwards."""
        return self._timers.at(self._clock.seconds(due_ms), callback)

    def topics_changed(self) -> None:
        """See `QueueHost`."""
        for queue in self.views:
            queue.view.advanced()

    def topic_feed(self, topic: str, advanced: Callable[[], None]) -> TopicFeed:
        """See `QueueHost`."""
        assert self.open_feed is not None
        return self.open_feed(topic, advanced)
