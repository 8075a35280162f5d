"""The fetches of one connection: answered at once, or parked until there is enough to send.

1. Records are read from memory synchronously; from disk, in a thread, only while the request is first looked at. A
   parked fetch whose records left memory meanwhile is answered without them, and the client asks again.
2. A parked fetch is an object in the lists of its logs, or of what the door has it wait at instead, and of the timers.
   Whatever ends it takes it out of both. It is looked at again when the turn ends, once however many logs had news.
3. Nothing is sent while the outbox is full: the fetch waits, holding no records.
4. A fetch sees what is durable. Of a partition at whose end it is it asks for the sync of what is not, whatever it gets
   of others, so that records nobody else waits for arrive soon.
5. The first batch of a reply is whole even if it is larger than the client allowed, so that nobody is stuck at it.
6. A fetch that looks for something is answered in a thread, like one from disk, and as soon as anything was looked at:
   what holds nothing of it moves its offset on, and is not waited behind. Parked it is answered without records, and
   the client asks again.
7. What a fetch looks like, and what stands for an error, is the protocol's: `Fetch`, `Door`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from core_log.containing import Groups
from core_log.errors import LogError, OffsetOutOfRange
from core_log.file_range import FileRange
from core_log.partition_log import PartitionLog
from delay.timer_service import Timer, TimerService
from protocols.buffers import BytesLike
from protocols.log_waits import LogWaits, Waits
from protocols.sansio import Outbox

logger = logging.getLogger(__name__)

Problem = TypeVar("Problem")
Request = TypeVar("Request", bound="Fetch")
Asked = TypeVar("Asked", bound="Fetch", contravariant=True)


class Entry(Protocol):
    """What is asked of one partition."""

    @property
    def topic(self) -> str:
        """Its topic."""

    @property
    def partition(self) -> int:
        """Its number."""

    @property
    def offset(self) -> int:
        """From where on."""

    @property
    def bytes_max(self) -> int:
        """About how much."""


class Fetch(Protocol):
    """A request."""

    wait_ms_max: int

    @property
    def bytes_min(self) -> int:
        """An answer with less waits for more."""

    @property
    def bytes_max(self) -> int:
        """Of all partitions together."""

    @property
    def entries(self) -> Sequence[Entry]:
        """What is asked of each partition that there may be something of."""


class Found(NamedTuple, Generic[Problem]):
    """What there is of a partition; `log` is None where that is an error of its own."""

    entry: Entry
    error: Problem | None
    log: PartitionLog | None
    batches: Sequence[BytesLike]
    range: FileRange | None = None
    """Instead of batches, where the outbox sends pieces of files."""


class Runnable(Protocol):
    """See `Fetches.runnable`."""

    awake: bool

    def pump(self) -> None:
        """The turn ends; `awake` has been cleared."""


class Limits(Protocol):
    """Of a door, whatever its clients ask for."""

    @property
    def fetch_bytes_max(self) -> int:
        """In one reply."""

    @property
    def fetch_wait_ms_max(self) -> int:
        """Nobody is parked for longer."""


class Door(Protocol[Asked, Problem]):
    """The protocol's side."""

    def log_of(self, entry: Entry) -> PartitionLog | Problem:
        """The log of a partition, or what stands for it."""

    def out_of_range(self, problem: OffsetOutOfRange) -> Problem:
        """What a client is told whose offset is not there."""

    def unreadable(self, log: PartitionLog, problem: Exception) -> Problem:
        """What a client is told where the disk is at fault."""

    def limit(self, request: Asked, log: PartitionLog) -> int | None:
        """Up to where a fetch sees a log; None: to the high watermark."""

    def seen(self, log: PartitionLog, batches: Sequence[BytesLike]) -> Sequence[BytesLike]:
        """What a client gets for batches of a log."""

    def looks_for(self, request: Asked) -> Groups:
        """What batches must have to be of interest; see `core_log.containing`."""

    def looked(self, looked_bytes: int, sent_bytes: int) -> None:
        """So much was looked at for that, and so much of it is sent."""

    def waits(self, request: Asked) -> Waits | None:
        """What a fetch waits at that is parked; None: at the log of each entry."""

    def answer(self, request: Asked, found: Sequence[Found[Problem]]) -> None:
        """Send the reply, which says this of the entries that the request had when it was looked at last."""


