"""What a stream costs the broker: publishing varied messages into it, and reading them by several consumers.

    python -m benchmarks.streams [--messages 1000000] [--consumers 1 5] [--prefetch 2000] [--kind view]

With `--kind classic` or `view` it is a queue, or a view of a topic of four partitions, and one consumer empties it.

The messages are those of the load generator's varied scenarios (bodies of 50 to 500 bytes, a message id each). The
broker is a process of its own; its CPU time is what counts, since the consumers share the machine. They count
deliveries by what each of them begins with, and acknowledge what a read brought with one frame.
"""

from __future__ import annotations

import argparse
import os
import struct
import tempfile
import time
from pathlib import Path

from benchmarks.wire_proto import ACK, ACK_FRAME, CONFIRM_SELECT, CONSUME, QOS, QUEUE_DECLARE, Amqp, Plan, shortstr
from benchmarks.wire_roles import FORK
from protocols.native.clients.blocking import BlockingClient
from tests.support import BrokerProcess, broker_process

STREAM = "bench.0"
TOPIC = "bench"
_TICKS = os.sysconf("SC_CLK_TCK")
_DELIVERY = b"\x00\x3c\x00\x3c\x01c"
"""The method of a delivery and the consumer tag, which no body here contains."""


def cpu_s(broker: BrokerProcess) -> float:
    """User and system time of the broker so far."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def options_of(broker: BrokerProcess) -> argparse.Namespace:
    """What a connection of the load generator is opened with."""
    return argparse.Namespace(
        host="127.0.0.1", port=broker.amqp_port, user="guest", password="guest", vhost="/", tls=False
    )


def table(field: bytes) -> bytes:
    """A field table of one encoded field."""
    return struct.pack(">I", len(field)) + field


def text_field(name: str, value: str) -> bytes:
    """A field of text."""
    return shortstr(name) + b"S" + struct.pack(">I", len(value)) + value.encode()


def publish(options: argparse.Namespace, messages: int, kind: str) -> None:
    """Declare the stream and fill it, with confirms."""
    conn = Amqp.open(options)
    fields = text_field("x-queue-type", kind) + (text_field("x-view-topic", TOPIC) if kind == "view" else b"")
    conn.request(QUEUE_DECLARE, b"\0\0" + shortstr(STREAM) + b"\2" + table(fields))
    tape = conn.publisher(Plan(reliable=True, varied=True), "bench")
    conn.request(CONFIRM_SELECT, b"\0")
    sent = confirmed = 0
    while confirmed < messages:
        while sent < messages and sent - confirmed < 20_000:
            first = sent % tape.count
            count = min(2000, tape.count - first, messages - sent)
            conn.sock.sendall(tape.data[tape.starts[first] : tape.starts[first + count]])
            sent += count
        confirmed = conn.acknowledged(conn.sock.recv(1 << 16))
    conn.sock.close()


def consume(options: argparse.Namespace, messages: int, prefetch: int) -> None:
    """Read the whole stream."""
    conn = Amqp.open(options)
    conn.request(QOS, struct.pack(">IHB", 0, prefetch, 0))
    offset = table(text_field("x-stream-offset", "first"))  # means nothing to a queue
    conn.request(CONSUME, b"\0\0" + shortstr(STREAM) + shortstr("c") + b"\0" + offset)
    count, rest = 0, b""
    while count < messages:
        time.sleep(0.002)  # fewer, bigger reads: the consumer is not what is measured
        data = rest + conn.sock.recv(1 << 20)
        brought = data.count(_DELIVERY)
        count += brought
        # What is counted must not be counted again: an end that could begin a delivery has none yet.
        rest = data[-5:] if not data.endswith(_DELIVERY) else b""
        if brought:
            conn.sock.sendall(ACK_FRAME.pack(1, 1, 13, ACK, count, 1, 0xCE))
    conn.sock.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--prefetch", type=int, default=2000)
    parser.add_argument("--kind", choices=("stream", "classic", "view"), default="stream")
    asked = parser.parse_args()
    if asked.kind != "stream":
        asked.consumers = [1]
    with tempfile.TemporaryDirectory() as directory, broker_process(Path(directory, "data")) as broker:
        options = options_of(broker)
        before, began = cpu_s(broker), time.monotonic()
        if asked.kind == "view":
            with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
                client.create_topic(TOPIC, partitions=4)
        publish(options, asked.messages, asked.kind)
        report("publish", asked.messages, cpu_s(broker) - before, time.monotonic() - began)
        for consumers in asked.consumers:
            before, began = cpu_s(broker), time.monotonic()
            tasks = [
                FORK.Process(target=consume, args=(options, asked.messages, asked.prefetch)) for _ in range(consumers)
            ]
            for task in tasks:
                task.start()
            for task in tasks:
                task.join()
            deliveries = asked.messages * consumers
            report(f"{consumers} consumers", deliveries, cpu_s(broker) - before, time.monotonic() - began)


def report(what: str, count: int, used_s: float, took_s: float) -> None:
    """One line."""
    print(
        f"{what:<14} {count:>9} messages  {used_s / count * 1e6:6.2f} us of broker CPU each  {count / took_s:>9,.0f}/s"
    )


if __name__ == "__main__":
    main()
