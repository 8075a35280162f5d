"""Micro benchmark of the MQTT door: bytes in, bytes out, on an engine in memory, without sockets.

python -m benchmarks.mqtt_codec [payload bytes] [bytes of a read]

One read of a publisher goes through parsing, routing and the queues of subscribers, and comes out as packets; those at
QoS 1 are acknowledged. Times are processor time of all of it, the best of some rounds, so that other processes disturb
little. 3.1.1 stands beside MQTT 5 with a user property, a content type and a topic alias on every message.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable

import trio

from core_log.memory_files import MemoryFiles
from protocols.mqtt.adapter import MqttAdapter
from routing.broker import Broker, open_broker

ROUNDS, MESSAGES = 15, 6000
READ_BYTES = 256 << 10
TOPIC = b"bench/topic-1"
PROPERTIES = b"\x26\0\6sensor\0\x08device-7" + b"\3\0\x10application/json"
"""A user property and a content type."""
_names = itertools.count(1)


class Outbox:
    """Takes everything."""

    def __init__(self) -> None:
        self.pending_bytes = self.written_bytes = 0
        self.writable = True
        self.on_writable: Callable[[], None] | None = None
        self.written: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `protocols.sansio.Outbox`."""
        self.written.append(data)


class Client:
    """A connected client, subscribed to everything when there is a QoS."""

    def __init__(self, broker: Broker, level: int) -> None:
        self.outbox = Outbox()
        self.level = level
        self.adapter = MqttAdapter(broker, self.outbox, peer="127.0.0.1:1", clock=time.monotonic)

    async def open(self, qos: int | None) -> None:
        """CONNECT, and SUBSCRIBE."""
        none = b"\0" if self.level == 5 else b""
        name = b"client-%d" % next(_names)
        named = none + len(name).to_bytes(2, "big") + name
        await self.adapter.handle(packet(0x10, b"\0\4MQTT%c\2\0\0" % self.level + named))
        if qos is not None:
            await self.adapter.handle(packet(0x82, b"\0\1" + none + b"\0\7bench/#" + bytes((qos,))))
        self.outbox.written.clear()


def packet(first: int, body: bytes) -> bytes:
    """A packet with one or two bytes of remaining length."""
    size = len(body)
    return bytes((first, size) if size < 128 else (first, size & 127 | 128, size >> 7)) + body


def read_of(qos: int, bodies: list[bytes], topics: int, level: int, own: bool) -> bytes:
    """What a publisher sends; with `own`, properties that no other message has, ever."""
    data = []
    for index, body in enumerate(bodies):
        topic = TOPIC if topics == 1 else b"bench/device-%d/temperature" % (index % topics)
        packet_id = (index % 65_535 + 1).to_bytes(2, "big") if qos else b""
        block = b""
        if level == 5:
            block = PROPERTIES + b"\x23" + (index % topics + 1).to_bytes(2, "big")
            if own:
                block += b"\x09\0\x08%08d" % next(_names)
            block = bytes((len(block),)) + block
            if index >= topics:
                topic = b""
        data.append(packet(0x30 | qos << 1, len(topic).to_bytes(2, "big") + topic + packet_id + block + body))
    return b"".join(data)


ACKNOWLEDGEMENTS = b"".join(b"\x40\x02" + i.to_bytes(2, "big") for i in range(65_536))


class Scene:
    """A publisher, and subscribers to everything, of one version of the protocol."""

    def __init__(self, broker: Broker, level: int, qos: int, subscribers: int) -> None:
        self.broker, self.level, self.qos = broker, level, qos
        self.publisher = Client(broker, level)
        self.receivers = [Client(broker, level) for _ in range(subscribers)]
        self.next_id = 1
        self.best_s = float("inf")

    async def open(self) -> None:
        """Connect and subscribe."""
        await self.publisher.open(None)
        for receiver in self.receivers:
            await receiver.open(self.qos)

    async def round(self, read: bytes, count: int) -> None:
        """One read, delivered to each subscriber, and acknowledged."""
        start = time.process_time()
        await self.publisher.adapter.handle(read)
        self.broker.end_turn()
        while self.qos and self.receivers and count > 0:
            # As many as may be under way; ids go in a circle.
            some = min(count, 1024, 65_536 - self.next_id)
            for receiver in self.receivers:
                await receiver.adapter.handle(ACKNOWLEDGEMENTS[4 * self.next_id : 4 * (self.next_id + some)])
            self.next_id = (self.next_id + some - 1) % 65_535 + 1
            count -= some
            self.broker.end_turn()
        self.best_s = min(self.best_s, time.process_time() - start)
        for client in (self.publisher, *self.receivers):
            client.outbox.written.clear()
            if client.adapter.closed:
                raise SystemExit("a connection was closed")


async def measure(
    name: str, qos: int, subscribers: int, bodies: list[bytes], topics: int = 1, own: bool = False
) -> None:
    """Both versions in turns; of small reads more."""
    async with (
        open_broker(MemoryFiles(), users={"guest": "guest"}) as one,
        open_broker(MemoryFiles(), users={"guest": "guest"}) as other,
    ):
        scenes = Scene(one, 4, qos, subscribers), Scene(other, 5, qos, subscribers)
        for scene in scenes:
            await scene.open()
        for _ in range(max(ROUNDS, MESSAGES // len(bodies))):
            for scene in scenes:
                await scene.round(read_of(qos, bodies, topics, scene.level, own), len(bodies))
        for scene in scenes:
            for client in (scene.publisher, *scene.receivers):
                client.adapter.connection_lost()
    deliveries = len(bodies) * max(subscribers, 1)
    old, new = (scene.best_s / deliveries * 1e9 for scene in scenes)
    print(f"{name:45} {old:9.1f} ns {new:9.1f} ns {new / old:6.2f}")


async def main() -> None:
    """Print a table."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    read_bytes = int(sys.argv[2]) if len(sys.argv) > 2 else READ_BYTES
    count = min(read_bytes // (size + len(TOPIC) + 8), 20_000)
    equal = [b"x" * size] * count
    varying = [b"x" * (size - 10 + i % 20) for i in range(count)]
    print(f"{'for each delivery':45} {'3.1.1':>12} {'MQTT 5':>12}  ratio")
    await measure("QoS 0, no subscriber (parsing)", 0, 0, equal)
    for qos in (0, 1):
        await measure(f"QoS {qos}, 1 to 1", qos, 1, equal)
        await measure(f"QoS {qos}, 1 to 1, varying length", qos, 1, varying)
        await measure(f"QoS {qos}, 1 to 1, varying length, 200 topics", qos, 1, varying, 200)
        await measure(f"QoS {qos}, 1 to 50, varying length", qos, 50, varying)
        await measure(f"QoS {qos}, 1 to 1, properties never seen before", qos, 1, equal, own=True)


if __name__ == "__main__":
    trio.run(main)
