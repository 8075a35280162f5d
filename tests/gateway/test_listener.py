"""Accepting clients: what waits in the kernel's queue is not lost."""

from __future__ import annotations

import socket

import pytest
import trio
from structlog.testing import capture_logs

from tests.gateway.shell import open_door, receive_exactly, until
from tests.support.descriptors import no_descriptors_left


async def test_clients_wait_while_there_are_no_descriptors_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    accept = socket.socket.accept

    def counted(sock: socket.socket) -> tuple[socket.socket, object]:
        nonlocal asked
        asked += 1
        return accept(sock)

    monkeypatch.setattr("gateway.listener._PAUSE_S", 0.001)
    monkeypatch.setattr(socket.socket, "accept", counted)
    async with open_door() as door:
        client = trio.socket.socket()
        with capture_logs() as said, no_descriptors_left():
            await client.connect(("127.0.0.1", door.listener.port))
            await until(lambda: asked >= 3)
            assert [line["event"] for line in said] == ["cannot accept"], "once, however often it is tried"
        async with trio.SocketStream(client) as stream:
            await stream.send_all(b"in")
            assert await receive_exactly(stream, 2) == b"in"
