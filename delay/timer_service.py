"""All timers of the process in one task: heartbeats, keep-alive, fetch waits, housekeeping.

1. `at` and `Timer.cancel` are synchronous and cheap; the task sleeps until the earliest deadline, and for ever when
   there is none. A timer earlier than the one it sleeps for makes its sleep shorter, and does not wake it.
2. A timer is never early and at most about a millisecond late, as long as the loop keeps up.
3. Callbacks are synchronous and must not raise. They run in bites of at most `_BITE` or `_BITE_S`, with a checkpoint
   between; after each bite `after_turn` is called, so that what they wrote is sent.
4. Somebody who moves a deadline with every read should not cancel and add: let the old timer fire, look, and call `at`
   again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

from delay.timing_wheel import TimingWheel

_BITE = 512
_BITE_S = 0.002


class Timer:
    """A callback that waits; made by `TimerService.at`."""

    __slots__ = ("_callback", "_key", "_service")

    def __init__(self, service: TimerService, key: int, callback: Callable[[], None]) -> None:
        self._service = service
        self._key = key
        self._callback: Callable[[], None] | None = callback

    @property
    def pending(self) -> bool:
        """False once it fired or was cancelled."""
        return self._callback is not None

    def cancel(self) -> None:
        """Do not call back. Does nothing when it fired or was cancelled before."""
        if self._callback is not None:
            self._callback = None
            self._service._forget(self._key)


class TimerService:
    """See the module's rules. `clock` gives monotonic seconds and must be the clock trio sleeps by."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self.after_turn: Callable[[], None] | None = None
        """Called on the loop after each bite of callbacks."""
        self._clock = clock
        self._wheel = TimingWheel(tick_ms=1)
        self._timers: dict[int, Timer] = {}
        self._due: deque[Timer] = deque()
        """What is to be called back."""
        self._next_key = 0
        self._sleeping_until_ms: float = math.inf
        self._scope = trio.CancelScope()

    def __len__(self) -> int:
        """How many timers are waiting."""
        return len(self._timers)

    def at(self, deadline_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` at `deadline_s` of the clock; at once, but not from within `at`, when that is past.

        Raises ValueError for a deadline that is no number; one at infinity never fires.
        """
        if math.isnan(deadline_s):
            raise ValueError("a deadline must be a number of seconds")
        if deadline_s == math.inf:
            return Timer(self, 0, callback)
        key = self._next_key = self._next_key + 1
        deadline_ms = math.ceil(_milliseconds(deadline_s))
        self._wheel.add(deadline_ms, key)
        timer = self._timers[key] = Timer(self, key, callback)
        if deadline_ms < self._sleeping_until_ms:
            self._sleeping_until_ms = deadline_ms
            self._scope.deadline = deadline_ms / 1000
        return timer

    def _forget(self, key: int) -> None:
        if self._timers.pop(key, None) is not None:
            self._wheel.cancel(key)

    async def run(self) -> None:
        """The task; runs until it is cancelled."""
        while True:
            due_ms = self._wheel.next_due_ms()
            if self._due or (due_ms is not None and due_ms <= _milliseconds(self._clock())):
                self._fire()
                await trio.lowlevel.checkpoint()
                continue
            self._sleeping_until_ms = math.inf if due_ms is None else due_ms
            with trio.CancelScope(deadline=self._sleeping_until_ms / 1000) as self._scope:
                await trio.sleep_forever()
            self._sleeping_until_ms = -math.inf

    def _fire(self) -> None:
        now_s = self._clock()
        # Taken out first: a callback may cancel a timer of the same bite, whose key the wheel has forgotten already.
        keys = [] if self._due else self._wheel.advance(math.floor(_milliseconds(now_s)), _BITE)
        due = self._due
        due.extend([self._timers.pop(key) for key in keys])
        any_due = bool(due)
        while due:
            timer = due.popleft()
            callback, timer._callback = timer._callback, None
            if callback is not None:
                callback()
                if self._clock() > now_s + _BITE_S:
                    break
        if any_due and self.after_turn is not None:
            self.after_turn()


def _milliseconds(time_s: float) -> float:
    """Milliseconds, a microsecond added: sleeping until `ms / 1000` must not end a rounding error before `ms`."""
    return time_s * 1000 + 0.001
