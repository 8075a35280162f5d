"""Millions of delayed messages: how fast they go in, what they take in memory, and how punctual they are after kill -9.

    python -m benchmarks.delayed                                  5,000,000 messages, 10,000 of them due a second
    python -m benchmarks.delayed --count 200000 --due-rate 10000

Persistent messages with random delays are published, with confirms, to an exchange of the type `x-delayed-message`.
When all are confirmed the broker is killed and started again. A delay counts from when the broker gets the message, so
the last few thousand, the probes, are published one by one, and hold the time at which they are due; the consumer says
how late they came among all the others.
"""

from __future__ import annotations

import argparse
import random
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.process_usage import ProcessUsage
from benchmarks.wire_proto import (
    CONFIRM_SELECT,
    CONSUME,
    EXCHANGE_DECLARE,
    PUBLISH,
    QOS,
    QUEUE_BIND,
    QUEUE_DECLARE,
    Amqp,
    frame,
    method,
    shortstr,
)
from tests.support.broker_process import DOORS, BrokerProcess

_BATCH = 500
_WINDOW = 20_000
_DUE = struct.Struct(">d")
_MARK = b"due-at: "
_OTHER = b"whatever"


def table(**fields: bytes) -> bytes:
    """A field table of encoded values."""
    items = b"".join(shortstr(name.replace("_", "-")) + value for name, value in fields.items())
    return struct.pack(">I", len(items)) + items


def options_of(port: int) -> argparse.Namespace:
    """What a client of the load generator is told."""
    return argparse.Namespace(host="127.0.0.1", port=port, user="guest", password="guest", vhost="/", tls=False)


def prepare(port: int) -> None:
    """Declare exchange and queue."""
    conn = Amqp.open(options_of(port))
    kind = b"S" + struct.pack(">I", 6) + b"direct"
    flags = shortstr("later") + shortstr("x-delayed-message") + b"\x02"
    conn.request(EXCHANGE_DECLARE, b"\0\0" + flags + table(x_delayed_type=kind))
    conn.request(QUEUE_DECLARE, b"\0\0" + shortstr("due") + b"\x02" + bytes(4))
    conn.request(QUEUE_BIND, b"\0\0" + shortstr("due") + shortstr("later") + shortstr("k") + b"\0" + bytes(4))
    conn.sock.close()


def insert(port: int, count: int, first_due: float, spread: float, *, probes: bool) -> float:
    """Publish messages that are due within `spread` s; how many a second until the last was confirmed."""
    conn = Amqp.open(options_of(port))
    conn.early = set()
    conn.request(CONFIRM_SELECT, b"\0")
    publish = method(1, PUBLISH, b"\0\0" + shortstr("later") + shortstr("k") + b"\0")
    padding = bytes(100 - len(_MARK) - _DUE.size)
    batch, window, mark = (1, 1, _MARK) if probes else (_BATCH, _WINDOW, _OTHER)
    rolled = random.Random(probes)
    began = time.time()
    sent = 0
    while sent < count:
        pieces: list[bytes] = []
        now = time.time()
        for _ in range(min(batch, count - sent)):
            due = first_due + rolled.random() * spread
            delay = b"l" + struct.pack(">q", max(1, round((due - now) * 1000)))
            header = struct.pack(">HHQH", 60, 0, 100, 0x3000) + table(x_delay=delay) + b"\2"
            pieces += (publish, frame(2, 1, header), frame(3, 1, mark + _DUE.pack(due) + padding))
        conn.sock.sendall(b"".join(pieces))
        sent += min(batch, count - sent)
        confirmed = 0
        while sent - confirmed >= window or (sent == count and confirmed < count):
            confirmed = conn.acknowledged(conn.sock.recv(1 << 16))
    conn.sock.close()
    return count / (time.time() - began)


def lateness(port: int, seconds: float) -> tuple[list[float], int]:
    """Consume for a while; how late each probe came, in ms, and how many messages in all."""
    conn = Amqp.open(options_of(port))
    conn.request(QOS, struct.pack(">IHB", 0, 0, 0))
    conn.request(CONSUME, b"\0\0" + shortstr("due") + shortstr("c") + b"\2" + bytes(4))
    late: list[float] = []
    rest, count = b"", 0
    conn.sock.settimeout(1)
    until = time.time() + seconds
    while time.time() < until:
        try:
            data = conn.sock.recv(1 << 18)
        except TimeoutError:
            continue
        now = time.time()
        rest += data
        count += data.count(_OTHER)
        at = 0
        while (found := rest.find(_MARK, at)) >= 0 and found + len(_MARK) + _DUE.size <= len(rest):
            at = found + len(_MARK)
            late.append((now - _DUE.unpack_from(rest, at)[0]) * 1000)
        rest = rest[at:] if at else rest
    conn.sock.close()
    return late, count + len(late)


def used(broker: BrokerProcess) -> ProcessUsage:
    """What the broker's process uses."""
    usage = ProcessUsage(broker.pid)
    usage.find()
    return usage


def share(values: Sequence[float], part: float) -> float:
    """The value below which `part` of them lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000_000)
    parser.add_argument("--probes", type=int, default=10_000)
    parser.add_argument("--due-rate", type=int, default=10_000, help="messages that become due a second")
    parser.add_argument("--insert-rate", type=int, default=40_000, help="what to expect, to know when the first is due")
    parser.add_argument("--seconds", type=float, default=30, help="how long to consume")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory), DOORS, [])
        broker.start()
        try:
            prepare(broker.amqp_port)
            before = used(broker).rss_mib()
            first_due = time.time() + args.count / args.insert_rate + 15
            spread = args.count / args.due_rate
            rate = insert(broker.amqp_port, args.count, first_due, spread, probes=False)
            insert(broker.amqp_port, args.probes, first_due, spread, probes=True)
            grown = used(broker).rss_mib() - before
            print(f"inserted {rate:,.0f}/s, {grown:.0f} MiB more: {grown * 1048576 / args.count:.0f} bytes a message")
            began = time.time()
            broker.kill9()
            broker.start(same_ports=True)
            rss = used(broker).rss_mib()
            ready, left = time.time() - began, first_due - time.time()
            print(f"ready {ready:.1f} s after kill -9, {rss:.0f} MiB; first due in {left:.1f} s")
            usage = used(broker)
            late, count = lateness(broker.amqp_port, max(0, first_due - time.time()) + args.seconds)
            if late:
                p50, p99, worst = share(late, 0.5), share(late, 0.99), max(late)
                cpu = usage.cpu_s() / count * 1e6
                print(f"{count:,} came, {cpu:.0f} us of the broker's CPU each")
                ends = f"most {worst:.1f}, least {min(late):.1f}"
                print(f"{len(late):,} probes late, in ms: p50 {p50:.1f}, p99 {p99:.1f}, {ends}")
        finally:
            broker.terminate()


if __name__ == "__main__":
    main()
