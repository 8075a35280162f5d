"""CPU seconds and resident memory of a process and its descendants, from /proc (Linux)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

now = time.monotonic


class ProcessUsage:
    """The usage of the process tree with root `pid`; None measures nothing."""

    def __init__(self, pid: int | None) -> None:
        self.pid, self.peak = pid, 0.0
        self.pids: list[int] = []

    def find(self) -> None:
        """Look again which processes belong to the tree."""
        self.pids = [self.pid] if self.pid else []
        for pid in self.pids:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    self.pids += map(int, file.read().split())

    def read(self, file: str) -> Iterator[list[str]]:
        """The fields of /proc/PID/`file` after the name, for each process still there."""
        for pid in self.pids:
            try:
                with open(f"/proc/{pid}/{file}") as text:
                    yield text.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                pass

    def cpu_s(self) -> float:
        """User and system time so far."""
        ticks = sum(int(field) for fields in self.read("stat") for field in fields[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_mib(self) -> float:
        """Resident memory now."""
        pages = sum(int(fields[1]) for fields in self.read("statm"))
        mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        self.peak = max(self.peak, mib)
        return mib

    def watch(self) -> Callable[[], dict[str, Any]]:
        """Start a measurement; the returned function ends it and gives the figures."""
        self.find()
        self.peak = 0.0
        stop, began = threading.Event(), now()
        cpu, rss, machine = self.cpu_s(), self.rss_mib(), machine_cpu()

        def sample() -> None:
            while not stop.wait(0.1):
                self.rss_mib()

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()

        def finish() -> dict[str, Any]:
            stop.set()
            thread.join()
            busy, steal = (after - before for before, after in zip(machine, machine_cpu()))
            used, wall = self.cpu_s() - cpu, now() - began
            return {
                "cpu_s": used,
                "cores": used / wall,
                "rss_start_mib": rss,
                "rss_peak_mib": self.peak,
                "machine_cores": busy / wall,
                "steal_cores": steal / wall,
                "load1": os.getloadavg()[0],
            }

        return finish


def machine_cpu() -> tuple[float, float]:
    """Busy and stolen CPU seconds of the whole machine so far."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, soft, steal = map(int, file.readline().split()[1:9])
    ticks_s = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) / ticks_s, steal / ticks_s
