"""A clock for tests: as fast as the world's, but time in which the machine stood still is none."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any

import pytest
import trio

STEP_MAX_S = 0.05
"""More than this counts between two looks only when the loop had nothing to do for so long."""


class SteadyClock(trio.abc.Clock):
    """All who have a part in a test are in one process: if that does not run for a second, their leases and patiences
    would all be over at once, though none has kept another waiting.
    """

    def __init__(self, world_s: Callable[[], float] = perf_counter) -> None:
        self._world_s = world_s
        self._now_s = 0.0
        self._looked_s = world_s()
        self._idle_s = 0.0

    def start_clock(self) -> None:
        """See `trio.abc.Clock`."""
        self._looked_s = self._world_s()

    def current_time(self) -> float:
        """See `trio.abc.Clock`."""
        looked_s = self._world_s()
        self._now_s += min(looked_s - self._looked_s, self._idle_s + STEP_MAX_S)
        self._looked_s, self._idle_s = looked_s, 0.0
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See `trio.abc.Clock`: the loop has nothing to do until then."""
        idle_s = deadline - self.current_time()
        self._idle_s = max(0.0, idle_s)
        return idle_s


def run(
    main: Callable[[], Awaitable[Any]], *, clock: trio.abc.Clock | None = None, instruments: Sequence[Any] = ()
) -> Any:
    """`trio.run` by a steady clock, unless there is another."""
    return trio.run(main, clock=clock or SteadyClock(), instruments=instruments)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A folder whose conftest has this hook runs its tests by a steady clock."""
    function = getattr(item, "obj", None)
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    while isinstance(function, functools.partial):
        function = function.func
    if iscoroutinefunction(function):
        item.add_marker(pytest.mark.trio(run=run))
