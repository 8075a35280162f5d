"""MQTT at the size of a fleet: what many connections, retained messages, offline sessions and subscriptions cost.

    python -m benchmarks.mqtt_scale                                   everything, beside Mosquitto where it is installed
    python -m benchmarks.mqtt_scale --scenario retained --ours-only
    python -m benchmarks.mqtt_scale --scenario subscriptions --subscriptions 100000

idle            so many idle connections (10,000): KiB each, connects a second
retained        so many retained messages (100,000), given to one subscriber of all of them
burst           so many clients (300) that subscribe at once to 2,000 retained messages of 10 kB and never read: for how
                long another one waits for PINGRESP meanwhile, and what is piled up for them
offline         so many sessions (1,000) that are away while so many messages (1,000) come for each of them: memory and
                disk meanwhile, and all in order when they are back
subscriptions   so many (1,000,000), a thousand a client: memory each, and what a publish costs that one of them matches

A figure beyond its target, or a message that is missing or out of order, makes the exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import peers
from benchmarks.process_usage import ProcessUsage
from benchmarks.wire_bench import connections, parse
from benchmarks.wire_mqtt import Mqtt, packet, utf8
from benchmarks.wire_proto import BrokerError
from tests.support import broker_process

OURS = "Millrace"
CONFIG = "[limits]\nconnections_max = 50000\n"
BODY_BYTES = 100
FILTERS_A_CLIENT = 1000
BURST_MESSAGES, BURST_BODY_BYTES = 2000, 10_000
BURST_S = 20.0
WINDOW = 1000


class Fleet:
    """One broker under a load; figures are printed as they come."""

    def __init__(self, name: str, port: int, pid: int, data: Path, options: argparse.Namespace) -> None:
        self.name = name
        self.usage = ProcessUsage(pid)
        self.usage.find()
        self.data = data
        self.options = options
        self.wire = parse(["mqtt", "--port", str(port), "--broker-pid", str(pid)])
        self.wire.version = 4
        self.missed = 0

    def tell(self, what: str, value: float, unit: str, target: float | None = None, *, at_least: bool = False) -> None:
        """Print a figure, of ours with its target: at most, or at least."""
        line = f"{self.name:10} {what:44} {value:12,.2f} {unit}"
        if target is not None and self.name == OURS:
            met = value >= target if at_least else value <= target
            self.missed += not met
            line += f"   ({'at least' if at_least else 'at most'} {target:g}: {'met' if met else 'MISSED'})"
        print(line, flush=True)

    def clients(self, count: int, *, clean: bool = True) -> list[Mqtt]:
        """So many connections; those that are not clean have names of their own."""
        options = argparse.Namespace(**vars(self.wire) | {"persistent_session": not clean})
        return Mqtt.open_many(options, count)

    def publish(self, packets: Sequence[bytes]) -> float:
        """Publish at QoS 1, a window at a time; the seconds it took."""
        (publisher,) = self.clients(1)
        began = time.monotonic()
        for first in range(0, len(packets), WINDOW):
            part = packets[first : first + WINDOW]
            publisher.sock.sendall(b"".join(part))
            publisher.read(4 * len(part))
        publisher.sock.close()
        return time.monotonic() - began

    def disk_bytes(self) -> int:
        """What the data directory holds."""
        return sum(path.stat().st_blocks * 512 for path in self.data.rglob("*") if path.is_file())


def publish_packet(topic: str, number: int, *, retain: bool = False, body_bytes: int = BODY_BYTES) -> bytes:
    """QoS 1, with a body that begins with the number."""
    body = struct.pack(">I", number) + bytes(body_bytes - 4)
    return packet(0x32 | retain, utf8(topic) + struct.pack(">H", number % 65_535 + 1) + body)


def subscribe(client: Mqtt, filters: Sequence[str], qos: int) -> None:
    """Subscribe to all of them in one packet."""
    asked = b"".join(utf8(name) + bytes([qos]) for name in filters)
    codes = client.call(packet(0x82, b"\0\1" + asked), 0x90)[2:]
    if codes != bytes([qos]) * len(filters):
        raise BrokerError(f"SUBACK granted {sorted(set(codes))} of {len(filters)} filters at QoS {qos}")


class Reader:
    """The publishes that come to a client: how many, and whether their numbers rise one by one."""

    def __init__(self, client: Mqtt) -> None:
        self.client = client
        self.count = 0
        self.disorder = 0
        self._rest = b""

    def read(self) -> None:
        """Take what is there, and acknowledge it."""
        data = self._rest + self.client.sock.recv(1 << 20)
        if len(data) == len(self._rest):
            raise BrokerError(f"closed by the broker after {self.count} messages")
        at, acks, view = 0, bytearray(), bytearray(data)
        while (size := self.client.measure(view, at, len(data))) is not None:
            if data[at] & 0x06:
                head = at + (2 if data[at + 1] < 128 else 3)
                place = head + 2 + int.from_bytes(data[head : head + 2], "big")
                acks += b"\x40\x02" + data[place : place + 2]
                number = int.from_bytes(data[place + 2 : place + 6], "big")
                self.disorder += number != self.count
            self.count += 1
            at += size
        self._rest = data[at:]
        if acks:
            self.client.sock.sendall(acks)


def drain(readers: Sequence[Reader], count: int, patience_s: float) -> float:
    """Read until each has `count`; the seconds it took. Raises BrokerError when nothing comes any more."""
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.client.sock, selectors.EVENT_READ, reader)
        missing = {reader for reader in readers if reader.count < count}
        while missing:
            ready = selector.select(patience_s)
            if not ready:
                came = sum(reader.count for reader in readers)
                raise BrokerError(f"{came:,} of {count * len(readers):,} messages came")
            for key, _ in ready:
                key.data.read()
                if key.data.count >= count:
                    missing.discard(key.data)
    return time.monotonic() - began


def idle(fleet: Fleet) -> None:
    """Connections that say nothing."""
    wire = argparse.Namespace(**vars(fleet.wire) | {"connections": fleet.options.connections})
    figures = connections(wire, fleet.usage)
    fleet.tell(f"{fleet.options.connections:,} idle connections", figures["kib_per_connection"], "KiB each", 12)
    fleet.tell("connects", figures["rate"], "/s", 2000, at_least=True)


def retained(fleet: Fleet) -> None:
    """One subscriber of everything that is retained."""
    count = fleet.options.retained
    topics = (f"scale/{number % 1000}/{number}" for number in range(count))
    packets = [publish_packet(topic, number, retain=True) for number, topic in enumerate(topics)]
    fleet.tell("retained messages set", count / fleet.publish(packets), "/s")
    (client,) = fleet.clients(1)
    began = time.monotonic()
    subscribe(client, ["scale/#"], 0)
    drain([Reader(client)], count, fleet.options.patience)
    fleet.tell(f"{count:,} retained messages to one subscriber", time.monotonic() - began, "s", 2)


def burst(fleet: Fleet) -> None:
    """Many subscribers that do not read, and one that pings."""
    packets = [
        publish_packet(f"burst/{number}", number, retain=True, body_bytes=BURST_BODY_BYTES)
        for number in range(BURST_MESSAGES)
    ]
    fleet.publish(packets)
    *subscribers, pinger = fleet.clients(fleet.options.subscribers + 1)
    rss, disk, cpu = fleet.usage.rss_mib(), fleet.disk_bytes(), fleet.usage.cpu_s()
    for client in subscribers:
        client.sock.sendall(packet(0x82, b"\0\1" + utf8("burst/#") + b"\0"))
    until_s, longest_s = time.monotonic() + BURST_S, 0.0
    while (asked_s := time.monotonic()) < until_s:
        pinger.call(packet(0xC0, b""), 0xD0)
        longest_s = max(longest_s, time.monotonic() - asked_s)
        time.sleep(0.02)
    fleet.tell(f"longest ping beside {len(subscribers):,} that subscribe", longest_s, "s")
    fleet.tell("memory grown", fleet.usage.rss_mib() - rss, "MiB")
    fleet.tell("disk grown", (fleet.disk_bytes() - disk) / (1 << 20), "MiB")
    fleet.tell("CPU", fleet.usage.cpu_s() - cpu, "s")


def offline(fleet: Fleet) -> None:
    """Sessions that are away while messages come."""
    sessions, count = fleet.options.sessions, fleet.options.messages
    clients = fleet.clients(sessions, clean=False)
    for client in clients:
        subscribe(client, ["offline/#"], 1)
        client.sock.sendall(b"\xe0\0")
        client.sock.close()
    time.sleep(2)
    before, disk = fleet.usage.rss_mib(), fleet.disk_bytes()
    packets = [publish_packet(f"offline/{number % 100}", number) for number in range(count)]
    fleet.tell(f"{count:,} messages for {sessions:,} away", fleet.publish(packets), "s")
    time.sleep(2)
    fleet.tell("memory grown, with all away", fleet.usage.rss_mib() - before, "MiB", 64)
    homes = len(list((fleet.data / "queues").glob("*")))  # each takes a message once, and says whose it is
    grown = (fleet.disk_bytes() - disk) / sum(map(len, packets))
    fleet.tell("disk grown, of what was published", grown, "times", 1.5 * homes if homes else None)
    readers, finish = [], fleet.usage.watch()
    for client in clients:  # the same names again
        client.sock = socket.create_connection((fleet.wire.host, fleet.wire.port), 60)
        answer = client.call(client.hello(4, clean=False), 0x20)
        if answer != b"\1\0":
            raise BrokerError(f"CONNACK {answer!r}: the session is not there any more")
        readers.append(Reader(client))
    seconds = drain(readers, count, fleet.options.patience)
    fleet.tell("all back, deliveries", sessions * count / seconds, "/s")
    fleet.tell("memory grown at most, with all back", finish()["rss_peak_mib"] - before, "MiB", 64)
    fleet.tell("out of order", sum(reader.disorder for reader in readers), "messages", 0)


def subscriptions(fleet: Fleet) -> None:
    """A topic filter for each of many devices."""
    count = fleet.options.subscriptions
    clients = fleet.clients(max(1, count // FILTERS_A_CLIENT))
    time.sleep(1)
    before, began = fleet.usage.rss_mib(), time.monotonic()
    for index, client in enumerate(clients):
        first = index * FILTERS_A_CLIENT
        subscribe(client, [f"fleet/{number}/+/state" for number in range(first, first + FILTERS_A_CLIENT)], 0)
    fleet.tell("subscriptions made", count / (time.monotonic() - began), "/s")
    time.sleep(2)
    fleet.tell("memory", (fleet.usage.rss_mib() - before) * (1 << 20) / count, "bytes each", 500)
    published = fleet.options.publishes
    step = max(1, count // published)
    packets = [publish_packet(f"fleet/{number * step % count}/a/state", number) for number in range(published)]
    cpu = fleet.usage.cpu_s()
    fleet.tell("publishes", published / fleet.publish(packets), "/s")
    fleet.tell("broker CPU of a publish that one matches", (fleet.usage.cpu_s() - cpu) / published * 1e6, "µs")


SCENARIOS: dict[str, Callable[[Fleet], None]] = {
    "idle": idle, "retained": retained, "burst": burst, "offline": offline, "subscriptions": subscriptions,
}  # fmt: skip


@contextlib.contextmanager
def brokers(options: argparse.Namespace) -> Iterator[list[Fleet]]:
    """Ours, and Mosquitto where it is installed; both keep what they hold."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqtt-scale-")))
        config = directory / "config.toml"
        config.write_text(CONFIG)
        broker = stack.enter_context(
            broker_process(
                directory / "data",
                doors=("mqtt",),
                arguments=("--config", str(config), "--amqp", "off", "--native", "off"),
            )
        )
        found = [Fleet(OURS, broker.mqtt_port, broker.pid, directory / "data", options)]
        if not options.ours_only and peers.mosquitto_path():
            kept = directory / "mosquitto"
            kept.mkdir()
            port, pid = stack.enter_context(
                peers.mosquitto("persistence true", f"persistence_location {kept}/", "set_tcp_nodelay true")
            )
            found.append(Fleet("Mosquitto", port, pid, kept, options))
        yield found


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--scenario", action="append", choices=list(SCENARIOS), help="repeatable; all when not given")
    add("--ours-only", action="store_true")
    add("--connections", type=int, default=10_000)
    add("--retained", type=int, default=100_000)
    add("--subscribers", type=int, default=300, help="in the burst scenario")
    add("--sessions", type=int, default=1000)
    add("--messages", type=int, default=1000, help="that each session misses")
    add("--subscriptions", type=int, default=1_000_000)
    add("--publishes", type=int, default=10_000, help="in the subscriptions scenario")
    add("--patience", type=float, default=10, help="seconds of silence that mean that no more will come")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    failures = 0
    for scenario in options.scenario or SCENARIOS:
        with brokers(options) as fleets:
            for fleet in fleets:
                try:
                    SCENARIOS[scenario](fleet)
                except (BrokerError, OSError) as error:
                    print(f"{fleet.name:10} {scenario} failed: {error}", flush=True)
                    failures += fleet.name == OURS
                failures += fleet.missed
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
