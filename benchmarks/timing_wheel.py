"""How fast the timing wheel is, and what a timer costs in memory.

    python -m benchmarks.timing_wheel [--timers 1000000]

Deadlines are spread at random over an hour on a wheel of 10 ms ticks, then an hour passes in steps of 10 ms.
Then they are added again in slabs of 1000, a tenth is dropped, and the rest is cancelled.
"""

from __future__ import annotations

import argparse
import random
import time
import tracemalloc

from delay.timing_wheel import TimingWheel

HOUR_MS = 3_600_000
TICK_MS = 10
SLAB = 1000


def measure(timers: int) -> None:
    """Print the rates of all operations, and the bytes a waiting timer takes."""
    random.seed(1)
    deadlines = [random.randrange(HOUR_MS) for _ in range(timers)]

    tracemalloc.start()
    wheel = TimingWheel(tick_ms=TICK_MS)
    for key, deadline_ms in enumerate(deadlines):
        wheel.add(deadline_ms, key)
    print(f"memory   {tracemalloc.get_traced_memory()[0] / timers:8.1f} bytes a timer")
    tracemalloc.stop()

    wheel = TimingWheel(tick_ms=TICK_MS)
    add = wheel.add
    began = time.perf_counter()
    for key, deadline_ms in enumerate(deadlines):
        add(deadline_ms, key)
    print(f"add      {timers / (time.perf_counter() - began):12,.0f} /s")

    began, due, longest = time.perf_counter(), 0, 0.0
    for now_ms in range(0, HOUR_MS + TICK_MS, TICK_MS):
        bite_began = time.perf_counter()
        due += len(wheel.advance(now_ms))
        longest = max(longest, time.perf_counter() - bite_began)
    print(f"advance  {due / (time.perf_counter() - began):12,.0f} /s, longest step {longest * 1000:.1f} ms")
    assert due == timers

    later = [HOUR_MS + deadline_ms for deadline_ms in deadlines]
    began = time.perf_counter()
    for start in range(0, timers, SLAB):
        wheel.add_many(later[start : start + SLAB], range(start, min(start + SLAB, timers)))
    print(f"add_many {timers / (time.perf_counter() - began):12,.0f} /s")
    began = time.perf_counter()
    wheel.keep(lambda keys: [key for key in keys if key % 10])
    print(f"keep     {timers / (time.perf_counter() - began):12,.0f} /s")
    began = time.perf_counter()
    waiting = [key for _, key in wheel.timers()]
    print(f"timers   {len(waiting) / (time.perf_counter() - began):12,.0f} /s")
    began = time.perf_counter()
    for key in waiting:
        wheel.cancel(key)
    print(f"cancel   {len(waiting) / (time.perf_counter() - began):12,.0f} /s")
    assert len(wheel) == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, default=1_000_000)
    measure(parser.parse_args().timers)
