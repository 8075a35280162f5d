"""The log of a partition that this broker has no replica of, for readers: it is read from whoever leads it.

To who writes it is an `AbsentLog`. To a reader it is a log of which nothing is in memory but its newest batches.

1. What is read is whole record batches below the leader's high watermark. A leader that does not know yet how much is
   committed is asked again: what was once told of the watermark stays true whoever leads.
2. While there are readers (`reader_waits`) one question stands at the leader, which it answers when there is something
   new, the newest batches along with it. These are asked for only as long as readers take them.
3. Reads behind that ask for a piece each, at most so many at a time for all logs together. Nothing comes that was not
   asked for, so no link carries more than that and one piece of each log that has readers at its end.
4. A reader waits for as long as nobody leads; it is told that the log cannot be read only where its leader says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import trio

from core_log.absent_log import AbsentLog
from core_log.batch_header import parse_header
from core_log.errors import CorruptBatch, LogUnavailable, OffsetOutOfRange
from core_log.files import BytesLike
from core_log.log_config import LogConfig
from routing.cluster.clients.leader_questions import LeaderQuestions, LogPart, Send
from routing.errors import StorageUnavailable

if TYPE_CHECKING:
    from routing.cluster.clients.forwarding import EngineLink
    from routing.cluster.cluster import Cluster

_ENDLESS = (1 << 63) - 1
_NEWEST_BYTES = 64 << 10
"""What comes along with the news that there is more."""
_PIECES_MAX = 4
_UNREAD_MAX = 2
_READ_BYTES_MAX = 8 << 20
_TIMEOUT_S = 10.0
"""A read is asked for again after that, behind those that wait meanwhile."""
_RETRY_S = 0.05
"""After an answer that says nothing yet, or that the leader cannot read its log now."""


class LogLeaders:
    """Asks leaders about logs; `reads_max` reads at a time."""

    def __init__(
        self,
        cluster: Cluster,
        questions: LeaderQuestions,
        *,
        spawn: Callable[..., Any],
        want_turn: Callable[[], None],
        reads_max: int,
    ) -> None:
        self.spawn = spawn
        self.want_turn = want_turn
        self.logs: WeakValueDictionary[str, RemoteLog] = WeakValueDictionary()
        """Those that stand for logs which are elsewhere."""
        self._reads = trio.Semaphore(reads_max)
        self._cluster = cluster
        self._questions = questions

    def is_gone(self, log: str) -> bool:
        """Nobody has it any more: the topic is deleted."""
        return self._cluster.state_of(log) is None

    def _is_here(self, log: str) -> bool:
        """This broker leads it by now."""
        return self._cluster.role_of(log) is not None

    async def part(
        self,
        log: str,
        offset: int,
        before: int,
        size_bytes: int,
        *,
        waits: bool = False,
        timeout_s: float | None = None,
    ) -> LogPart:
        """What the leader has from `offset` on. Raises CorruptBatch, StorageUnavailable (without a timeout only when
        the log is gone, or its leader says so).
        """

        def send(link: EngineLink, request: int, leader_epoch: int) -> None:
            link.fetch(request, log, leader_epoch, offset, before, min(size_bytes, _READ_BYTES_MAX), waits=waits)

        return await self._ask(log, send, timeout_s)

    async def read(self, log: str, offset: int, before: int, size_bytes: int) -> LogPart:
        """`part`, when it is this read's turn. Raises StorageUnavailable when there was no answer for long."""
        await self._questions.until_led(log, gone=lambda: self.is_gone(log))
        async with self._reads:
            return await self.part(log, offset, before, size_bytes, timeout_s=_TIMEOUT_S)

    async def committed(self, log: str, offset: int) -> int:
        """Wait at the leader, as a reader at its end does, for what is before an offset; how far readers there may see
        then. Raises StorageUnavailable, also when nothing comes for a while.
        """
        part = await self.part(log, offset - 1, offset, 0, waits=True, timeout_s=_TIMEOUT_S)
        return part.high_watermark

    async def ends(self, log: str, *, timeout_s: float) -> tuple[int, int]:
        """Where the log begins, and how far it is committed. Raises StorageUnavailable."""
        part = await self.part(log, 0, 0, 0, timeout_s=timeout_s)
        there = self.logs.get(log)
        if there is not None:
            there.learn(part.log_start, part.high_watermark)
        return part.log_start, part.high_watermark

    async def find_time(self, log: str, timestamp_ms: int) -> LogPart:
        """Where the first record at or after a time is. Raises as `part`."""

        def send(link: EngineLink, request: int, leader_epoch: int) -> None:
            link.find_time(request, log, leader_epoch, timestamp_ms)

        return await self._ask(log, send, None)

    async def _ask(self, log: str, send: Send, timeout_s: float | None) -> LogPart:
        deadline_s = trio.current_time() + timeout_s if timeout_s is not None else float("inf")
        answer = await self._questions.ask(log, send, deadline_s, gone=lambda: self.is_gone(log) or self._is_here(log))
        if answer is None:
            raise StorageUnavailable(f"nobody who leads {log} answers")
        if answer.error is not None:
            known = isinstance(answer.error, CorruptBatch | StorageUnavailable)
            raise answer.error if known else StorageUnavailable(f"{log}: {answer.error}")
        part = answer.part
        assert part is not None
        for batch in part.batches:
            parse_header(batch)
        return part


class _Piece(NamedTuple):
    """All batches of [first, end), each with the offset behind it."""

    first: int
    end: int
    batches: list[tuple[int, BytesLike]]


