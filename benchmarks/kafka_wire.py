"""Load over Kafka's protocol, by hand-made requests: how fast a broker is, and what it pays in CPU.

    python -m benchmarks.kafka_wire                                # a broker of its own
    python -m benchmarks.kafka_wire --port 9092 --pid 1234         # any other, Apache Kafka for one
    python -m benchmarks.kafka_wire --scenario produce-small --connections 4 --seconds 2 --fsync

    produce-big      batches of 1 MiB of 1 KB records, acks=all, 5 requests in flight
    produce-small    batches of 10 records of 100 bytes, acks=1 (all with --fsync), 5 in flight on each connection
    produce-one      one record, one request in flight, acks=all, 500 a second: time to the answer
    creating         the same, and then again while another connection makes --topics topics, one after the other
    fetch            read --mib of the first again, from memory or the page cache, up to 50 MiB an answer
    pass             batches of 16 KiB of 100-byte records, acks=all, 5 in flight, and a consumer that reads along
    tail             1,000 single records a second, and a consumer that waits for them: from the send to the read

1. Requests are made before the time runs; records are random, no two alike. The generator needs a processor of
   its own. Consumers are processes of their own. --partitions is for produce-big, which goes round them.
2. Topics do not sync, unless with --fsync: settings are Millrace's `fsync`, and Kafka's `flush.messages` for others.
3. CPU is that of the process --pid and its descendants. MB are 10^6 bytes of batches.
4. On a virtual machine a page that the host has yet to give costs ten times the write into it, and whoever is measured
   first pays. So `new-file` writes and removes a file of --prime-mib before each `produce-big`, and says how fast that
   was: the same again means that all pages were there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import secrets
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from select import select
from struct import pack, pack_into, unpack_from
from typing import Any

from benchmarks.process_usage import ProcessUsage
from core_log.batch_header import HEADER_BYTES, parse_header
from core_log.record_batch import BatchBuilder
from protocols.kafka import codec
from protocols.kafka.codec import Entity
from protocols.kafka.messages_admin import CREATE_TOPICS, DELETE_TOPICS
from protocols.kafka.messages_records import FETCH, PRODUCE
from protocols.kafka.schema import Api
from tests.support.broker_process import broker_process

IN_FLIGHT = 5
FETCH_BYTES = 50 << 20
VERSIONS = {PRODUCE.key: 7, FETCH.key: 11, CREATE_TOPICS.key: 4, DELETE_TOPICS.key: 3}
_PER_S, _TAIL_PER_S = 500, 1000
_PASS_RECORDS, _LONG_POLL_MS = 130, 50
_TAPE = 8


def frame(api: Api, **fields: Any) -> bytes:
    """A request with its length."""
    version = VERSIONS[api.key]
    head = pack(">hhihs", api.key, version, 1, 1, b"b")
    body = b"".join(codec.write_message(codec.request_writer(api, version), head, Entity(**fields)))
    return pack(">i", len(body)) + body


def produce(topic: str, batch: bytes, acks: int) -> bytes:
    """A Produce request."""
    part = Entity(index=0, records=[batch])
    return frame(PRODUCE, acks=acks, timeout_ms=30_000, topic_data=[Entity(name=topic, partition_data=[part])])


def batch_of(rng: random.Random, count: int, size: int) -> bytes:
    """A batch of random records."""
    builder = BatchBuilder(0, -1, int(time.time() * 1000))
    for number in range(count):
        builder.add(number, rng.randbytes(8), rng.randbytes(rng.randint(size // 2, size + size // 2)), ())
    return builder.build()


class Connection:
    """To a broker on this machine."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def read(self, size: int) -> memoryview:
        """Exactly so many bytes, good until the next read."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        at = 0
        while at < size:
            got = self.socket.recv_into(view[at:])
            if not got:
                raise ConnectionError("the broker has closed the connection")
            at += got
        return view

    def answer(self) -> memoryview:
        """The next reply, without its length."""
        return self.read(int.from_bytes(self.read(4), "big"))

    def ask(self, api: Api, request: bytes) -> Any:
        """The reply to a request."""
        self.socket.sendall(request)
        return codec.read_message(codec.reply_reader(api, VERSIONS[api.key]), bytes(self.answer()), 4)


def check(found: Any) -> None:
    """Raises RuntimeError if a Produce was refused."""
    error = found.responses[0].partition_responses[0].error_code
    if error:
        raise RuntimeError(f"the broker refuses with error {error}")


def read(connection: Connection, topic: str, offset: int) -> tuple[int, int]:
    """Fetch once: the offset behind what came, and how many bytes of batches that was."""
    part = Entity(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    connection.socket.sendall(
        frame(
            FETCH, max_wait_ms=_LONG_POLL_MS, min_bytes=1, max_bytes=FETCH_BYTES, isolation_level=0, session_id=0,
            topics=[Entity(topic=topic, partitions=[part])], forgotten_topics_data=[], rack_id="",
        )
    )  # fmt: skip
    answer, size = connection.answer(), 0
    # ids, throttle, error, session, topics, name, partitions, index, error, offsets, aborted, replica
    at = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 24 + 4 + 4
    end = at + 4 + unpack_from(">i", answer, at)[0]
    at += 4
    while end - at > HEADER_BYTES:
        header = parse_header(answer, at)
        if header.base_offset != offset:
            raise RuntimeError(f"a batch at {header.base_offset} instead of {offset}")
        if end - at < header.size:
            break
        offset, size, at = header.next_offset, size + header.size, at + header.size
    return offset, size


def follow(port: int, topic: str, pipe: Pipe) -> None:
    """Read a topic until the end that the pipe tells in the end; tells it (time, offset) of each answer."""
    connection, offset, end, arrived = Connection(port), 0, -1, list[tuple[float, int]]()
    pipe.send(None)
    while offset != end:
        found, _ = read(connection, topic, offset)
        if found != offset:
            offset = found
            arrived.append((time.monotonic(), offset))
        if end < 0 and pipe.poll():
            end = pipe.recv()
    pipe.send(arrived)


class Spread(Sequence[bytes]):
    """Produce requests that go round the partitions of a topic; good until the request is asked for again."""

    def __init__(self, topic: str, batches: Sequence[bytes], partitions: int) -> None:
        self._frames = [bytearray(produce(topic, batch, -1)) for batch in batches]
        self._places = [len(frame) - len(batch) - 8 for frame, batch in zip(self._frames, batches, strict=True)]
        self._partitions = partitions

    def __len__(self) -> int:
        return len(self._frames) * self._partitions

    def __getitem__(self, at: Any) -> Any:
        kind = at % len(self._frames)
        pack_into(">i", self._frames[kind], self._places[kind], at % self._partitions)
        return self._frames[kind]


class Bench:
    """What all scenarios share."""

    def __init__(self, port: int, pid: int | None, options: argparse.Namespace, config: dict[str, str]) -> None:
        self.port, self.options, self.config = port, options, config
        self.usage = ProcessUsage(pid)
        self.rng = random.Random(7)

    def topic(self, partitions: int = 1, connection: Connection | None = None) -> str:
        """A new one."""
        name = f"bench-{secrets.token_hex(4)}"
        configs = [Entity(name=key, value=value) for key, value in self.config.items()]
        made = Entity(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs)
        connection = connection or Connection(self.port)
        found = connection.ask(CREATE_TOPICS, frame(CREATE_TOPICS, topics=[made], timeout_ms=30_000))
        if found.topics[0].error_code:
            raise RuntimeError(f"no topic: {found.topics[0].error_message}")
        return name

    def delete(self, topic: str) -> None:
        """It is not needed any more."""
        Connection(self.port).ask(DELETE_TOPICS, frame(DELETE_TOPICS, topic_names=[topic], timeout_ms=30_000))

    def measured(self, name: str, run: Callable[[], tuple[int, int]]) -> None:
        """Print what a run did: (records, bytes)."""
        began, finish = time.monotonic(), self.usage.watch()
        records, size = run()
        took, cpu_s = time.monotonic() - began, finish()["cpu_s"]
        print(
            f"{name:16} {size / took / 1e6:8.0f} MB/s {records / took:12,.0f} records/s   CPU"
            f" {cpu_s / size * 1e9:6.2f} s/GB {cpu_s / records * 1e6:6.2f} s/M records"
        )

    def pipelined(self, frames: Sequence[bytes], connections: int, seconds: float) -> int:
        """Keep requests in flight; how many were answered."""
        made = [Connection(self.port) for _ in range(connections)]
        for one in made:
            check(one.ask(PRODUCE, frames[0]))
            one.socket.sendall(frames[0])
        size = 4 + int.from_bytes(made[0].read(4), "big")
        made[0].read(size - 4)
        for one in made[1:]:
            one.read(size)
        selector, answered = selectors.DefaultSelector(), 0
        owed = dict.fromkeys(made, 0)
        for one in made:
            selector.register(one.socket, selectors.EVENT_READ, one)
            one.socket.sendall(b"".join([frames[at % len(frames)] for at in range(IN_FLIGHT)]))
        left, ends, at = connections * IN_FLIGHT, time.monotonic() + seconds, 0
        while left:
            for key, _ in selector.select():
                one = key.data
                data = one.socket.recv(1 << 16)
                if not data:
                    raise ConnectionError("the broker has closed the connection")
                done, owed[one] = divmod(owed[one] + len(data), size)
                answered += done
                left -= done
                if done and time.monotonic() < ends:
                    one.socket.sendall(b"".join([frames[(at + index) % len(frames)] for index in range(done)]))
                    at, left = at + done, left + done
        return answered

    def prime(self) -> None:
        """Have the host give as much memory as a run may need for the page cache; says what that took."""
        os.sync()  # what was written before is not written back during the run
        mib = self.options.prime_mib
        for _ in range(2 if mib else 0):
            began, cpu_s = time.monotonic(), time.process_time()
            with tempfile.TemporaryFile(buffering=0) as file:
                piece = bytes(1 << 20)
                for _ in range(mib):
                    file.write(piece)
            took, cpu_s, size = time.monotonic() - began, time.process_time() - cpu_s, mib << 20
            print(f"{'new-file':16} {size / took / 1e6:8.0f} MB/s {'':22} CPU {cpu_s / size * 1e9:6.2f} s/GB")

    def produce_big(self) -> None:
        """See the module."""
        count = self.options.partitions
        topic, batches = self.topic(count), [batch_of(self.rng, 1000, 1000) for _ in range(_TAPE)]
        frames = Spread(topic, batches, count)
        size = sum(map(len, batches)) // len(batches)

        def run() -> tuple[int, int]:
            answered = self.pipelined(frames, 1, self.options.seconds)
            return answered * 1000, answered * size

        self.prime()
        self.measured("produce-big", run)
        self.delete(topic)

    def produce_small(self) -> None:
        """See the module."""
        topic, batches = self.topic(), [batch_of(self.rng, 10, 100) for _ in range(1000)]
        frames = [produce(topic, batch, -1 if self.options.fsync else 1) for batch in batches]
        size = sum(map(len, batches)) / len(batches)

        def run() -> tuple[int, int]:
            answered = self.pipelined(frames, self.options.connections, self.options.seconds)
            return answered * 10, int(answered * size)

        self.measured("produce-small", run)
        self.delete(topic)

    def produce_one(self) -> None:
        """See the module."""
        topic = self.topic()
        self._paced(topic, "produce-one", lambda number: number < int(_PER_S * self.options.seconds))
        self.delete(topic)

    def creating(self) -> None:
        """See the module."""
        topic, count = self.topic(), self.options.topics
        self._paced(topic, "produce-one", lambda number: number < int(_PER_S * self.options.seconds))
        maker = multiprocessing.Process(target=self._make_topics, args=(count,), daemon=True)
        began = time.monotonic()
        maker.start()
        self._paced(topic, "... and creating", lambda number: maker.is_alive())
        print(f"{'creating':16} {count} topics in {time.monotonic() - began:.1f} s")

    def _make_topics(self, count: int) -> None:
        connection = Connection(self.port)
        for _ in range(count):
            self.topic(connection=connection)

    def _paced(self, topic: str, name: str, goes_on: Callable[[int], bool]) -> None:
        """Print how long single records take to be answered, `_PER_S` of them a second."""
        connection, took, number = Connection(self.port), list[float](), 0
        frames = [produce(topic, batch_of(self.rng, 1, 100), -1) for _ in range(100)]
        for _ in range(200):
            check(connection.ask(PRODUCE, frames[0]))
        at = time.monotonic()
        while goes_on(number):
            at += 1 / _PER_S
            time.sleep(max(0.0, at - time.monotonic()))
            began = time.monotonic()
            connection.socket.sendall(frames[number % len(frames)])
            connection.answer()
            took.append((time.monotonic() - began) * 1e6)
            number += 1
        cuts = statistics.quantiles(took, n=100)
        print(f"{name:16} p50 {statistics.median(took):.0f} us, p99 {cuts[98]:.0f} us, longest {max(took):.0f} us")

    def fetch(self) -> None:
        """See the module."""
        topic, batches = self.topic(), [batch_of(self.rng, 1000, 1000) for _ in range(_TAPE)]
        count = max(1, (self.options.mib << 20) // len(batches[0]))
        filler = Connection(self.port)
        for number in range(count):
            check(filler.ask(PRODUCE, produce(topic, batches[number % len(batches)], -1)))

        def run() -> tuple[int, int]:
            connection, offset, size = Connection(self.port), 0, 0
            while offset < count * 1000:
                offset, more = read(connection, topic, offset)
                size += more
            return count * 1000, size

        self.measured("fetch", run)
        self.measured("fetch again", run)
        self.delete(topic)

    @contextmanager
    def consumer(self, topic: str) -> Iterator[Callable[[int], list[tuple[float, int]]]]:
        """One that reads from now on; told where the end is, it says when it had read how far."""
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(target=follow, args=(self.port, topic, there), daemon=True)
        process.start()

        def finish(end: int) -> list[tuple[float, int]]:
            here.send(end)
            found: list[tuple[float, int]] = here.recv()
            return found

        try:
            here.recv()
            yield finish
        finally:
            process.kill()
            process.join()

    def pass_through(self) -> None:
        """See the module."""
        topic, batches = self.topic(), [batch_of(self.rng, _PASS_RECORDS, 100) for _ in range(100)]
        frames = [produce(topic, batch, -1) for batch in batches]
        size = sum(map(len, batches)) // len(batches)

        def run() -> tuple[int, int]:
            answered = self.pipelined(frames, 1, self.options.seconds)
            finish((answered + 2) * _PASS_RECORDS)
            return answered * _PASS_RECORDS, answered * size

        self.prime()
        with self.consumer(topic) as finish:
            self.measured("pass", run)
        self.delete(topic)

    def tail(self) -> None:
        """See the module."""
        topic, connection, sent = self.topic(), Connection(self.port), list[float]()
        frames = [produce(topic, batch_of(self.rng, 1, 100), -1) for _ in range(100)]
        with self.consumer(topic) as finish:
            began, owed = time.monotonic(), 0
            for number in range(int(_TAIL_PER_S * self.options.seconds)):
                time.sleep(max(0.0, began + number / _TAIL_PER_S - time.monotonic()))
                sent.append(time.monotonic())
                connection.socket.sendall(frames[number % len(frames)])
                owed += 1
                while owed and select([connection.socket], [], [], 0)[0]:
                    connection.answer()
                    owed -= 1
            for _ in range(owed):
                connection.answer()
            arrived = finish(len(sent))
        took, at = list[float](), 0
        for when, end in arrived:
            took += [(when - one) * 1e6 for one in sent[at:end]]
            at = end
        cuts = statistics.quantiles(took, n=100)
        print(f"{'tail':16} p50 {statistics.median(took):.0f} us, p99 {cuts[98]:.0f} us")
        self.delete(topic)


SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "produce-big": Bench.produce_big, "produce-small": Bench.produce_small, "produce-one": Bench.produce_one,
    "creating": Bench.creating, "fetch": Bench.fetch, "pass": Bench.pass_through, "tail": Bench.tail,
}  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="of a broker that runs; without it one is started")
    parser.add_argument("--pid", type=int, help="of that broker")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="may be given several times")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--prime-mib", type=int, default=1536, help="0 for none")
    parser.add_argument("--fsync", action="store_true", help="nothing is answered that is not on the disk")
    options = parser.parse_args()

    def run(port: int, pid: int | None, config: dict[str, str]) -> None:
        bench = Bench(port, pid, options, config)
        for name in options.scenario or SCENARIOS:
            SCENARIOS[name](bench)

    if options.port is not None:
        run(options.port, options.pid, {"flush.messages": "1"} if options.fsync else {})
        return
    doors = ("amqp", "mqtt", "native", "kafka")
    with tempfile.TemporaryDirectory() as directory, broker_process(Path(directory, "data"), doors=doors) as broker:
        run(broker.ports["kafka"], broker.pid, {"fsync": "commit" if options.fsync else "never"})


if __name__ == "__main__":
    main()
