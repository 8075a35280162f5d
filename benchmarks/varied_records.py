"""What it costs to read records that differ in everything: `python -m benchmarks.varied_records`.

Microseconds of CPU a record, the best of many rounds: as fields (`decode_fields`), as columns (`decode_columns`: with
decoded headers and times), as runs (`decode_runs`), and as the slabs that AMQP and MQTT consumers get (`StreamReader`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from core_log.record_batch import BatchBuilder, Compression, decode_columns, decode_runs
from core_log.record_fields import decode_fields
from routing.topics.stream_records import StreamReader

_TIME_MS = 1_700_000_000_000


def best_us(work: Callable[[], object], records: int) -> float:
    """The best of a few rounds, in microseconds of CPU a record."""
    best = float("inf")
    for _ in range(max(5, min(200, 200_000 // records))):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best * 1e6 / records


def batch_of(count: int, low: int, high: int, compression: Compression, *, keys: bool, headers: bool) -> bytes:
    """Records of so many random bytes, each with a time of its own."""
    dice = random.Random(1)
    builder = BatchBuilder(0, 0, _TIME_MS, compression=compression)
    for offset in range(count):
        key = b"ab-%d" % dice.randrange(10**6) if keys else None
        some = [(f"h{offset % 7}", b"v%d" % dice.randrange(10**6))] if headers else []
        builder.add(offset, key, dice.randbytes(dice.randrange(low, high)), some, _TIME_MS + offset)
    return builder.build()


def main() -> None:
    """See the module."""
    plain = Compression.NONE
    cases = {
        "1,000 of 100 to 300 bytes": batch_of(1000, 100, 300, plain, keys=True, headers=False),
        "without keys": batch_of(1000, 100, 300, plain, keys=False, headers=False),
        "with a header each": batch_of(1000, 100, 300, plain, keys=True, headers=True),
        "8,000 of 90 to 110 bytes": batch_of(8000, 90, 110, plain, keys=True, headers=False),
        "8,000 of 100 bytes": batch_of(8000, 100, 101, plain, keys=True, headers=False),
        "1,000, zstd": batch_of(1000, 100, 300, Compression.ZSTD, keys=True, headers=False),
        "10": batch_of(10, 90, 110, plain, keys=True, headers=False),
        "1": batch_of(1, 90, 110, plain, keys=True, headers=False),
    }
    reader = StreamReader()
    for name, batch in cases.items():
        count = len(decode_fields(batch).offsets)
        reads: dict[str, Callable[[], object]] = {
            "fields": lambda batch=batch: decode_fields(batch),  # type: ignore[misc]
            "columns": lambda batch=batch: decode_columns(batch),  # type: ignore[misc]
            "runs": lambda batch=batch: decode_runs(batch),  # type: ignore[misc]
            "slabs": lambda batch=batch: reader.read([batch]),  # type: ignore[misc]
        }
        print(f"{name:26}" + "".join(f"  {what} {best_us(work, count):5.2f}" for what, work in reads.items()))


if __name__ == "__main__":
    main()
