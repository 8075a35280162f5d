"""Timers on trio's mock clock: due in order, bounded bites, silent when idle."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from delay.timer_service import _BITE, TimerService

LATE_S = 0.0021


@pytest.fixture
async def timers(nursery: trio.Nursery) -> TimerService:
    service = TimerService()
    nursery.start_soon(service.run)
    await wait_all_tasks_blocked()
    return service


async def test_timers_fire_in_order_never_early_and_hardly_late(
    timers: TimerService, autojump_clock: MockClock
) -> None:
    start, fired = trio.current_time(), []
    delays = [0.0, 0.0005, 0.001, 0.3, 0.25, 7.0, 400.1, 70_000.77]
    for delay in delays:
        timers.at(start + delay, lambda delay=delay: fired.append((delay, trio.current_time() - start)))
    await trio.sleep(80_000)
    assert [delay for delay, _ in fired] == sorted(delays)
    for delay, at in fired:
        assert delay <= at <= delay + LATE_S
    assert len(timers) == 0


async def test_a_deadline_in_the_past_fires_at_once_but_not_inside_at(
    timers: TimerService, autojump_clock: MockClock
) -> None:
    fired: list[str] = []
    timer = timers.at(trio.current_time() - 5, lambda: fired.append("past"))
    assert fired == []
    assert timer.pending
    await wait_all_tasks_blocked()
    assert fired == ["past"]
    assert not timer.pending


async def test_cancelled_timers_do_not_fire_even_from_the_same_bite(
    timers: TimerService, autojump_clock: MockClock
) -> None:
    fired: list[str] = []
    now = trio.current_time()
    first = timers.at(now + 1, lambda: (fired.append("first"), second.cancel(), first.cancel()))
    second = timers.at(now + 1, lambda: fired.append("second"))
    third = timers.at(now + 1, lambda: fired.append("third"))
    gone = timers.at(now + 0.5, lambda: fired.append("gone"))
    gone.cancel()
    gone.cancel()
    assert len(timers) == 3
    await trio.sleep(2)
    assert fired == ["first", "third"]
    third.cancel()
    assert len(timers) == 0


async def test_an_earlier_timer_wakes_the_sleeping_task(timers: TimerService, autojump_clock: MockClock) -> None:
    fired: list[str] = []
    now = trio.current_time()
    timers.at(now + 100, lambda: fired.append("late"))
    await wait_all_tasks_blocked()
    timers.at(now + 1, lambda: fired.append("early"))
    await trio.sleep(2)
    assert fired == ["early"]


async def test_a_timer_may_arm_another(timers: TimerService, autojump_clock: MockClock) -> None:
    fired: list[float] = []
    start = trio.current_time()

    def again() -> None:
        fired.append(trio.current_time() - start)
        if len(fired) < 5:
            timers.at(trio.current_time() + 1, again)

    timers.at(start + 1, again)
    await trio.sleep(10)
    assert fired == pytest.approx([1, 2, 3, 4, 5], abs=0.02)


async def test_many_at_once_are_fired_in_bites_with_a_turn_after_each(
    timers: TimerService, autojump_clock: MockClock
) -> None:
    bites: list[int] = [0]
    timers.after_turn = lambda: bites.append(0)

    def fire() -> None:
        bites[-1] += 1

    deadline = trio.current_time() + 1
    for _ in range(3 * _BITE):
        timers.at(deadline, fire)
    await trio.sleep(2)
    assert sum(bites) == 3 * _BITE
    assert max(bites) <= _BITE
    assert len(bites) > 3


async def test_never_and_not_a_number() -> None:
    service = TimerService(lambda: 0.0)
    timer = service.at(math.inf, lambda: None)
    assert timer.pending
    assert len(service) == 0
    timer.cancel()
    assert not timer.pending
    with pytest.raises(ValueError, match="number of seconds"):
        service.at(math.nan, lambda: None)


async def test_idle_means_no_wake_ups(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """The task sleeps until the one deadline, and for ever once nothing live is left."""

    class Steps(trio.abc.Instrument):
        count = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.count += "TimerService.run" in task.name

    service, steps = TimerService(), Steps()
    nursery.start_soon(service.run)
    timer = service.at(trio.current_time() + 3, lambda: None)
    keep = service.at(trio.current_time() + 1000, timer.cancel)
    await wait_all_tasks_blocked()
    keep.cancel()
    timer.cancel()
    await trio.sleep(10)
    trio.lowlevel.add_instrument(steps)
    await trio.sleep(80_000)
    trio.lowlevel.remove_instrument(steps)
    assert steps.count == 0


async def test_callbacks_that_take_long_let_others_go_between(timers: TimerService, mock_clock: MockClock) -> None:
    seen: list[str] = []
    timers.after_turn = lambda: seen.append("turn")
    for name in "abc":
        timers.at(trio.current_time() - 1, lambda name=name: (seen.append(name), mock_clock.jump(0.0015)))
    await wait_all_tasks_blocked()
    assert seen == ["a", "b", "turn", "c", "turn"]
