"""The demo's helpers: a process for each part of the job, so that none waits for another's interpreter.

1. A part is a function `part(report, *arguments)`. It calls `report(value)` as often as it likes; `Crew.reports` gives
   what all parts said, by name. A part that raises ends the job with its name and its error.
2. Parts do not see the interrupt key: the one who started them ends them, so that they end in order and leave nothing.
   Each leads a process group, so that what a part has started (Spark's Java) ends with it.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

Report = Callable[[Any], None]

STEP_S = 0.2
END_TIMEOUT_S = 10


class PartFailed(RuntimeError):
    """A part of the job ended with an error, or nothing happened for too long."""


class _Failure(str):
    """A traceback as the last report of a part."""


class Crew:
    """The running parts. A context manager: leaving it ends them all."""

    def __init__(self, *, silence_timeout_s: float) -> None:
        """`silence_timeout_s`: with no report from anyone for so long the job has failed."""
        self._context = multiprocessing.get_context("spawn")
        self._reports: Any = self._context.Queue()
        self._processes: dict[str, BaseProcess] = {}
        self._silence_timeout_s = silence_timeout_s

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, name: str, part: Callable[..., None], *arguments: Any) -> None:
        """Start `part(report, *arguments)` in a process of its own."""
        process = self._context.Process(
            target=_run, name=name, args=(name, part, self._reports, arguments), daemon=True
        )
        # A new process inherits what is blocked, so parts never see the interrupt key, not even while they start.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._processes[name] = process

    def reports(self) -> Iterator[tuple[str, Any]]:
        """What the parts report, as (name, value); the caller stops when it has seen enough.

        Raises `PartFailed`.
        """
        silent_s = 0.0
        while True:
            try:
                name, value = self._reports.get(timeout=STEP_S)
            except queue.Empty:
                silent_s += STEP_S
                self._check_alive()
                if silent_s >= self._silence_timeout_s:
                    raise PartFailed(f"nothing happened for {self._silence_timeout_s:.0f} s") from None
                continue
            silent_s = 0.0
            if isinstance(value, _Failure):
                raise PartFailed(f"{name} failed:\n{value}")
            yield name, value

    def end(self) -> None:
        """End all parts; returns when no process is left."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join(END_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
            _end_group(process.pid)
        self._processes.clear()

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.exitcode:
                raise PartFailed(f"{name} ended with exit code {process.exitcode}")


def _end_group(leader: int | None) -> None:
    """Kill what is left of the process group of a part that has ended, and wait until it is gone."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while leader is not None and time.monotonic() < deadline:
        try:
            os.killpg(leader, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def _run(name: str, part: Callable[..., None], reports: Any, arguments: tuple[Any, ...]) -> None:
    os.setpgid(0, 0)
    try:
        part(lambda value: reports.put((name, value)), *arguments)
    except Exception:
        reports.put((name, _Failure(traceback.format_exc())))
        sys.exit(1)
