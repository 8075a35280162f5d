"""What it costs that a topic takes an id once: appending records with ids, and reading them back after a start.

    python -m benchmarks.known_ids [DIRECTORY]

Batches of 100 records of 100 bytes, each with a header `message-id` of 36 bytes where it has one, fsync=never. CPU of
the whole process; the least of three runs of half a million records counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid

import trio

from core_log.batch_header import validate
from core_log.compression import Compression
from core_log.files import OsFiles
from core_log.record_batch import BatchBuilder
from core_log.wall_clock import wall_clock_ms
from routing.broker import open_broker
from routing.config import BrokerConfig

BATCHES, RECORDS, RUNS = 5000, 100, 3
WINDOW = {"millrace.deduplication.window.ms": "3600000"}


def _batch(*, ids: bool, compression: Compression) -> bytes:
    builder = BatchBuilder(0, 0, wall_clock_ms(), compression=compression)
    for number in range(RECORDS):
        headers = [("message-id", str(uuid.uuid4()).encode())] if ids else []
        builder.add(number, b"key", b"%0100d" % number, headers)
    return builder.build()


async def _append(directory: str, name: str, batches: list[bytes], config: dict[str, str]) -> float:
    async with open_broker(OsFiles(f"{directory}/{name}"), BrokerConfig()) as broker:
        topic = await broker.create_topic("t", config={"fsync": "never", **config})
        (partition,), start = topic.partitions, time.process_time()
        for batch in batches:
            await partition.append_once([validate(batch)], [batch])
            await broker.flusher.wait_for_room()
        return time.process_time() - start


async def _read_back(directory: str, name: str) -> float:
    async with open_broker(OsFiles(f"{directory}/{name}"), BrokerConfig()) as broker:
        known = broker.topics["t"].partitions[0].known
        assert known is not None
        start = time.process_time()
        await known.read()
        return time.process_time() - start


async def _main(directory: str) -> None:
    records = BATCHES * RECORDS
    for what, ids, compression in (
        ("with ids", True, Compression.NONE),
        ("with ids, zstd", True, Compression.ZSTD),
        ("without", False, Compression.NONE),
    ):
        batches = [_batch(ids=ids, compression=compression) for _ in range(BATCHES)]
        for config in ({}, WINDOW):
            names = [f"{what} {len(config)} {run}" for run in range(RUNS)]
            taken_s = min([await _append(directory, name, batches, config) for name in names])
            said = f"{what:15} {'a window' if config else 'no window':10} {taken_s / records * 1e6:6.2f} us a record"
            if config:
                said += f", read back {min([await _read_back(directory, name) for name in names]) / records * 1e6:.2f}"
            print(said)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as found:
        trio.run(_main, found)
