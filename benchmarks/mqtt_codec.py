"""Micro benchmark of the MQTT door: bytes in, bytes out, with an engine that only hands slabs on.

python -m benchmarks.mqtt_codec [payload bytes]

The engine here has one list of sinks: a publish goes to each of them at once, and a confirm follows. So what is
measured is the codec and the adapter alone: parsing, slabs, packet ids, encoding, acknowledgements.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from protocols.mqtt.adapter import MqttAdapter
from routing.grants import EVERYTHING, Grants
from routing.message import Slab
from routing.session import Outcome

REPEATS = 15
READ_BYTES = 256 << 10
TOPIC = b"bench/topic-1"


class Outbox:
    """Takes everything."""

    def __init__(self) -> None:
        self.pending_bytes = 0
        self.writable = True
        self.on_writable: Callable[[], None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `protocols.sansio.Outbox`."""


class Session:
    """Hands publishes to all consuming sessions."""

    consuming: list[tuple[Session, Any]] = []

    def __init__(self, sink: MqttAdapter) -> None:
        self.sink, self.next_id, self.published = sink, 1, 0

    async def consume(self, queue: str, *, tag: str, no_ack: bool) -> Any:
        consumer = SimpleNamespace(no_ack=no_ack)
        self.consuming.append((self, consumer))
        return consumer

    def publish(self, slab: Slab, *, confirm: bool = False) -> None:
        count = len(slab.bodies)
        for session, consumer in self.consuming:
            first, session.next_id = session.next_id, session.next_id + count
            session.sink.deliver(consumer, first, slab, 0, count, False)
        if confirm:
            self.published += count
            self.sink.confirm(self.published)

    def settle(self, first: int, last: int, outcome: Outcome) -> None: ...

    def set_prefetch(self, count: int, *, per_session: bool) -> None: ...

    def resume(self) -> None: ...


class Engine:
    """The part of a broker that a door needs."""

    def connect(self, owner: object, client: object, *, client_id: str) -> Grants:
        grants = Grants("guest", "/", lambda vhost, exchange: "topic", {})
        grants.set_rules(EVERYTHING, {})
        return grants

    def session(self, sink: MqttAdapter, *, protocol: str, owner: object, vhost: str) -> Session:
        return Session(sink)

    async def declare_queue(self, name: str, **options: Any) -> Any:
        return SimpleNamespace(name=name)

    async def bind(self, *arguments: Any, **options: Any) -> None: ...


def run(step: Any) -> None:
    """Drive a coroutine that does not suspend."""
    try:
        step.send(None)
    except StopIteration:
        return
    raise AssertionError("suspended")


def packet(first: int, body: bytes) -> bytes:
    """A packet with one or two bytes of remaining length."""
    size = len(body)
    return bytes((first, size) if size < 128 else (first, size & 127 | 128, size >> 7)) + body


PROPERTIES = b"\x26\0\6sensor\0\x08device-7" + b"\3\0\x10application/json"
"""A user property and a content type."""


def client(engine: Any, client_id: bytes, qos: int | None = None, level: int = 4) -> tuple[MqttAdapter, Outbox]:
    """A connected client, subscribed to the topic when there is a QoS."""
    none = b"\0" if level == 5 else b""
    outbox = Outbox()
    adapter = MqttAdapter(engine, outbox, peer="127.0.0.1:1", clock=time.monotonic)
    named = len(client_id).to_bytes(2, "big") + client_id
    run(adapter.handle(packet(0x10, b"\0\4MQTT%c\2\0\0" % level + none + named)))
    if qos is not None:
        run(adapter.handle(packet(0x82, b"\0\1" + none + len(TOPIC).to_bytes(2, "big") + TOPIC + bytes((qos,)))))
    return adapter, outbox


