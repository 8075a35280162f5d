"""How long a broker takes to start after kill -9 when 1,000,000 differing messages wait in 100 durable queues.

    python -m benchmarks.restart                          fills, kills, and starts five times on copies
    python -m benchmarks.restart --rules                  the same with a random priority and expiration on each message
    python -m benchmarks.restart --fill DIRECTORY         only fills and kills; the data directory stays there
    python -m benchmarks.restart --filled DIRECTORY       only starts, on copies of it

Ids, sizes (50 to 500 bytes) and routing keys differ, and each message goes to another queue than the one before it.
Every start has a fresh copy of what the kill left, in the page cache, and all messages have to be there again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import struct
import tempfile
from pathlib import Path

from benchmarks.kill_and_start import connect, content, killed_afterwards, phases, publish, share, used
from benchmarks.wire_proto import PUBLISH, QUEUE_BIND, QUEUE_DECLARE, method, shortstr

_EXCHANGE = shortstr("amq.direct")
_KEYS = 10
"""Of each queue."""
_PRIORITIES = 10
_LIVES_MS = (3_600_000, 36_000_000)
"""No message expires while this runs."""


def prepare(port: int, queues: int, *, rules: bool) -> None:
    """Declare and bind the queues."""
    conn = connect(port)
    arguments = shortstr("x-max-priority") + b"I" + struct.pack(">i", _PRIORITIES) if rules else b""
    for queue in range(queues):
        name = shortstr(f"work-{queue}")
        table = struct.pack(">I", len(arguments)) + arguments
        conn.request(QUEUE_DECLARE, b"\0\0" + name + b"\x02" + table)
        for key in range(_KEYS):
            conn.request(QUEUE_BIND, b"\0\0" + name + _EXCHANGE + shortstr(f"work.{queue}.{key}") + b"\0" + bytes(4))
    conn.sock.close()


def fill(port: int, count: int, queues: int, *, rules: bool) -> float:
    """Publish persistent messages; how many a second until the last was confirmed."""
    publishes = [
        method(1, PUBLISH, b"\0\0" + _EXCHANGE + shortstr(f"work.{queue}.{key}") + b"\0")
        for queue in range(queues)
        for key in range(_KEYS)
    ]
    rolled, kind = random.Random(1), shortstr("application/json") + b"\2"

    def messages(numbers: range) -> list[bytes]:
        pieces: list[bytes] = []
        for number in numbers:
            body, flags, values = bytes(rolled.randrange(50, 500)), 0x9080, kind
            if rules:
                flags = 0x9980
                values += bytes([rolled.randrange(_PRIORITIES)]) + shortstr(str(rolled.randrange(*_LIVES_MS)))
            values += shortstr(f"message-{number:08}")
            header = struct.pack(">HHQH", 60, 0, len(body), flags) + values
            pieces += content(rolled.choice(publishes), header, body)
        return pieces

    return publish(port, count, messages)


def waiting(port: int, queues: int) -> int:
    """How many messages wait in all of the queues."""
    conn = connect(port)
    found = 0
    for queue in range(queues):
        name = shortstr(f"work-{queue}")
        answer = conn.request(QUEUE_DECLARE, b"\0\0" + name + b"\x01" + bytes(4))
        found += int.from_bytes(answer[1 + answer[0] :][:4], "big")
    conn.sock.close()
    return found


def filled(directory: Path, args: argparse.Namespace) -> None:
    """Fill a data directory and kill the broker."""
    with killed_afterwards(directory) as broker:
        prepare(broker.amqp_port, args.queues, rules=args.rules)
        rate = fill(broker.amqp_port, args.count, args.queues, rules=args.rules)
    print(f"filled at {rate:,.0f}/s", flush=True)


def starts(directory: Path, args: argparse.Namespace) -> None:
    """Start on copies, and print how long each took."""
    times = []
    for number in range(args.starts):
        with tempfile.TemporaryDirectory() as parent:
            copy = Path(parent, "data")
            shutil.copytree(directory, copy)
            with killed_afterwards(copy) as broker:
                usage = used(broker)
                cpu_s, rss_mib = usage.cpu_s(), usage.rss_mib()
                found = waiting(broker.amqp_port, args.queues) if not number else args.count
                if found != args.count:
                    raise SystemExit(f"{found:,} messages of {args.count:,} are there")
        times.append(broker.start_s)
        print(f"ready after {broker.start_s:.2f} s, {cpu_s:.2f} s of CPU, {rss_mib:.0f} MiB", flush=True)
    print(f"median {share(times, 0.5):.2f} s, {min(times):.2f} to {max(times):.2f}")


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--rules", action="store_true", help="a priority and an expiration on each message")
    parser.add_argument("--starts", type=int, default=5)
    phases(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = args.filled or args.fill or Path(directory, "data")
        if args.filled is None:
            filled(data, args)
        if args.fill is None:
            starts(data, args)


if __name__ == "__main__":
    main()
