"""Small blocking clients for the fault tests: they know what was sent, what was confirmed, and when the broker died.

1. Messages are numbered: the body of message n of a stream is its name and n. Nothing is ever published twice.
2. Losing the connection is an expected end, not an error: what was read before it counts, the rest is unknown.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.wire_mqtt import Mqtt, packet, utf8
from benchmarks.wire_proto import (
    ACK,
    ACK_FRAME,
    CONFIRM_SELECT,
    CONSUME,
    NACK,
    PUBLISH,
    QOS,
    QUEUE_BIND,
    QUEUE_DECLARE,
    REJECT,
    Amqp,
    BrokerError,
    frame,
    method,
    shortstr,
)
from tests.support import HOST, BrokerProcess

READ_SIZE = 1 << 18
ENDED = (OSError, BrokerError)
"""What a client sees when the broker is gone."""


@dataclass
class Stream:
    """What the world outside the broker knows of the numbered messages of one queue."""

    name: str
    queue: str = ""
    """Where they go; the queue is called as the stream unless given."""
    published: int = 0
    """Numbers below it were handed to the broker, whatever became of them."""
    confirmed: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    """An acknowledgement was sent since the last check."""
    present: set[int] = field(default_factory=set)
    """Were in the queue at the last check."""
    checked: int = 0
    """`published` at the last check."""

    def __post_init__(self) -> None:
        self.queue = self.queue or self.name

    def copy(self, queue: str) -> Stream:
        """The same messages in another queue: whoever confirms them confirms both."""
        return Stream(self.name, queue, confirmed=self.confirmed)

    def take(self, count: int) -> range:
        """The numbers of the next `count` messages."""
        self.published += count
        return range(self.published - count, self.published)

    def body(self, number: int) -> bytes:
        """The body of message `number`; lengths differ."""
        return b"%s %d " % (self.name.encode(), number) + b"." * (number * 7 % 300)

    def number(self, body: bytes) -> int:
        """The inverse of `body`; the whole body is checked."""
        number = int(body.split(b" ", 2)[1])
        assert body == self.body(number), f"{self.name}: message {number} was changed on the way"
        return number

    def note(self, numbers: set[int] | range, *, refused: bool = False) -> None:
        """The broker answered for these."""
        (self.refused if refused else self.confirmed).update(numbers)


def wire_options(port: int) -> argparse.Namespace:
    """What the wire level connections want to know."""
    return argparse.Namespace(
        host=HOST, port=port, user="guest", password="guest", vhost="/", persistent_session=False, tls=None
    )


def amqp(port: int) -> Amqp:
    """A connection with channel 1 open."""
    return Amqp.open(wire_options(port))


def declare(connection: Amqp, queue: str, routing_key: str | None = None) -> int:
    """A durable queue, bound to `amq.topic` if there is a `routing_key`; how many messages are ready."""
    reply = connection.request(QUEUE_DECLARE, b"\0\0" + shortstr(queue) + b"\2" + bytes(4))
    if routing_key is not None:
        binding = shortstr(queue) + shortstr("amq.topic") + shortstr(routing_key)
        connection.request(QUEUE_BIND, b"\0\0" + binding + b"\0" + bytes(4))
    count: int = struct.unpack_from(">I", reply, 1 + reply[0])[0]
    return count


def persistent_publish(queue: str, body: bytes) -> bytes:
    """The frames of a persistent message to `queue` through the default exchange."""
    header = struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2)
    publish = method(1, PUBLISH, b"\0\0" + shortstr("") + shortstr(queue) + b"\0")
    return publish + frame(2, 1, header) + frame(3, 1, body)


class AmqpPublisher:
    """Persistent messages with confirms, at most `window` of them open."""

    def __init__(self, port: int, stream: Stream) -> None:
        self.stream = stream
        self.connection = amqp(port)
        declare(self.connection, stream.name)
        self.connection.request(CONFIRM_SELECT, b"\0")
        self.tags: list[int] = []  # tag - 1 -> number
        self.low = 0  # tags up to it are answered
        self.answered: set[int] = set()
        self.rest = b""

    def send(self, count: int) -> None:
        """Publish `count` messages in one write."""
        numbers = self.stream.take(count)
        self.tags += numbers
        name = self.stream.name
        self.connection.sock.sendall(b"".join(persistent_publish(name, self.stream.body(n)) for n in numbers))

    @property
    def open(self) -> int:
        """Messages the broker has not answered for."""
        return len(self.tags) - self.low - len(self.answered)

    def receive(self) -> None:
        """Wait for acks and nacks and note them. Raises BrokerError at the end of the connection."""
        data = self.connection.sock.recv(READ_SIZE)
        if not data:
            raise BrokerError("the broker closed the connection")
        data = self.rest + data
        whole = len(data) // ACK_FRAME.size * ACK_FRAME.size
        self.rest = data[whole:]
        for _, _, _, ident, tag, bits, _ in ACK_FRAME.iter_unpack(data[:whole]):
            if ident not in (ACK, NACK):
                raise BrokerError(f"publisher was sent {ident:#x} in {data[:200]!r}")
            tags = range(self.low + 1, tag + 1) if bits & 1 else range(tag, tag + 1)
            fresh = {tag for tag in tags if tag not in self.answered}
            self.stream.note({self.tags[tag - 1] for tag in fresh}, refused=ident == NACK)
            self.answered |= fresh
            while self.low + 1 in self.answered:
                self.low += 1
                self.answered.discard(self.low)

    def run(self, sizes: Iterator[int], window: int = 500) -> None:
        """Publish bursts of `sizes` until the connection or `sizes` end."""
        try:
            for size in sizes:
                self.send(size)
                while self.open > window:
                    self.receive()
            while self.open:
                self.receive()
        except ENDED:
            pass
        finally:
            self.connection.sock.close()


class MqttPublisher:
    """QoS 1 messages to one topic, at most `window` of them open."""

    def __init__(self, port: int, stream: Stream, topic: str) -> None:
        self.stream, self.topic = stream, utf8(topic)
        self.connection = Mqtt.open(wire_options(port))
        self.open_ids: dict[int, int] = {}  # packet id -> number
        self.rest = b""

    def send(self, count: int) -> None:
        """Publish `count` messages in one write."""
        packets = []
        for number in self.stream.take(count):
            packet_id = number % 65535 + 1
            self.open_ids[packet_id] = number
            packets.append(packet(0x32, self.topic + struct.pack(">H", packet_id) + self.stream.body(number)))
        self.connection.sock.sendall(b"".join(packets))

    def receive(self) -> None:
        """Wait for PUBACKs and note them. Raises BrokerError at the end of the connection."""
        data = self.connection.sock.recv(READ_SIZE)
        if not data:
            raise BrokerError("the broker closed the connection")
        data = self.rest + data
        whole = len(data) // 4 * 4
        self.rest = data[whole:]
        for head, packet_id in struct.iter_unpack(">HH", data[:whole]):
            if head != 0x4002:
                raise BrokerError(f"publisher was sent {data[:200]!r}")
            self.stream.note({self.open_ids.pop(packet_id)})

    def run(self, sizes: Iterator[int], window: int = 200) -> None:
        """Publish bursts of `sizes` until the connection or `sizes` end."""
        try:
            for size in sizes:
                self.send(size)
                while len(self.open_ids) > window:
                    self.receive()
            while self.open_ids:
                self.receive()
        except ENDED:
            pass
        finally:
            self.connection.sock.close()


@dataclass(frozen=True)
class Delivery:
    """A message as a consumer got it."""

    tag: int
    redelivered: bool
    body: bytes


class AmqpConsumer:
    """A consumer with manual acknowledgement; `prefetch` 0 is without limit."""

    def __init__(self, port: int, queue: str, *, prefetch: int = 0) -> None:
        self.connection = amqp(port)
        self.connection.request(QOS, struct.pack(">IHB", 0, prefetch, 0))
        self.connection.request(CONSUME, b"\0\0" + shortstr(queue) + shortstr("c") + b"\0" + bytes(4))
        self.buffer = bytearray()

    def receive(self) -> list[Delivery]:
        """Wait for bytes; the deliveries that are complete. Raises BrokerError at the end of the connection."""
        data = self.connection.sock.recv(READ_SIZE)
        if not data:
            raise BrokerError("the broker closed the connection")
        self.buffer += data
        found, start, end = [], 0, len(self.buffer)
        while (size := Amqp.measure(self.buffer, start, end)) is not None:
            found.append(self.parse(bytes(self.buffer[start : start + size])))
            start += size
        del self.buffer[:start]
        return found

    @staticmethod
    def parse(delivery: bytes) -> Delivery:
        """Method frame (consumer tag "c", delivery tag, redelivered, ...), header frame, body in at most one frame."""
        tag, redelivered = struct.unpack_from(">QB", delivery, 7 + 4 + 2)
        header = int.from_bytes(delivery[3:7], "big") + 8
        content = header + int.from_bytes(delivery[header + 3 : header + 7], "big") + 8
        return Delivery(tag, bool(redelivered), delivery[content + 7 : -1])

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge; nothing answers."""
        self.connection.sock.sendall(ACK_FRAME.pack(1, 1, 13, ACK, tag, multiple, 0xCE))

    def close(self) -> None:
        """End the connection; what is not acknowledged goes back to the queue."""
        self.connection.sock.close()

    def run(self, stream: Stream, share: Callable[[], float]) -> None:
        """Until the broker is gone: keep a tenth of the messages, give some back, acknowledge the others."""
        try:
            while True:
                frames = []
                for delivery in self.receive():
                    number, drawn = stream.number(delivery.body), share()
                    if drawn < 0.1:
                        continue
                    if drawn < 0.15:
                        frames.append(ACK_FRAME.pack(1, 1, 13, REJECT, delivery.tag, 1, 0xCE))
                        continue
                    stream.settled.add(number)  # before it is sent: it may arrive whatever we learn
                    frames.append(ACK_FRAME.pack(1, 1, 13, ACK, delivery.tag, 0, 0xCE))
                self.connection.sock.sendall(b"".join(frames))
        except ENDED:
            pass
        finally:
            self.close()


def read_queue(broker: BrokerProcess, name: str) -> list[tuple[bytes, bool]]:
    """All messages of a queue that are ready: body, and whether marked as redelivered. They stay in the queue."""
    connection = amqp(broker.amqp_port)
    count = declare(connection, name)
    connection.sock.close()
    found: list[tuple[bytes, bool]] = []
    consumer = AmqpConsumer(broker.amqp_port, name)
    try:
        while len(found) < count:
            found += [(delivery.body, delivery.redelivered) for delivery in consumer.receive()]
    except TimeoutError as error:
        raise AssertionError(f"{name}: {count} messages announced, {len(found)} came") from error
    finally:
        consumer.close()
    assert len(found) == count, f"{name}: {count} messages announced, {len(found)} came"
    return found