class _Gathered(Generic[Problem]):
    """What a fetch would get now."""

    __slots__ = ("bytes_left", "cold", "entries", "final", "size")

    def __init__(self, bytes_left: int) -> None:
        self.entries: list[Found[Problem]] = []
        self.cold: list[tuple[int, PartitionLog]] = []
        self.size = 0
        self.bytes_left = bytes_left
        self.final = False
        """Waiting makes it no better: there was an error, or a limit was reached."""

    @property
    def ends(self) -> list[int]:
        """Up to where there was something, of each entry."""
        return [-1 if found.log is None else found.log.high_watermark for found in self.entries]

    def take(self, batches: Sequence[BytesLike]) -> Sequence[BytesLike]:
        """`batches` if the limits allow, else none."""
        return batches if self._takes(sum(map(len, batches))) else ()

    def take_range(self, found: FileRange) -> FileRange | None:
        """The same, of a piece of a file."""
        return found if self._takes(len(found)) else None

    def _takes(self, size: int) -> bool:
        if self.size and size > self.bytes_left:
            self.final = True
            self.bytes_left = 0  # or all partitions behind this one would be read, for nothing
            return False
        self.size += size
        self.bytes_left -= size
        return True


class _Parked(Generic[Request, Problem]):
    """A fetch that waits."""

    __slots__ = ("_fetches", "awake", "due", "request", "timer", "waits")

    def __init__(self, fetches: Fetches[Request, Problem], request: Request) -> None:
        self._fetches = fetches
        self.request = request
        self.timer: Timer | None = None
        self.due = self.awake = False
        self.waits: list[Waits] = []

    def log_advanced(self) -> None:
        if not self.awake:
            self.awake = True
            self._fetches.runnable(self)

    def pump(self) -> None:
        self._fetches.retry(self)

    def timed_out(self) -> None:
        self.due = True
        self._fetches.retry(self)


