"""Clients that do their work on every door while others misbehave, and a socket to misbehave with."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from types import TracebackType
from typing import Self

from benchmarks.wire_mqtt import Mqtt, packet, utf8
from core_log.record_batch import BatchBuilder, decode_runs
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import PreconditionFailed
from tests.faults.wire_clients import AmqpConsumer, AmqpPublisher, Stream, wire_options
from tests.support import HOST, BrokerProcess

PATIENCE_S = 10
CLOSE, CLOSE_OK = bytes.fromhex("000a0032"), bytes.fromhex("01000000000004000a0033ce")
serial = itertools.count()


def batch_of(values: list[bytes]) -> bytes:
    """A record batch without keys or headers."""
    builder = BatchBuilder(0, 0, int(time.time() * 1000))
    builder.add_run(0, None, values, b"\0")
    return builder.build()


class Neighbours:
    """One client on each door, connected all the time; `work` makes each of them send and receive."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.stream = Stream(f"neighbour-{next(serial)}")
        self.publisher = AmqpPublisher(broker.amqp_port, self.stream)
        self.consumer = AmqpConsumer(broker.amqp_port, self.stream.name, prefetch=10)
        self.mqtt = Mqtt.open(wire_options(broker.mqtt_port))
        self.topic = utf8(f"{self.stream.name}/mqtt")
        self.mqtt.call(packet(0x82, b"\0\1" + self.topic + b"\0"), 0x90)
        self.native = BlockingClient(f"{HOST}:{broker.native_port}", timeout_s=PATIENCE_S)
        try:
            self.native.create_topic(self.stream.name)
        except PreconditionFailed:
            pass
        for sock in (self.publisher.connection.sock, self.consumer.connection.sock, self.mqtt.sock):
            sock.settimeout(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for sock in (self.publisher.connection.sock, self.consumer.connection.sock, self.mqtt.sock):
            sock.close()
        self.native.close()

    def work(self) -> None:
        """A confirmed message through a queue, a QoS 0 message, and a record. Raises when one does not arrive."""
        self.publisher.send(1)
        while self.publisher.open:
            self.publisher.receive()
        assert not self.stream.refused
        while not (deliveries := self.consumer.receive()):
            pass
        (delivery,) = deliveries
        number = self.stream.number(delivery.body)
        assert number == self.stream.published - 1
        self.consumer.ack(delivery.tag)
        body = b"%d" % number
        self.mqtt.sock.sendall(packet(0x30, self.topic + body))
        assert self.mqtt.expect(0x30) == self.topic + body
        offset = self.native.produce(self.stream.name, 0, batch_of([body]))
        assert offset is not None
        (batch,) = self.native.fetch(self.stream.name, 0, offset).batches
        assert [run.values for run in decode_runs(batch)] == [[body]]


def until_closed(sock: socket.socket) -> bytes:
    """All the peer still sends; AMQP's connection.close is answered. Raises TimeoutError if it does not close."""
    sock.settimeout(PATIENCE_S)
    said = b""
    try:
        while data := sock.recv(1 << 16):
            said += data
            if CLOSE in data:
                sock.sendall(CLOSE_OK)
    except (ConnectionResetError, BrokenPipeError):
        pass  # it closed with bytes of ours unread
    return said


def hostile(port: int, data: bytes, *, half_close: bool = False) -> bytes:
    """Connect, send `data`, and return what is said until the broker closes."""
    with socket.create_connection((HOST, port), timeout=PATIENCE_S) as sock:
        try:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it may have closed by now
        return until_closed(sock)


def amqp_close_code(said: bytes) -> int:
    """The reply code of the connection.close in what the broker said."""
    at = said.index(CLOSE)
    code: int = struct.unpack_from(">H", said, at + 4)[0]
    return code
