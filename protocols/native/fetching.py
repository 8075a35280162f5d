"""The fetches of one connection: answered at once, or parked until there is enough to send.

1. Records are read from memory synchronously; from disk, in a thread, only while the request is first looked at. A
   parked fetch whose records left memory meanwhile is answered without them, and the client asks again.
2. A parked fetch is an object in the lists of its logs and of the timers. Whatever ends it takes it out of both.
3. Nothing is sent while the outbox is full: the fetch waits, holding no records.
4. A fetch sees what is durable. One that finds nothing asks for the sync of what is not, so that records nobody else
   waits for arrive soon.
5. The first batch of a reply is whole even if it is larger than the client allowed, so that nobody is stuck at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core_log.errors import LogError, OffsetOutOfRange
from core_log.partition_log import PartitionLog
from delay.timer_service import Timer, TimerService
from protocols.buffers import BytesLike
from protocols.native.config import NativeConfig
from protocols.native.errors import ErrorCode, WireError, wire_error
from protocols.native.log_waits import LogWaits
from protocols.native.wire import Fetch, encode_fetch_reply
from protocols.sansio import Outbox

Lookup = Callable[[str, int], "PartitionLog | WireError"]


class _Gathered:
    """What a fetch would get now."""

    __slots__ = ("bytes_left", "cold", "entries", "final", "size")

    def __init__(self, bytes_left: int) -> None:
        self.entries: list[tuple[WireError | None, int, int, Sequence[BytesLike]]] = []
        self.cold: list[tuple[int, PartitionLog]] = []
        self.size = 0
        self.bytes_left = bytes_left
        self.final = False
        """Waiting makes it no better: there was an error, or a limit was reached."""

    def take(self, batches: Sequence[BytesLike]) -> Sequence[BytesLike]:
        """`batches` if the limits allow, else none."""
        size = sum(map(len, batches))
        if self.size and size > self.bytes_left:
            self.final = True
            return ()
        self.size += size
        self.bytes_left -= size
        return batches


class _Parked:
    """A fetch that waits."""

    __slots__ = ("_fetches", "due", "request", "timer", "waits")

    def __init__(self, fetches: Fetches, request: Fetch) -> None:
        self._fetches = fetches
        self.request = request
        self.timer: Timer | None = None
        self.due = False
        self.waits: list[LogWaits] = []

    def log_advanced(self) -> None:
        self._fetches.retry(self)

    def timed_out(self) -> None:
        self.due = True
        self._fetches.retry(self)


class Fetches:
    """See the module. `lookup` gives the log of a topic's partition, or the error that stands for it."""

    def __init__(
        self, lookup: Lookup, outbox: Outbox, timers: TimerService, clock: Callable[[], float], config: NativeConfig
    ) -> None:
        self._lookup = lookup
        self._outbox = outbox
        self._timers = timers
        self._clock = clock
        self._config = config
        self._parked: dict[_Parked, None] = {}
        outbox.on_writable = self._retry_all

    def __len__(self) -> int:
        return len(self._parked)

    async def start(self, request: Fetch) -> None:
        """Answer `request`, now or later."""
        request.wait_ms_max = min(request.wait_ms_max, self._config.fetch_wait_ms_max)
        if self._outbox.writable:
            gathered = self._gather(request)
            if gathered.cold:
                await self._read_cold(request, gathered)
            if self._satisfies(gathered, request) or not request.wait_ms_max:
                if not gathered.size:
                    self._request_sync(request)
                self._answer(request, gathered)
                return
        self._park(request)

    def retry(self, parked: _Parked) -> None:
        """Answer a parked fetch if it may be now."""
        if parked not in self._parked or not self._outbox.writable:
            return
        gathered = self._gather(parked.request)
        if parked.due or gathered.cold or self._satisfies(gathered, parked.request):
            self._unpark(parked)
            self._answer(parked.request, gathered)

    def drop(self) -> None:
        """Forget all that is parked, unanswered."""
        for parked in list(self._parked):
            self._unpark(parked)

    def answer_all(self) -> None:
        """Answer all that is parked with what there is."""
        for parked in list(self._parked):
            parked.due = True
            self.retry(parked)

    def _retry_all(self) -> None:
        for parked in list(self._parked):
            self.retry(parked)

    def _request_sync(self, request: Fetch) -> None:
        for entry in request.entries:
            log = self._lookup(entry.topic, entry.partition)
            if isinstance(log, PartitionLog) and log.high_watermark < log.log_end_offset:
                log.request_sync()

    def _park(self, request: Fetch) -> None:
        parked = _Parked(self, request)
        self._parked[parked] = None
        logs = {self._lookup(entry.topic, entry.partition) for entry in request.entries}
        for log in logs:
            if isinstance(log, PartitionLog):
                waits = LogWaits.of(log)
                waits.add(parked)
                parked.waits.append(waits)
        parked.timer = self._timers.at(self._clock() + request.wait_ms_max / 1000, parked.timed_out)

    def _unpark(self, parked: _Parked) -> None:
        del self._parked[parked]
        for waits in parked.waits:
            waits.remove(parked)
        if parked.timer is not None:
            parked.timer.cancel()

    def _gather(self, request: Fetch) -> _Gathered:
        gathered = _Gathered(min(request.bytes_max, self._config.fetch_bytes_max))
        for index, entry in enumerate(request.entries):
            log = self._lookup(entry.topic, entry.partition)
            if not isinstance(log, PartitionLog):
                gathered.final = True
                gathered.entries.append((log, -1, -1, ()))
                continue
            error: WireError | None = None
            batches: Sequence[BytesLike] | None = ()
            if gathered.bytes_left > 0 or not gathered.size:
                try:
                    batches = log.read(entry.offset, min(entry.bytes_max, max(gathered.bytes_left, 0)))
                except OffsetOutOfRange as problem:
                    gathered.final = True
                    error = wire_error(ErrorCode.OFFSET_OUT_OF_RANGE, str(problem))
            if batches is None:
                gathered.cold.append((index, log))
                batches = ()
            gathered.entries.append((error, log.log_start_offset, log.high_watermark, gathered.take(batches)))
        return gathered

    async def _read_cold(self, request: Fetch, gathered: _Gathered) -> None:
        """Fill in what must be read from disk, as far as the limits allow."""
        for index, log in gathered.cold:
            entry = request.entries[index]
            if gathered.size and gathered.bytes_left <= 0:
                return
            error: WireError | None = None
            batches: Sequence[BytesLike] = ()
            try:
                batches = await log.read_cold(entry.offset, min(entry.bytes_max, max(gathered.bytes_left, 0)))
            except OffsetOutOfRange as problem:
                error = wire_error(ErrorCode.OFFSET_OUT_OF_RANGE, str(problem))
            except (OSError, LogError) as problem:
                error = wire_error(ErrorCode.STORAGE_UNAVAILABLE, f"the log cannot be read: {problem}")
            gathered.final = gathered.final or error is not None
            gathered.entries[index] = (error, log.log_start_offset, log.high_watermark, gathered.take(batches))

    def _satisfies(self, gathered: _Gathered, request: Fetch) -> bool:
        most = min(request.bytes_max, sum(entry.bytes_max for entry in request.entries))
        return gathered.final or gathered.bytes_left <= 0 or gathered.size >= min(request.bytes_min, max(most, 1))

    def _answer(self, request: Fetch, gathered: _Gathered) -> None:
        for piece in encode_fetch_reply(request.correlation_id, gathered.entries):
            self._outbox.write(piece)