class RemoteLog(AbsentLog):
    """See the module; made by `Forwarding.log`."""

    def __init__(self, name: str, what: str, config: LogConfig, leaders: LogLeaders) -> None:
        super().__init__(what, config)
        self._name = name
        leaders.logs[name] = self
        self._leaders = leaders
        self._readers = 0
        self._watch: trio.CancelScope | None = None
        self._newest: deque[_Piece] = deque()
        self._unread = 0
        """Pieces that came since a reader took one, or came to the end."""
        self._newest_from = -1
        """Behind the newest that readers took; -1: the watermark is."""
        self._coming = -1
        """From here on the newest batches come with the next answer."""
        self._came = trio.Event()

    def learn(self, log_start: int, high_watermark: int) -> None:
        """So much is known of it. Calls the listeners if it is news."""
        self.log_start_offset = max(self.log_start_offset, log_start)
        if high_watermark > self.high_watermark:
            self.high_watermark = self.log_end_offset = high_watermark
            self.committed_offset = self.written_offset = self.flushed_offset = high_watermark
            for listener in tuple(self.listeners):
                listener(self)
            self._leaders.want_turn()

    # ---- what is new

    def reader_waits(self, count: int) -> None:
        """See `PartitionLog.reader_waits`; rule 2."""
        self._readers += count
        if self._readers > 0 and self._watch is None and not self.closed:
            self._watch = trio.CancelScope()
            self._leaders.spawn(self._look_out, self._watch)
        elif self._readers <= 0:
            self._look_away()

    def _look_away(self) -> None:
        watch, self._watch = self._watch, None
        self._newest.clear()
        self._unread, self._newest_from = 0, -1
        self._nothing_comes()
        if watch is not None:
            watch.cancel()

    def _nothing_comes(self) -> None:
        came, self._came, self._coming = self._came, trio.Event(), -1
        came.set()

    async def _look_out(self, scope: trio.CancelScope) -> None:
        with scope:
            while not self._leaders.is_gone(self._name):
                wanted = _NEWEST_BYTES if self._unread < _UNREAD_MAX else 0
                at = self._newest_from if wanted and self._newest_from >= 0 else self.high_watermark
                self._coming = at if wanted else -1
                try:
                    part = await self._leaders.part(self._name, at, _ENDLESS, wanted, waits=True)
                except (StorageUnavailable, CorruptBatch):
                    # Whoever reads it finds out, and says so.
                    self._nothing_comes()
                    await trio.sleep(_RETRY_S)
                    continue
                if part.batches:
                    batches = [(parse_header(batch).next_offset, batch) for batch in part.batches]
                    self._newest_from = batches[-1][0]
                    self._newest.append(_Piece(at, self._newest_from, batches))
                    self._unread += 1
                    if len(self._newest) > _PIECES_MAX:
                        self._newest.popleft()
                elif wanted:
                    self._unread = _UNREAD_MAX  # the leader has to ask its disk: then readers ask
                self._nothing_comes()
                if part.high_watermark <= at:
                    await trio.sleep(_RETRY_S)
                self.learn(part.log_start, part.high_watermark)

    # ---- reading

    def read(self, offset: int, max_bytes: int, *, before: int | None = None) -> list[BytesLike] | None:
        """See `PartitionLog.read`."""
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
        limit = self._limit(before)
        return [] if offset >= limit else self._from_memory(offset, limit)

    def _limit(self, before: int | None) -> int:
        return self.high_watermark if before is None else min(before, self.high_watermark)

    def _from_memory(self, offset: int, limit: int) -> list[BytesLike] | None:
        for piece in self._newest:
            if piece.first <= offset < piece.end:
                self._unread = 0
                return [batch for end, batch in piece.batches if offset < end <= limit] or None
        return None

    async def read_cold(
        self, offset: int, max_bytes: int, *, before: int | None = None, unsynced: bool = False
    ) -> list[BytesLike]:
        """See `PartitionLog.read_cold`. Raises LogUnavailable when the log is gone."""
        while True:
            limit = self._limit(before)
            if offset < self.log_start_offset:
                raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
            found = [] if offset >= limit else self._from_memory(offset, limit)
            if found is not None:
                return found
            if offset == self._coming:
                await self._came.wait()
                continue
            try:
                part = await self._leaders.read(self._name, offset, limit, max_bytes)
            except StorageUnavailable as error:
                if self._leaders.is_gone(self._name):
                    raise LogUnavailable(str(error)) from error
                await trio.sleep(_RETRY_S)
                continue
            self.learn(part.log_start, part.high_watermark)
            if offset < part.log_start:
                continue
            if part.batches:
                end = parse_header(part.batches[-1]).next_offset
                if end >= self.high_watermark:
                    self._unread, self._newest_from = 0, end
                return part.batches
            if part.high_watermark >= limit:
                return []  # a gap
            await trio.sleep(_RETRY_S)

    async def offset_for_timestamp_cold(self, timestamp_ms: int) -> tuple[int, int] | None:
        """See `PartitionLog`. The time found is not said: it is the one that was asked for."""
        while True:
            try:
                part = await self._leaders.find_time(self._name, timestamp_ms)
            except StorageUnavailable as error:
                if self._leaders.is_gone(self._name):
                    raise LogUnavailable(str(error)) from error
                await trio.sleep(_RETRY_S)
                continue
            self.learn(part.log_start, part.high_watermark)
            if part.offset < 0 and part.high_watermark < self.high_watermark:
                await trio.sleep(_RETRY_S)  # a new leader that does not know yet
                continue
            return (part.offset, timestamp_ms) if part.offset >= 0 else None

    def close(self, *, keep: bool = True) -> None:
        """See `AbsentLog`."""
        super().close(keep=keep)
        self._look_away()
