"""Native produce against the disk: 1 MiB batches, acks=all, through a real broker, and the same bytes written plainly.

    python -m benchmarks.native_produce [--directory DIR] [--batches N] [--in-flight K]

1. `plain` writes the batches to one file with os.write and an fdatasync after each, and after every K: the broker,
   which may join what waits while the disk is busy, syncs between one and K batches at a time.
2. `batches` sends batches that were built before, K under way at once; `records` lets the producer build them from
   records of 1000 bytes. Both end when the last batch is acknowledged as durable.
3. Every figure is the median of `--runs`, taken in turns so that a slow moment of the disk hits all alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio

from core_log.record_batch import BatchBuilder
from protocols.native import wire
from protocols.native.clients.client import Link, LinkConfig
from protocols.native.clients.producer import Producer
from protocols.native.errors import MillraceError, error_from_wire
from tests.support import broker_process

BATCH_BYTES = 1 << 20
RECORD_BYTES = 1000
TOPIC = "benchmark"


def make_batch() -> bytes:
    """A batch of about 1 MiB whose bytes do not compress."""
    count = (BATCH_BYTES - 100) // (RECORD_BYTES + 12)
    builder = BatchBuilder(0, -1, 1_700_000_000_000)
    builder.add_run(0, None, [os.urandom(RECORD_BYTES) for _ in range(count)])
    return builder.build()


def plain_s(directory: str, batch: bytes, batches: int, per_sync: int) -> float:
    """Seconds to write `batches` with an fdatasync after every `per_sync`."""
    path = os.path.join(directory, "plain")
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        began = time.perf_counter()
        for number in range(1, batches + 1):
            os.write(file, batch)
            if number % per_sync == 0 or number == batches:
                os.fdatasync(file)
        return time.perf_counter() - began
    finally:
        os.close(file)
        os.unlink(path)


async def batches_s(server: str, batch: bytes, batches: int, in_flight: int) -> float:
    """Seconds to have `batches` acknowledged, `in_flight` under way at once."""
    link = Link(server, LinkConfig())
    await link.connect()
    room = trio.Semaphore(in_flight)

    def answered(reply: wire.Reply | MillraceError) -> None:
        assert isinstance(reply, wire.ProduceReply), reply
        for error, _ in reply.entries:
            if error is not None:
                raise error_from_wire(error)
        room.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        began = time.perf_counter()
        for _ in range(batches):
            await room.acquire()
            entry = wire.ProduceEntry(TOPIC, 0, 0, memoryview(batch))
            link.post(wire.Produce(0, wire.ACKS_ALL, 30_000, [entry]), answered)
        for _ in range(in_flight):
            await room.acquire()
        elapsed = time.perf_counter() - began
        nursery.cancel_scope.cancel()
    return elapsed


async def records_s(server: str, value: bytes, records: int, in_flight: int) -> float:
    """Seconds to have `records` acknowledged by way of the producer."""
    async with Producer(server, batch_bytes=BATCH_BYTES, in_flight_max=in_flight, linger_ms=5) as producer:
        await producer.send(TOPIC, value, partition=0)
        await producer.flush()
        began = time.perf_counter()
        for _ in range(records):
            await producer.send(TOPIC, value, partition=0)
        await producer.flush()
        return time.perf_counter() - began


def main() -> None:
    """Run, and print MiB/s and the share of the plain writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where to write; default: a temporary directory here")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    batch = make_batch()
    batches, in_flight = options.batches, options.in_flight
    mib = batches * len(batch) / (1 << 20)
    records = batches * BATCH_BYTES // RECORD_BYTES
    record_mib = records * RECORD_BYTES / (1 << 20)
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory or os.getcwd()))
        doors = ["--amqp", "off", "--mqtt", "off"]
        broker = stack.enter_context(broker_process(Path(directory) / "data", doors=["native"], arguments=doors))
        server = f"127.0.0.1:{broker.native_port}"
        ways: dict[str, Callable[[], float]] = {
            "plain, a sync each": lambda: mib / plain_s(directory, batch, batches, 1),
            f"plain, a sync for {in_flight}": lambda: mib / plain_s(directory, batch, batches, in_flight),
            "batches": lambda: mib / trio.run(batches_s, server, batch, batches, in_flight),
            "records": lambda: record_mib / trio.run(records_s, server, b"x" * RECORD_BYTES, records, in_flight),
        }
        trio.run(records_s, server, b"x", 1, 1)
        for _ in range(options.runs):
            for name, rate in ways.items():
                rates.setdefault(name, []).append(rate())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    plain = [medians[name] for name in medians if name.startswith("plain")]
    print(f"{batches} batches of {len(batch)} bytes, {in_flight} in flight, acks=all")
    for name, median in medians.items():
        shares = " and ".join(f"{100 * median / base:.0f} %" for base in plain)
        print(f"{name:24} {median:8.0f} MiB/s   {shares} of plain writes")


if __name__ == "__main__":
    main()
