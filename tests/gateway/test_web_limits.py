"""Over HTTP: clients that are slow, gone or too many, operations that do not end, and a broker that stops."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.config import Config, HttpConfig, Listen
from gateway.http import Exchange
from gateway.server import serve
from gateway.web_operations import WEB_OPERATIONS
from routing.administration.operations import operation
from tests.support import BrokerProcess, broker_process
from tests.support.web import HOST, Api, ApiError

CONFIG = """
[http]
request_timeout_ms = 500
operation_timeout_ms = {timeout_ms}
connections_max = 3
body_bytes_max = 16777216
records_bytes_max = 16777216
[engine]
disk_free_bytes_min = {free}
"""
VALUE = "x" * (1 << 20)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("limits")
    (directory / "config.toml").write_text(CONFIG.format(timeout_ms=20_000, free=0))
    with broker_process(
        directory / "data", doors=("http",), arguments=("--config", str(directory / "config.toml"))
    ) as process:
        yield process


def request(name: str, **arguments: object) -> bytes:
    body = json.dumps(arguments)
    head = f"POST /api/{name} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def small_window(broker: BrokerProcess) -> socket.socket:
    """A client whose kernel takes little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(10)
    sock.connect((HOST, broker.ports["http"]))
    return sock


def is_served(api: Api) -> bool:
    """Else too many are."""
    try:
        api("whoami")
    except (OSError, json.JSONDecodeError):
        return False
    return True


def test_who_does_not_take_the_answer_is_given_up(broker: BrokerProcess) -> None:
    api = Api(broker.ports["http"])
    api("topics.create", topic="large", config={"max.message.bytes": "2000000"})
    for _ in range(12):
        api("records.produce", topic="large", value=VALUE[:1_000_000])
    slow = [small_window(broker) for _ in range(3)]
    try:
        for sock in slow:
            sock.sendall(request("records.read", topic="large", partition=0, bytes_max=1 << 20))
        got = [len(sock.recv(1)) for sock in slow]
        deadline = time.monotonic() + 10
        while not is_served(api):  # all places are taken until the broker has given up one of them
            assert time.monotonic() < deadline
        for number, sock in enumerate(slow):
            while some := sock.recv(1 << 20):
                got[number] += len(some)
        assert min(got) < 12_000_000
    finally:
        for sock in slow:
            sock.close()


def test_who_goes_away_meanwhile_leaves_nothing(broker: BrokerProcess) -> None:
    api = Api(broker.ports["http"])
    api("topics.create", topic="left")
    for _ in range(10):
        with socket.create_connection((HOST, broker.ports["http"]), 10) as sock:
            sock.sendall(request("records.produce", topic="left", value="x"))
    deadline = time.monotonic() + 10
    while True:
        try:
            if api("records.read", topic="left", partition=0)["end_offset"] and not api("connections.list")["rows"]:
                break
        except (OSError, json.JSONDecodeError):
            pass  # too many at a time
        assert time.monotonic() < deadline
    assert "failed" not in broker.log()
    assert "Traceback" not in broker.log()


def test_who_publishes_is_refused_at_once_while_publishers_have_to_wait(broker: BrokerProcess, tmp_path: Path) -> None:
    assert Api(broker.ports["http"])("whoami")["blocked"] is None
    (tmp_path / "config.toml").write_text(CONFIG.format(timeout_ms=20_000, free=1 << 60))
    arguments = ("--config", str(tmp_path / "config.toml"))
    with broker_process(tmp_path / "data", doors=("http",), arguments=arguments) as process:
        api = Api(process.ports["http"])
        api("topics.create", topic="t")
        assert api("whoami")["blocked"] == "low on disk"
        began = time.monotonic()
        with pytest.raises(ApiError, match="503 BLOCKED: producers are blocked: low on disk"):
            api("records.produce", topic="t", value="x")
        with pytest.raises(ApiError, match="503 STORAGE_UNAVAILABLE: publishers have to wait: low on disk"):
            api("messages.publish", exchange="amq.fanout", body="x")
        assert time.monotonic() - began < 5
        assert api("records.read", topic="t", partition=0)["records"] == []
        assert "Traceback" not in process.log()


@contextmanager
def endless() -> Iterator[trio.Event]:
    """An operation `endless`; set once it is under way."""
    asked = trio.Event()

    async def wait(asking: Any, user: str) -> None:
        asked.set()
        await trio.sleep_forever()

    operation("endless", into=WEB_OPERATIONS)(wait)
    try:
        yield asked
    finally:
        del WEB_OPERATIONS["endless"]


def settings(directory: Path, timeout_ms: int) -> Config:
    doors = Listen(amqp="off", mqtt="off", native="off", http=f"{HOST}:0")
    return Config(data_dir=str(directory), listen=doors, http=HttpConfig(operation_timeout_ms=timeout_ms))


async def test_an_operation_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with endless() as asked:
        async with serve(settings(tmp_path, 50)) as server:
            with pytest.raises(ApiError, match="504 REQUEST_TIMED_OUT: endless: no end within 50 ms"):
                await trio.to_thread.run_sync(Api(server.ports["http"]), "endless")
        assert asked.is_set()


async def test_a_broker_that_stops_does_not_wait_for_operations(tmp_path: Path) -> None:
    told: list[Exception] = []

    def ask(port: int) -> None:
        try:
            Api(port)("endless")
        except (OSError, ApiError) as error:
            told.append(error)

    with endless() as asked, trio.fail_after(15):
        async with trio.open_nursery() as nursery, serve(settings(tmp_path, 120_000)) as server:
            nursery.start_soon(trio.to_thread.run_sync, ask, server.ports["http"])
            await asked.wait()
    assert len(told) == 1


async def test_others_have_their_turns_while_a_body_comes_in_chunks_of_a_byte() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        head = b"POST /api/x HTTP/1.1\r\nHost: broker\r\nTransfer-Encoding: chunked\r\n\r\n"
        theirs.sendall(head + b"1\r\nx\r\n" * 16_000 + b"0\r\n\r\n")
        rounds = 0

        async def count() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            exchange = Exchange(ours, None, head_bytes_max=4096)
            await exchange.request()
            before = rounds
            assert await exchange.body(1 << 20, 10_000) == b"x" * 16_000
            assert rounds > before + 3
            nursery.cancel_scope.cancel()
