"""Every door behind a proxy that speaks the PROXY protocol: real clients, whose address counts and not the proxy's."""

from __future__ import annotations

import queue
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paho.mqtt.client as paho
import pika
import pytest
import trustme
from kafka import KafkaConsumer, KafkaProducer
from pika.exceptions import ProbableAuthenticationError

from gateway.config import ConfigError, load_config
from gateway.free_ports import free_ports
from millrace import BlockingClient
from tests.support import HOST, BrokerProcess, broker_process

PLAIN = ("amqp", "mqtt", "kafka", "websocket", "http")
DOORS = (*PLAIN, "amqps", "native")
CONFIG = """
[proxy_protocol]
doors = ["amqp", "amqps", "mqtt", "kafka", "websocket", "http"]
networks = ["127.0.0.1/32"]
[users]
guest = "guest"
ada = "secret"
"""
SOURCE = "203.0.113.9:4711"


class Proxy(threading.Thread):
    """A proxy that passes a client on to a door, behind a header with the source address, until it is told to stop."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._target = target
        self.header = f"PROXY TCP4 203.0.113.9 {HOST} 4711 {self.port}\r\n".encode()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection((HOST, self._target))
                server.sendall(self.header)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def proxy(broker: BrokerProcess, door: str) -> Iterator[int]:
    """The port of a proxy in front of a door."""
    found = Proxy(broker.ports[door])
    found.start()
    try:
        yield found.port
    finally:
        found.stop()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def broker(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("proxied")
    config, cert = directory / "config.toml", directory / "cert.pem"
    config.write_text(CONFIG)
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(cert))
    arguments = ("--config", str(config), "--tls-cert", str(cert))
    with broker_process(directory / "data", doors=DOORS, arguments=arguments) as process:
        yield process


def peers(broker: BrokerProcess) -> list[str]:
    """Who is connected to the doors behind proxies, as the list of connections has it."""
    with BlockingClient(f"{HOST}:{broker.native_port}") as client:
        found = client.administer("connections.list")
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return [row["peer"] for row in rows if row["protocol"] != "native"]


def amqp(port: int, user: str, password: str, context: ssl.SSLContext | None = None) -> pika.BlockingConnection:
    options = pika.SSLOptions(context, HOST) if context is not None else None
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters(HOST, port, credentials=credentials, ssl_options=options, socket_timeout=5)
    )


@pytest.mark.parametrize("door", ["amqp", "amqps"])
def test_amqp_with_tls_behind_the_header_and_without(broker: BrokerProcess, authority: trustme.CA, door: str) -> None:
    context = None
    if door == "amqps":
        context = ssl.create_default_context()
        authority.configure_trust(context)
    with proxy(broker, door) as port:
        connection = amqp(port, "ada", "secret", context)
        assert peers(broker) == [SOURCE]
        connection.close()
        with pytest.raises(ProbableAuthenticationError):  # who may log in from this machine alone is not there
            amqp(port, "guest", "guest", context)
    assert SOURCE in broker.log()


@pytest.mark.parametrize("door", ["mqtt", "websocket"])
def test_mqtt(broker: BrokerProcess, door: str) -> None:
    transport = "websockets" if door == "websocket" else "tcp"
    heard: queue.Queue[bool] = queue.Queue()

    def connect(port: int, *, user: str | None) -> tuple[paho.Client, bool]:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, transport=transport)  # type: ignore[arg-type]
        client.on_connect = lambda *arguments: heard.put(not arguments[3].is_failure)
        if user is not None:
            client.username_pw_set(user, "secret")
        client.connect(HOST, port)
        client.loop_start()
        return client, heard.get(timeout=10)

    with proxy(broker, door) as port:
        client, accepted = connect(port, user="ada")
        assert accepted
        assert peers(broker) == [SOURCE]
        client.disconnect()
        client.loop_stop()
        client, accepted = connect(port, user=None)  # without a user name from this machine alone
        assert not accepted
        client.disconnect()
        client.loop_stop()


def test_kafka_is_told_the_address_that_it_has_dialled(broker: BrokerProcess) -> None:
    with proxy(broker, "kafka") as port:
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        options = {"bootstrap_servers": f"{HOST}:{port}", "sasl_plain_username": "ada", "sasl_plain_password": "secret"}
        producer = KafkaProducer(**options, **login)
        assert producer.send("proxied", b"one").get(10).offset == 0
        assert set(peers(broker)) == {SOURCE}
        consumer = KafkaConsumer("proxied", auto_offset_reset="earliest", consumer_timeout_ms=5000, **options, **login)
        assert next(consumer).value == b"one"
        consumer.close()
        producer.close()


def test_figures_are_not_for_who_only_comes_by_this_machine(broker: BrokerProcess) -> None:
    with proxy(broker, "http") as port, socket.create_connection((HOST, port), 5) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("door", DOORS[:-1])
def test_who_says_no_header_is_not_let_in(broker: BrokerProcess, door: str) -> None:
    with socket.create_connection((HOST, broker.ports[door]), 5) as client:
        peer = "{}:{}".format(*client.getsockname())
        client.sendall(b"AMQP\0\0\x09\x01")
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    line = next(line for line in broker.log().splitlines() if f"peer={peer}" in line)
    assert 'event="PROXY header refused"' in line or "event=PROXY header refused" in line, line
    assert f"door={door}" in line


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
@pytest.mark.parametrize("version", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options crc32c,unique-id"])
def test_haproxy(broker: BrokerProcess, tmp_path: Path, version: str) -> None:
    (port,) = free_ports(1)
    (tmp_path / "haproxy.cfg").write_text(f"""
defaults
  mode tcp
  timeout connect 5s
  timeout client 10s
  timeout server 10s
listen amqp
  bind {HOST}:{port}
  unique-id-format %ci
  server broker {HOST}:{broker.ports["amqp"]} {version} check check-send-proxy inter 100ms
""")
    process = subprocess.Popen(["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")])
    try:
        deadline = time.monotonic() + 10
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection((HOST, port), 5):
                break
            assert time.monotonic() < deadline, "haproxy is not ready"
            time.sleep(0.01)
        connection = amqp(port, "ada", "secret")
        host, local = connection._impl._transport._sock.getsockname()  # type: ignore[union-attr]
        assert f"{host}:{local}" in peers(broker)
        connection.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('doors = ["amqpx"]\nnetworks = ["::1"]', "proxy_protocol.doors: there is no door 'amqpx'"),
        ('doors = ["amqp"]', "proxy_protocol.networks: is missing: from where headers are believed"),
        ('networks = ["10.0.0.1/8"]', "proxy_protocol.networks: 10.0.0.1/8 has host bits set"),
    ],
)
def test_what_cannot_be_configured(tmp_path: Path, toml: str, message: str) -> None:
    (tmp_path / "millrace.toml").write_text(f"[proxy_protocol]\n{toml}\n")
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "millrace.toml", {})
    assert str(error.value) == message
