"""What is done with a socket before and after the turns."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.sockets import do_not_pace, see_off, send_all, set_up


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_a_peer_that_is_gone_without_a_word_is_found_out() -> None:
    with socket.socket() as sock:
        set_up(sock)
        assert not sock.getblocking()
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = socket.TCP_KEEPIDLE if hasattr(socket, "TCP_KEEPIDLE") else socket.TCP_KEEPALIVE
        asked = (idle, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        after_s, apart_s, often = (sock.getsockopt(socket.IPPROTO_TCP, option) for option in asked)
        assert after_s + apart_s * often <= 420


async def test_who_sees_a_peer_off_and_is_woken_waits_on(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    over = trio.Event()

    async def run() -> None:
        await see_off(ours, False)
        over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(2):
            await wait_all_tasks_blocked()
            trio.lowlevel.notify_closing(ours)
        await wait_all_tasks_blocked()
        assert not over.is_set()
        assert theirs.recv(1) == b""
        theirs.send(b"what was under way")
        await wait_all_tasks_blocked()
        theirs.close()


async def test_who_sends_and_is_woken_sends_on(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    sent: list[bool] = []

    async def run() -> None:
        sent.append(await send_all(ours, bytes(1 << 20)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        trio.lowlevel.notify_closing(ours)
        received = 0
        while received < 1 << 20:
            await trio.lowlevel.wait_readable(theirs)
            received += len(theirs.recv(1 << 18))
    assert sent == [True]


@pytest.mark.parametrize(("name", "then"), [(b"bbr", b"reno"), (b"cubic", b"cubic"), (b"reno", b"reno")])
def test_only_what_paces_is_replaced(name: bytes, then: bytes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server, closing(socket.socket()) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
        except OSError:
            pytest.skip("not to be had on this host")
        sock.connect(server.getsockname())
        do_not_pace(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == then


def test_a_socket_that_has_nothing_to_do_with_it_stays_as_it_is() -> None:
    left, right = socket.socketpair()
    with closing(left), closing(right):
        do_not_pace(left)
        left.send(b"x")
        assert right.recv(2) == b"x"
