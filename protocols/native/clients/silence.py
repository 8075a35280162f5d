"""How a client finds out that a connection is dead although nobody says so: the machine on the other side is gone, the
network between is, or a router has forgotten it.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import trio

_SECONDS_MIN, _SECONDS_MAX = 5.0, 60.0
_QUESTIONS = 3


def silence_s(timeout_s: float) -> float:
    """How long a connection may be silent whose requests may take `timeout_s`: half, which leaves time to ask again."""
    return min(max(timeout_s / 2, _SECONDS_MIN), _SECONDS_MAX)


def end_when_silent(sock: socket.socket | trio.socket.SocketType, timeout_s: float) -> None:
    """Have the kernel end a connection of whose other side it hears nothing for `silence_s`, though it sent something;
    where there is nothing to send it asks. A broker that takes its time is heard of all the same: its kernel answers,
    as long as it has room for what is sent. One that reads nothing for so long counts as gone.
    Systems other than Linux only ask, and while something is sent wait for as long as they do.
    """
    silent_s = silence_s(timeout_s)
    apart_s = int(silent_s / _QUESTIONS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", apart_s),
        ("TCP_KEEPALIVE", apart_s),  # as macOS calls it
        ("TCP_KEEPINTVL", apart_s),
        ("TCP_KEEPCNT", _QUESTIONS - 1),
        ("TCP_USER_TIMEOUT", int(silent_s * 1000)),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
