"""Devices that mean harm, all at once, and one that does not: it must be served, and the broker stay within bounds.

    python -m tests.protocols.mqtt.hostile --seconds 120

1. Floods of connections, subscribers that never read or never acknowledge, giant topics and packets, text that is not
   UTF-8, packets that never end, random bytes after a good beginning, and the like in WebSockets.
2. Meanwhile an honest device publishes at QoS 1 and waits for what it published. Its slowest round trip has a limit.
3. Afterwards the broker runs, nothing was raised in it, and its memory is within a limit.
"""

from __future__ import annotations

import argparse
import base64
import os
import queue
import random
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho

from benchmarks.wire_mqtt import packet, utf8
from gateway.websocket import unmasked
from tests.support import HOST, BrokerProcess, broker_process
from tests.support.attacks import attack_beside, figures, resident_bytes

MEMORY_BYTES_MAX = 640 << 20
ROUND_TRIP_S_MAX = 10.0
CONFIG = "[mqtt]\nconnect_timeout_s = 2.0\n[websocket]\nhandshake_timeout_ms = 2000\n"
BAD_TEXT = (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"a\0b", b"\xf4\x90\x80\x80")
"""Not UTF-8, a surrogate, an overlong zero, U+0000, beyond the last code point."""

Ports = dict[str, int]


def connect(version: int = 4, *, client_id: bytes = b"", clean: bool = True, keep_alive_s: int = 0) -> bytes:
    """CONNECT."""
    head = utf8("MQTT") + bytes([version, 2 * clean]) + struct.pack(">H", keep_alive_s)
    return packet(0x10, head + (b"\0" if version == 5 else b"") + string(client_id))


def string(data: bytes) -> bytes:
    """A string, whatever is in it."""
    return struct.pack(">H", len(data)) + data


def publish(topic: bytes, body: bytes, *, flags: int = 0, more: bytes = b"") -> bytes:
    """PUBLISH; `more` is what is between the topic and the body."""
    return packet(0x30 | flags, string(topic) + more + body)


def subscribe(*filters: bytes, qos: int = 0) -> bytes:
    """SUBSCRIBE."""
    return packet(0x82, b"\0\1" + b"".join(string(name) + bytes([qos]) for name in filters))


def opened(port: int, data: bytes = b"", *, read_bytes: int | None = None) -> socket.socket:
    """A connection that has sent something."""
    sock = socket.socket()
    if read_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_bytes)
    sock.settimeout(3)
    sock.connect((HOST, port))
    sock.sendall(data)
    return sock


def close_all(sockets: list[socket.socket], after_s: float) -> None:
    """Vanish without a word."""
    time.sleep(after_s)
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()


def connect_flood(ports: Ports, chance: random.Random) -> None:
    """Connections that say nothing, half a CONNECT, or a whole one, and go at once."""
    sockets = []
    for number in range(300):
        data = connect(chance.choice((4, 5)), client_id=b"flood%d" % (number % 50))
        sockets.append(opened(ports["mqtt"], data[: chance.choice((0, chance.randrange(len(data)), len(data)))]))
    close_all(sockets, 0.1)


def never_reading(ports: Ports, chance: random.Random) -> None:
    """Subscribers of everything that read nothing, and one that publishes much."""
    name = b"never/%d" % chance.randrange(1 << 30)
    lazy = [
        opened(ports["mqtt"], connect() + subscribe(name + b"/#", qos=number % 2), read_bytes=4096)
        for number in range(8)
    ]
    publisher = opened(ports["mqtt"], connect())
    time.sleep(0.1)
    for _ in range(10):
        publisher.sendall(publish(name + b"/x", bytes(10_000)) * 50)
    close_all([*lazy, publisher], 0.5)


