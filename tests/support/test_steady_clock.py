"""Time goes by as in the world, but for that in which nobody could do anything."""

from __future__ import annotations

import pytest

from tests.support.steady_clock import STEP_MAX_S, SteadyClock


class World:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_process_that_stood_still_finds_that_little_time_went_by() -> None:
    world = World()
    clock = SteadyClock(world)
    clock.start_clock()
    for _ in range(10):
        world.now_s += STEP_MAX_S / 2
        clock.current_time()
    assert clock.current_time() == pytest.approx(5 * STEP_MAX_S)
    world.now_s += 3
    assert clock.current_time() == pytest.approx(6 * STEP_MAX_S)


@pytest.mark.parametrize(("slept_s", "counts_s"), [(1.5, 1.5), (2.0, 2.0), (5.0, 2.0 + STEP_MAX_S)])
def test_time_in_which_there_is_nothing_to_do_counts(slept_s: float, counts_s: float) -> None:
    world = World()
    clock = SteadyClock(world)
    clock.start_clock()
    began_s = clock.current_time()
    assert clock.deadline_to_sleep_time(began_s + 2) == 2
    world.now_s += slept_s
    assert clock.current_time() - began_s == pytest.approx(counts_s)
    world.now_s += 2
    assert clock.current_time() - began_s == pytest.approx(counts_s + STEP_MAX_S), "the loop was told once"
