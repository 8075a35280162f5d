"""The Kafka door of an engine in memory, without a socket: requests in, replies out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from struct import pack, unpack_from
from typing import Any

import trio
from crc32c import crc32c

from core_log.file_range import FileRange
from core_log.files import Files
from core_log.memory_files import MemoryFiles
from core_log.record_batch import BatchBuilder, Record, iterate_records
from core_log.wall_clock import wall_clock_ms
from protocols.buffers import Piece
from protocols.kafka import codec
from protocols.kafka.adapter import KafkaAdapter
from protocols.kafka.codec import Entity
from protocols.kafka.config import KafkaConfig
from protocols.kafka.messages_records import FETCH, PRODUCE
from protocols.kafka.schema import Api
from protocols.peers import Authenticate
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig

ALL = -1
NOW_MS = wall_clock_ms()
"""What is older than retention allows would be gone with the first look at it."""


class Pipe:
    """See `protocols.sansio.Outbox`."""

    def __init__(self, *, sends_files: bool = False) -> None:
        self.writable = True
        self.sends_files = sends_files
        self.on_writable: Any = None
        self.data = bytearray()
        self.ranges = 0
        """Of files, that were written."""
        self._taken = trio.Event()

    @property
    def pending_bytes(self) -> int:
        """What a test has not taken."""
        return len(self.data)

    def write(self, data: Piece) -> None:
        """Keep it."""
        self.ranges += isinstance(data, FileRange)
        self.data += data.read() if isinstance(data, FileRange) else data

    async def drained(self) -> None:
        """Wait until a test has taken it."""
        await self.woken()

    async def woken(self) -> None:
        """See `ReplyOutbox`."""
        self._taken = trio.Event()
        await self._taken.wait()

    def wake_waiting(self) -> None:
        """See `ReplyOutbox`."""
        self._taken.set()

    def take(self) -> bytes:
        """All that was written."""
        data = bytes(self.data)
        self.data.clear()
        self._taken.set()
        return data


class Peer:
    """One connection, and a client's side of it."""

    def __init__(
        self,
        broker: Broker,
        *,
        address: str = "127.0.0.1:5000",
        authenticate: Authenticate | None = None,
        sends_files: bool = False,
        **settings: Any,
    ) -> None:
        self.broker = broker
        self.pipe = Pipe(sends_files=sends_files)
        self.adapter = KafkaAdapter(
            broker,
            self.pipe,
            peer=address,
            local=("127.0.0.1", 9092),
            clock=trio.current_time,
            config=KafkaConfig(**settings),
            authenticate=authenticate,
        )
        self.client_id = b"test"
        self._sent: list[tuple[Api, int]] = []
        self._number = 0

    async def send(self, api: Api, version: int, **fields: Any) -> None:
        """Send a request."""
        await self.receive(self.encoded(api, version, **fields))

    def encoded(self, api: Api, version: int, **fields: Any) -> bytes:
        """A request that is about to be sent."""
        self._number += 1
        head = pack(">hhih", api.key, version, self._number, len(self.client_id)) + self.client_id
        if api.is_flexible(version):
            head += b"\0"
        body = b"".join(codec.write_message(codec.request_writer(api, version), head, Entity(**fields)))
        self._sent.append((api, version))
        return pack(">i", len(body)) + body

    async def receive(self, data: bytes) -> None:
        """Bytes as they come, and the end of the turn."""
        await self.adapter.handle(data)
        self.broker.end_turn()

    def replies(self) -> list[Any]:
        """Those that have come, in order; each is of the next request that was sent."""
        found = []
        data = self.pipe.data
        while len(data) >= 4:
            (size,) = unpack_from(">i", data)
            frame = bytes(data[4 : 4 + size])
            del data[: 4 + size]
            api, version = self._sent.pop(0)
            at = 4 + (api.is_flexible(version) and api.key != 18)
            found.append(codec.read_message(codec.reply_reader(api, version), frame, at))
        return found

    async def ask(self, api: Api, version: int, **fields: Any) -> Any:
        """Send a request, and wait for its reply."""
        await self.send(api, version, **fields)
        with trio.fail_after(5):
            while not (found := self.replies()):
                await trio.sleep(0.001)
        (reply,) = found
        return reply

    async def produce(self, topic: str, *batches: bytes, acks: int = ALL, version: int = 9, partition: int = 0) -> Any:
        """The reply to batches for one partition."""
        entry = Entity(index=partition, records=list(batches))
        topics = [Entity(name=topic, partition_data=[entry])]
        reply = await self.ask(PRODUCE, version, acks=acks, timeout_ms=30_000, topic_data=topics)
        return reply.responses[0].partition_responses[0]

    async def fetch(self, topic: str, offset: int = 0, *, version: int = 11, **limits: Any) -> Any:
        """The reply to a fetch of one partition."""
        reply = await self.ask(FETCH, version, **fetching(topic, offset, **limits))
        return reply.responses[0].partitions[0]


def fetching(
    topic: str, offset: int = 0, *, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20, **more: Any
) -> dict[str, Any]:
    """A fetch of one partition."""
    entry = Entity(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes, **more)
    topics = [Entity(topic=topic, partitions=[entry])]
    return {"max_wait_ms": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes, "topics": topics}


def batch_of(values: Sequence[bytes], key: bytes | None = None, *, timestamp_ms: int = NOW_MS, **how: Any) -> bytes:
    """A batch as a client makes it."""
    builder = BatchBuilder(0, -1, timestamp_ms, **how)
    builder.add_run(0, key, list(values))
    return builder.build()


def idempotent(batch: bytes, producer_id: int, epoch: int, sequence: int) -> bytes:
    """The same batch of an idempotent producer."""
    changed = bytearray(batch)
    changed[43:57] = pack(">qhi", producer_id, epoch, sequence)
    changed[17:21] = pack(">I", crc32c(memoryview(changed)[21:]))
    return bytes(changed)


def records_of(partition: Any) -> list[Record]:
    """What a fetch brought."""
    found: list[Record] = []
    data = partition.records
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        found += iterate_records(bytes(data[:size]))
        data = data[size:]
    return found


@asynccontextmanager
async def kafka_broker(files: Files | None = None, **settings: Any) -> AsyncIterator[Broker]:
    """An engine that does not look for records that are over, unless it is told to: tests date theirs 1970."""
    config = BrokerConfig(**{"stripes": 1, "housekeeping_interval_ms": 3_600_000, **settings})
    async with open_broker(files or MemoryFiles(), config, {"guest": "guest", "u": "p"}) as broker:
        yield broker
