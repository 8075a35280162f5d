"""MQTT in a WebSocket, with and without TLS: real clients, and what is said to those that ask for something else."""

from __future__ import annotations

import contextlib
import queue
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
import trio
import trio.testing
import trustme
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, Ping, Pong, Request

from gateway.config import ConfigError, Limits, WebSocketConfig, load_config
from gateway.http import Request as HttpRequest
from gateway.server import _say_goodbye
from gateway.websocket import accept
from tests.gateway.shell import EchoAdapter, open_door, receive_all, until
from tests.support import BrokerProcess, broker_process

HOST = "127.0.0.1"
CONNECT = bytes.fromhex("100e00044d5154540402000000027773")
CONNACK = bytes.fromhex("20020000")
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
UPGRADE = {
    "Host": "broker",
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "mqtt",
}

CONFIG = """
[websocket]
origins = "https://Good.example/, http://localhost:8080"
handshake_timeout_ms = 700
message_bytes_max = 70000
head_bytes_max = 4096
"""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def broker(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("websocket")
    cert = str(directory / "cert.pem")
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(cert)
    config = directory / "config.toml"
    config.write_text(CONFIG)
    arguments = ("--tls-cert", cert, "--config", str(config))
    with broker_process(directory / "data", doors=("mqtt", "websocket", "websockets"), arguments=arguments) as process:
        yield process


def asked(broker: BrokerProcess, line: str, headers: dict[str, str]) -> tuple[str, dict[str, str], str]:
    """The answer to a request: its status line, its headers, its body until the end."""
    with socket.create_connection((HOST, broker.ports["websocket"]), 5) as sock:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        sock.sendall(f"{line}\r\n{head}\r\n".encode("latin-1"))
        return answer_of(sock)


def answer_of(sock: socket.socket) -> tuple[str, dict[str, str], str]:
    data = b""
    while some := sock.recv(65536):
        data += some
        if data.startswith(b"HTTP/1.1 101") and b"\r\n\r\n" in data:
            break
    head, _, body = data.decode("latin-1").partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = ", ".join(filter(None, (headers.get(name.lower()), value.strip())))
    return status, headers, body


def test_the_answer_to_a_request_is_that_of_the_standard(broker: BrokerProcess) -> None:
    status, headers, _ = asked(broker, "GET /mqtt?token=x HTTP/1.1", UPGRADE)
    assert status.startswith("HTTP/1.1 101 ")
    assert headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455 section 1.3
    assert headers["sec-websocket-protocol"] == "mqtt"  # [MQTT-6.0.0-4]
    assert "sec-websocket-extensions" not in headers


@pytest.mark.parametrize(
    ("line", "changed", "status", "header"),
    [
        ("GET / HTTP/1.1", {}, "404 Not Found", None),
        ("POST /mqtt HTTP/1.1", {"Content-Length": "0"}, "405 Method Not Allowed", ("allow", "GET")),
        ("HEAD /mqtt HTTP/1.1", {}, "405 Method Not Allowed", ("allow", "GET")),
        ("GET /mqtt HTTP/1.1", {"Upgrade": ""}, "426 Upgrade Required", ("upgrade", "websocket")),
        ("GET /mqtt HTTP/1.1", {"Connection": "close"}, "426 Upgrade Required", ("upgrade", "websocket")),
        ("GET /mqtt HTTP/1.0", {}, "426 Upgrade Required", ("upgrade", "websocket")),
        ("GET /mqtt HTTP/1.1", {"Sec-WebSocket-Version": "8"}, "426 Upgrade Required", ("sec-websocket-version", "13")),
        ("GET /mqtt HTTP/1.1", {"Sec-WebSocket-Key": "short"}, "400 Bad Request", None),
        ("GET /mqtt HTTP/1.1", {"Sec-WebSocket-Protocol": "soap, amqp"}, "400 Bad Request", None),
        ("GET /mqtt HTTP/1.1", {"Origin": "https://bad.example"}, "403 Forbidden", None),
        ("GET /mqtt HTTP/1.1", {"Content-Length": "5"}, "400 Bad Request", None),
        ("GET /mqtt HTTP/1.1", {"Cookie": "x" * 5000}, "431 Request Header Fields Too Large", None),
        ("nonsense", {}, "400 Bad Request", None),
    ],
)
def test_who_asks_for_something_else_is_told_in_terms_of_http(
    broker: BrokerProcess, line: str, changed: dict[str, str], status: str, header: tuple[str, str] | None
) -> None:
    told, headers, body = asked(broker, line, {**UPGRADE, **changed})
    assert told == f"HTTP/1.1 {status}"
    assert "close" in headers["connection"].lower()
    if header is not None:
        assert headers[header[0]] == header[1]
    assert len(body) == (0 if line.startswith("HEAD") else int(headers["content-length"]))


@pytest.mark.parametrize("changed", [{"Origin": "https://good.example"}, {"Sec-WebSocket-Protocol": "x, mqttv3.1"}])
def test_allowed_pages_and_older_clients_come_in(broker: BrokerProcess, changed: dict[str, str]) -> None:
    status, headers, _ = asked(broker, "GET /mqtt HTTP/1.1", {**UPGRADE, **changed})
    assert status.startswith("HTTP/1.1 101 ")
    assert headers["sec-websocket-protocol"] in ("mqtt", "mqttv3.1")


def test_who_asks_too_slowly_is_told_so(broker: BrokerProcess) -> None:
    with socket.create_connection((HOST, broker.ports["websocket"]), 5) as sock:
        sock.sendall(b"GET /mqtt HTTP/1.1\r\n")
        assert answer_of(sock)[0] == "HTTP/1.1 408 Request Timeout"


class Peer:
    """A client of wsproto's on a blocking socket."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.socket = socket.create_connection((HOST, broker.ports["websocket"]), 5)
        self.connection = WSConnection(ConnectionType.CLIENT)
        self.frames = 0
        self.send(Request(host="broker", target="/mqtt", subprotocols=["mqtt"]))
        assert isinstance(self.event(), AcceptConnection)

    def send(self, *events: object) -> None:
        self.socket.sendall(b"".join(self.connection.send(event) for event in events))  # type: ignore[arg-type]

    def event(self) -> object:
        while True:
            for event in self.connection.events():
                return event
            data = self.socket.recv(65536)
            self.connection.receive_data(data or None)

    def bytes(self, size: int) -> bytes:
        """So many bytes of MQTT."""
        data = b""
        while len(data) < size:
            event = self.event()
            assert isinstance(event, BytesMessage), event
            self.frames += event.message_finished
            data += event.data
        return data


def test_packets_straddle_frames_and_share_them(broker: BrokerProcess) -> None:
    peer = Peer(broker)
    for byte in CONNECT:
        peer.send(Message(data=bytes((byte,))))
    assert peer.bytes(4) == CONNACK
    peer.send(Message(data=PINGREQ + PINGREQ[:1], message_finished=False), Message(data=PINGREQ[1:] + PINGREQ))
    assert peer.bytes(6) == PINGRESP * 3
    peer.socket.close()


def test_each_packet_of_a_turn_is_one_frame(broker: BrokerProcess) -> None:
    peer = Peer(broker)
    peer.send(Message(data=CONNECT))
    assert peer.bytes(4) == CONNACK
    peer.frames = 0
    peer.send(Message(data=PINGREQ * 1000))
    assert peer.bytes(2000) == PINGRESP * 1000
    assert peer.frames == 1000
    peer.socket.close()


def test_pings_are_answered_while_nothing_else_is_said(broker: BrokerProcess) -> None:
    peer = Peer(broker)
    peer.send(Ping(payload=b"1"))
    assert peer.event() == Pong(payload=b"1")
    peer.send(Message(data=CONNECT))
    assert peer.bytes(4) == CONNACK
    peer.send(Ping(payload=b"2"))
    assert peer.event() == Pong(payload=b"2")
    peer.socket.close()


async def test_who_takes_no_pongs_is_not_read_from_until_he_does() -> None:
    limits = Limits(outbox_bytes_high=1024)
    async with open_door(limits=limits, web=WebSocketConfig()) as door:
        door.listener._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client = await door.connect(receive_bytes=4096)
        head = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        await client.send_all(f"GET /mqtt HTTP/1.1\r\n{head}\r\n".encode())
        await until(lambda: door.shell.connections)
        (connection,) = door.shell.connections
        assert (await client.receive_some(4096)).startswith(b"HTTP/1.1 101 ")
        ping = b"\x89\xfd" + bytes(4 + 125)

        async def say_ping() -> None:
            await client.send_all(ping)
            await trio.testing.wait_all_tasks_blocked()  # it is read before the next one is sent, if it is read at all

        while connection.outbox.pending_bytes <= 1024:
            await say_ping()
        for _ in range(50):
            await say_ping()
        assert connection.outbox.pending_bytes < 2048
        await client.send_all(b"\x82\x82\0\0\0\0\xe0\0")
        received = b""
        with trio.fail_after(10):
            while not received.endswith(b"\x82\x02\xe0\0"):
                received += await client.receive_some(65536)


def test_an_end_of_tls_is_seen_though_it_came_with_a_frame(broker: BrokerProcess, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    head = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
    with socket.create_connection((HOST, broker.ports["websockets"]), 5) as sock:

        def wait_for(what: Callable[[], bytes | None]) -> bytes | None:
            while True:
                try:
                    return what()
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    data = sock.recv(65536)
                    assert data, "no end of TLS"
                    incoming.write(data)

        wait_for(tls.do_handshake)
        tls.write(f"GET /mqtt HTTP/1.1\r\n{head}\r\n".encode())
        assert (wait_for(lambda: tls.read(65536)) or b"").startswith(b"HTTP/1.1 101 ")
        tls.write(b"\x89\x80\0\0\0\0")  # a ping
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.unwrap()
        sock.sendall(outgoing.read())
        received = bytearray()
        while data := sock.recv(65536):
            received += data
        incoming.write(received)
        assert tls.read(65536) == b"\x8a\0"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (Message(data="text"), 1003),  # [MQTT-6.0.0-1]
        (Message(data=bytes(70_001)), 1009),
        (CloseConnection(code=1000), 1000),
        (Message(data=b"\xe0\x00"), 1000),  # DISCONNECT
        (Message(data=b"\xff\xff"), 1000),  # no MQTT: the connection ends, and WebSocket with it
    ],
)
def test_the_end_is_a_close_frame_and_then_the_end_of_the_stream(
    broker: BrokerProcess, said: object, code: int
) -> None:
    peer = Peer(broker)
    peer.send(Message(data=CONNECT))
    assert peer.bytes(4) == CONNACK
    peer.send(said)
    event = peer.event()
    assert isinstance(event, CloseConnection), event
    assert event.code == code
    assert peer.socket.recv(1) == b""
    peer.socket.close()


@pytest.mark.parametrize("last", [CloseConnection(code=4000), Message(data="text")])
def test_nothing_follows_a_close_frame(broker: BrokerProcess, last: CloseConnection | Message) -> None:
    peer = Peer(broker)
    peer.send(Message(data=CONNECT), Message(data=PINGREQ), last)
    assert peer.bytes(6) == CONNACK + PINGRESP
    event = peer.event()
    assert isinstance(event, CloseConnection)
    assert peer.socket.recv(1) == b""
    peer.socket.close()


def test_the_clients_of_a_broker_that_stops_are_told_that_it_goes_away(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=("mqtt", "websocket")) as broker:
        peer = Peer(broker)
        peer.send(Message(data=CONNECT))
        assert peer.bytes(4) == CONNACK
        broker.terminate()
        event = peer.event()
        while isinstance(event, BytesMessage):  # a DISCONNECT, for those that know it
            event = peer.event()
        assert isinstance(event, CloseConnection)
        assert event.code == 1001
        peer.socket.close()


async def test_others_have_their_turns_while_a_client_sends_much_right_behind_its_request() -> None:
    seen: set[int] = set()
    number = 0

    class Noting(EchoAdapter):
        async def handle(self, data: bytes) -> None:
            seen.add(number)
            self.reads.append(data)

    async with open_door(Noting, Limits(read_bytes_max=1024), web=WebSocketConfig()) as door:
        stream = await door.connect()
        head = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        frames = (b"\x82\xe4" + bytes(104)) * 400
        await stream.send_all(f"GET /mqtt HTTP/1.1\r\n{head}\r\n".encode() + frames)
        with trio.fail_after(10):
            while sum(len(data) for one in door.adapters for data in one.reads) < 40_000:
                number += 1
                await trio.lowlevel.checkpoint()
        assert len(seen) > 5, "rounds of the event loop"


async def test_who_asks_in_the_moment_of_the_stop_is_no_connection_that_nobody_says_goodbye_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_door(web=WebSocketConfig()) as door:

        def agreed(request: HttpRequest, config: WebSocketConfig) -> list[tuple[str, str]]:
            _say_goodbye(door.shell, [door.listener])
            return accept(request, config)

        monkeypatch.setattr("gateway.websocket.accept", agreed)
        stream = await door.connect()
        head = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        await stream.send_all(f"GET /mqtt HTTP/1.1\r\n{head}\r\n".encode())
        assert (await receive_all(stream)).startswith(b"HTTP/1.1 101")
        assert not door.adapters


def client(broker: BrokerProcess, door: str, authority: trustme.CA) -> paho.Client:
    """A paho client that is connected to a door."""
    transport = "websockets" if door.startswith("websocket") else "tcp"
    found = paho.Client(paho.CallbackAPIVersion.VERSION2, transport=transport)  # type: ignore[arg-type]
    if transport == "websockets":
        found.ws_set_options(headers={"Origin": "https://good.example"})  # it would say one of its own
    if door.endswith("s"):
        context = ssl.create_default_context()
        authority.configure_trust(context)
        found.tls_set_context(context)
    connected: queue.Queue[object] = queue.Queue()
    found.on_connect = lambda *arguments: connected.put(arguments[3])
    found.connect(HOST, broker.ports[door])
    found.loop_start()
    assert not connected.get(timeout=10).is_failure  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("doors", [("websocket", "mqtt"), ("mqtt", "websockets"), ("websockets", "websocket")])
def test_paho_through_one_door_and_another(
    broker: BrokerProcess, authority: trustme.CA, doors: tuple[str, str]
) -> None:
    publisher, subscriber = (client(broker, door, authority) for door in doors)
    got: queue.Queue[bytes] = queue.Queue()
    subscriber.on_message = lambda _client, _data, message: got.put(message.payload)
    ready: queue.Queue[object] = queue.Queue()
    subscriber.on_subscribe = lambda *_: ready.put(None)
    subscriber.subscribe("web/#", 1)
    ready.get(timeout=10)
    bodies = [b"%06d" % number * (1 + number % 50) for number in range(2000)] + [bytes(60_000)]
    for number, body in enumerate(bodies):
        publisher.publish(f"web/{number % 7}", body, qos=1).wait_for_publish(10) if number % 500 == 0 else (
            publisher.publish(f"web/{number % 7}", body, qos=1)
        )
    deadline, received = time.monotonic() + 20, []
    while len(received) < len(bodies) and time.monotonic() < deadline:
        received.append(got.get(timeout=10))
    assert received == bodies
    for one in (publisher, subscriber):
        one.disconnect()
        one.loop_stop()


def test_settings_are_checked() -> None:
    assert load_config(environment={"MILLRACE_WEBSOCKET_PATH": "/ws"}).websocket.path == "/ws"
    with pytest.raises(ConfigError, match="PATH"):
        load_config(environment={"MILLRACE_WEBSOCKET_PATH": "ws"})
    with pytest.raises(ConfigError, match=r"listen\.websockets: needs a certificate"):
        load_config(flags={"listen": {"websockets": "127.0.0.1:0"}})
