"""A system that has no thread left for a while."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from core_log.files import FaultyFiles, MemoryFiles
from core_log.log_config import LogConfig
from core_log.log_flusher import LogFlusher
from core_log.threads import in_thread
from tests.core_log.helpers import make_batch, open_log, read_all


class NoThreads:
    """Counts who asks for one while `left` are to be had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left: int = 0) -> None:
        self.left = left
        self.asked = 0
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            self.asked += 1
            if self.left <= 0:
                raise RuntimeError("can't start new thread")
            self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


async def asked_for(monkeypatch: pytest.MonkeyPatch, answers: list[Exception | None]) -> None:
    run_sync = trio.to_thread.run_sync

    async def refuse(*arguments: object, **options: object) -> object:
        error = answers.pop(0)
        if error is not None:
            raise error
        return await run_sync(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)


async def test_who_needs_a_thread_waits_for_one(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await asked_for(monkeypatch, [RuntimeError("can't start new thread")] * 20 + [None] * 2)
    assert await in_thread(pow, 2, 3) == 8
    assert await in_thread(pow, 2, 4) == 16
    assert len(caplog.records) == 1, "it is said once"


async def test_what_the_work_raises_is_raised() -> None:
    def work() -> None:
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own"):
        await in_thread(work)


@pytest.mark.parametrize("threads", [0, 1])
async def test_logs_are_written_with_the_threads_that_there_are(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    there = NoThreads(monkeypatch, threads)
    flusher, files = LogFlusher(), MemoryFiles()
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        logs = [open_log(files, flusher=flusher, directory=f"topics/t-{number}") for number in range(3)]
        for log in logs:
            log.append(make_batch([b"a"]))
            log.request_sync()
        with trio.fail_after(10):
            for log in logs:
                await log.wait_committed(1)
        assert there.asked > threads
        nursery.cancel_scope.cancel()
    flusher.close(logs)


async def test_a_full_segment_is_closed_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    NoThreads(monkeypatch)
    flusher, files = LogFlusher(), MemoryFiles()
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        log = open_log(files, flusher=flusher, config=LogConfig(fsync="never", segment_bytes=200))
        with trio.fail_after(10):
            for number in range(6):
                log.append(make_batch([b"%d" % number * 50]))
            await log.wait_written(6)
            await flusher.drain(log)
        assert log.closing is None
        assert len(log.segments) > 2
        nursery.cancel_scope.cancel()
    flusher.close([log])


def test_logs_are_closed_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    NoThreads(monkeypatch)
    files = FaultyFiles(MemoryFiles())
    flusher = LogFlusher()
    logs = [open_log(files, flusher=flusher, directory=f"topics/t-{number}") for number in range(3)]
    for log in logs:
        log.append(make_batch([b"a"]))
    flusher.close(logs)
    assert [read_all(open_log(files, directory=log.directory)) for log in logs] == [[(0, b"a")]] * 3
