"""Dialling a broker by a name that stands for several addresses."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from gateway.names import Names
from gateway.peer_tls import connect


class Hosts(Names):
    """Knows one name more than the system."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def getaddrinfo(self, host: Any, *arguments: Any, **options: Any) -> Any:
        hosts = self._addresses if host in ("broker", b"broker") else (host,)
        found = []
        for one in hosts:
            found += await super().getaddrinfo(one, *arguments, **options)
        return found


def listening(address: str, port: int = 0) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


async def test_an_address_where_nobody_listens_does_not_hide_the_next_one() -> None:
    trio.socket.set_custom_hostname_resolver(Hosts("::1", "127.0.0.2", "127.0.0.1"))
    with listening("127.0.0.1") as server, await connect(f"broker:{server.getsockname()[1]}") as sock:
        assert sock.getpeername() == server.getsockname()
        assert not sock.getblocking()
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_an_address_that_does_not_answer_does_not_hide_the_next_one() -> None:
    trio.socket.set_custom_hostname_resolver(Hosts("127.0.0.2", "127.0.0.1"))
    with listening("127.0.0.1") as server:
        port = server.getsockname()[1]
        with socket.create_server(("127.0.0.2", port), backlog=0), socket.socket() as one, socket.socket() as other:
            for sock in (one, other):  # its backlog is full: it drops who knocks
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.2", port))
            with trio.fail_after(20):  # who waits for the first one to answer waits for minutes
                found = await connect(f"broker:{port}")
            with found:
                assert found.getpeername() == server.getsockname()


async def test_why_no_address_takes_a_connection_is_told_once() -> None:
    trio.socket.set_custom_hostname_resolver(Hosts("127.0.0.2", "127.0.0.1"))
    with listening("127.0.0.1") as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match="refused") as caught:
        await connect(f"broker:{port}")
    assert caught.value.strerror == "Connection refused"
