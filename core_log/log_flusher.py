"""Group commit: the threads that write and sync, and the tasks around them.

1. A log has at most one job under way. All that is appended meanwhile joins its next job, so that batching emerges
   under load and costs nothing without.
2. A small job that is nothing but batches for the open segment is written at once, on the event loop, and synced by
   the kernel (`kernel_sync.py`) without a thread. That takes some 10 us, but a disk in trouble can hold up a write:
   while a sync takes long, and for a while after a write that did, all jobs go to the threads.
   All others go to long-lived daemon threads through a `SimpleQueue`, results come back through `run_sync_soon`; a hop
   costs some hundred microseconds, most of it waiting for the interpreter's lock.
3. Completions are taken in bunches: every log's result with its listeners, then `after_turn`, then new jobs, so that
   what listeners and the turn append goes into the next job, not into the one after it.
4. `enlist` costs next to nothing and may be called for each append: the log is looked at when the event loop comes
   round. `submit` is for those who wait.
5. Whoever appends what can only come from one place, as a follower does, need not wait for others: between `hold` and
   `release` or `end_turn` logs are collected, and handed over at the end of it.
6. A log whose `waits` says so is not handed over: who made it wait enlists it again.
7. A log whose job failed is tried again each `retry_interval_s`.
8. Who reads from clients does so in rounds (`begin_round`): logs that are enlisted meanwhile are looked at when the
   round is over, without a task that has to be woken.
9. What closes full segments aside (`closing.py`) has a thread of its own, one for all logs: it may take a second.
10. Where the system has no thread left, those that are there do it all; without any the event loop waits for the disk.
11. At the end logs are closed side by side (`close`): one after the other takes ms each, and there may be thousands.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from core_log.errors import LogUnavailable
from core_log.flush_job import FlushJob, execute, execute_all
from core_log.kernel_sync import KernelSync
from core_log.replacement import Replacement
from core_log.tail_cache import TailBudget
from core_log.threads import in_thread

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog

THREADS_MAX = 4
_HERE_BYTES_MAX = 256 << 10
"""What is written on the event loop at once: about 20 us. More is worth a thread."""
_SLOW_SYNC_S, _SLOW_WRITE_S, _SLOW_PAUSE_S = 0.05, 0.02, 1.0
"""What takes longer is a sign that a write on the event loop may take long; one that did is the last for a while."""
_NAMED_S = 1.0
"""So long a file that had a name is written on the event loop without another look for it."""

T = TypeVar("T")
Watch = Callable[[int, Callable[[], None], Callable[[], None]], bool]
"""Takes a file, what to call when it is ready, and what to call when it is waited for no longer. False: it cannot."""


class LogFlusher:
    """See the module. `unflushed_bytes` are appended to logs and not yet written (or not yet synced, if asked for);
    `tails` is what the logs keep in memory of what they have; `writes_here` allows what rule 2 says of the event loop.
    """

    def __init__(
        self, *, retry_interval_s: float = 1.0, unflushed_bytes_max: int = 64 << 20, tails_bytes_max: int = 256 << 20
    ) -> None:
        self.retry_interval_s = retry_interval_s
        self.unflushed_bytes_max = unflushed_bytes_max
        self.unflushed_bytes = 0
        self.tails = TailBudget(tails_bytes_max)
        self.execute: Callable[[FlushJob], None] = execute
        """What the threads do with a job; `DiskSpace.execute` does more for it."""
        self.account: Callable[[FlushJob], None] | None = None
        """Told of jobs that no thread executes."""
        self.after_turn: Callable[[], None] | None = None
        self.writes_here = True
        self._kernel: KernelSync | None = None
        self._no_writes_before = 0.0
        self._done: deque[FlushJob] = deque()
        """Finished without a thread."""
        self._token: trio.lowlevel.TrioToken | None = None
        self._jobs: queue.SimpleQueue[FlushJob | None] = queue.SimpleQueue()
        self._closings: queue.SimpleQueue[FlushJob | None] | None = None
        self._finished: deque[FlushJob] = deque()
        self._threads = 0
        self._under_way = 0
        self._enlisted: dict[PartitionLog, None] = {}
        self._failed: dict[PartitionLog, None] = {}
        self._refusing: set[PartitionLog] = set()
        self._holding = self._in_round = False
        self._sync_due: dict[PartitionLog, float] = {}
        self._server: trio.lowlevel.Task | None = None
        """The task of `_serve` while it is parked."""
        self._awaiting: trio.CancelScope | None = None
        """Of who waits for the kernel."""
        self._lent: trio.Event | None = None
        """Somebody else waits for the kernel, until this is set."""
        self._something_failed = trio.Event()
        self._something_to_sync = trio.Event()
        self._wants_room = [trio.Event(), trio.Event()]
        """Set when there is room again for what is much, and for what is little."""
        self._blocking = 0
        self._job_done = threading.Condition()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Logs that are closed afterwards flush themselves."""
        self._token = trio.lowlevel.current_trio_token()
        self._kernel = KernelSync.open()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve)
                nursery.start_soon(self._retry)
                nursery.start_soon(self._sync_at_intervals)
                if self._kernel is not None:
                    nursery.start_soon(self._await_kernel, self._kernel)
                task_status.started()
        finally:
            self._token = None
            for _ in range(self._threads):
                self._jobs.put(None)
            self._threads = 0
            self._jobs = queue.SimpleQueue()
            if self._closings is not None:
                self._closings.put(None)
                self._closings = None

    # ---- rounds

    def begin_round(self) -> None:
        """Clients are read from: what they bring is looked at when the round is over."""
        self._in_round = True

    def end_round(self) -> None:
        """It is over: hand over what came, take what is done, and begin what that brings."""
        self._in_round = False
        self._turn()

    def break_off_round(self) -> None:
        """Other tasks run before the round is over: ours does the rest. Without effect when there is none."""
        if self._in_round:
            self._in_round = False
            if self._finished or self._done or self._enlisted:
                self._wake()

    def lend(self, watch: Watch) -> None:
        """Have somebody else wait for what the kernel has synced, who calls that in a round."""
        kernel, lent = self._kernel, trio.Event()
        if kernel is not None and watch(kernel.eventfd, partial(self._take_synced, kernel), lent.set):
            self._lent = lent
            if self._awaiting is not None:
                self._awaiting.cancel()

    # ---- handing over

    def enlist(self, log: PartitionLog) -> None:
        """There is something to do for `log`, soon: after the tasks that are runnable now."""
        self._enlisted[log] = None
        if self._server is not None:
            self._wake()

    def hold(self) -> None:
        """From now on nothing is handed over but by `submit`, until `release`."""
        self._holding = True

    def release(self) -> None:
        """Hand over all that was enlisted. What is written at once is taken, as a turn will end in any case."""
        self._holding = False
        self._submit_enlisted()
        while self._done:
            self._take(self._done.popleft())
        self._tell_of_room()
        if self._enlisted:
            self._wake()

    def end_turn(self) -> None:
        """`release` at the end of a turn: what is written at once is taken in another one."""
        self._holding = False
        if self._enlisted:
            self._submit_enlisted()
        if self._done or self._finished:
            self._wake()

    def _submit_enlisted(self) -> None:
        logs = list(self._enlisted)
        self._enlisted.clear()
        for log in logs:
            if log.waits is None or not log.waits():
                self.submit(log)

    def submit(self, log: PartitionLog) -> None:
        """Hand over what `log` has now, unless a job is under way or the disk refuses."""
        if self._token is None:
            self._enlisted[log] = None
        elif log.error is None:
            self._start(log)

    def retry_later(self, log: PartitionLog) -> None:
        """The disk refused: try again when `retry_interval_s` has passed."""
        self._failed[log] = None
        self._something_failed.set()

    def _start(self, log: PartitionLog) -> None:
        job = log.take_job(aside=True)
        if job is None or (job.size <= _HERE_BYTES_MAX and log.error is None and self._do_here(job)):
            return
        self._under_way += 1
        if self._under_way > self._threads and self._threads < THREADS_MAX:
            self._threads += self._begin_thread(self._jobs, "log-flusher")
        if self._threads:
            self._jobs.put(job)
        else:
            self._do_without_thread(job)

    def _begin_thread(self, jobs: queue.SimpleQueue[FlushJob | None], name: str) -> bool:
        """Whether the system had one more."""
        with suppress(RuntimeError):
            threading.Thread(target=self._work, args=(jobs, self._token), name=name, daemon=True).start()
            return True
        return False

    def _do_without_thread(self, job: FlushJob) -> None:
        self.execute(job)
        self._finished.append(job)
        self._wake()

    def _close_aside(self, job: FlushJob) -> None:
        self._under_way += 1
        if self._closings is None:
            closings: queue.SimpleQueue[FlushJob | None] = queue.SimpleQueue()
            self._closings = closings if self._begin_thread(closings, "log-closer") else None
        if self._closings is None:
            self._do_without_thread(job)
        else:
            self._closings.put(job)

    def _do_here(self, job: FlushJob) -> bool:
        """Write a small job, and leave its sync to the kernel. False: a thread has to do all of it."""
        kernel, began = self._kernel, time.perf_counter()
        if kernel is None or not self.writes_here or began < self._no_writes_before or not job.is_plain():
            return False
        if began - kernel.waits_since() > _SLOW_SYNC_S or job.lacks_room():
            return False
        file = job.active.writable(job.files)
        descriptor = file.for_kernel()
        if descriptor < 0:
            return False
        try:
            if began >= job.active.named_until_s:
                file.require_name()
                job.active.named_until_s = began + _NAMED_S
            for write in job.writes:
                file.pwritev(write.buffers, write.position)
        except OSError:
            return False  # it knows what to do about it, and may write the same bytes again
        ended = time.perf_counter()
        if ended - began > _SLOW_WRITE_S:
            self._no_writes_before = ended + _SLOW_PAUSE_S
        if not job.sync:
            self._end_here(job)
            self._wake()
        elif not kernel.submit(descriptor, job):
            return False
        return True

    def _end_here(self, job: FlushJob) -> None:
        job.finished = True
        self._done.append(job)
        if self.account is not None:
            self.account(job)

    async def _await_kernel(self, kernel: KernelSync) -> None:
        while True:
            if self._lent is not None:
                await self._lent.wait()
                self._lent = None
            with trio.CancelScope() as self._awaiting:
                while True:
                    await trio.lowlevel.wait_readable(kernel.eventfd)
                    self._take_synced(kernel)
                    self._turn()

    def _take_synced(self, kernel: KernelSync, *, wait: bool = False) -> None:
        for job, error in kernel.take(wait=wait):
            if error is None:
                job.synced()
            job.error = error
            self._end_here(job)

    def _work(self, jobs: queue.SimpleQueue[FlushJob | None], token: trio.lowlevel.TrioToken) -> None:
        while (job := jobs.get()) is not None:
            self.execute(job)
            self._finished.append(job)
            del job  # or what it wrote stays in memory until there is another one
            if self._blocking:
                with self._job_done:
                    self._job_done.notify_all()
            with suppress(trio.RunFinishedError):  # then whoever closes the log takes the result
                token.run_sync_soon(self._wake, idempotent=True)

    # ---- the task that owns completion

    def _wake(self) -> None:
        if self._holding or self._in_round:
            return
        task, self._server = self._server, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def _serve(self) -> None:
        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._server = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._turn()
            self._server = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    def _turn(self) -> None:
        while self._finished or self._done or self._enlisted:
            if self._finished or self._done:
                self._take_finished()
            self._submit_enlisted()

    def _take_finished(self) -> None:
        while self._finished or self._done:
            if self._done:
                self._take(self._done.popleft())
            else:
                self._under_way -= 1
                self._take(self._finished.popleft())
        self._tell_of_room()
        if self.after_turn is not None:
            self.after_turn()

    def _take(self, job: FlushJob) -> None:
        if not job.applied:
            self._apply(job)
            self._enlisted[job.log] = None

    def _tell_of_room(self) -> None:
        for little, wants_room in enumerate(self._wants_room):
            if wants_room.statistics().tasks_waiting and self._has_room(little):
                wants_room.set()
                self._wants_room[little] = trio.Event()

    def _apply(self, job: FlushJob) -> None:
        log = job.log
        log.complete(job)
        if job.aside and log.closing is not None:
            self._close_aside(log.closing)
        if log.error is not None:
            self._refusing.add(log)
            self.retry_later(log)
            return
        self._refusing.discard(log)
        if log.config.fsync == "interval" and log.flushed_offset < log.written_offset and log not in self._sync_due:
            self._sync_due[log] = trio.current_time() + log.config.fsync_interval_ms / 1000
            self._something_to_sync.set()

    async def _retry(self) -> None:
        while True:
            await self._something_failed.wait()
            self._something_failed = trio.Event()
            await trio.sleep(self.retry_interval_s)
            logs = list(self._failed)
            self._failed.clear()
            for log in logs:
                self._start(log)

    async def _sync_at_intervals(self) -> None:
        while True:
            if not self._sync_due:
                self._something_to_sync = trio.Event()
                await self._something_to_sync.wait()
            if self._sync_due:
                await trio.sleep_until(min(self._sync_due.values()))
            now = trio.current_time()
            for log in [log for log, due_s in self._sync_due.items() if due_s <= now]:
                del self._sync_due[log]
                if log.error is None:
                    log.request_interval_sync()

    # ---- waiting

    async def wait_for_room(self, *, little: bool = False) -> None:
        """Back-pressure: returns at once unless `unflushed_bytes` is above `unflushed_bytes_max`; for who appends
        `little`, if anything, above twice as much.

        While a disk refuses nobody waits: what it has not taken cannot grow, and readers have acknowledgements to read.
        """
        while not self._has_room(little):
            await self._wants_room[little].wait()

    def _has_room(self, little: int) -> bool:
        return self.unflushed_bytes <= self.unflushed_bytes_max * (1 + little) or bool(self._refusing)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run what blocks in a thread of its own; whoever is cancelled waits for it all the same."""
        return await in_thread(work)

    async def drain(self, log: PartitionLog) -> None:
        """Wait until everything appended to `log` so far is written and nothing is under way, or its disk refuses."""
        self.submit(log)
        while log.error is None and (log.job or log.closing or log.written_offset < log.log_end_offset):
            await self._wait_for_change(log)
            self.submit(log)

    async def wait_written(self, log: PartitionLog, offset: int) -> None:
        """Wait until `written_offset` reaches `offset`. Raises LogUnavailable when the disk refuses."""
        while log.written_offset < offset:
            if log.error is not None:
                raise LogUnavailable(f"{log.directory}: {log.error}")
            self.submit(log)
            await self._wait_for_change(log)

    async def wait_committed(self, log: PartitionLog, offset: int) -> None:
        """Wait until `committed_offset` reaches `offset`. Raises LogUnavailable when the disk refuses."""
        while log.committed_offset < offset:
            if log.error is not None:
                raise LogUnavailable(f"{log.directory}: {log.error}")
            log.request_sync()
            await self._wait_for_change(log)

    async def wait_shortened(self, log: PartitionLog, offset: int) -> None:
        """Wait until `durable_start_offset` reaches `offset`. Raises LogUnavailable when the disk refuses."""
        while log.durable_start_offset < offset:
            if log.error is not None or log.closed:
                raise LogUnavailable(f"{log.directory}: {log.error or 'closed'}")
            self.submit(log)
            await self._wait_for_change(log)

    async def replace(self, log: PartitionLog, offer: Replacement) -> None:
        """Have a compacted segment take its place in `log`: `offer.named` says whether it did."""
        if log.closed:
            return
        settled = trio.Event()
        offer.on_settled = settled.set
        log.offer(offer)
        self.submit(log)
        await settled.wait()

    async def _wait_for_change(self, log: PartitionLog) -> None:
        changed = trio.Event()

        def listener(_: PartitionLog) -> None:
            changed.set()

        log.listeners.append(listener)
        try:
            await changed.wait()
        finally:
            log.listeners.remove(listener)

    def withdraw(self, log: PartitionLog) -> None:
        """Take a log back from the threads: waits for its job, and those that listeners start, and applies the results.
        Blocks.
        """
        while True:
            self._enlisted.pop(log, None)
            self._failed.pop(log, None)
            self._refusing.discard(log)
            self._sync_due.pop(log, None)
            job = log.job or log.closing
            if job is None:
                return
            while not job.finished and self._kernel:
                self._take_synced(self._kernel, wait=True)
                self._wake()  # some may be other logs'
            self._blocking += 1
            with self._job_done:
                while not job.finished:
                    self._job_done.wait()
            self._blocking -= 1
            log.complete(job)
            if job.aside and log.closing is not None:
                self.execute(log.closing)

    def close(self, logs: Sequence[PartitionLog]) -> None:
        """`PartitionLog.close` of each, side by side, as a disk syncs many files nearly as soon as one. Blocks."""
        jobs = [job for log in logs if not log.closed and (job := log.closing_job()) is not None]
        self._execute_all(jobs)
        for job in jobs:
            job.log.complete(job)
        for log in logs:
            log.close()  # what is left: what listeners appended, and what the disk refused

    def _execute_all(self, jobs: Sequence[FlushJob]) -> None:
        execute_all(jobs, self.execute)
