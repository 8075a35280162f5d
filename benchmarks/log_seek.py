"""Random seeks in a partition: does its size matter?

    python -m benchmarks.log_seek [--gib 10] [--directory DIRECTORY]

A log is filled with batches of 16 KiB, a millisecond apart. When it has a tenth of its size, and when it has all of it,
batches are read from random offsets and offsets are looked up for random times, all from files.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from struct import pack_into

import trio
from crc32c import crc32c

from core_log.batch_header import CRC_START
from core_log.files import OsFiles
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import BatchBuilder

RECORDS, VALUE_BYTES = 16, 1000
SEEKS, WARM_UP = 3000, 300
_TIMES_AT = 27


def make_batch() -> bytearray:
    """One to be stamped."""
    builder = BatchBuilder(0, 0, 0)
    builder.add_run(0, None, [os.urandom(VALUE_BYTES) for _ in range(RECORDS)])
    return bytearray(builder.build())


def stamped(batch: bytearray, time_ms: int) -> bytes:
    """A copy of a batch whose records have a time."""
    pack_into(">qq", batch, _TIMES_AT, time_ms, time_ms)
    pack_into(">I", batch, CRC_START - 4, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


async def fill(log: PartitionLog, flusher: LogFlusher, batch: bytearray, until_bytes: int) -> None:
    """Append until the log is so large."""
    while log.size_bytes < until_bytes:
        log.append(stamped(batch, log.log_end_offset // RECORDS))
        if flusher.unflushed_bytes > flusher.unflushed_bytes_max // 2:
            await flusher.drain(log)
    await log.wait_written(log.log_end_offset)


def seek(name: str, log: PartitionLog, one: Callable[[int], object], most: int) -> None:
    """Seek to random places below `most`; print how long it takes."""
    dice, taken = random.Random(1), []
    for _ in range(WARM_UP + SEEKS):
        place = dice.randrange(most)
        began = time.perf_counter()
        one(place)
        taken.append((time.perf_counter() - began) * 1e6)
    taken = sorted(taken[WARM_UP:])
    size = f"{log.size_bytes / (1 << 30):5.1f} GiB, {len(log.segments):2} segments"
    print(f"{size}   {name:9} p50 {taken[SEEKS // 2]:5.0f} us   p99 {taken[SEEKS * 99 // 100]:5.0f} us", flush=True)


async def measure(directory: str, size_bytes: int) -> None:
    """Fill and seek, twice."""
    flusher = LogFlusher()
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        config = LogConfig(fsync="never", retention_ms=-1, tail_cache_bytes=1 << 20)
        log = PartitionLog.open(OsFiles(directory), "log", config, flusher, wall_clock_ms=lambda: 0)
        batch = make_batch()
        for share in (0.1, 1):
            await fill(log, flusher, batch, int(size_bytes * share))
            end = log.log_end_offset
            seek("by offset", log, lambda offset: log.read_blocking(offset, 1), end)
            seek("by time", log, log.offset_for_timestamp, end // RECORDS)
        nursery.cancel_scope.cancel()
    log.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gib", type=float, default=10)
    parser.add_argument("--directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        trio.run(measure, directory, int(options.gib * (1 << 30)))


if __name__ == "__main__":
    main()
