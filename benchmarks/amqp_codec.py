#!/usr/bin/env python3
"""What AMQP costs per 100-byte message without sockets and engine: parse publishes, merge acks, encode deliveries.

    python -m benchmarks.amqp_codec [--messages 1000] [--rounds 7]

Each figure is the best of some rounds, in nanoseconds a message.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from protocols.amqp import methods
from protocols.amqp.adapter_properties import facts_of, intern
from protocols.amqp.config import AmqpConfig
from protocols.amqp.connection import PROTOCOL_HEADER, AmqpConnection, MethodReceived
from protocols.amqp.deliveries import DeliveryPrefix, content, encode_run, method_frame
from protocols.amqp.mixed_deliveries import DeliveryHeads, MixedRun, RouteEnds
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties

BODY_BYTES = 100
PLAIN = encode_properties(BasicProperties(content_type="application/json", delivery_mode=2, headers={"x": 1}))


def open_connection(
    intern: Callable[[bytes], Any], facts_of: Callable[[bytes], int | None] = lambda raw: None
) -> AmqpConnection:
    """A connection past its handshake with channel 1 open."""
    connection = AmqpConnection(
        AmqpConfig(), lambda data: None, intern, server_properties={}, mechanisms=b"PLAIN", facts_of=facts_of
    )
    handshake = [
        methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"),
        methods.ConnectionTuneOk(2047, 131072, 60),
        methods.ConnectionOpen("/"),
    ]
    data = PROTOCOL_HEADER + b"".join(method_frame(0, method.encode()) for method in handshake)
    events = connection.receive_data(data + method_frame(1, methods.ChannelOpen().encode()))
    assert isinstance(events[-1], MethodReceived)
    return connection


def publish(exchange: str, key: str, raw: bytes, body: bytes) -> bytes:
    """One publish on channel 1."""
    return content(1, methods.BasicPublish(0, exchange, key).encode(), raw, body, 131072)


def best_ns(rounds: int, count: int, work: Callable[[], object]) -> float:
    """The best time of `rounds`, in ns for each of `count`."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - began)
    return best / count


def cases(count: int) -> dict[str, Callable[[], object]]:
    """What is measured, by name; each call handles `count` messages."""
    rng = random.Random(1)
    bodies = [rng.randbytes(BODY_BYTES) for _ in range(count)]
    mixed = [rng.randbytes(rng.randrange(1, 2 * BODY_BYTES)) for _ in range(count)]
    interned = open_connection(lambda raw: raw)
    checked = open_connection(decode_properties)
    real = open_connection(lambda raw: intern(raw, "guest"), lambda raw: facts_of(raw, "guest"))
    uniform_wire = b"".join(publish("", "queue", PLAIN, body) for body in bodies)
    mixed_wire = b"".join(publish("", "queue", PLAIN, body) for body in mixed)
    two_routes = b"".join(publish("x", "ab"[i % 2], PLAIN, body) for i, body in enumerate(bodies))
    serial = itertools.count()

    def unique_wire() -> bytes:
        return b"".join(
            publish(
                "", "queue", encode_properties(BasicProperties(message_id=str(next(serial)), delivery_mode=2)), body
            )
            for body in bodies
        )

    unique = [unique_wire() for _ in range(8)]
    keys = [f"key.{i % 85}" for i in range(count)]
    raws = [
        encode_properties(BasicProperties(content_type="text/plain", delivery_mode=2, message_id=f"message-{i:08}"))
        for i in range(count)
    ]
    all_differ = b"".join(publish("x", *message) for message in zip(keys, raws, mixed))
    ends, heads = RouteEnds("x", False), DeliveryHeads(1, "ctag1.0")
    shared = MixedRun(1, list(map(ends.__getitem__, keys)), raws, mixed)
    acks = b"".join(method_frame(1, methods.BasicAck(tag).encode()) for tag in range(1, count + 1))
    prefix = DeliveryPrefix(1, "ctag1.0", "", "queue", PLAIN, False)
    return {
        "receive, one route, one size": lambda: interned.receive_data(uniform_wire),
        "receive, one route, mixed sizes": lambda: interned.receive_data(mixed_wire),
        "receive, two routes in turn": lambda: interned.receive_data(two_routes),
        "receive, properties never seen before": lambda: checked.receive_data(unique.pop()),
        "receive, keys, ids and sizes differ": lambda: real.receive_data(all_differ),
        "acks in order": lambda: interned.receive_data(acks),
        "deliver, one size": lambda: encode_run(prefix, 1, bodies, list(map(len, bodies))),
        "deliver, mixed sizes": lambda: encode_run(prefix, 1, mixed, list(map(len, mixed))),
        "deliver, keys, ids and sizes differ": lambda: MixedRun(
            1, list(map(ends.__getitem__, keys)), raws, mixed
        ).encode(heads, 1),
        "deliver the same to another consumer": lambda: shared.encode_again(heads, 1),
        "deliver, one by one": lambda: [encode_run(prefix, 1, [body], [BODY_BYTES]) for body in bodies],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for name, work in cases(options.messages).items():
        print(f"{name:40} {best_ns(options.rounds, options.messages, work):8.1f} ns")


if __name__ == "__main__":
    main()
