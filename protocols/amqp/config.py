"""The limits and the terms of the AMQP door, each with its unit."""

from __future__ import annotations

import msgspec


class AmqpConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What the broker offers and allows; the defaults are RabbitMQ's where it has the same limit."""

    channel_max: int = 2047
    """Channels a connection may have open, and the highest channel id."""

    frame_bytes_max: int = 131072
    """The frame size offered in `connection.tune`, payload and the 8 bytes around it."""

    handshake_frame_bytes_max: int = 8192
    """Frame size before the peer has logged in."""

    heartbeat_s: int = 60
    """The heartbeat interval offered; the client's answer counts, 0 turns heartbeats off."""

    handshake_timeout_s: float = 10.0
    """From the first byte to `connection.open`."""

    close_timeout_s: float = 5.0
    """How long to wait for `connection.close-ok` before the transport is closed anyway."""

    message_bytes_max: int = 16 * 1024 * 1024
    """The largest message body."""

    unfinished_bytes_max: int = 64 * 1024 * 1024
    """What a connection may have sent of messages that are not complete, all channels together."""

    consumers_per_channel_max: int = 10_000
    """Consumers on one channel."""

    parsed_memo_entries_max: int = 4096
    """Entries of each memo (routes and properties seen, encoded prefixes) before it is emptied."""

    virtual_host: str = "/"
    """The one virtual host there is."""

    product: str = "Millrace"
    """`product` in the server properties."""

    version: str = "0.1.0"
    """`version` in the server properties."""