class Fetches(Generic[Request, Problem]):
    """See the module."""

    def __init__(
        self,
        door: Door[Request, Problem],
        outbox: Outbox,
        timers: TimerService,
        clock: Callable[[], float],
        limits: Limits,
        runnable: Callable[[Runnable], None],
        *,
        sends_files: bool = False,
    ) -> None:
        """`sends_files`: what is not in memory may be answered as a piece of a file, which `Door.seen` is not asked
        about; but where records expire.
        """
        self.runnable = runnable
        """Has `pump` called when the turn ends."""
        self._sends_files = sends_files
        self._door = door
        self._outbox = outbox
        self._timers = timers
        self._clock = clock
        self._limits = limits
        self._parked: dict[_Parked[Request, Problem], None] = {}
        outbox.on_writable = self._retry_all

    def __len__(self) -> int:
        return len(self._parked)

    async def start(self, request: Request) -> None:
        """Answer `request`, now or later."""
        request.wait_ms_max = min(request.wait_ms_max, self._limits.fetch_wait_ms_max)
        if self._outbox.writable:
            while True:
                gathered = self._gather(request)
                ends = gathered.ends
                if gathered.cold:
                    await self._read_cold(request, gathered)
                if self._satisfies(gathered, request) or not request.wait_ms_max:
                    self._door.answer(request, gathered.entries)
                    return
                if not gathered.cold or self._gather(request).ends == ends:
                    break  # else there was news while the disk was read, which nobody tells again
        self._park(request)

    def retry(self, parked: _Parked[Request, Problem]) -> None:
        """Answer a parked fetch if it may be now."""
        if parked not in self._parked or not self._outbox.writable:
            return
        gathered = self._gather(parked.request)
        if parked.due or gathered.cold or self._satisfies(gathered, parked.request):
            self._unpark(parked)
            self._door.answer(parked.request, gathered.entries)

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

    def _park(self, request: Request) -> None:
        parked = _Parked(self, request)
        self._parked[parked] = None
        found = self._door.waits(request)
        if found is not None:
            parked.waits.append(found)
        else:
            logs = {self._door.log_of(entry) for entry in request.entries}
            parked.waits += [LogWaits.of(log) for log in logs if isinstance(log, PartitionLog)]
        for waits in parked.waits:
            waits.add(parked)
        parked.timer = self._timers.at(self._clock() + request.wait_ms_max / 1000, parked.timed_out)

    def _unpark(self, parked: _Parked[Request, Problem]) -> None:
        del self._parked[parked]
        for waits in parked.waits:
            waits.remove(parked)
        if parked.timer is not None:
            parked.timer.cancel()

    def _gather(self, request: Request) -> _Gathered[Problem]:
        gathered: _Gathered[Problem] = _Gathered(min(request.bytes_max, self._limits.fetch_bytes_max))
        log_of = self._door.log_of
        looks = bool(self._door.looks_for(request))
        for index, entry in enumerate(request.entries):
            log = log_of(entry)
            if not isinstance(log, PartitionLog):
                gathered.final = True
                gathered.entries.append(Found(entry, log, None, ()))
                continue
            if entry.offset >= log.high_watermark and log.high_watermark < log.log_end_offset:
                log.request_sync()
            if entry.offset == log.high_watermark:
                gathered.entries.append(Found(entry, None, log, ()))
                continue
            error: Problem | None = None
            batches: Sequence[BytesLike] | None = ()
            if looks:
                gathered.cold.append((index, log))
            elif gathered.bytes_left > 0 or not gathered.size:
                try:
                    most = min(entry.bytes_max, max(gathered.bytes_left, 0))
                    batches = log.read(entry.offset, most, before=self._door.limit(request, log))
                except OffsetOutOfRange as problem:
                    gathered.final = True
                    error = self._door.out_of_range(problem)
            found: FileRange | None = None
            if batches is None:
                batches = ()
                if self._sends_files and not log.config.empties:
                    found = log.read_range(entry.offset, most, before=self._door.limit(request, log))
                if found is None:
                    gathered.cold.append((index, log))
                else:
                    gathered.entries.append(Found(entry, None, log, (), gathered.take_range(found)))
                    continue
            if batches:
                batches = self._door.seen(log, batches)
            gathered.entries.append(Found(entry, error, log, gathered.take(batches)))
        return gathered

    async def _read_cold(self, request: Request, gathered: _Gathered[Problem]) -> None:
        """Fill in what must be read from disk, or looked at, as far as the limits allow."""
        for index, log in gathered.cold:
            entry = gathered.entries[index].entry
            if gathered.size and gathered.bytes_left <= 0:
                return
            error: Problem | None = None
            batches: Sequence[BytesLike] = ()
            most = min(entry.bytes_max, max(gathered.bytes_left, 0))
            was_readable = not log.unreadable
            try:
                found = await self._read_log(request, log, entry.offset, most)
                if isinstance(found, FileRange):
                    gathered.entries[index] = Found(entry, None, log, (), gathered.take_range(found))
                    continue
                batches = self._door.seen(log, found)
            except OffsetOutOfRange as problem:
                error = self._door.out_of_range(problem)
            except (OSError, LogError) as problem:
                if was_readable and log.unreadable:  # for each that asks for it would be too often
                    logger.error("%s is not what was written: %s", log.directory, problem)
                error = self._door.unreadable(log, problem)
            gathered.final = gathered.final or error is not None
            gathered.entries[index] = Found(entry, error, log, gathered.take(batches))
        if gathered.size and self._door.looks_for(request):
            gathered.final = True

    async def _read_log(
        self, request: Request, log: PartitionLog, offset: int, bytes_max: int
    ) -> FileRange | Sequence[BytesLike]:
        limit = self._door.limit(request, log)
        groups = self._door.looks_for(request)
        if groups:
            looked = await log.read_containing(offset, bytes_max, groups, before=limit)
            self._door.looked(looked.looked_bytes, sum(map(len, looked.batches)))
            return looked.batches
        if self._sends_files and not log.config.empties:
            return await log.read_range_cold(offset, bytes_max, before=limit)
        return await log.read_cold(offset, bytes_max, before=limit)

    def _satisfies(self, gathered: _Gathered[Problem], request: Request) -> bool:
        most = min(request.bytes_max, sum(entry.bytes_max for entry in request.entries))
        return gathered.final or gathered.bytes_left <= 0 or gathered.size >= min(request.bytes_min, max(most, 1))
