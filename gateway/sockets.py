"""What is done with a plain non-blocking socket outside the turns: before a connection's first and after its last."""

from __future__ import annotations

import fcntl
import select
import socket
import sys
import termios
from contextlib import suppress

import trio

from protocols.peers import is_loopback

_READ_BYTES = 16 << 10
_TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", None)
_NAME_BYTES_MAX = 16
"""TCP_CA_NAME_MAX of Linux."""
_ASKS = (("TCP_KEEPIDLE", 300), ("TCP_KEEPALIVE", 300), ("TCP_KEEPINTVL", 30), ("TCP_KEEPCNT", 4))
"""After so many seconds of silence the kernel asks, as Linux and macOS call it, then so far apart, and so often."""


def set_up(sock: socket.socket) -> None:
    """What every TCP socket is: never waited for by the kernel, sent from without delay, and asked by the kernel after
    some minutes of silence whether the peer is there, or sooner where the system says so: not every client has a
    keep-alive or a heartbeat, and one that vanishes without a word would be connected for hours.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, most in _ASKS:
        option = getattr(socket, name, None)
        if option is not None and sock.getsockopt(socket.IPPROTO_TCP, option) > most:
            sock.setsockopt(socket.IPPROTO_TCP, option, most)


def do_not_pace(sock: socket.socket) -> None:
    """Let a socket to this machine itself send files as fast as the other end reads, where Linux would pace it (BBR,
    often a host's default): there is no network to spare, and a timer for every few packets makes a large fetch a third
    as fast for four times the CPU. Any program may choose Reno, which does not. Many small messages are better off with
    the pacing: a subscriber that is woken less often gets more of them at once.
    """
    if _TCP_CONGESTION is not None:
        with suppress(OSError):
            peer = sock.getpeername()
            if type(peer) is not tuple or not is_loopback(f"[{peer[0]}]:{peer[1]}"):
                return
            if sock.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, _NAME_BYTES_MAX).startswith(b"bbr"):
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, b"reno")


def has_hung_up(sock: socket.socket) -> bool:
    """Whether the peer has closed its side, or is gone, though something may be left to read. Where the system does not
    tell the former (macOS), only the latter."""
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def unread_bytes(sock: socket.socket) -> int:
    """How much has come from the peer that was not read yet. Raises OSError."""
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


async def receive(sock: socket.socket) -> bytes:
    """What the peer sent, b"" when it has closed its side. Raises OSError."""
    while True:
        try:
            return sock.recv(_READ_BYTES)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)


async def send_all(sock: socket.socket, data: bytes) -> bool:
    """Send everything; False when the peer is gone."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            with suppress(trio.ClosedResourceError):  # who waits for a socket may be woken so (`Connection`)
                await trio.lowlevel.wait_writable(sock)
        except OSError:
            return False
    return True


async def see_off(sock: socket.socket, peer_closed: bool) -> None:
    """Say that nothing more comes, and wait until the peer has closed its side too: closing a socket with unread bytes
    resets the connection, and the peer would never see our last words."""
    try:
        sock.shutdown(socket.SHUT_WR)
        while not peer_closed:
            with suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_readable(sock)
            with suppress(BlockingIOError):
                peer_closed = not sock.recv(_READ_BYTES)
    except OSError:
        pass
