"""Hosts' names, looked up as trio's own resolver does."""

from __future__ import annotations

import socket

import trio

from gateway.names import Names


async def test_names_are_looked_up() -> None:
    names = Names()
    found = await names.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
    assert found == socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
    numbers = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    assert await names.getnameinfo(("127.0.0.1", 80), numbers) == ("127.0.0.1", "80")


async def test_trio_asks_for_names_there() -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    found = await trio.socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
    assert {place[4][1] for place in found} == {80}
