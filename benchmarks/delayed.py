"""Millions of delayed messages: how fast they go in, what they take in memory, and how punctual they are after kill -9.

    python -m benchmarks.delayed                                  5,000,000 messages, 10,000 of them due a second
    python -m benchmarks.delayed --count 200000 --due-rate 10000
    python -m benchmarks.delayed --fill DIRECTORY                 only inserts and kills; --filled DIRECTORY: the rest

Persistent messages with random delays are published, with confirms, to an exchange of the type `x-delayed-message`.
When all are confirmed the broker is killed and started again, with its clock put so that the first are due in a moment
(`benchmarks/put_back.py`). A delay counts from when the broker gets the message, so
the last few thousand, the probes, are published one by one, and hold the time at which they are due; the consumer says
how late they came among all the others.
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import tempfile
import time
from pathlib import Path

from benchmarks.kill_and_start import connect, content, killed_afterwards, phases, publish, share, used
from benchmarks.wire_proto import (
    CONSUME,
    EXCHANGE_DECLARE,
    PUBLISH,
    QOS,
    QUEUE_BIND,
    QUEUE_DECLARE,
    method,
    shortstr,
)

_DUE = struct.Struct(">d")
_MARK = b"due-at: "
_OTHER = b"whatever"


def table(**fields: bytes) -> bytes:
    """A field table of encoded values."""
    items = b"".join(shortstr(name.replace("_", "-")) + value for name, value in fields.items())
    return struct.pack(">I", len(items)) + items


def prepare(port: int) -> None:
    """Declare exchange and queue."""
    conn = connect(port)
    kind = b"S" + struct.pack(">I", 6) + b"direct"
    flags = shortstr("later") + shortstr("x-delayed-message") + b"\x02"
    conn.request(EXCHANGE_DECLARE, b"\0\0" + flags + table(x_delayed_type=kind))
    conn.request(QUEUE_DECLARE, b"\0\0" + shortstr("due") + b"\x02" + bytes(4))
    conn.request(QUEUE_BIND, b"\0\0" + shortstr("due") + shortstr("later") + shortstr("k") + b"\0" + bytes(4))
    conn.sock.close()


def insert(port: int, count: int, first_due: float, spread: float, *, probes: bool) -> float:
    """Publish messages that are due within `spread` s; how many a second until the last was confirmed."""
    publishes = method(1, PUBLISH, b"\0\0" + shortstr("later") + shortstr("k") + b"\0")
    padding, mark = bytes(100 - len(_MARK) - _DUE.size), _MARK if probes else _OTHER
    rolled = random.Random(probes)

    def messages(numbers: range) -> list[bytes]:
        pieces: list[bytes] = []
        now = time.time()
        for _ in numbers:
            due = first_due + rolled.random() * spread
            delay = b"l" + struct.pack(">q", max(1, round((due - now) * 1000)))
            header = struct.pack(">HHQH", 60, 0, 100, 0x3000) + table(x_delay=delay) + b"\2"
            pieces += content(publishes, header, mark + _DUE.pack(due) + padding)
        return pieces

    return publish(port, count, messages, **({"batch": 1, "window": 1} if probes else {}))


def lateness(port: int, seconds: float, back: float) -> tuple[list[float], int]:
    """Consume for a while; how late each probe came, in ms, and how many messages in all. The broker's clock is put
    `back` so many seconds.
    """
    conn = connect(port)
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
        now = time.time() - back
        rest += data
        count += data.count(_OTHER)
        at = 0
        while (found := rest.find(_MARK, at)) >= 0 and found + len(_MARK) + _DUE.size <= len(rest):
            at = found + len(_MARK)
            late.append((now - _DUE.unpack_from(rest, at)[0]) * 1000)
        rest = rest[at:] if at else rest
    conn.sock.close()
    return late, count + len(late)


def fill(directory: Path, args: argparse.Namespace) -> None:
    """Insert all, and kill the broker. When the first are due is noted beside the data."""
    with killed_afterwards(directory) as broker:
        prepare(broker.amqp_port)
        before = used(broker).rss_mib()
        first_due = time.time() + args.count / args.insert_rate + 15
        spread = args.count / args.due_rate
        rate = insert(broker.amqp_port, args.count, first_due, spread, probes=False)
        insert(broker.amqp_port, args.probes, first_due, spread, probes=True)
        grown = used(broker).rss_mib() - before
        print(f"inserted {rate:,.0f}/s, {grown:.0f} MiB more: {grown * 1048576 / args.count:.0f} bytes a message")
        if time.time() > first_due:
            print("the first were due before the last were inserted: see --insert-rate")
    directory.with_suffix(".due").write_text(str(first_due))


def fire(directory: Path, args: argparse.Namespace) -> None:
    """Start, and consume while messages become due: the first do so `--before` seconds after the start began."""
    first_due = float(directory.with_suffix(".due").read_text())
    back = time.time() + args.before - first_due
    os.environ["MS_BACK"] = str(round(back * 1000))
    began = time.time()
    with killed_afterwards(directory, "benchmarks.put_back") as broker:
        usage = used(broker)
        left = args.before - (time.time() - began)
        print(f"ready {broker.start_s:.1f} s after kill -9, {usage.rss_mib():.0f} MiB; first due in {left:.1f} s")
        late, count = lateness(broker.amqp_port, max(0, left) + args.seconds, back)
        if late:
            p50, p99, worst = share(late, 0.5), share(late, 0.99), max(late)
            print(f"{count:,} came, {usage.cpu_s() / count * 1e6:.0f} us of the broker's CPU each, its start included")
            ends = f"most {worst:.1f}, least {min(late):.1f}"
            print(f"{len(late):,} probes late, in ms: p50 {p50:.1f}, p99 {p99:.1f}, {ends}")


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5_000_000)
    parser.add_argument("--probes", type=int, default=10_000)
    parser.add_argument("--due-rate", type=int, default=10_000, help="messages that become due a second")
    parser.add_argument("--insert-rate", type=int, default=40_000, help="what to expect, to know when the first is due")
    parser.add_argument("--before", type=float, default=15, help="seconds from the start to when the first are due")
    parser.add_argument("--seconds", type=float, default=30, help="how long to consume")
    phases(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = args.filled or args.fill or Path(directory, "data")
        if args.filled is None:
            fill(data, args)
        if args.fill is None:
            fire(data, args)


if __name__ == "__main__":
    main()
