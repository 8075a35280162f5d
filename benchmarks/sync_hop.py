"""What it costs an event loop to have a small write synced: by a thread, and by the kernel.

    python -m benchmarks.sync_hop [DIRECTORY]

Time from the order to its end, and CPU of the process, of 1,400 bytes written and synced one after the other.
"""

from __future__ import annotations

import os
import queue
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable

import trio

from core_log.kernel_sync import KernelSync

BYTES = bytes(range(200)) * 7
COUNT = 3000

Sync = Callable[[int], Awaitable[None]]


async def _measure(name: str, directory: str, sync: Sync) -> None:
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        took = []
        began = resource.getrusage(resource.RUSAGE_SELF)
        for index in range(COUNT):
            start = time.perf_counter()
            os.pwrite(file.fileno(), BYTES, index * len(BYTES))
            await sync(file.fileno())
            took.append((time.perf_counter() - start) * 1e6)
        ended = resource.getrusage(resource.RUSAGE_SELF)
    cpu_us = (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime) * 1e6 / COUNT
    took.sort()
    print(f"{name:12} p50 {took[COUNT // 2]:6.0f} us   p99 {took[COUNT * 99 // 100]:6.0f} us   CPU {cpu_us:5.0f} us")


async def _blocking(descriptor: int) -> None:
    os.fdatasync(descriptor)


def _by_thread() -> Sync:
    jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
    token = trio.lowlevel.current_trio_token()
    waiting: list[trio.lowlevel.Task] = []

    def work() -> None:
        while True:
            os.fdatasync(jobs.get())
            token.run_sync_soon(lambda: trio.lowlevel.reschedule(waiting.pop()))

    threading.Thread(target=work, daemon=True).start()

    async def sync(descriptor: int) -> None:
        waiting.append(trio.lowlevel.current_task())
        jobs.put(descriptor)
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    return sync


def _by_kernel(kernel: KernelSync) -> Sync:
    async def sync(descriptor: int) -> None:
        kernel.submit(descriptor, None)
        while not kernel.take():
            await trio.lowlevel.wait_readable(kernel.eventfd)

    return sync


async def _main(directory: str) -> None:
    for _ in range(2):
        await _measure("blocking", directory, _blocking)
        await _measure("by a thread", directory, _by_thread())
        kernel = KernelSync.open()
        if kernel is not None:
            await _measure("by the kernel", directory, _by_kernel(kernel))


if __name__ == "__main__":
    trio.run(_main, sys.argv[1] if len(sys.argv) > 1 else ".")
