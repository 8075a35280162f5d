"""Connections of clients whose other side is gone without a word."""

from __future__ import annotations

import socket
import sys
import time

import pytest
import trio

from core_log.memory_files import MemoryFiles
from millrace import Client, DeliveryTimedOut, Producer, RequestTimedOut
from protocols.native.clients.blocking_link import BlockingLink, BlockingTerms
from protocols.native.clients.link import Link, LinkConfig
from protocols.native.clients.silence import silence_s
from protocols.native.connection import addresses_of
from protocols.native.errors import ConnectionLost
from tests.protocols.native.broker import Restartable, native_broker

TIMEOUT_S = 30


def check(sock: socket.socket | trio.socket.SocketType) -> None:
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if sys.platform == "linux":
        idle_s, apart_s, user_ms = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
        )
        assert user_ms <= TIMEOUT_S * 500
        assert idle_s + 2 * apart_s <= TIMEOUT_S / 2


@pytest.mark.parametrize(("timeout_s", "silent_s"), [(0.5, 5), (30, 15), (1e9, 60)])
def test_time_is_left_to_ask_again(timeout_s: float, silent_s: float) -> None:
    assert silence_s(timeout_s) == silent_s


async def test_the_kernel_ends_what_is_silent() -> None:
    async with native_broker() as broker:
        (address,) = addresses_of(broker.server)
        link = Link([address], LinkConfig(request_timeout_ms=TIMEOUT_S * 1000))
        await link.connect()
        assert isinstance(link._stream, trio.SocketStream)
        check(link._stream.socket)
        await link._stream.aclose()
        blocking = BlockingLink([address], BlockingTerms(TIMEOUT_S, "", None, None, 0))
        check(await trio.to_thread.run_sync(blocking.connected))
        blocking.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say it")
def test_who_hears_nothing_says_so_and_not_that_the_broker_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_connection(silent.getsockname()) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 300)
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.sendall(bytes(16 << 20))
        link = BlockingLink([silent.getsockname()], BlockingTerms(TIMEOUT_S, "", None, None, 0))
        with pytest.raises(ConnectionResetError, match="nothing was heard of the broker"):
            link._read(sock, 4, time.monotonic() + TIMEOUT_S)


async def test_who_has_no_connection_says_why(caplog: pytest.LogCaptureFixture) -> None:
    terms = LinkConfig(request_timeout_ms=300, reconnect_backoff_ms=5, reconnect_backoff_ms_max=5)
    async with trio.open_nursery() as nursery:
        broker = Restartable(nursery, MemoryFiles())
        server = (await broker.start()).server
        async with (
            Client(server, link=terms) as client,
            Producer(server, link=terms, delivery_timeout_ms=1000) as producer,
        ):
            await (await producer.send("t", b"kept"))
            await broker.stop()
            why = f"cannot connect to {server}: Connection refused"
            with pytest.raises(RequestTimedOut, match=why):
                await client.list_topics()
            with pytest.raises(ConnectionLost, match=why):
                await client.delete_topic("t")
            with pytest.raises(DeliveryTimedOut, match=why):
                await (await producer.send("t", b"lost"))
            said = [record.getMessage() for record in caplog.records if record.name == "protocols.native.clients.link"]
            assert said == [f"{why}; it is tried again"] * 2  # by each of them once
            await broker.start()
            await client._link.wait_connected()
            assert client._link.lost is None
        await broker.stop()


async def test_who_is_not_answered_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = Link([silent.getsockname()], LinkConfig(connect_timeout_ms=50))
        with pytest.raises(ConnectionLost, match="no answer within 50 ms"):
            await link.connect()
