"""How many records compaction reads and writes a second: `python -m benchmarks.compaction [--records N] [--keys K]`.

Records of 100 bytes with keys, in batches of 160, uncompressed, all of them new; CPU seconds of this process. The
second pass has the log compacted already, and a tenth as many new records.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time

from core_log.compaction.compactor import CompactionLimits
from core_log.compaction.state import CompactionState
from core_log.files import OsFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, encode_headers
from tests.core_log.compaction.helpers import open_compacted, pass_over, write_all

_BATCH_RECORDS = 160
_HEADERS = encode_headers([])


def fill(log: PartitionLog, count: int, keys: int, dice: random.Random) -> None:
    """Append so many records."""
    for _ in range(count // _BATCH_RECORDS):
        names = [b"key-%010d" % dice.randrange(keys) for _ in range(_BATCH_RECORDS)]
        values = [dice.randbytes(dice.randrange(60, 90)) for _ in range(_BATCH_RECORDS)]
        base = log.log_end_offset
        builder = BatchBuilder(base, 0, 1_700_000_000_000 + base)
        builder.add_varied(base, names, values, [_HEADERS] * _BATCH_RECORDS)
        log.append(builder.build())
    log.roll()
    write_all(log)


def measure(log: PartitionLog, state: CompactionState, limits: CompactionLimits, what: str) -> None:
    """One pass."""
    before = log.size_bytes
    began_cpu, began = time.process_time(), time.perf_counter()
    done = pass_over(log, state, limits)
    cpu_s, wall_s = time.process_time() - began_cpu, time.perf_counter() - began
    assert done is not None
    write_all(log)
    sizes = f"{done.records:,} new records, {before / 1e6:.0f} MB to {done.bytes_after / 1e6:.0f} MB"
    rates = f"{done.records / cpu_s:,.0f} new records/s, {before / cpu_s / 1e6:,.0f} MB/s"
    print(f"{what}: {sizes} in {cpu_s:.2f} s CPU ({wall_s:.2f} s): {rates}")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    asked = parser.parse_args()
    dice = random.Random(1)
    limits = CompactionLimits(memory_bytes_max=1 << 30)
    with tempfile.TemporaryDirectory() as directory:
        log = open_compacted(OsFiles(directory), segment_bytes=64 << 20, index_interval_bytes=4096)
        state = CompactionState()
        fill(log, asked.records, asked.keys, dice)
        measure(log, state, limits, "all new")
        fill(log, asked.records // 10, asked.keys, dice)
        measure(log, state, limits, "a tenth as many new ones")
        log.close()


if __name__ == "__main__":
    main()
