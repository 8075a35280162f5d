"""Many queues with one message in flight each: whoever is delivered one publishes the next to the same queue.

    python -m benchmarks.compare --scenario many-queues

One connection publishes, another has a consumer on each of the transient queues and acknowledges nothing. There are no
runs here: neighbours in what the broker reads go to different queues.
"""

from __future__ import annotations

import argparse
import select
import time

from benchmarks.process_usage import ProcessUsage
from benchmarks.wire_proto import CONSUME, PUBLISH, QUEUE_DECLARE, Amqp, BrokerError, frame, method, shortstr
from benchmarks.wire_roles import READ_SIZE, Child, Figures, Sync

QUEUES = 1000
BODY = bytes(100)
_PATIENCE_S = 5


def circulate(sync: Sync, options: argparse.Namespace) -> Figures:
    """Keep a message in each queue for `duration`; how many were delivered, and in which time."""
    publisher, consumer = Amqp.open_many(options, 2)
    publishes = []
    for index in range(QUEUES):
        queue = shortstr(f"bench-many-{index:04}")
        # exclusive: the queues go with the connection
        consumer.request(QUEUE_DECLARE, b"\0\0" + queue + b"\4" + bytes(4))
        consumer.request(CONSUME, b"\0\0" + queue + shortstr(f"{index:04}") + b"\2" + bytes(4))
        header = frame(2, 1, b"\0\x3c\0\0" + len(BODY).to_bytes(8, "big") + b"\0\0")
        publishes.append(method(1, PUBLISH, b"\0\0\0" + queue + b"\0") + header + frame(3, 1, BODY))
    sync((publisher, consumer))
    began, cpu = time.monotonic(), time.process_time()
    publisher.sock.sendall(b"".join(publishes))
    count, size, rest = 0, 0, b""
    while time.monotonic() < began + options.duration:
        if not select.select([consumer.sock], [], [], _PATIENCE_S)[0]:
            raise BrokerError(f"nothing was delivered after {count} messages")
        data = rest + consumer.sock.recv(READ_SIZE)
        size = size or consumer.measure(bytearray(data), 0, len(data)) or 0
        whole = len(data) // size if size else 0
        tag = Amqp.head + 1  # where the consumer tag stands
        found = [publishes[int(data[at : at + 4])] for at in range(tag, whole * size, size)]
        publisher.sock.sendall(b"".join(found))
        count, rest = count + whole, data[whole * size :]
    return {"count": count, "seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}


def run(options: argparse.Namespace) -> Figures:
    """One run: deliveries a second, and what they cost the broker."""
    broker = ProcessUsage(options.broker_pid)
    child = Child(circulate, options)
    try:
        finish = broker.watch()
        child.pipe.send("go")
        found = child.receive()
        usage = finish()
    finally:
        child.close()
    rate, per_million = found["count"] / found["seconds"], usage["cpu_s"] / found["count"] * 1e6
    return {**found, **usage, "rate": rate, "cpu_s_per_million": per_million}