def unacknowledged(ports: Ports, chance: random.Random) -> None:
    """Takes what is published at QoS 1 and acknowledges nothing."""
    name = b"kept/%d" % chance.randrange(1 << 30)
    taker = opened(ports["mqtt"], connect() + subscribe(name, qos=1))
    time.sleep(0.1)
    numbers = [struct.pack(">H", number) for number in range(1, 2001)]
    taker.sendall(b"".join(publish(name, bytes(200), flags=2, more=number) for number in numbers))
    with_answers = time.monotonic() + 1
    try:
        while time.monotonic() < with_answers and taker.recv(1 << 20):
            pass
    except OSError:
        pass
    close_all([taker], 0)


def giants(ports: Ports, chance: random.Random) -> None:
    """Topics and filters as long and as deep as can be said, packets that announce 256 MiB, very many of everything."""
    long, deep = b"t" * 65_535, b"/".join([b"a"] * 20_000)
    properties = b"\x26" + string(b"k" * 50) + string(b"v" * 50)
    many = properties * 9000
    block = bytes((len(many) & 127 | 128, len(many) >> 7 & 127 | 128, len(many) >> 14)) + many
    attacks = [
        connect() + publish(long, b"x"),
        connect() + publish(deep, b"x"),
        connect() + subscribe(long),
        connect() + subscribe(b"/".join([b"+"] * 20_000)),
        connect() + subscribe(*(b"many/%d" % number for number in range(20_000))),
        connect() + b"\x30\xff\xff\xff\x7f" + bytes(100_000),
        connect() + b"\x30\xff\xff\xff\xff\x7f",
        connect(client_id=b"i" * 65_535),
        connect(5) + publish(b"a", b"x", more=block),
        connect(5) + publish(b"a", b"x", more=b"\x03\x23\xff\xff"),
        packet(0x10, utf8("MQTT") + b"\x04\xc6\0\0" + string(b"") + string(b"w") + string(bytes(65_535)) * 3),
    ]
    close_all([opened(ports["mqtt"], attack) for attack in attacks], 0.2)


def bad_text(ports: Ports, chance: random.Random) -> None:
    """What is no UTF-8, wherever a text may stand."""
    sockets = []
    for bad in BAD_TEXT:
        for data in (
            connect(client_id=bad), connect() + publish(bad, b"x"), connect() + subscribe(bad),
            connect() + packet(0xA2, b"\0\1" + string(bad)),
            connect(5) + publish(b"a", b"x", more=bytes([3 + len(bad)]) + b"\x03" + string(bad)),
            packet(0x10, utf8("MQTT") + b"\x04\xc2\0\0" + string(b"") + string(bad) + string(b"p")),
        ):  # fmt: skip
            sockets.append(opened(ports["mqtt"], data))
    close_all(sockets, 0.1)


def endless_packets(ports: Ports, chance: random.Random) -> None:
    """Packets of a megabyte that are begun on many connections, go on a byte at a time, and are never finished."""
    begun = connect() + b"\x30" + b"\xf0\xff\x3f" + string(b"endless")
    sockets = [opened(ports["mqtt"], begun + bytes(chance.randrange(1000, 200_000))) for _ in range(60)]
    for _ in range(20):
        for sock in sockets:
            sock.send(b"x")
    close_all(sockets, 0.3)


def noise(ports: Ports, chance: random.Random) -> None:
    """Random bytes, and good packets with a bit turned."""
    good = publish(b"noise", b"body", flags=2, more=b"\0\1") + subscribe(b"noise/#", qos=2) + b"\xc0\0\x40\2\0\1"
    for _ in range(60):
        bent = bytearray(good)
        bent[chance.randrange(len(bent))] ^= 1 << chance.randrange(8)
        data = bytes(bent) if chance.random() < 0.7 else chance.randbytes(500)
        close_all([opened(ports["mqtt"], connect(chance.choice((3, 4, 5))) + data)], 0)


