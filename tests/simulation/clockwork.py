"""Virtual time: events in order, one source of dice, and coroutines without an event loop."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Clockwork:
    """What happens next. `events` counts them; `trace` keeps what was said of them."""

    def __init__(self, seed: int, *, until: int | None = None, trace: bool = False) -> None:
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.events = 0
        self.until = until
        self.story: list[str] = []
        self._echo = trace
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self.after_event: Callable[[], None] = lambda: None

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Do something then."""
        self._serial += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._serial, action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something in a while."""
        self.at(self.now_s + delay_s, action)

    def note(self, text: str) -> None:
        """A line of the story."""
        line = f"{self.events:6d} {self.now_s:9.4f} {text}"
        self.story.append(line)
        if self._echo:
            print(line)

    def run(self, end_s: float) -> None:
        """All events up to a time."""
        while self._heap and self._heap[0][0] <= end_s:
            if self.until is not None and self.events >= self.until:
                return
            self.now_s, _, action = heapq.heappop(self._heap)
            self.events += 1
            action()
            self.after_event()
        self.now_s = end_s


class Pause:
    """Awaitable: `start` is given what to call when it is over, with a result or an error."""

    def __init__(self, start: Callable[[Callable[[Any, BaseException | None], None]], None]) -> None:
        self.start = start

    def __await__(self) -> Generator[Pause, Any, Any]:
        return (yield self)


def drive(coroutine: Coroutine[Pause, Any, T], done: Callable[[T | None, BaseException | None], None]) -> None:
    """Run a coroutine whose awaits are all `Pause`s, step by step."""

    def step(result: Any, error: BaseException | None) -> None:
        try:
            pause = coroutine.send(result) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            done(stop.value, None)
        except Exception as raised:
            done(None, raised)
        else:
            pause.start(step)

    step(None, None)
