"""One event loop for many processes, in virtual time, that does the same thing each time it is run with a seed.

1. Each task belongs to the process in whose context it was started (`CURRENT`). A process that is stopped, as by
   SIGSTOP, has its tasks put aside whenever they are woken; they go on when it does.
2. Time jumps when nobody has anything to do. What else happens, the network's and the disks' part, is on the `Agenda`.
3. There are no threads: what product code gives to one is done by the agenda when the dice say (`offload`).
4. Everything that would differ from run to run is bent to the seed: the order in which trio runs what is ready, ids
   and nonces, `random`, the clocks. What is left is the order of sets, which no decision may depend on.
"""

from __future__ import annotations

import gc
import heapq
import math
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from unittest import mock

import trio
from trio._core import _run
from trio.testing import MockClock

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Process

CURRENT: ContextVar[Process | None] = ContextVar("simulated_process", default=None)
"""Whose code runs."""
EPOCH_S = 1_700_000_000
"""What the clock on the wall shows at first."""


class Agenda:
    """What happens besides the tasks: actions in the order of their times. `story` keeps what was said of them."""

    def __init__(self, seed: int, *, until: int | None = None, trace: bool = False) -> None:
        self.dice = random.Random(seed)
        self.events = 0
        self.until = until
        self.story: list[str] = []
        self.over = False
        self._echo = trace
        self.error: Exception | None = None
        self.when_over: Callable[[], None] = lambda: None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    @property
    def now_s(self) -> float:
        """Since the schedule began."""
        return trio.current_time()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Do something then."""
        self._serial += 1
        heapq.heappush(self._heap, (time_s, self._serial, action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something in a while."""
        self.at(self.now_s + delay_s, action)

    def note(self, text: str) -> None:
        """A line of the story."""
        line = f"{self.events:6d} {self.now_s:9.4f} {text}"
        self.story.append(line)
        if self._echo:
            print(line)

    @property
    def next_s(self) -> float:
        """When something happens next."""
        return self._heap[0][0] if self._heap and not self.over else math.inf

    def step(self) -> None:
        """Do what is due next."""
        if self.until is not None and self.events >= self.until:
            self.over = True
            self.when_over()
            return
        action = heapq.heappop(self._heap)[2]
        self.events += 1
        try:
            action()
        except Exception as error:
            self.over, self.error = True, error
            self.when_over()


def _clock(agenda: Agenda) -> MockClock:
    """When nobody has anything to do it is the next moment at once: a deadline's, or the agenda's."""
    clock: Any = MockClock(autojump_threshold=0)
    now_s = 0.0

    def jump() -> None:
        nonlocal now_s
        deadline_s = _run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        if agenda.next_s == math.inf and deadline_s == math.inf:
            return
        now_s = max(now_s, min(agenda.next_s, deadline_s))
        if agenda.next_s <= deadline_s:
            agenda.step()

    clock.current_time = lambda: now_s
    clock.deadline_to_sleep_time = lambda deadline_s: 0.0 if deadline_s <= now_s else 999_999.0
    clock._autojump = jump
    return clock  # type: ignore[no-any-return]


async def offload(
    work: Callable[..., Any], *arguments: Any, limiter: object = None, abandon_on_cancel: bool = False, **_: Any
) -> Any:
    """`trio.to_thread.run_sync`, done by the agenda."""
    process = CURRENT.get()
    if process is None:
        return work(*arguments)
    await trio.lowlevel.checkpoint_if_cancelled()
    finished = trio.Event()
    outcome: list[Any] = []

    def do() -> None:
        try:
            outcome.extend((work(*arguments), None))
        except Exception as error:
            outcome[:] = None, error

    process.threads.begin(do, finished.set)
    with trio.CancelScope(shield=not abandon_on_cancel):
        await finished.wait()
    if not outcome:
        raise OSError("the process is no more")
    result, error = outcome
    if error is not None:
        raise error
    return result


def _reschedule(real: Callable[..., None]) -> Callable[..., None]:
    def reschedule(runner: Any, task: Any, next_send: Any = _run._NO_SEND) -> None:
        real(runner, task, next_send)
        process = task.context.get(CURRENT)
        if process is not None and process.is_stopped:
            process.put_aside.append(runner.runq.pop())

    return reschedule


def go_on(tasks: list[Any]) -> None:
    """Have tasks that were put aside run."""
    _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(tasks)
    tasks.clear()


@contextmanager
def _bent_to(seed: int) -> Iterator[None]:
    """Rule 4."""
    dice = random.Random(f"ids {seed}")
    state = random.getstate()
    random.seed(f"random {seed}")

    def now_ns() -> int:
        return round((EPOCH_S + trio.current_time()) * 1e9)

    def patch(target: object, name: str, value: object) -> None:
        stack.enter_context(mock.patch.object(target, name, value))

    with ExitStack() as stack:
        stack.callback(random.setstate, state)
        patch(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch(_run, "_r", random.Random(f"tasks {seed}"))
        patch(_run.Runner, "reschedule", _reschedule(_run.Runner.reschedule))
        patch(trio.to_thread, "run_sync", offload)
        patch(time, "time_ns", now_ns)
        patch(time, "perf_counter", trio.current_time)
        patch(secrets, "token_bytes", lambda size=32: dice.randbytes(size))
        patch(secrets, "token_hex", lambda size=32: dice.randbytes(size).hex())
        patch(secrets, "token_urlsafe", lambda size=32: dice.randbytes(size).hex())
        patch(secrets, "randbits", dice.getrandbits)
        yield


def run(seed: int, agenda: Agenda, main: Callable[[], Awaitable[None]]) -> None:
    """Run a schedule's main task, in virtual time."""
    clock = _clock(agenda)
    collects = gc.isenabled()
    gc.disable()  # a third of the time, for little memory
    try:
        with _bent_to(seed):
            trio.run(main, clock=clock)
    finally:
        if collects:
            gc.enable()
