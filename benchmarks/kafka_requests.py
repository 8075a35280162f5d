"""CPU of Kafka's Produce requests in an engine without sockets: read, appended, written to the disk, answered.

    python -m benchmarks.kafka_requests [DIRECTORY]

A batch of 10 records of 100 bytes each, acks=1, fsync=never; one request or five in a read, all alike in what stands
before the records (`adapter_produce_again.py`) or each read field by field. The least of many short runs counts.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from struct import pack

import trio

from core_log.files import OsFiles
from core_log.record_batch import BatchBuilder
from protocols.buffers import Piece
from protocols.kafka import codec
from protocols.kafka.adapter import KafkaAdapter
from protocols.kafka.codec import Entity
from protocols.kafka.config import KafkaConfig
from protocols.kafka.messages_records import PRODUCE
from routing.broker import open_broker
from routing.config import BrokerConfig

REQUESTS, RUNS, VERSION = 1000, 40, 7


class Nowhere:
    """See `protocols.sansio.Outbox`."""

    pending_bytes = written_bytes = 0
    writable = True
    on_writable: Callable[[], None] | None = None
    sends_files = False

    def write(self, data: Piece) -> None:
        """Forget it."""

    async def drained(self) -> None:
        """It is."""

    async def woken(self) -> None:
        """Others have their turn."""
        await trio.lowlevel.checkpoint()

    def wake_waiting(self) -> None:
        """Nobody does for long."""


def _request(client_id: bytes) -> bytes:
    rng, builder = random.Random(1), BatchBuilder(0, -1, 1_000_000)
    builder.add_run(0, b"key", [rng.randbytes(100) for _ in range(10)])
    entry = Entity(index=0, records=[builder.build()])
    fields = Entity(acks=1, timeout_ms=30_000, topic_data=[Entity(name="t", partition_data=[entry])])
    head = pack(">hhih", PRODUCE.key, VERSION, 0, len(client_id)) + client_id
    body = b"".join(codec.write_message(codec.request_writer(PRODUCE, VERSION), head, fields))
    return pack(">i", len(body)) + body


async def _main(directory: str) -> None:
    async with open_broker(OsFiles(directory), BrokerConfig()) as broker:
        await broker.create_topic("t", config={"fsync": "never"})
        adapter = KafkaAdapter(
            broker,
            Nowhere(),
            peer="127.0.0.1:1",
            local=("127.0.0.1", 2),
            clock=trio.current_time,
            config=KafkaConfig(),
        )

        async def run(read: bytes, count: int) -> float:
            began = time.process_time()
            for _ in range(count):
                await adapter.handle(read)
                broker.end_turn()
                while adapter.waiting:
                    await trio.lowlevel.checkpoint()
            return time.process_time() - began

        for name, ids in (("alike", [b"a"] * 5), ("each read", [b"a", b"b", b"c", b"d", b"e"])):
            for count in (1, 5):
                reads = b"".join(_request(one) for one in ids[:count])
                if count == 1 and name == "each read":
                    continue
                best = min([await run(reads, REQUESTS // count) for _ in range(RUNS)])
                print(f"{name:10} {count} a read   {best / REQUESTS * 1e6:5.1f} us a request")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(_main, sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as found:
            trio.run(_main, found)
