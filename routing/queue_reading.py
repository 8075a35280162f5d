"""Messages of a queue as record batches, for readers that are no consumers.

1. `browse` takes nothing out: it gives what waits in a part of the home's log now, under its offsets there, in their
   order whatever their priority. Messages that a consumer has, or that are delayed, do not wait.
2. `reserved` gives what is set aside for a reader (`queues/reservations.py`), under its positions.
3. Records are those of a stream (`topics/stream_records.py`), but that the protocol is always named. Their time is that
   of the batch in which the home has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import trio

from core_log.batch_header import parse_header
from core_log.errors import OffsetOutOfRange
from core_log.record_batch import BatchBuilder
from core_log.varint import varint
from routing.errors import PreconditionFailed
from routing.message import NAME_ENCODING_ERRORS, Slab, record_encoder
from routing.queues.waiting import waiting_between
from routing.topics.stream_records import source_lead

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue

_WINDOW = 1 << 16
"""Offsets that are looked at for waiting messages at a time."""
_WINDOWS_MAX = 256
_RECORD_BYTES = 32
_TURN_BYTES = 256 << 10
"""Encoded before others have a turn."""

Part = tuple[int, int, int]
"""(number of the first, its offset, how many)."""


class Read(NamedTuple):
    """Record batches back to back, and the number with which to go on."""

    batches: bytes
    following: int


async def browse(queue: Queue, offset: int, end: int, bytes_max: int) -> Read:
    """What waits at [offset, end), as much as `bytes_max` or one message. Raises PreconditionFailed (a view)."""
    if queue.settings.view_of is not None:
        raise PreconditionFailed(f"queue '{queue.name}' is a view: read its topic '{queue.settings.view_of}'")
    encoder = _Encoder(queue, bytes_max)
    end = min(end, queue.partition.next_offset)
    for _ in range(_WINDOWS_MAX):
        stop = min(offset + _WINDOW, end)
        if not await encoder.add(_parts(waiting_between([queue], offset, stop))):
            return encoder.read
        offset = stop
        if offset >= end:
            break
        await trio.lowlevel.checkpoint()
    return encoder.read._replace(following=offset)


def _parts(offsets: list[int]) -> Iterator[Part]:
    first = count = 0
    for offset in offsets:
        if offset == first + count:
            count += 1
            continue
        if count:
            yield first, first, count
        first, count = offset, 1
    if count:
        yield first, first, count


async def reserved(queue: Queue, reader: str, position: int, end: int, bytes_max: int) -> Read:
    """What a reader has at positions [position, end), as much as `bytes_max` or one message. Raises PreconditionFailed
    when it has not all of it (any more).
    """
    found = (queue.reserved or {}).get(reader)
    if found is None or not found.position <= position <= end <= found.end:
        has = "nothing" if found is None else f"{found.position} to {found.end}"
        raise PreconditionFailed(
            f"queue '{queue.name}': reader '{reader}' asks for positions {position} to {end} and has {has}"
        )
    encoder = _Encoder(queue, bytes_max)
    if await encoder.add(list(found.between(position, end))):
        return encoder.read._replace(following=end)
    return encoder.read


async def durable(broker: Broker, queue: Queue) -> int:
    """Wait until the queue's home is as durable as it promises; where it ended when that was asked. Raises
    StorageUnavailable.
    """
    home = queue.partition
    end = home.next_offset
    if home.durable:
        broker.end_turn()
        broker.want_turn()  # followers are asked to sync then
        await broker.commits.committed([(home.log, end)])
    return end


class _Encoder:
    """Makes batches of the messages of a queue, one for each time that they have."""

    def __init__(self, queue: Queue, bytes_max: int) -> None:
        self._queue = queue
        self._room = bytes_max
        self._turn = 0
        self._batches: list[bytes] = []
        self._builder: BatchBuilder | None = None
        self._time_ms = -1
        self._next = 0
        self._timed_before = 0
        self._found_ms = 0

    @property
    def read(self) -> Read:
        """What was added."""
        self._close()
        return Read(b"".join(self._batches), self._next)

    async def add(self, parts: Iterable[Part]) -> bool:
        """Put messages in; whether all of them found room."""
        store = self._queue.store
        for number, first, count in parts:
            while count:
                if self._room <= 0:
                    self._next = number
                    return False
                entry = store.find(first)
                if entry is None:
                    await store.load_now(first, self._queue)
                    entry = store.find(first)
                taken = 1
                if entry is not None:
                    start = first - entry.first
                    taken = self._fitting(entry.slab, start, min(entry.end - first, count))
                    await self._find_time(first)
                    self._put(number, entry.slab.part(start, start + taken))
                number, first, count = number + taken, first + taken, count - taken
                if self._turn >= _TURN_BYTES:
                    self._turn = 0
                    await trio.lowlevel.checkpoint()
        return True

    def _fitting(self, slab: Slab, start: int, count: int) -> int:
        """How many messages there is room for, at least one."""
        size = 0
        for taken in range(count):
            size += len(slab.bodies[start + taken]) + _RECORD_BYTES
            if size >= self._room or size >= _TURN_BYTES:
                return taken + 1
        return count

    def _put(self, number: int, slab: Slab) -> None:
        builder = self._builder
        if builder is None or self._found_ms != self._time_ms:
            self._close()
            self._time_ms = self._found_ms
            builder = self._builder = BatchBuilder(number, -1, self._time_ms)
        before = builder.size_estimate
        blocks = _blocks(slab)
        if slab.keys is None and isinstance(blocks, bytes):
            builder.add_run(number, slab.routing_key.encode("utf-8", NAME_ENCODING_ERRORS), slab.bodies, blocks)
        else:
            count = len(slab.bodies)
            keys = [slab.key_of(index).encode("utf-8", NAME_ENCODING_ERRORS) for index in range(count)]
            builder.add_varied(number, keys, slab.bodies, [blocks] * count if isinstance(blocks, bytes) else blocks)
        size = builder.size_estimate - before
        self._room -= size
        self._turn += size

    def _close(self) -> None:
        if self._builder is not None:
            self._batches.append(self._builder.build())
            self._builder = None

    async def _find_time(self, offset: int) -> None:
        """When a message was published; those that lie in one batch are looked up once."""
        home = self._queue.partition
        if self._timed_before <= (home.moves.location(offset) if home.moves else offset):
            self._found_ms, self._timed_before = await published_at(self._queue, offset)


async def published_at(queue: Queue, offset: int) -> tuple[int, int]:
    """When a message was published (now, if its home does not know), and before which place in the log that holds."""
    home = queue.partition
    location = home.moves.location(offset) if home.moves else offset
    try:
        batches = home.log.read(location, 1) if home.durable else []
        if not batches and home.durable:  # nor may anybody have waited for it yet
            batches = await home.log.read_cold(location, 1, unsynced=True)
    except OffsetOutOfRange:
        batches = []
    if not batches:
        return queue.host.now_ms(), location + 1
    header = parse_header(batches[0])
    return header.base_timestamp_ms, header.next_offset


def _blocks(slab: Slab) -> bytes | list[bytes]:
    """The header block of all messages, or of each."""
    protocol = slab.properties.protocol
    encode = record_encoder(protocol)
    more, lead = source_lead(slab.exchange, protocol)

    def block(raw: bytes) -> bytes:
        count, entries = encode(raw)
        return b"%b%b%b%b%b" % (varint(count + more), lead, varint(len(raw)), raw, entries)

    return block(slab.properties.raw) if slab.raws is None else list(map(block, slab.raws))
