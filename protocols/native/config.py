"""Limits and settings of the native door, with their units."""

from __future__ import annotations

import msgspec

from core_log.setting_ranges import Count, CountOrZero, FrameBytes, Milliseconds, MillisecondsOrZero, Port


class NativeConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the adapter can be told; the limits are announced to every client in the reply to hello."""

    request_bytes_max: FrameBytes = 32 << 20
    """Largest request, without its length prefix. Checked when the prefix is read, before anything is kept."""
    hello_bytes_max: FrameBytes = 64 << 10
    """The same until the client has said hello, and is let in."""
    fetch_bytes_max: FrameBytes = 64 << 20
    """Most record bytes in one reply; only a single batch that is larger goes beyond it."""
    fetch_wait_ms_max: MillisecondsOrZero = 60_000
    produce_timeout_ms_max: Milliseconds = 300_000
    requests_in_flight_max: Count = 1000
    """Produce and fetch requests of one connection that may wait for their reply."""
    hello_timeout_ms: Milliseconds = 10_000
    """How long a new connection may stay silent."""
    virtual_host: str = "/"
    """Where the exchanges are that topics can be bound to."""
    node_id: CountOrZero = 0
    """What a single broker says who it is."""
    advertised_host: str = ""
    """What metadata says about how to reach this node; empty: in a cluster `cluster.advertise`, else the address
    that the client already uses."""
    advertised_port: Port = 0
    """Likewise; 0: the one that is listened on, or that was dialled."""
    anonymous_loopback: bool = True
    """Clients on this machine need no user name; others always do."""
    anonymous_user: str = "guest"
    """The user whose rights count for clients without a user name. One that is not there: nobody."""
