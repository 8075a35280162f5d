"""Clients of a cluster that is shaken: they try again until they are answered, and note what they were told.

1. A message says which stream it is of, which key it has and the how-manieth of its key it is. A producer goes on only
   when a message is confirmed: what it could not tell, it publishes again, and remembers that it did (`retried`).
2. Every client picks brokers at random and takes any error for a reason to pick another one.
3. They end when `stop` is set; what is not confirmed then is unknown.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from benchmarks.wire_mqtt import Mqtt, packet, utf8
from benchmarks.wire_proto import BrokerError
from core_log.record_batch import BatchBuilder, decode_runs, validate
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import MillraceError, OffsetOutOfRange
from tests.faults.cluster_ledger import KEYS, SLOW_S, Ledger, Message, Session
from tests.faults.wire_clients import wire_options
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import ClusterProcesses

_ANSWER_S = 4.0
_NO_HEADERS = b"\0"


class Worker(ABC):
    """A client in a thread of its own. What it finds wrong is in `failure`."""

    def __init__(self, cluster: ClusterProcesses, ledger: Ledger, seed: int) -> None:
        self.cluster, self.ledger = cluster, ledger
        self.dice = random.Random(seed)
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self.errors: list[str] = []
        """What it took for reasons to go to another broker, and when."""
        self._thread = threading.Thread(target=self._main, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """End, and raise what it found wrong."""
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{type(self).__name__} does not end; {self.errors[-3:]}"
        if self.failure is not None:
            raise self.failure

    def _main(self) -> None:
        try:
            while not self.stop.is_set():
                broker = self._any_broker()
                began = time.monotonic()
                try:
                    self.work(broker)
                except self.expected as error:
                    self.errors.append(f"{broker.data_dir.name} after {time.monotonic() - began:.1f} s: {error!r}")
                    self.stop.wait(0.1)
        except BaseException as error:
            self.failure = error

    def _any_broker(self) -> BrokerProcess:
        return self.dice.choice(list(self.cluster.brokers.values()))

    expected: tuple[type[BaseException], ...] = (MillraceError, OSError)
    """What a broker that is gone, paused, cut off or full looks like."""

    @abstractmethod
    def work(self, broker: BrokerProcess) -> None:
        """One connection. Raises what is `expected`."""


# --- native -------------------------------------------------------------------------------------


class _Leaders:
    """Connections to the leaders of a topic's partitions, as any broker names them."""

    def __init__(self, cluster: ClusterProcesses, topic: str, any_broker: Callable[[], BrokerProcess]) -> None:
        self._cluster, self._topic, self._any = cluster, topic, any_broker
        self._clients: dict[int, BlockingClient] = {}
        self._leaders: dict[int, int] = {}

    def client(self, partition: int) -> BlockingClient:
        """Raises MillraceError."""
        leader = self._leaders.get(partition)
        if leader is None:
            asked = self._any()
            with BlockingClient(f"{asked.host}:{asked.native_port}", timeout_s=2) as client:
                page = client.administer("cluster.partitions")
            rows = [dict(zip(page["columns"], row, strict=True)) for row in page["rows"]]
            self._leaders = {row["partition"]: row["leader"] for row in rows if row["topic"] == self._topic}
            leader = self._leaders.get(partition)
            if leader is None:
                raise MillraceError(f"nobody leads {self._topic}-{partition}")
        if leader not in self._clients:
            self._clients[leader] = BlockingClient(self._cluster.server(leader), timeout_s=_ANSWER_S)
        return self._clients[leader]

    def forget(self) -> None:
        """Look again, and connect again."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._leaders.clear()


class NativeProducer(Worker):
    """Batches of records with acks=all; `offsets` are values by (partition, offset), as confirmed."""

    def __init__(self, cluster: ClusterProcesses, ledger: Ledger, seed: int, partitions: int) -> None:
        super().__init__(cluster, ledger, seed)
        self._partitions = partitions
        self.offsets: dict[tuple[int, int], bytes] = {}
        self._leaders = _Leaders(cluster, ledger.name, self._any_broker)
        self._pending: tuple[int, list[Message]] | None = None

    def work(self, broker: BrokerProcess) -> None:
        """See `Worker`."""
        try:
            while not self.stop.is_set():
                if self._pending is None:
                    key = self.dice.randrange(KEYS)
                    self._pending = key % self._partitions, self.ledger.take(key, self.dice.choice((1, 1, 2, 10, 50)))
                partition, messages = self._pending
                values = [self.ledger.body(message) for message in messages]
                builder = BatchBuilder(0, 0, int(time.time() * 1000))
                builder.add_run(0, b"%d" % messages[0][0], values, _NO_HEADERS)
                base = self._leaders.client(partition).produce(
                    self.ledger.name, partition, builder.build(), timeout_ms=int(_ANSWER_S * 1000)
                )
                assert base is not None
                self.offsets.update(((partition, base + place), value) for place, value in enumerate(values))
                self.ledger.note(messages)
                self._pending = None
        except self.expected:
            if self._pending is not None:
                self.ledger.retried.update(self._pending[1])
            self._leaders.forget()
            raise


GROUP = "rounds-readers"


@dataclass
class Committed:
    """What a group asked to be kept, and what it was answered for."""

    asked: int = 0
    answered: int = 0


class NativeReader(Worker):
    """Reads a partition as far as anybody may, and commits where it is; `seen` are values by offset."""

    def __init__(self, cluster: ClusterProcesses, ledger: Ledger, seed: int, partition: int) -> None:
        super().__init__(cluster, ledger, seed)
        self.partition = partition
        self.seen: dict[int, bytes] = {}
        self.position = 0
        self.committed = Committed()
        self._leaders = _Leaders(cluster, ledger.name, self._any_broker)

    def work(self, broker: BrokerProcess) -> None:
        """See `Worker`."""
        try:
            while not self.stop.is_set():
                client = self._leaders.client(self.partition)
                self.take(client.fetch(self.ledger.name, self.partition, self.position, max_wait_ms=200).batches)
                if self.position > self.committed.asked:
                    self._commit(client)
        except OffsetOutOfRange as error:
            raise AssertionError(f"{self.ledger.name}-{self.partition}: what was read is not there: {error}") from None
        except self.expected:
            self._leaders.forget()
            raise

    def _commit(self, client: BlockingClient) -> None:
        self.check_committed(client)
        self.committed.asked = self.position
        client.commit_offsets(GROUP, {(self.ledger.name, self.partition): self.position})
        self.committed.answered = self.position

    def check_committed(self, client: BlockingClient) -> None:
        """What the group has committed is what it was told, or what it was not answered. Raises AssertionError."""
        place = self.ledger.name, self.partition
        found = client.committed_offsets(GROUP, [place]).get(place, 0)
        told = self.committed
        assert told.answered <= found <= told.asked, f"the group stands at {found} of {place}; it was told {told}"

    def take(self, batches: list[memoryview]) -> None:
        """Note what was read."""
        for batch in batches:
            validate(batch)
            for run in decode_runs(batch):
                for offset, value in enumerate(run.values, run.first_offset):
                    assert value is not None
                    if offset >= self.position:
                        self.seen[offset] = bytes(value)
                        self.position = offset + 1


# --- AMQP and MQTT ------------------------------------------------------------------------------

PIKA_ERRORS = _PIKA = (pika.exceptions.AMQPError, AMQPConnectorException, OSError)
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


def pika_connection(broker: BrokerProcess) -> pika.BlockingConnection:
    """A connection that notices within seconds when nobody answers."""
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.host, broker.amqp_port, heartbeat=2, socket_timeout=2, stack_timeout=4, blocked_connection_timeout=3
        )
    )


class AmqpPublisher(Worker):
    """A persistent message at a time to the queue of the stream's name, with confirms."""

    expected = _PIKA
    _pending: Message | None = None

    def properties(self, message: Message) -> pika.BasicProperties:
        """What it is published with."""
        return _PERSISTENT

    def work(self, broker: BrokerProcess) -> None:
        """See `Worker`."""
        connection = pika_connection(broker)
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self.stop.is_set():
                message = self._pending = self._pending or self.ledger.take(self.dice.randrange(KEYS))[0]
                began = time.monotonic()
                properties = self.properties(message)
                channel.basic_publish("", self.ledger.name, self.ledger.body(message), properties, mandatory=True)
                if time.monotonic() - began > SLOW_S:
                    self.ledger.slow.add(message)
                self.ledger.note([message])
                self._pending = None
        except self.expected:
            if self._pending is not None:
                self.ledger.retried.add(self._pending)
            raise
        finally:
            _close(connection)


