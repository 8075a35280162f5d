"""Clients that mean harm, all at once, and one that does not: it must be served, and the broker stay within bounds.

    python -m tests.faults.hostile_clients --seconds 120

1. Half-open connections, thousands of channels, huge and deep tables, contents that never end, peers that do not read,
   floods of deliveries that nobody acknowledges, and random bytes after a good beginning.
2. Meanwhile an honest client publishes with confirms and consumes. Its slowest round trip is reported and has a limit.
3. Afterwards the broker runs, its memory is within a limit, and what the honest client was told is there.
"""

from __future__ import annotations

import argparse
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pika

from protocols.amqp import methods as m
from protocols.amqp import wire
from protocols.amqp.connection import PROTOCOL_HEADER
from protocols.amqp.deliveries import content, method_frame
from protocols.amqp.methods import Method
from tests.support import HOST, broker_process
from tests.support.attacks import attack_beside, figures, resident_bytes

MEMORY_BYTES_MAX = 1 << 30
ROUND_TRIP_S_MAX = 10.0
TRANSIENT = b"\x10\0\1"


class Hostile:
    """A raw connection that is logged in."""

    def __init__(self, port: int, *, channels: int = 1, read_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if read_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
        self.socket.settimeout(5)
        self.socket.connect((HOST, port))
        start_ok = m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")
        self.send(PROTOCOL_HEADER)
        self.call(0, start_ok, m.ConnectionTuneOk(2047, 131072, 0), m.ConnectionOpen("/"))
        for channel in range(1, channels + 1):
            self.call(channel, m.ChannelOpen())

    def send(self, data: bytes) -> None:
        """Send, as far as the broker takes it."""
        self.socket.sendall(data)

    def call(self, channel: int, *calls: Method) -> None:
        """Send methods without waiting for answers."""
        self.send(b"".join(method_frame(channel, method.encode()) for method in calls))

    def publish(self, queue: str, bodies: list[bytes], *, mandatory: bool = False) -> None:
        """Transient messages."""
        method = m.BasicPublish(0, "", queue, mandatory).encode()
        self.send(b"".join(content(1, method, TRANSIENT, body, 131072) for body in bodies))

    def linger(self, seconds: float) -> None:
        """Say nothing, then vanish without a word."""
        time.sleep(seconds)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


def half_open(port: int, chance: random.Random) -> None:
    """Beginnings of connections that are never finished."""
    beginning = PROTOCOL_HEADER + method_frame(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest").encode())
    sockets = []
    for _ in range(150):
        sock = socket.create_connection((HOST, port), 5)
        sock.sendall(beginning[: chance.randrange(len(beginning))])
        sockets.append(sock)
    time.sleep(1)
    for sock in sockets:
        sock.close()


def many_channels(port: int, chance: random.Random) -> None:
    """As many channels as there may be, and more."""
    hostile = Hostile(port, channels=2047)
    hostile.call(2048, m.ChannelOpen())
    hostile.linger(1)


def huge_tables(port: int, chance: random.Random) -> None:
    """Tables as large as a frame, deep ones, and ones that say they are larger than everything."""
    large = {f"{number}": "x" * 200 for number in range(600)}
    deep = b""
    for _ in range(5000):
        deep = b"\1aF" + len(deep).to_bytes(4, "big") + deep
    declare = m.QueueDeclare(queue="hostile", exclusive=True).encode()[:-4]
    for table in (wire.table(large), len(deep).to_bytes(4, "big") + deep, b"\xff\xff\xff\xff" + b"\1aS" * 1000):
        hostile = Hostile(port)
        for _ in range(20):
            hostile.send(method_frame(1, declare + table))
        hostile.linger(0.2)


def endless_contents(port: int, chance: random.Random) -> None:
    """Large messages are begun on many channels and never finished."""
    hostile = Hostile(port, channels=50)
    piece = bytes(100_000)
    for channel in range(1, 51):
        hostile.call(channel, m.BasicPublish(routing_key="hostile"))
        header = b"\0\x3c\0\0" + (15 << 20).to_bytes(8, "big") + b"\0\0"
        hostile.send(b"\2" + channel.to_bytes(2, "big") + len(header).to_bytes(4, "big") + header + b"\xce")
    for _ in range(4):
        for channel in range(1, 51):
            hostile.send(b"\3" + channel.to_bytes(2, "big") + len(piece).to_bytes(4, "big") + piece + b"\xce")
    hostile.linger(1)


def slow_reader(port: int, chance: random.Random) -> None:
    """Asks for everything and reads nothing."""
    hostile = Hostile(port, read_bytes=4096)
    hostile.call(1, m.QueueDeclare(queue="", exclusive=True), m.BasicConsume(no_ack=True))
    publisher = Hostile(port)
    publisher.call(1, m.QueueDeclare(queue="slow", auto_delete=True))
    hostile.call(1, m.BasicConsume(queue="slow", no_ack=True))
    for _ in range(20):
        publisher.publish("slow", [bytes(10_000)] * 50)
        hostile.publish("nowhere", [bytes(1000)] * 50, mandatory=True)
    time.sleep(1)
    publisher.call(1, m.QueueDelete(queue="slow"))
    publisher.linger(0)
    hostile.linger(0)


def unacknowledged(port: int, chance: random.Random) -> None:
    """Takes a hundred thousand messages and vanishes with them, again and again."""
    hostile = Hostile(port)
    hostile.call(1, m.QueueDeclare(queue="flood"))
    for _ in range(20):
        hostile.publish("flood", [b"x" * 20] * 1000)
    for _ in range(3):
        consumer = Hostile(port, channels=20)
        for channel in range(1, 21):
            consumer.call(channel, m.BasicConsume(queue="flood"))
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            consumer.socket.recv(1 << 16)
        consumer.linger(0)
    hostile.call(1, m.QueueDelete(queue="flood"))
    hostile.linger(0.2)


def noise(port: int, chance: random.Random) -> None:
    """Random bytes, and good frames with a bit turned."""
    good = method_frame(1, m.QueueDeclare(queue="hostile", exclusive=True).encode())
    good += content(1, m.BasicPublish(routing_key="hostile").encode(), TRANSIENT, b"body", 131072)
    for _ in range(30):
        hostile = Hostile(port)
        bent = bytearray(good)
        bent[chance.randrange(len(bent))] ^= 1 << chance.randrange(8)
        hostile.send(bytes(bent) if chance.random() < 0.7 else chance.randbytes(500))
        hostile.linger(0)


ATTACKS: tuple[Callable[[int, random.Random], None], ...] = (
    half_open, many_channels, huge_tables, endless_contents, slow_reader, unacknowledged, noise,
)  # fmt: skip


def honest(port: int, stop: threading.Event, took: list[float]) -> None:
    """Persistent messages with confirms, each taken and acknowledged."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, heartbeat=0))
    channel = connection.channel()
    channel.queue_declare("honest", durable=True)
    channel.confirm_delivery()
    while not stop.is_set():
        began = time.monotonic()
        body = b"%d" % len(took)
        channel.basic_publish("", "honest", body, pika.BasicProperties(delivery_mode=2))
        method, _, found = channel.basic_get("honest")
        assert found == body
        channel.basic_ack(method.delivery_tag)
        took.append(time.monotonic() - began)
        time.sleep(0.01)
    channel.basic_publish("", "honest", b"last", pika.BasicProperties(delivery_mode=2))
    connection.close()


def run(seconds: float, seed: int) -> str:
    """All attacks for `seconds`; the figures. Raises AssertionError."""
    with tempfile.TemporaryDirectory() as directory, broker_process(Path(directory, "data")) as broker:
        port, stop, took = broker.amqp_port, threading.Event(), list[float]()
        good = threading.Thread(target=honest, args=(port, stop, took))
        done = attack_beside(good, stop, port, ATTACKS, seed, seconds)
        assert broker.running, broker.log()[-4000:]
        assert "Traceback" not in broker.log(), broker.log()[-4000:]
        assert took, "the honest client was never served"
        assert max(took) < ROUND_TRIP_S_MAX, f"a round trip took {max(took):.1f} s"
        memory = resident_bytes(broker)
        assert memory < MEMORY_BYTES_MAX, f"{memory >> 20} MiB of memory"
        connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
        assert connection.channel().basic_get("honest", auto_ack=True)[2] == b"last"
        connection.close()
        return figures(done, took, memory)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    print(run(options.seconds, options.seed))


if __name__ == "__main__":
    main()
