"""Accepting clients: what waits in the kernel's queue is not lost."""

from __future__ import annotations

import gc
import os
import resource
import socket
from contextlib import AsyncExitStack

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


async def test_a_stop_does_not_wait_for_those_who_connect_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    connected, accept = 0, socket.socket.accept

    def another_connects(sock: socket.socket) -> tuple[socket.socket, object]:
        nonlocal connected
        connected += 1
        assert connected <= 100, "for ever"
        socket.create_connection(sock.getsockname()).close()
        return accept(sock)

    monkeypatch.setattr("gateway.listener._KERNEL_QUEUE", 20)
    async with open_door() as door:
        monkeypatch.setattr(socket.socket, "accept", another_connects)
        door.listener.close()
    assert connected == 20


async def test_some_descriptors_are_kept_from_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.listener._PAUSE_S", 0.001)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with open_door() as door, AsyncExitStack() as clients:
        gc.collect()
        limit = max(lowest_free() + 40, 80)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            with capture_logs() as said:
                while not said:
                    client = trio.SocketStream(trio.socket.socket())
                    clients.push_async_callback(client.aclose)
                    await client.socket.connect(("127.0.0.1", door.listener.port))
                    await client.send_all(b"in")
                    with trio.move_on_after(0.05):
                        assert await receive_exactly(client, 2) == b"in"
            assert said[0]["event"] == "cannot accept"
            assert limit - min(64, limit // 8) <= lowest_free() < limit - 5, "and logs still get theirs"
            door.listener.keeps_some = False
            assert await receive_exactly(client, 2) == b"in", "a link to another broker does, too"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def lowest_free() -> int:
    free = os.dup(0)
    os.close(free)
    return free
