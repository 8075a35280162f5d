"""A broker's disk and the flusher on it: jobs end when the dice say, or half-way when the power goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from core_log.errors import LogUnavailable
from core_log.files import FaultyFiles
from core_log.flush_job import FlushJob, execute
from core_log.partition_log import PartitionLog
from core_log.tail_cache import TailBudget
from tests.simulation.clockwork import Clockwork, Pause

T = TypeVar("T")


class PowerLoss(BaseException):
    """Raised in the middle of what a thread does."""


class SimFlusher:
    """The methods of `LogFlusher`, in virtual time."""

    def __init__(self, clockwork: Clockwork, files: FaultyFiles, run: Callable[..., None]) -> None:
        """`run(delay_s, action)` does something later unless the process ends or sleeps."""
        self.unflushed_bytes = 0
        self.tails = TailBudget(1 << 20)
        self.delay_s = 0.001
        self.after_turn: Callable[[], None] = lambda: None
        self._clockwork = clockwork
        self._files = files
        self._run = run
        self._enlisted: dict[PartitionLog, None] = {}
        self._woken = self._ended = False
        self.under_way: list[Callable[[], Any]] = []
        """What threads are at: a crash does a part of it."""

    def enlist(self, log: PartitionLog) -> None:
        if self._ended:
            return  # a coroutine of a process that was killed is collected at any time
        self._enlisted[log] = None
        if not self._woken:
            self._woken = True
            self._run(0.0, self._look)

    def _look(self) -> None:
        self._woken = False
        logs = list(self._enlisted)
        self._enlisted.clear()
        for log in logs:
            if log.waits is None or not log.waits():
                self.submit(log)

    def submit(self, log: PartitionLog) -> None:
        if log.error is None:
            self._start(log)

    def _start(self, log: PartitionLog) -> None:
        job = log.take_job(aside=True)
        if job is not None:
            self._begin(job, 1 if job.sync else 0.1)

    def _begin(self, job: FlushJob, share: float) -> None:
        def work() -> None:
            if not job.finished:
                execute(job)

        self.under_way.append(work)
        self._run(self.delay_s * self._clockwork.dice.uniform(0.2, 2) * share, lambda: self._finish(work, job))

    def _finish(self, work: Callable[[], None], job: FlushJob) -> None:
        self.under_way.remove(work)
        work()
        job.log.complete(job)
        if job.aside and job.log.closing is not None:
            self._begin(job.log.closing, 10)
        if job.log.error is not None:
            self.retry_later(job.log)
        else:
            self.enlist(job.log)
        self.after_turn()

    def retry_later(self, log: PartitionLog) -> None:
        self._run(0.2, lambda: self._start(log))

    async def in_thread(self, work: Callable[[], T]) -> T:
        def start(resume: Callable[[Any, BaseException | None], None]) -> None:
            def finish() -> None:
                self.under_way.remove(work)
                try:
                    result = work()
                except OSError as error:
                    resume(None, error)
                else:
                    resume(result, None)
                self.after_turn()

            self.under_way.append(work)
            self._run(self.delay_s * self._clockwork.dice.uniform(0.2, 4), finish)

        found: T = await Pause(start)
        return found

    async def drain(self, log: PartitionLog) -> None:
        self.submit(log)
        while log.error is None and (log.job or log.closing or log.written_offset < log.log_end_offset):
            await self._change_of(log)
            self.submit(log)

    async def wait_written(self, log: PartitionLog, offset: int) -> None:
        while log.written_offset < offset:
            if log.error is not None:
                raise LogUnavailable(str(log.error))
            self.submit(log)
            await self._change_of(log)

    async def wait_committed(self, log: PartitionLog, offset: int) -> None:
        while log.committed_offset < offset:
            if log.error is not None:
                raise LogUnavailable(str(log.error))
            log.request_sync()
            await self._change_of(log)

    def _change_of(self, log: PartitionLog) -> Pause:
        def start(resume: Callable[[Any, BaseException | None], None]) -> None:
            def listener(_: PartitionLog) -> None:
                log.listeners.remove(listener)
                self._run(0.0, lambda: resume(None, None))

            log.listeners.append(listener)

        return Pause(start)

    def withdraw(self, log: PartitionLog) -> None:
        while (job := log.job or log.closing) is not None:
            if not job.finished:
                execute(job)
            log.complete(job)

    def break_off(self, *, steps: int) -> None:
        """The process ends now: of what the threads are at, so many operations are done."""

        def hook(operation: str, path: str) -> None:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise PowerLoss

        self._files.hook = hook
        for work in self.under_way:
            try:
                work()
            except (PowerLoss, OSError):
                pass
        self._files.hook = None
        self._ended = True
        self.under_way.clear()
