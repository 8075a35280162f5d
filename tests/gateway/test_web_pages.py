"""The doors for HTTP, with a real client: figures, health, who may see them, and what is said to those that may not."""

from __future__ import annotations

import base64
import gzip
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path

import pika
import pytest
import trustme

import gateway
from gateway.authentication import authenticator
from gateway.cluster_status import show_troubles
from gateway.config import Config
from gateway.errors import Refused
from millrace import BlockingClient
from routing.administration import administer
from tests.gateway.shell import open_door
from tests.gateway.test_websocket import answer_of
from tests.support import BrokerProcess, broker_process
from tests.support.home_cluster import mesh, until
from tests.support.metrics import parsed, scraped
from tests.support.web import HOST, with_tls

openmetrics = pytest.importorskip(
    "prometheus_client.openmetrics.parser", reason="these doors need pip install 'millrace[metrics]'"
)
NO_LEASE = "broker 1 has no lease, as etcd does not renew it: "
CONFIG = """
[http]
loopback_without_user = {open}
request_timeout_ms = 700
head_bytes_max = 2048
connections_max = 2
"""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def broker(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("pages")
    arguments = with_tls(directory, authority, CONFIG.format(open="true"))
    doors = ("amqp", "native", "http", "https")
    with broker_process(directory / "data", doors=doors, arguments=arguments) as process:
        yield process


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that wants a user, also of clients on this machine."""
    directory = tmp_path_factory.mktemp("closed")
    (directory / "config.toml").write_text(CONFIG.format(open="false"))
    arguments = ("--config", str(directory / "config.toml"))
    with broker_process(directory / "data", doors=("native", "http"), arguments=arguments) as process:
        with BlockingClient(f"{HOST}:{process.native_port}") as client:
            client.administer("users.add", name="eve", password="secret", tags=[])
            client.administer("users.add", name="ada", password="pass:word", tags=["monitoring"])
        yield process


def get(broker: BrokerProcess, path: str, headers: dict[str, str] | None = None) -> HTTPResponse:
    request = urllib.request.Request(f"http://{HOST}:{broker.ports['http']}{path}", headers=headers or {})
    found = urllib.request.urlopen(request, timeout=10)
    assert isinstance(found, HTTPResponse)
    return found


def test_figures_of_a_real_broker(broker: BrokerProcess) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(HOST, broker.amqp_port)) as connection:
        channel = connection.channel()
        channel.queue_declare('odd "name"\\', durable=True)
        channel.confirm_delivery()
        for number in range(3):
            channel.basic_publish("", 'odd "name"\\', b"%d" % number)
        channel.basic_get('odd "name"\\')
        found = scraped(broker.ports["http"])
        assert found["millrace_queue_messages_ready", 'odd "name"\\', "/"] == 2
        assert found["millrace_queue_messages_unacknowledged", 'odd "name"\\', "/"] == 1
        assert found["millrace_connections", "amqp"] == 1
        assert found["millrace_messages_received_total", "amqp"] == 3
        assert found["millrace_messages_delivered_total", "amqp"] == 1
        assert found["millrace_series_left_off", "millrace_queue_messages_ready"] == 0
    assert found["millrace_disk_free_bytes",] > found["millrace_disk_free_bytes_min",] > 0
    assert found["millrace_publishers_blocked",] == 0
    assert found["process_resident_memory_bytes",] > 1 << 20


def test_formats_are_as_clients_ask_for(broker: BrokerProcess) -> None:
    with get(broker, "/metrics", {"Accept-Encoding": "deflate, gzip", "Accept": "text/plain"}) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert ("millrace_queues",) in parsed(gzip.decompress(answer.read()).decode())
    with get(broker, "/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"}) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        names = {family.name for family in openmetrics.text_string_to_metric_families(answer.read().decode())}
        assert {"millrace_queues", "millrace_messages_received"} <= names


def test_the_door_speaks_tls(broker: BrokerProcess, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for path in ("metrics", "healthz"):
        url = f"https://{HOST}:{broker.ports['https']}/{path}"
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            assert answer.status == 200
            assert answer.read()
    (expires_at,) = (value for key, value in scraped(broker.ports["http"]).items() if "_certificate_expires_" in key[0])
    assert expires_at > time.time()


@pytest.mark.parametrize("path", ["/healthz", "/nothing-is-here"])
def test_the_end_of_an_answer_is_one_of_tls(broker: BrokerProcess, authority: trustme.CA, path: str) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with socket.create_connection((HOST, broker.ports["https"]), 5) as plain:
        secured = context.wrap_socket(plain, server_hostname=HOST, suppress_ragged_eofs=False)
        secured.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while secured.recv(65536):
            pass  # an end without a word of TLS is an SSLEOFError
        secured.close()


def test_health(broker: BrokerProcess, closed: BrokerProcess) -> None:
    for one in (broker, closed):
        with get(one, "/healthz?verbose=1") as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")


async def test_a_member_of_a_cluster_is_well_while_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    async with mesh() as brokers, open_door() as door:
        member = brokers.members[1]
        from gateway.web_pages import WebPages

        pages = WebPages(member.broker, door.shell, Config(), authenticator(member.broker.rights))

        async def health() -> bytes:
            client, broker = socket.socketpair()
            with client, broker:
                broker.setblocking(False)
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: broker\r\n\r\n")
                client.shutdown(socket.SHUT_WR)
                with suppress(Refused):
                    await pages.answer(broker, None, "127.0.0.1:1", None)
                return client.recv(4096).partition(b"\r\n")[0]

        async def status() -> str:
            found = await administer(member.broker, "guest", "cluster.brokers", {})
            show_troubles({**found, "partitions": []})
            return capsys.readouterr().out

        def lost() -> bool:
            member.one.store.lease_deadline = -1.0
            return not member.part.serves

        assert await health() == b"HTTP/1.1 200 OK"
        assert "lease" not in await status()
        await until(lambda: not lost())
        assert await health() == b"HTTP/1.1 200 OK", (
            "others say that they do not lead what it leads: etcd is away for all"
        )
        assert (await status()).startswith(NO_LEASE + "it goes on serving, and")
        last = await brokers.add(4)

        def goes_on() -> bool:
            last.one.store.lease_deadline = -1.0
            return last.part.serves

        await until(goes_on)  # it leads nothing, and its clients go on at those to which it has links
        for one in (last, member):
            one.cut()
        last.one.store.lease_deadline = -1.0
        assert not last.part.serves
        await until(lost)
        assert await health() == b"HTTP/1.1 503 Service Unavailable"
        assert (await status()).startswith(NO_LEASE + "it leads nothing, and")


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("GET /nothing HTTP/1.1", {}, "404 Not Found"),
        ("GET /web/../web_pages.py HTTP/1.1", {}, "404 Not Found"),
        ("GET /web/%2e%2e/web_pages.py HTTP/1.1", {}, "404 Not Found"),
        ("GET /web/ HTTP/1.1", {}, "404 Not Found"),
        ("POST / HTTP/1.1", {"Content-Length": "0"}, "405 Method Not Allowed"),
        ("HEAD / HTTP/1.1", {}, "200 OK"),
        ("POST /metrics HTTP/1.1", {"Content-Length": "0"}, "405 Method Not Allowed"),
        ("GET /metrics HTTP/1.1", {"Content-Length": "5"}, "400 Bad Request"),
        ("GET /metrics HTTP/1.1", {"Host": ""}, "401 Unauthorized"),
        ("GET /metrics HTTP/1.1", {"Host": "evil.example"}, "401 Unauthorized"),
        ("GET /metrics HTTP/1.1", {}, "200 OK"),
        ("HEAD /metrics HTTP/1.1", {}, "200 OK"),
        ("GET /healthz HTTP/1.0", {}, "200 OK"),
        ("GET /healthz/alarms HTTP/1.1", {"Host": "evil.example"}, "200 OK"),
        ("GET /healthz/nothing HTTP/1.1", {}, "404 Not Found"),
        ("GET http://localhost/metrics HTTP/1.1", {"Host": "evil.example"}, "200 OK"),
        ("GET http://evil.example/metrics HTTP/1.1", {}, "401 Unauthorized"),
        ("GET HTTP://localhost?verbose=1 HTTP/1.1", {}, "200 OK"),
        ("GET /healthz HTTP/1.1", {"Cookie": "x" * 4000}, "431 Request Header Fields Too Large"),
        ("nonsense", {}, "400 Bad Request"),
        ("GET /metrics HTTP/1.1\r\nHost: again", {}, "400 Bad Request"),
    ],
)
def test_who_asks_for_something_else_is_told_in_terms_of_http(
    broker: BrokerProcess, line: str, headers: dict[str, str], status: str
) -> None:
    with socket.create_connection((HOST, broker.ports["http"]), 5) as sock:
        head = "".join(f"{name}: {value}\r\n" for name, value in ({"Host": "localhost"} | headers).items())
        sock.sendall(f"{line}\r\n{head}\r\n".encode())
        told, answered, body = answer_of(sock)
    assert told == f"HTTP/1.1 {status}"
    assert answered["connection"] == "close"
    assert ("allow" in answered) == ("405" in status)
    assert ("asks for localhost" in body) == ("401" in status)
    assert len(body) == (0 if line.startswith("HEAD") else int(answered["content-length"]))


def test_who_asks_too_slowly_is_told_so(broker: BrokerProcess) -> None:
    with socket.create_connection((HOST, broker.ports["http"]), 5) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert answer_of(sock)[0] == "HTTP/1.1 408 Request Timeout"


def test_no_more_are_answered_at_a_time_than_may_be(broker: BrokerProcess) -> None:
    address = (HOST, broker.ports["http"])
    for _ in range(10):  # on a busy machine the first two may have been given up before the third comes
        one, two, three = (socket.create_connection(address, 5) for _ in range(3))
        with one, two, three:
            status, headers, _ = answer_of(three)
        if status == "HTTP/1.1 503 Service Unavailable":
            assert headers["retry-after"] == "1"
            return
    pytest.fail(f"all three were answered: {status}")


def test_the_page_is_there_for_everybody_and_from_nowhere_else(closed: BrokerProcess) -> None:
    with get(closed, "/") as answer:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.read() == (Path(gateway.__file__).parent / "web" / "index.html").read_bytes()
        policy, tag = answer.headers["Content-Security-Policy"], answer.headers["ETag"]
        assert answer.headers["Cache-Control"] == "no-cache"
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    with get(closed, "/web/index.html", {"If-None-Match": '"other"'}) as answer:
        assert (answer.status, answer.headers["ETag"]) == (200, tag)
    for known in (tag, f'"other", W/{tag}'):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(closed, "/?query", {"If-None-Match": known})
        with caught.value as error:
            assert (error.code, error.read()) == (304, b"")


def test_without_the_library_for_figures_there_is_the_page_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['prometheus_client'] = None\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with broker_process(tmp_path / "data", doors=("http",)) as process:
            with get(process, "/") as answer:
                assert answer.status == 200
            with pytest.raises(urllib.error.HTTPError) as caught:
                get(process, "/metrics")
            with caught.value as error:
                assert error.code == 501
                assert b"pip install 'millrace[metrics]'" in error.read()


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Basic !"}, 401),
        ({"Authorization": "Basic YWRh"}, 401),
        ({"Authorization": "Bearer token"}, 401),
        (basic("ada", "word"), 401),
        (basic("nobody", "secret"), 401),
        (basic("eve", "secret"), 403),
        (basic("ada", "pass:word"), 200),
        (basic("guest", "guest"), 200),
    ],
)
def test_figures_are_for_users_with_a_tag(closed: BrokerProcess, headers: dict[str, str], status: int) -> None:
    if status == 200:
        with get(closed, "/metrics", headers) as answer:
            assert answer.status == status
        return
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(closed, "/metrics", headers)
    with caught.value as error:
        assert error.code == status
        assert (error.headers["WWW-Authenticate"] or "").startswith("Basic ") == (status == 401)


def test_who_needs_no_user_may_not_say_a_wrong_one(broker: BrokerProcess) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(broker, "/metrics", basic("guest", "wrong"))
