"""A broker as a process: signals, standard output, and what a start that fails looks like.

SIGHUP has certificates read again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

import structlog
import trio

from gateway.config import Config
from gateway.errors import StartError, first_error
from gateway.logs import configure_logs
from gateway.names import Names
from gateway.server import Server, allow_open_files, serve, tune_process

log = structlog.get_logger(__name__)

_FAILED_STOP_S_MAX = 30
"""Then the process is ended (SIGALRM): who waits for a thread may wait for ever, and Python that has no memory to say
which line has failed tries it for ever.
"""


def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartError."""
    allow_open_files()
    configure_logs(config.log)
    try:
        trio.run(_serve_until_signal, config)
    except BaseExceptionGroup as group:
        signal.alarm(_FAILED_STOP_S_MAX)
        refused, rest = group.split(StartError)
        if refused is None or rest is not None:
            raise
        signal.alarm(0)
        raise first_error(refused) from None
    except BaseException:
        signal.alarm(_FAILED_STOP_S_MAX)
        raise


@contextmanager
def _ends_with_trio() -> Iterator[None]:
    """Until the block is left, see to it that the process ends where a task of trio's own has failed."""
    over = False

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not over:  # threads can tell nobody any more
                signal.alarm(_FAILED_STOP_S_MAX)
                log.critical("the event loop has failed, most likely for want of memory: the process ends")

    trio.lowlevel.spawn_system_task(watch)
    try:
        yield
    finally:
        over = True


class _Heeding:
    """What signals ask for, from before the broker starts until it has stopped: one that nobody takes ends the process,
    and what it had to say is not said.
    """

    def __init__(self) -> None:
        self.stop = trio.Event()
        self.server: Server | None = None

    async def run(self, signals: AsyncIterator[int]) -> None:
        """Until it is cancelled."""
        async for number in signals:
            if number != signal.SIGHUP:
                if not self.stop.is_set():
                    log.info("stopping", signal=signal.Signals(number).name)
                self.stop.set()
            elif self.server is not None:
                self.server.reload()


async def _serve_until_signal(config: Config) -> None:
    began = time.monotonic()
    trio.socket.set_custom_hostname_resolver(Names())
    receiver = trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    with _ends_with_trio(), receiver as signals:
        async with trio.open_nursery() as nursery:
            heeding = _Heeding()
            nursery.start_soon(heeding.run, signals)
            async with serve(config, holds=True) as server:
                heeding.server = server
                if not heeding.stop.is_set():
                    tune_process()
                    log.info("ready", data_dir=config.data_dir, start_ms=round((time.monotonic() - began) * 1000))
                    _tell([*(f"{listener.door} {listener.address}" for listener in server.listeners), "ready"])
                await heeding.stop.wait()
            nursery.cancel_scope.cancel()
    log.info("stopped")


def _tell(lines: Iterable[str]) -> None:
    """Say something to whoever started us and may be waiting for it: flushed line by line. Who is gone, or on a full
    disk, does without.
    """
    try:
        for line in lines:
            print(line, flush=True)
    except OSError as error:
        log.warning("standard output is not written", reason=error.strerror)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # what is left of it would be written at the end
