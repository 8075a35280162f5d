"""What the address of a peer tells, the same for every door."""

from __future__ import annotations

import ipaddress


def is_loopback(peer: str) -> bool:
    """Whether `peer` ("host:port" or "[host]:port") is this machine."""
    try:
        address = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1 of a socket that takes both families
    return address.is_loopback or (mapped is not None and mapped.is_loopback)
