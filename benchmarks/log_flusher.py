"""Commit latency and throughput of one log, against plain pwrite and fdatasync in the same directory.

python -m benchmarks.log_flusher [directory]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import trio

from core_log.files import OsFiles
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import BatchBuilder
from core_log.wall_clock import wall_clock_ms

COMMITS = 1000
THROUGHPUT_BYTES = 512 << 20
WINDOW = 8
"""Batches appended and not yet committed, in the throughput runs."""


def make_batch(size: int) -> bytes:
    """A batch of about `size` bytes."""
    builder = BatchBuilder(0, 0, 0)
    builder.add_run(0, None, [os.urandom(size - 80)])
    return builder.build()


def percentiles(seconds: list[float]) -> str:
    """p50, p99 and the largest, in microseconds."""
    seconds.sort()
    return "  ".join(
        f"{name} {seconds[min(int(len(seconds) * share), len(seconds) - 1)] * 1e6:.0f} us"
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))
    )


def plain_latency(path: str, batch: bytes) -> list[float]:
    """pwrite and fdatasync, one after the other."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    taken = []
    for i in range(COMMITS):
        start = time.perf_counter()
        os.pwrite(descriptor, batch, i * len(batch))
        os.fdatasync(descriptor)
        taken.append(time.perf_counter() - start)
    os.close(descriptor)
    return taken


async def log_latency(log: PartitionLog, batch: bytes) -> list[float]:
    """Append and wait for the commit, one at a time."""
    taken = []
    for _ in range(COMMITS):
        start = time.perf_counter()
        log.append(batch)
        await log.wait_committed(log.log_end_offset)
        taken.append(time.perf_counter() - start)
    return taken


def plain_throughput(path: str, batch: bytes) -> float:
    """MiB/s of pwrite and fdatasync, batch by batch."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    count = THROUGHPUT_BYTES // len(batch)
    start = time.perf_counter()
    for i in range(count):
        os.pwrite(descriptor, batch, i * len(batch))
        os.fdatasync(descriptor)
    taken = time.perf_counter() - start
    os.close(descriptor)
    return count * len(batch) / taken / (1 << 20)


async def log_throughput(log: PartitionLog, batch: bytes) -> float:
    """MiB/s of appends that are all waited for, `WINDOW` at a time."""
    count = THROUGHPUT_BYTES // len(batch)
    start = time.perf_counter()
    for i in range(count):
        log.append(batch)
        log.request_sync()
        if i >= WINDOW:
            await log.wait_committed(log.log_end_offset - WINDOW)
    await log.wait_committed(log.log_end_offset)
    return count * len(batch) / (time.perf_counter() - start) / (1 << 20)


def append_cost_us(log: PartitionLog, batch: bytes) -> float:
    """Microseconds of one append, the flusher idle."""
    start = time.perf_counter()
    for _ in range(1000):
        log.append(batch)
    return (time.perf_counter() - start) * 1e3


async def measure(directory: str) -> None:
    """Print the table."""
    flusher = LogFlusher()
    files = OsFiles(directory)
    config = LogConfig(message_bytes_max=2 << 20)

    def open_log(name: str) -> PartitionLog:
        return PartitionLog.open(files, name, config, flusher, wall_clock_ms=wall_clock_ms)

    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        for size in (1 << 10, 16 << 10):
            batch = make_batch(size)
            log = open_log(f"latency-{size}")
            print(f"{size >> 10:5} KiB plain  {percentiles(plain_latency(f'{directory}/plain-{size}', batch))}")
            print(f"{size >> 10:5} KiB log    {percentiles(await log_latency(log, batch))}")
            print(f"{size >> 10:5} KiB append {append_cost_us(log, batch):.2f} us")
            log.close()
        for size in (64 << 10, 1 << 20):
            batch = make_batch(size)
            log = open_log(f"throughput-{size}")
            plain = plain_throughput(f"{directory}/plain-t-{size}", batch)
            ours = await log_throughput(log, batch)
            print(f"{size >> 10:5} KiB plain {plain:.0f} MiB/s  log {ours:.0f} MiB/s  {ours / plain:.0%}")
            log.close()
        nursery.cancel_scope.cancel()


def main() -> None:
    """Measure in a directory of the file system in question."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as directory:
        trio.run(measure, directory)


if __name__ == "__main__":
    main()