def web_sockets(ports: Ports, chance: random.Random) -> None:
    """Requests that never end, frames that never end, floods of pings, and text."""
    port = ports["websocket"]
    key = base64.b64encode(chance.randbytes(16)).decode()
    request = (
        f"GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()
    mask = b"abcd"

    def frame(first: int, data: bytes) -> bytes:
        return bytes((first, 0xFE)) + struct.pack(">H", len(data)) + mask + unmasked(data, mask)

    attacks = [
        request[:50], b"GET /" + b"x" * 100_000, request[:-2] + b"X: y\r\n" * 20_000,
        request + b"\x82\xff" + b"\xff" * 8 + mask,
        request + b"\x82\xff" + struct.pack(">Q", 16 << 20) + mask + bytes(500_000),
        request + (b"\x89\x80" + mask) * 5000, request + (b"\x00\x80" + mask) * 5000,
        request + b"\x02\x80" + mask + (b"\x00\x80" + mask) * 50_000,
        request + frame(0x81, b"text" * 100), request + chance.randbytes(1000),
        request + frame(0x82, connect() + publish(b"a", bytes(30_000))),
        request + frame(0x82, connect() + b"\x30\xff\xff\xff\x7f"),
    ]  # fmt: skip
    sockets = []
    for attack in attacks * 3:
        try:
            sockets.append(opened(port, attack))
        except OSError:
            pass
    close_all(sockets, 0.3)


ATTACKS: tuple[Callable[[Ports, random.Random], None], ...] = (
    connect_flood, never_reading, unacknowledged, giants, bad_text, endless_packets, noise, web_sockets,
)  # fmt: skip


def honest(ports: Ports, stop: threading.Event, took: list[float], wrong: list[str]) -> None:
    """Publishes at QoS 1, and is sent what it published."""
    came: queue.Queue[bytes] = queue.Queue()
    ready = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: came.put(message.payload)
    client.on_subscribe = lambda *_: ready.set()
    client.on_connect = lambda *_: client.subscribe("honest", 1)
    client.connect(HOST, ports["mqtt"])
    client.loop_start()
    if not ready.wait(30):
        wrong.append("the honest device could not subscribe")
    while not stop.is_set() and not wrong:
        began, body = time.monotonic(), b"%d" % len(took)
        client.publish("honest", body, 1)
        try:
            got = came.get(timeout=30)
        except queue.Empty:
            got = b"nothing"
        if got != body:
            wrong.append(f"{got!r} came instead of {body!r}")
        took.append(time.monotonic() - began)
        time.sleep(0.01)
    client.disconnect()
    client.loop_stop()


def run(seconds: float, seed: int) -> str:
    """All attacks for `seconds`; the figures. Raises AssertionError."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "config.toml")
        config.write_text(CONFIG)
        arguments = ("--config", str(config))
        with broker_process(Path(directory, "data"), doors=("mqtt", "websocket"), arguments=arguments) as broker:
            return _run(broker, seconds, seed)


def _run(broker: BrokerProcess, seconds: float, seed: int) -> str:
    stop, took, wrong = threading.Event(), list[float](), list[str]()
    good = threading.Thread(target=honest, args=(broker.ports, stop, took, wrong))
    done = attack_beside(good, stop, broker.ports, ATTACKS, seed, seconds)
    assert not wrong, wrong
    assert broker.running, broker.log()[-4000:]
    raised = broker.log().find("Traceback")
    assert raised < 0, broker.log()[max(0, raised - 300) : raised + 3000]
    assert took, "the honest device was never served"
    assert max(took) < ROUND_TRIP_S_MAX, f"a round trip took {max(took):.1f} s"
    memory, open_files = resident_bytes(broker), _settled(broker)
    assert memory < MEMORY_BYTES_MAX, f"{memory >> 20} MiB of memory"
    assert open_files < 100, f"{open_files} files are open when everybody is gone"
    return figures(done, took, memory)


def _settled(broker: BrokerProcess) -> int:
    """How many files the broker has open once those that say nothing have been closed."""
    deadline = time.monotonic() + 20
    while (count := len(os.listdir(f"/proc/{broker.pid}/fd"))) >= 100 and time.monotonic() < deadline:
        time.sleep(0.1)
    return count


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    print(run(options.seconds, options.seed))


if __name__ == "__main__":
    main()
