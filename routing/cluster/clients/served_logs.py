"""What another broker reads of the logs that are led here, for its clients: one link's.

A read that waits stands until the high watermark has passed it and the link takes something, and is the only one of its
log; whoever asks anew takes the earlier one back. Nothing is read for a log that is not led here now. Of transactions
only what is committed is told: the watermark that others hear of is the stable offset. Who asks for nothing but the
ends is not told before that watermark is no lower than any leader's before; and what is there by then, though nobody
has waited for it, is committed first, if that takes no longer than `_ENDS_WITHIN_S`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import trio

from core_log.committed import committed
from core_log.errors import CorruptBatch, LogError, LogUnavailable, OffsetOutOfRange
from routing.cluster.clients.leader_questions import Answer, LogPart, NotLed
from routing.errors import StorageUnavailable

if TYPE_CHECKING:
    from core_log.files import BytesLike
    from core_log.partition_log import PartitionLog
    from routing.broker import Broker
    from routing.cluster.clients.served import ServedLink
    from routing.cluster.clients.serving import Serving
    from routing.topics.topic_partition import TopicPartition

_ENDS_WITHIN_S = 1.0


class LogRead(NamedTuple):
    """What is asked for: batches of a log from an offset on, below another, about so many bytes."""

    request: int
    log: str
    leader_epoch: int
    offset: int
    before: int
    size_bytes: int


class ServedLogs:
    """See the module."""

    def __init__(self, serving: Serving, broker: Broker, link: ServedLink) -> None:
        self._serving = serving
        self._broker = broker
        self._link = link
        self._waiting: dict[str, tuple[LogRead, PartitionLog]] = {}
        self._by_log: dict[PartitionLog, str] = {}

    # ---- reads

    def fetch(self, wanted: LogRead, *, waits: bool) -> None:
        """Answer a read: now, or when there is something new."""
        partition = self._led(wanted)
        if partition is None:
            return
        log = partition.log
        if not waits:
            role = self._serving.role_of(wanted.log)
            if not wanted.size_bytes and role is not None and not role.watermark_is_known:
                self._link.answer(wanted.request, Answer(NotLed()))  # it is asked again
            elif not wanted.size_bytes and log.high_watermark < partition.next_offset:
                self._broker.spawn(self._say_ends, wanted, log)
            else:
                self._answer(wanted, log, may_load=True)
            return
        self._forget(wanted.log)
        if log.stable_offset > wanted.offset and self._link.writable:
            self._answer(wanted, log, may_load=False)
            return
        self._waiting[wanted.log] = wanted, log
        self._by_log[log] = wanted.log
        log.listeners.append(self._advanced)
        log.reader_waits(1)

    async def _say_ends(self, wanted: LogRead, log: PartitionLog) -> None:
        self._broker.want_turn()  # followers are asked to sync then
        with suppress(LogUnavailable), trio.move_on_after(_ENDS_WITHIN_S):
            await log.wait_committed(log.log_end_offset)
        if self._led(wanted) is not None:
            self._say(wanted.request, log, [])
        self._broker.end_turn()

    def _led(self, wanted: LogRead) -> TopicPartition | None:
        """The partition; None: it was said that it is not led here."""
        partition = self._serving.partition(wanted.log, wanted.leader_epoch)
        if partition is None:
            self._link.answer(wanted.request, Answer(NotLed()))
            return None
        partition.leases.used = True
        return partition

    def _advanced(self, log: PartitionLog) -> None:
        name = self._by_log[log]
        wanted, _ = self._waiting[name]
        if self._serving.partition(name, wanted.leader_epoch) is None:
            self._forget(name)
            self._link.answer(wanted.request, Answer(NotLed()))
        elif log.stable_offset > wanted.offset and self._link.writable:
            self._forget(name)
            self._answer(wanted, log, may_load=False)

    def _forget(self, name: str) -> None:
        found = self._waiting.pop(name, None)
        if found is not None:
            log = found[1]
            del self._by_log[log]
            log.listeners.remove(self._advanced)
            log.reader_waits(-1)

    def resume(self) -> None:
        """The link takes something again."""
        for log in tuple(self._by_log):
            self._advanced(log)

    def lost(self) -> None:
        """The link is over."""
        for name in tuple(self._waiting):
            self._forget(name)

    # ---- answers

    def _answer(self, wanted: LogRead, log: PartitionLog, *, may_load: bool) -> None:
        batches: list[BytesLike] | None = []
        if wanted.size_bytes and wanted.offset < log.stable_offset:
            try:
                batches = log.read(wanted.offset, wanted.size_bytes, before=min(wanted.before, log.stable_offset))
            except OffsetOutOfRange:
                pass  # where it begins says so
        if batches is None and may_load:
            self._broker.spawn(self._load, wanted, log)
        else:
            self._say(wanted.request, log, batches or [])

    def _say(self, request: int, log: PartitionLog, batches: list[BytesLike], offset: int = -1) -> None:
        part = LogPart(log.log_start_offset, log.stable_offset, list(committed(log, batches)), offset)
        self._link.answer(request, Answer(part=part))

    async def _load(self, wanted: LogRead, log: PartitionLog) -> None:
        try:
            before = min(wanted.before, log.stable_offset)
            batches = await log.read_cold(wanted.offset, wanted.size_bytes, before=before)
        except OffsetOutOfRange:
            self._say(wanted.request, log, [])
        except (LogError, OSError) as error:
            self._refuse(wanted.request, log, error)
        else:
            self._say(wanted.request, log, batches)
        self._broker.end_turn()

    def find_time(self, request: int, log: str, leader_epoch: int, timestamp_ms: int) -> None:
        """Say where the first record at or after a time is."""
        found = self._led(LogRead(request, log, leader_epoch, 0, 0, 0))
        if found is not None:
            self._broker.spawn(self._find_time, request, found.log, timestamp_ms)

    async def _find_time(self, request: int, log: PartitionLog, timestamp_ms: int) -> None:
        try:
            found = await log.offset_for_timestamp_cold(timestamp_ms)
        except (LogError, OSError) as error:
            self._refuse(request, log, error)
        else:
            self._say(request, log, [], found[0] if found is not None else -1)
        self._broker.end_turn()

    def _refuse(self, request: int, log: PartitionLog, error: Exception) -> None:
        """What is damaged is so for good, unless somebody else will lead who has it; the disk may recover."""
        said = CorruptBatch(str(error)) if log.is_lost(error) else StorageUnavailable(f"{log.directory}: {error}")
        self._link.answer(request, Answer(said))
