"""Waiting for durability, many at a time.

A waiter names what it needs, pairs of log and offset, and is called once when every log has committed that far or one
of them failed. Nothing is awaited: a log tells its listeners once per flush, and only the waiters at the front of that
log's line are looked at.

A requirement is met when the log's `committed_offset` (with `sync`) or `written_offset` (without) has reached the
offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import trio

from core_log.errors import BatchTooLarge, LogUnavailable, MetadataUnavailable
from core_log.partition_log import PartitionLog
from routing.errors import LimitExceeded, StorageUnavailable

Done = Callable[[StorageUnavailable | None], None]


class _Waiter:
    __slots__ = ("done", "moves", "remaining")

    def __init__(self, remaining: int, done: Done | None, moves: bool) -> None:
        self.remaining = remaining
        self.done = done
        self.moves = moves


class _Line:
    """Who waits for one log, in offset order."""

    __slots__ = ("synced", "written")

    def __init__(self) -> None:
        self.synced: deque[tuple[int, _Waiter]] = deque()
        self.written: deque[tuple[int, _Waiter]] = deque()


class Refusing(Protocol):
    """What may refuse to be written."""

    @property
    def error(self) -> OSError | None:
        """Why it does."""


def storage_error(log: Refusing) -> StorageUnavailable:
    """What to tell a client whose message the log could not take."""
    return StorageUnavailable(f"the log cannot be written: {log.error}")


@contextmanager
def storage_errors() -> Iterator[None]:
    """Make of a refusing log, or metadata store, StorageUnavailable, and of what it never takes LimitExceeded."""
    try:
        yield
    except BatchTooLarge as error:
        raise LimitExceeded(str(error)) from error
    except (LogUnavailable, MetadataUnavailable, OSError) as error:
        raise StorageUnavailable(str(error)) from error


class CommitWaiter:
    """See the module. One for the whole broker."""

    def __init__(self) -> None:
        self._lines: dict[PartitionLog, _Line] = {}

    def when_committed(
        self, requirements: Iterable[tuple[PartitionLog, int]], done: Done, *, sync: bool = True, moves: bool = False
    ) -> None:
        """Call `done(None)` once every log has committed (`sync`) or written all below its offset, or `done(error)`.
        With `moves` it waits for what `move` says instead, should that be called, and not for a log that is deleted
        (`forget`).

        With nothing left to wait for, `done` is called before this returns.
        """
        unmet = []
        for log, offset in requirements:
            if (log.committed_offset if sync else log.written_offset) >= offset:
                continue
            if log.error is not None and not log.waits_out_errors:
                done(storage_error(log))
                return
            unmet.append((log, offset))
        if not unmet:
            done(None)
            return
        waiter = _Waiter(len(unmet), done, moves)
        for log, offset in unmet:
            line = self._line(log)
            if sync:
                log.request_sync()
                line.synced.append((offset, waiter))
            else:
                line.written.append((offset, waiter))

    async def committed(self, requirements: Iterable[tuple[PartitionLog, int]]) -> None:
        """Return once every log has committed all below its offset. Raises StorageUnavailable."""
        over = trio.Event()
        errors: list[StorageUnavailable] = []

        def done(error: StorageUnavailable | None) -> None:
            errors.extend(() if error is None else (error,))
            over.set()

        self.when_committed(requirements, done)
        await over.wait()
        if errors:
            raise errors[0]

    def _line(self, log: PartitionLog) -> _Line:
        line = self._lines.get(log)
        if line is None:
            line = self._lines[log] = _Line()
            log.listeners.append(self._advanced)
        return line

    def move(self, log: PartitionLog, to: PartitionLog, places: Mapping[int, int], error: StorageUnavailable) -> None:
        """What is appended to a log is another one's to commit: who waits for an offset among the `places` waits for
        the place there instead, if it may (`moves`); all others are told the error.
        """
        line = self._lines.get(log)
        if line is None:
            return
        there = self._line(to)
        for waiting, further in ((line.synced, there.synced), (line.written, there.written)):
            while waiting:
                offset, waiter = waiting.popleft()
                place = places.get(offset) if waiter.moves else None
                if place is not None:
                    further.append((place, waiter))
                else:
                    self._refused(waiter, error)
            ordered = sorted(further, key=lambda one: one[0])
            further.clear()
            further.extend(ordered)
        if there.synced:
            to.request_sync()
        self._advanced(to)

    def forget(self, log: PartitionLog, *, deleted: bool = False) -> None:
        """The log is closed: fail whoever still waits for it. Where it is `deleted`, on purpose, who has published to
        an exchange (`moves`) need not wait any more for what was to be in it.
        """
        line = self._lines.pop(log, None)
        if line is None:
            return
        error = StorageUnavailable("the log was closed")
        for waiting in (line.synced, line.written):
            while waiting:
                waiter = waiting.popleft()[1]
                if deleted and waiter.moves:
                    self._met(waiter)
                else:
                    self._refused(waiter, error)

    def fail(self, log: PartitionLog, error: StorageUnavailable) -> None:
        """What is appended to a log may be committed by nobody here: tell whoever still waits for it."""
        line = self._lines.get(log)
        if line is not None:
            self._fail(line, error)

    def _advanced(self, log: PartitionLog) -> None:
        line = self._lines.get(log)
        if line is None:
            return
        for waiting, reached in ((line.synced, log.committed_offset), (line.written, log.written_offset)):
            while waiting and waiting[0][0] <= reached:
                self._met(waiting.popleft()[1])
        if log.error is not None and not log.waits_out_errors:
            self._fail(line, storage_error(log))

    @staticmethod
    def _met(waiter: _Waiter) -> None:
        waiter.remaining -= 1
        if not waiter.remaining and waiter.done is not None:
            waiter.done(None)

    @staticmethod
    def _refused(waiter: _Waiter, error: StorageUnavailable) -> None:
        done, waiter.done = waiter.done, None
        if done is not None:
            done(error)

    def _fail(self, line: _Line, error: StorageUnavailable) -> None:
        for waiting in (line.synced, line.written):
            while waiting:
                self._refused(waiting.popleft()[1], error)
