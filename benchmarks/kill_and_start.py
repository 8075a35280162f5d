"""What benchmarks of a start after kill -9 share: publishing with confirms, a broker that is killed, figures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.process_usage import ProcessUsage
from benchmarks.wire_proto import CONFIRM_SELECT, Amqp, frame
from tests.support.broker_process import DOORS, BrokerProcess

BATCH = 500
WINDOW = 20_000


def connect(port: int) -> Amqp:
    """A client of the load generator."""
    return Amqp.open(
        argparse.Namespace(host="127.0.0.1", port=port, user="guest", password="guest", vhost="/", tls=False)
    )


def content(publish: bytes, header: bytes, body: bytes) -> tuple[bytes, bytes, bytes]:
    """The frames of a message."""
    return publish, frame(2, 1, header), frame(3, 1, body)


def publish(
    port: int, count: int, messages: Callable[[range], list[bytes]], *, batch: int = BATCH, window: int = WINDOW
) -> float:
    """Publish the frames that `messages` makes of numbers; how many a second until the last was confirmed."""
    conn = connect(port)
    conn.early = set()
    conn.request(CONFIRM_SELECT, b"\0")
    began, sent = time.monotonic(), 0
    while sent < count:
        numbers = range(sent, min(sent + batch, count))
        conn.sock.sendall(b"".join(messages(numbers)))
        sent = numbers.stop
        confirmed = 0
        while sent - confirmed >= window or (sent == count and confirmed < count):
            confirmed = conn.acknowledged(conn.sock.recv(1 << 16))
    conn.sock.close()
    return count / (time.monotonic() - began)


@contextmanager
def killed_afterwards(directory: Path, module: str = "gateway") -> Iterator[BrokerProcess]:
    """A broker on a data directory, which is killed at the end."""
    broker = BrokerProcess(directory, DOORS, [], module)
    broker.start(timeout_s=300)
    try:
        yield broker
    finally:
        broker.kill9()


def used(broker: BrokerProcess) -> ProcessUsage:
    """What the broker's process uses."""
    usage = ProcessUsage(broker.pid)
    usage.find()
    return usage


def share(values: Sequence[float], part: float) -> float:
    """The value below which `part` of them lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def phases(parser: argparse.ArgumentParser) -> None:
    """Let the two halves be run apart from each other."""
    parser.add_argument("--fill", type=Path, metavar="DIRECTORY", help="only fill it")
    parser.add_argument("--filled", type=Path, metavar="DIRECTORY", help="only start on what is there")
