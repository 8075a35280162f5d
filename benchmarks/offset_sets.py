"""How fast sets of offsets are where messages leave and come back anywhere.

    python -m benchmarks.offset_sets [--ranges 2000000]

CPU time for each offset: of a backlog of that many single messages with gaps, of a contiguous one, and of 100,000
messages that came back in random order.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable

from routing.queues.offset_set import OffsetSet
from routing.queues.placed_offsets import Placed

RETURNED = 100_000


def timed(name: str, number: int, run: Callable[[], object]) -> None:
    """Print the nanoseconds of CPU time that `run` took for each of `number` offsets."""
    began = time.process_time()
    run()
    print(f"{name:32}{(time.process_time() - began) / number * 1e9:8.0f} ns")


def each(add: Callable[[int, int], None], offsets: Iterable[int]) -> None:
    """Add single offsets."""
    for offset in offsets:
        add(offset, 1)


def give_out(held: OffsetSet | Placed, number: int) -> None:
    """What a queue does for each delivery of a single message."""
    for _ in range(number):
        held.head()
        held.drop(1)


def measure(ranges: int) -> None:
    """Print all figures."""
    random.seed(1)
    sparse = OffsetSet()
    timed("append", ranges, lambda: each(sparse.append, range(0, 2 * ranges, 2)))
    scattered = sorted(random.sample(range(0, 2 * ranges, 2), 5000))
    timed("present, 5000 scattered", 5000, lambda: sparse.present(scattered))
    timed("discard, 5000 scattered", 5000, lambda: sparse.discard(scattered))
    timed("add, 5000 scattered", 5000, lambda: each(sparse.add, scattered))
    timed("discard, one", 1, lambda: sparse.discard(scattered[2500:2501]))
    near = range(ranges, ranges + 20_000, 2)
    timed("present, 10000 neighbours", len(near), lambda: sparse.present(near))
    timed("discard, 10000 neighbours", len(near), lambda: sparse.discard(near))
    timed("head and drop", 100_000, lambda: give_out(sparse, 100_000))
    timed("take, single messages", 100_000, lambda: sparse.take(100_000))

    contiguous = OffsetSet([(0, 5 * ranges)])
    run = range(ranges, ranges + 100_000)
    timed("discard, contiguous", len(run), lambda: contiguous.discard(run))
    timed("take, contiguous", ranges // 2, lambda: contiguous.take(ranges // 2))

    returned = random.sample(range(0, 2 * RETURNED, 2), RETURNED)
    placed = Placed()
    timed("Placed.add, in random order", RETURNED, lambda: each(placed.add, returned))
    some = sorted(random.sample(returned, 5000))
    timed("Placed.discard, 5000 scattered", 5000, lambda: placed.discard(some))
    timed("Placed.head and drop", placed.count, lambda: give_out(placed, RETURNED - 5000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranges", type=int, default=2_000_000)
    measure(parser.parse_args().ranges)