def best_s(work: Callable[[], None]) -> float:
    """The best of a few rounds."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def measure(
    name: str, qos: int, subscribers: int, bodies: list[bytes], topics: int = 1, level: int = 4, own: bool = False
) -> None:
    """One publisher's read of all `bodies`, delivered to each subscriber, and acknowledged.

    With level 5 each message has `PROPERTIES` and a topic alias; with `own`, properties that no other message has.
    """
    Session.consuming = []
    engine = Engine()
    publisher, _ = client(engine, b"publisher", level=level)
    receivers = [client(engine, b"subscriber-%d" % i, qos, level) for i in range(subscribers)]
    data = []
    for index, body in enumerate(bodies):
        topic = TOPIC if topics == 1 else b"bench/device-%d/temperature" % (index % topics)
        packet_id = (index % 65_535 + 1).to_bytes(2, "big") if qos else b""
        block = b""
        if level == 5:
            block = PROPERTIES + b"\x23" + (index % topics % 256 + 1).to_bytes(2, "big")
            if own:
                block += b"\x09\0\x08%08d" % index
            block = bytes((len(block),)) + block
            if index >= topics and topics <= 256:
                topic = b""
        data.append(packet(0x30 | qos << 1, len(topic).to_bytes(2, "big") + topic + packet_id + block + body))
    read = b"".join(data)

    def work() -> None:
        run(publisher.handle(read))
        if qos:
            for adapter, _ in receivers:
                ranges = [(first, last) for first, last in _outstanding(adapter)]
                run(adapter.handle(b"".join(acks[4 * first : 4 * last + 4] for first, last in ranges)))

    seconds = best_s(work)
    deliveries = len(bodies) * max(subscribers, 1)
    print(f"{name:42} {seconds / deliveries * 1e9:9.1f} ns each {deliveries / seconds / 1e6:9.2f} M/s")


acks = b"".join(b"\x40\x02" + i.to_bytes(2, "big") for i in range(65_536))


def _outstanding(adapter: MqttAdapter) -> list[tuple[int, int]]:
    """What a client that reads its packets would acknowledge."""
    return [(first, last) for first, (last, _) in adapter.inflight.packet_ids._runs.items()]


def main() -> None:
    """Print a table."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    count = min(READ_BYTES // (size + len(TOPIC) + 8), 20_000)
    equal = [b"x" * size] * count
    varying = [b"x" * (size - 10 + i % 20) for i in range(count)]
    measure("QoS 0, no subscriber (parsing)", 0, 0, equal)
    measure("QoS 0, 1 to 1", 0, 1, equal)
    measure("QoS 0, 1 to 1, payloads of varying length", 0, 1, varying)
    measure("QoS 0, 1 to 1, another topic each time", 0, 1, equal, topics=1000)
    measure("QoS 0, 1 to 50", 0, 50, equal)
    measure("QoS 1, 1 to 1", 1, 1, equal)
    measure("QoS 1, 1 to 1, payloads of varying length", 1, 1, varying)
    measure("QoS 1, 1 to 50", 1, 50, equal)
    for level in (4, 5):
        name = "properties and alias" if level == 5 else "3.1.1"
        measure(f"{name}, QoS 0, 1 to 1", 0, 1, equal, level=level)
        measure(f"{name}, QoS 0, 1 to 1, varying length", 0, 1, varying, level=level)
        measure(f"{name}, QoS 0, 1 to 1, 200 topics", 0, 1, varying, 200, level=level)
        measure(f"{name}, QoS 0, 1 to 50", 0, 50, varying, level=level)
        measure(f"{name}, QoS 1, 1 to 1", 1, 1, equal, level=level)
        measure(f"{name}, QoS 1, 1 to 1, varying length", 1, 1, varying, level=level)
        measure(f"{name}, QoS 1, 1 to 1, 200 topics", 1, 1, varying, 200, level=level)
        measure(f"{name}, QoS 1, 1 to 50", 1, 50, varying, level=level)
    measure("properties of its own each, QoS 0, 1 to 1", 0, 1, equal, level=5, own=True)
    measure("properties of its own each, QoS 1, 1 to 1", 1, 1, equal, level=5, own=True)


if __name__ == "__main__":
    main()
