"""Who a peer is, the same for every door."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable

Authenticate = Callable[[str, bytes | None, str], bool | Awaitable[bool]]
"""(user name, password, peer) -> whether they may connect; the password is None for a peer that needs none, because a
certificate or the configuration says who it is."""


async def is_welcome(authenticate: Authenticate | None, user: str, password: bytes | None, peer: str) -> bool:
    """What `authenticate` says; without it nobody is."""
    if authenticate is None:
        return False
    answer = authenticate(user, password, peer)
    return answer if isinstance(answer, bool) else await answer


def is_loopback(peer: str) -> bool:
    """Whether `peer` ("host:port" or "[host]:port") is this machine."""
    try:
        address = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1 of a socket that takes both families
    return address.is_loopback or (mapped is not None and mapped.is_loopback)
