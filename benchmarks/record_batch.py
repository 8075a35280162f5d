"""Micro benchmark of the record codec: microseconds a record.

python -m benchmarks.record_batch [records]
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable

from core_log.record_batch import BatchBuilder, decode_columns, decode_runs, encode_headers, iterate_records, validate

REPEATS = 7


def best_us(work: Callable[[], object], records: int) -> float:
    """The best of a few rounds, in microseconds a record."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best * 1e6 / records


def measure(name: str, runs: list[list[bytes]]) -> None:
    """Build and read one batch of the given runs, each with its own key."""
    block = encode_headers([("t", os.urandom(30))])
    records = sum(map(len, runs))

    def build() -> bytes:
        builder = BatchBuilder(0, 0, 1_700_000_000_000)
        offset = 0
        for number, values in enumerate(runs):
            builder.add_run(offset, b"routing.key.%04d" % number, values, block)
            offset += len(values)
        return builder.build()

    batch = build()
    figures = {
        "build": build,
        "validate": lambda: validate(batch),
        "runs": lambda: decode_runs(batch),
        "runs, no values": lambda: decode_runs(batch, with_values=False),
        "columns": lambda: decode_columns(batch),
        "records": lambda: list(iterate_records(batch)),
    }
    row = "  ".join(f"{what} {best_us(work, records):.3f}" for what, work in figures.items())
    print(f"{name:34} {len(batch) / records:6.0f} B  {row}")


def main() -> None:
    """Print the table."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    dice = random.Random(7)
    measure(f"{records} of 100 B, one run", [[os.urandom(100) for _ in range(records)]])
    measure("100 of 100 B, one run", [[os.urandom(100) for _ in range(100)]])
    measure(f"{records} of 100 B, runs of 10", [[os.urandom(100) for _ in range(10)] for _ in range(records // 10)])
    measure(f"{records} of 50 to 150 B, one run", [[os.urandom(dice.randrange(50, 150)) for _ in range(records)]])
    measure(f"{records} of 1 KiB, one run", [[os.urandom(1024) for _ in range(records)]])
    measure("8 of 100 KiB, one run", [[os.urandom(102_400) for _ in range(8)]])
    measure("1 of 100 B", [[os.urandom(100)]])


if __name__ == "__main__":
    main()
