"""What a modest client notices of a saturating one: latencies of 200 messages a second beside a durable-varied load.

    python -m benchmarks.compare --scenario neighbour

The client is pika. It publishes to a queue of its own and consumes from it, on one connection; with confirms each
message is persistent and the next waits until it is confirmed. A latency runs from before the publish to the callback.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from benchmarks.wire_bench import run_once
from benchmarks.wire_proto import BrokerError
from benchmarks.wire_roles import FORK, Child, Figures, Sync

RATE = 200
LOAD = "durable-varied"
_SETTLED_S = 0.5
"""The beginning of the load does not count."""


def client(sync: Sync, options: argparse.Namespace, confirms: bool, stop: Any) -> Figures:
    """Publish and consume until `stop` is set; when each message was sent, and its latency, in seconds."""
    credentials = pika.PlainCredentials(options.user, options.password)
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(options.host, options.port, options.vhost, credentials)
    )
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True, durable=confirms).method.queue
    found: list[tuple[float, float]] = []

    def received(_channel: BlockingChannel, _method: object, _properties: object, body: bytes) -> None:
        sent = float(body)
        found.append((sent, time.monotonic() - sent))

    channel.basic_consume(queue, received, auto_ack=True)
    if confirms:
        channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2 if confirms else 1)
    sync(connection)
    due = time.monotonic()
    while not stop.is_set():
        channel.basic_publish("", queue, repr(time.monotonic()).encode(), properties)
        due += 1 / RATE
        while (left := due - time.monotonic()) > 0:
            connection.process_data_events(left)
    connection.close()
    return {"latencies": found}


def beside_load(options: argparse.Namespace, *, confirms: bool) -> Figures:
    """Run the client beside the load; its latencies in us, and the figures of the load."""
    stop = FORK.Event()
    neighbour = Child(client, options, confirms, stop)
    neighbour.pipe.send("go")
    try:
        load = run_once(options, LOAD)
        stop.set()
        found = neighbour.receive()["latencies"]
    finally:
        stop.set()
        neighbour.close()
    first, last = load["began"] + _SETTLED_S, load["began"] + options.duration
    values = sorted(latency for sent, latency in found if first <= sent <= last)
    if not values:
        raise BrokerError("the neighbour of the load got nothing")
    return {
        "count": len(values),
        "load_rate": load["rate"],
        **{f"lat_p{mark}_us": values[len(values) * mark // 100] * 1e6 for mark in (50, 90, 99)},
    }
