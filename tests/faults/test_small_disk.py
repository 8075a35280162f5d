"""A file system of 48 MiB that is filled, by each door in turn and by somebody else's file.

Publishers are blocked before it is full, consumers never; nothing confirmed is lost, and draining alone makes room,
also across a kill in the middle: within a minute all but the reserve and the last segments is free. In memory, and
on an ext4 of its own, which puts off what it writes and deletes.
"""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
import pika.exceptions
import pytest

from benchmarks.wire_mqtt import Mqtt, packet, utf8
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import Blocked
from tests.faults.neighbours import batch_of
from tests.faults.wire_clients import wire_options
from tests.support import HOST, BrokerProcess, broker_process

PATIENCE_S = 60
KEPT_BYTES = 5 << 20
"""The reserve, and segments that are not full."""
BODY_BYTES = 64 << 10
PROBE = 99_999_999
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module", params=["tmpfs", pytest.param("ext4", marks=pytest.mark.soak)])
def small_disk(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A mounted file system of 48 MiB."""
    path = tmp_path_factory.mktemp("disk")
    commands = [["mount", "-t", "tmpfs", "-o", "size=48m", "millrace", str(path)]]
    if request.param == "ext4":
        image = tmp_path_factory.mktemp("image") / "ext4"
        with image.open("wb") as file:
            file.truncate(48 << 20)
        commands = [["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(path)]]
    for command in commands:
        done = subprocess.run(command, capture_output=True)
        if done.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def broker(small_disk: Path) -> Iterator[BrokerProcess]:
    data = small_disk / "data"
    with broker_process(data) as broker:
        yield broker
    left = [str(path) for path in small_disk.iterdir() if path.name != "lost+found"]
    subprocess.run(["rm", "-rf", *left], check=True)


def body(number: int) -> bytes:
    return (b"%08d" % number).ljust(BODY_BYTES, b".")


def number_of(found: bytes) -> int:
    assert len(found) == BODY_BYTES
    return int(found[:8])


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def connect(broker: BrokerProcess, blocked_s: float | None = None) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(HOST, broker.amqp_port, blocked_connection_timeout=blocked_s)
    )


def fill(broker: BrokerProcess, queue: str) -> set[int]:
    """Publish with confirms until the broker says that it is blocked; what it confirmed."""
    confirmed: set[int] = set()
    connection = connect(broker, blocked_s=0.3)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    try:
        for number in range(10_000):
            channel.basic_publish("", queue, body(number), PERSISTENT)
            confirmed.add(number)
    except pika.exceptions.ConnectionBlockedTimeout:
        return confirmed
    raise AssertionError("nobody was blocked")


def drain(broker: BrokerProcess, queue: str, count: int) -> list[int]:
    """Consume and acknowledge so many messages, by a client that also never publishes."""
    connection = connect(broker)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=20)
    found: list[int] = []
    for method, _, content in channel.consume(queue, inactivity_timeout=PATIENCE_S) if count else ():
        assert method is not None, f"{len(found)} of {count} messages came"
        found.append(number_of(content))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    connection.close()
    return found


def publishes(broker: BrokerProcess, queue: str) -> bool:
    """Whether a connection that publishes is served now. The queue is emptied."""
    connection = connect(broker, blocked_s=0.2)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, body(PROBE), PERSISTENT)
        channel.queue_purge(queue)
        connection.close()
    except (pika.exceptions.ConnectionBlockedTimeout, pika.exceptions.NackError):
        return False
    return True


def ready(broker: BrokerProcess, queue: str) -> int:
    connection = connect(broker)
    count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
    connection.close()
    return count


def free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def gives_back(path: Path) -> None:
    """Wait for it that nobody's messages take space any more."""
    disk = os.statvfs(path)
    most = disk.f_blocks * disk.f_frsize - KEPT_BYTES
    until(lambda: free_bytes(path) > most, f"space was not given back: {free_bytes(path):,} bytes of {most:,} are free")


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Somebody else's file has taken what was left of the disk, to the last block; it goes at the end."""
    path = disk / "somebody's"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    try:
        assert free_bytes(disk) < 1 << 14, "what a file system keeps for itself"
        yield
    finally:
        path.unlink()


def test_filled_over_amqp_and_killed_in_the_middle(broker: BrokerProcess) -> None:
    confirmed = fill(broker, "q")
    assert len(confirmed) > 400
    assert free_bytes(broker.data_dir) > 1 << 20
    found = drain(broker, "q", len(confirmed) // 2)
    assert found == list(range(len(found)))
    broker.kill9()
    broker.start()
    left = ready(broker, "q")
    found += drain(broker, "q", left)
    assert confirmed <= set(found)
    gives_back(broker.data_dir)
    assert publishes(broker, "q"), "publishers stay blocked although all is drained"
    broker.kill9()
    broker.start()
    assert set(drain(broker, "q", ready(broker, "q"))) <= {PROBE}, "what was settled came back"


def test_filled_over_mqtt(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("m", durable=True)
    channel.queue_bind("m", "amq.topic", "fill")
    connection.close()
    publisher = Mqtt.open(wire_options(broker.mqtt_port))
    sent, answered = 0, 0
    with suppress(TimeoutError):
        while True:
            publisher.sock.settimeout(1 if answered > 400 else PATIENCE_S)  # then silence says that the disk is full
            publisher.sock.sendall(packet(0x32, utf8("fill") + struct.pack(">H", sent + 1) + body(sent)))
            sent += 1
            assert publisher.sock.recv(4) == struct.pack(">HH", 0x4002, sent)
            answered += 1
    assert answered > 400
    # The publisher waits all the time; what it has sent arrives when there is room.
    found = drain(broker, "m", answered)
    assert found == list(range(answered))
    publisher.sock.settimeout(PATIENCE_S)
    if sent == answered:
        publisher.sock.sendall(packet(0x32, utf8("fill") + struct.pack(">H", sent + 1) + body(sent)))
    assert publisher.sock.recv(4) == struct.pack(">HH", 0x4002, answered + 1)
    assert drain(broker, "m", 1) == [answered]
    publisher.sock.close()
    gives_back(broker.data_dir)


def test_filled_over_the_native_door(broker: BrokerProcess) -> None:
    with BlockingClient(f"{HOST}:{broker.native_port}", timeout_s=PATIENCE_S) as client:
        client.create_topic("fill")
        client.create_topic("other")
        count = 0

        def produce(number: int) -> None:
            client.produce("fill", 0, batch_of([body(number)]))

        with suppress(Blocked):
            while count < 10_000:
                produce(count)
                count += 1
        with pytest.raises(Blocked, match="low on disk"):
            produce(count)
        assert count > 400
        for offset in range(0, count, 50):
            assert client.fetch("fill", 0, offset).batches, "consumers never wait"
        assert count <= client.fetch("fill", 0, count - 1).high_watermark <= count + 1
        client.delete_topic("fill")

        def produces() -> bool:
            try:
                return client.produce("other", 0, batch_of([b"again"])) is not None
            except Blocked:
                return False

        until(produces, "producers stay blocked although the topic is gone")
        gives_back(broker.data_dir)


@pytest.mark.soak
@pytest.mark.parametrize("killed", [False, True])
def test_filled_by_somebody_else(broker: BrokerProcess, small_disk: Path, killed: bool) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("e", durable=True)
    channel.queue_declare("other", durable=True)
    channel.confirm_delivery()
    for number in range(150):
        channel.basic_publish("", "e", body(number), PERSISTENT)
    until(lambda: (broker.data_dir / "reserve").exists(), "no reserve")
    with filled(small_disk):
        until(lambda: not publishes(broker, "other"), "publishers are not blocked on a full disk")
        if killed:
            broker.kill9()
            broker.start()
        assert sorted(drain(broker, "e", 150)) == list(range(150))
        until(lambda: free_bytes(small_disk) > 4 << 20, "draining gave nothing back")
        broker.kill9()
        broker.start()
        assert set(drain(broker, "e", ready(broker, "e"))) <= {PROBE}, "what was settled came back"
    until(lambda: publishes(broker, "e"), "service does not resume")
    gives_back(small_disk)


@pytest.mark.soak
@pytest.mark.parametrize("arguments", [{}, {"x-deduplication-window-ms": 3_600_000}])
def test_stragglers_on_a_disk_that_somebody_else_has_filled(
    broker: BrokerProcess, small_disk: Path, arguments: dict[str, int]
) -> None:
    """One message in ten is held, so no segment is without some: they are written again where there is hardly room."""
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(300):
        channel.basic_publish("", "s", body(number), pika.BasicProperties(delivery_mode=2, message_id=str(number)))
    connection.close()
    until(lambda: (broker.data_dir / "reserve").exists(), "no reserve")
    with filled(small_disk):
        connection = connect(broker)
        channel = connection.channel()
        for number in range(300):
            method, _, content = channel.basic_get("s")
            assert number_of(content) == number
            if number % 10:
                channel.basic_ack(method.delivery_tag)
        until(lambda: free_bytes(small_disk) > 10 << 20, "what few messages pin was not given back")
        broker.kill9()
        broker.start()
        assert drain(broker, "s", ready(broker, "s")) == list(range(0, 300, 10))
    gives_back(small_disk)