class LaterPublisher(AmqpPublisher):
    """A key has its priority, and its delay."""

    def properties(self, message: Message) -> pika.BasicProperties:
        """See `AmqpPublisher`."""
        key = message[0]
        return pika.BasicProperties(delivery_mode=2, priority=key % 3, headers={"x-delay": key % 4 * 250})


class AmqpConsumer(Worker):
    """Consumes the queue of the stream's name, and acknowledges everything; no more than `prefetch` wait for that."""

    expected = _PIKA

    def __init__(self, cluster: ClusterProcesses, ledger: Ledger, seed: int) -> None:
        super().__init__(cluster, ledger, seed)
        self.prefetch = self.dice.choice((1, 5, 50))

    def work(self, broker: BrokerProcess) -> None:
        """See `Worker`."""
        self.ledger.sessions.append(Session(len(self.ledger.received), self.prefetch))
        connection = pika_connection(broker)
        try:
            channel = connection.channel()
            self.begin(channel)
            channel.basic_qos(prefetch_count=self.prefetch)
            for method, _, body in channel.consume(self.ledger.name, inactivity_timeout=0.2):
                if method is not None:
                    message = self.ledger.parse(body)
                    self.ledger.received.append((message, method.redelivered))
                    channel.basic_ack(method.delivery_tag)
                    self.settle(channel, message)
                if self.stop.is_set():
                    break
        finally:
            _close(connection)

    def begin(self, channel: BlockingChannel) -> None:
        """What comes before anything is consumed."""

    def settle(self, channel: BlockingChannel, message: Message) -> None:
        """What comes after a message was acknowledged."""


