"""Ports for a server that is told its port before it listens, as etcd and the brokers of a trial cluster are.

Between the choice and the listening another program can take the port. A connection would do so by chance: the system
gives it one of the very ports that binding to port 0 chooses from. So these are chosen below that range.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

_HOST = "127.0.0.1"
_LOWEST_PORT = 10_000
_FIRST_DYNAMIC_PORT = 49_152
"""RFC 6335, section 6, where the system does not say another."""
_TRIED_PORTS = 1000
_DYNAMIC_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
begins_at: int | None = None
"""Behind how many of these ports this process begins; None: anywhere."""


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nobody listens on now and that no connection is given by the system; one that
    the system chooses, where all of those are taken.
    """
    with ExitStack() as stack:
        return [stack.enter_context(closing(_bound_socket())).getsockname()[1] for _ in range(count)]


def problem_of(port: int) -> str | None:
    """Why a server cannot listen on a port of 127.0.0.1 now; None if it can."""
    with closing(socket.socket()) as found:
        # As servers do it: connections of an earlier one, which are over, are no hindrance.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((_HOST, port))
        except OSError as error:
            return error.strerror
    return None


def _bound_socket() -> socket.socket:
    for port in itertools.chain(itertools.islice(_unassigned_ports(), _TRIED_PORTS), [0]):
        found = socket.socket()
        try:
            found.bind((_HOST, port))
            return found
        except OSError:
            found.close()
            if not port:
                raise
    raise AssertionError("the last port is 0")


@functools.cache
def _unassigned_ports() -> Iterator[int]:
    """The ports below those of connections, for ever. Each process begins anywhere, so that two that look at one time
    find different ones.
    """
    try:
        first = int(_DYNAMIC_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = _FIRST_DYNAMIC_PORT
    ports = range(_LOWEST_PORT, first)
    start = 0
    if ports:
        start = secrets.randbelow(len(ports)) if begins_at is None else begins_at % len(ports)
    return itertools.cycle([*ports[start:], *ports[:start]])
