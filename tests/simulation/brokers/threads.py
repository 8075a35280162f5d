"""What a process gives to threads, done when the dice say; all of it or a part when the process ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from core_log.flush_job import FlushJob
from core_log.log_flusher import LogFlusher
from core_log.partition_log import PartitionLog
from tests.simulation.brokers.virtual import CURRENT
from tests.simulation.disk import PowerLoss

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Process


class Threads:
    """Of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._under_way: dict[Callable[[], None], Callable[[], object]] = {}

    def begin(self, work: Callable[[], None], done: Callable[[], object], *, share: float = 1.0) -> None:
        """Do `work` in a while and call `done`; `share` of the time that the disk takes for a sync."""
        process = self._process
        if process.ended:
            done()
            return
        self._under_way[work] = done
        agenda = process.world.agenda
        delay_s = process.machine.slow_s * agenda.dice.uniform(0.2, 2) * share

        def finish() -> None:
            if work not in self._under_way:
                return
            if process.is_stopped:
                process.when_it_goes_on.append(finish)
                return
            self.hurry(work)
            done()

        agenda.after(delay_s, finish)

    def hurry(self, work: Callable[[], None]) -> None:
        """Somebody who blocks waits for it."""
        if self._under_way.pop(work, None) is not None:
            work()

    def break_off(self, steps: int) -> None:
        """The process ends: of what is under way so many operations are done."""
        files = self._process.files

        def hook(operation: str, path: str) -> None:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise PowerLoss

        files.hook = hook
        under_way, self._under_way = self._under_way, {}
        for work in under_way:
            try:
                work()
            except (PowerLoss, OSError):
                pass

        def refuse(operation: str, path: str) -> None:
            raise OSError("the process is no more")

        files.hook = refuse
        for done in under_way.values():
            done()


class SimFlusher(LogFlusher):
    """`LogFlusher` without its threads."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        process = CURRENT.get()
        assert process is not None
        self._threads_of = process.threads
        self._works: dict[PartitionLog, list[Callable[[], None]]] = {}
        self._withdrawn: PartitionLog | None = None

    def _start(self, log: PartitionLog) -> None:
        job = log.take_job(aside=True)
        if job is not None:
            self._begin(job, share=1.0 if needs_sync(job) else 0.1)

    def _close_aside(self, job: FlushJob) -> None:
        self._begin(job, share=10.0)

    def _begin(self, job: FlushJob, *, share: float) -> None:
        self._under_way += 1
        works = self._works.setdefault(job.log, [])

        def work() -> None:
            works.remove(work)
            self.execute(job)
            self._finished.append(job)

        works.append(work)
        if job.log is self._withdrawn:
            work()
            return
        self._threads_of.begin(work, self._wake, share=share)

    def _execute_all(self, jobs: Sequence[FlushJob]) -> None:
        for job in jobs:
            self.execute(job)

    def withdraw(self, log: PartitionLog) -> None:
        """See `LogFlusher.withdraw`."""
        self._withdrawn = log
        try:
            for work in self._works.pop(log, []).copy():
                self._threads_of.hurry(work)
            super().withdraw(log)
        finally:
            self._withdrawn = None


def needs_sync(job: FlushJob) -> bool:
    """Whether it takes long."""
    return job.sync