class TransactionConsumer(AmqpConsumer):
    """Acknowledges in transactions: what was committed so never comes again."""

    def begin(self, channel: BlockingChannel) -> None:
        """See `AmqpConsumer`."""
        channel.tx_select()

    def settle(self, channel: BlockingChannel, message: Message) -> None:
        """See `AmqpConsumer`."""
        channel.tx_commit()
        came_before = len(self.ledger.received) + channel.get_waiting_message_count()
        self.ledger.settled.setdefault(message, came_before)


class MqttPublisher(Worker):
    """A QoS 1 message at a time, to an MQTT topic of the stream's name."""

    expected = (OSError, BrokerError, AssertionError)
    _pending: Message | None = None

    def work(self, broker: BrokerProcess) -> None:
        """See `Worker`."""
        options = wire_options(broker.mqtt_port)
        options.host = broker.host
        connection = Mqtt.open(options)
        connection.sock.settimeout(_ANSWER_S)
        packet_id = 0
        try:
            while not self.stop.is_set():
                message = self._pending = self._pending or self.ledger.take(self.dice.randrange(KEYS))[0]
                packet_id = packet_id % 65535 + 1
                body = utf8(self.ledger.name) + struct.pack(">H", packet_id) + self.ledger.body(message)
                connection.sock.sendall(packet(0x32, body))
                if _read(connection, 4) != struct.pack(">HH", 0x4002, packet_id):
                    raise BrokerError("not the answer that is due")
                self.ledger.note([message])
                self._pending = None
        except self.expected:
            if self._pending is not None:
                self.ledger.retried.add(self._pending)
            raise
        finally:
            connection.sock.close()


class MqttSubscriber(Worker):
    """Subscribes to the stream's topic with QoS 1. What it gets while it is connected is in the order of each key."""

    expected = (OSError, BrokerError)

    def work(self, broker: BrokerProcess) -> None:
        """See `Worker`."""
        options = wire_options(broker.mqtt_port)
        options.host = broker.host
        connection = Mqtt.open(options)
        connection.sock.settimeout(_ANSWER_S)
        found: list[Message] = []
        try:
            connection.call(packet(0x82, b"\0\1" + utf8(self.ledger.name) + b"\1"), 0x90)
            connection.sock.settimeout(0.5)
            while not self.stop.is_set():
                try:
                    kind, data = connection.read_reply()
                except TimeoutError:
                    continue
                assert kind & 0xF6 == 0x32, f"a subscriber was sent a packet of kind {kind:#x}"
                at = 2 + int.from_bytes(data[:2], "big")
                found.append(self.ledger.parse(data[at + 2 :]))
                connection.sock.sendall(packet(0x40, data[at : at + 2]))
        finally:
            connection.sock.close()
            self.ledger.told.append(found)


def _read(connection: Mqtt, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.sock.recv(size - len(data))
        if not more:
            raise BrokerError("the broker closed the connection")
        data += more
    return data


def _close(connection: pika.BlockingConnection) -> None:
    try:
        connection.close()
    except _PIKA:
        pass
