"""The limits and the terms of the AMQP door, each with its unit."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from core_log.setting_ranges import COUNT_MAX, Bytes, Count, Seconds, SecondsOrZero


class AmqpConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What the broker offers and allows; the defaults are RabbitMQ's where it has the same limit."""

    channel_max: Annotated[int, Meta(ge=1, le=65_535)] = 2047
    """Channels a connection may have open, and the highest channel id."""

    frame_bytes_max: Annotated[int, Meta(ge=4096, le=COUNT_MAX)] = 131072
    """The frame size offered in `connection.tune`, payload and the 8 bytes around it."""

    handshake_frame_bytes_max: Annotated[int, Meta(ge=4096, le=COUNT_MAX)] = 8192
    """Frame size before the peer has logged in."""

    heartbeat_s: Annotated[int, Meta(ge=0, le=65_535)] = 60
    """The heartbeat interval offered; the client's answer counts, 0 turns heartbeats off."""

    busy_grace_s: SecondsOrZero = 0.0
    """A client that holds unsettled deliveries may be silent so long in all, however short its heartbeats: one that
    works in the thread that should send them. 0: three heartbeat intervals, as for all others."""

    handshake_timeout_s: Seconds = 10.0
    """From the first byte to `connection.open`."""

    close_timeout_s: Seconds = 5.0
    """How long to wait for `connection.close-ok`, and after ours for the client to close the transport, before it is
    closed anyway."""

    message_bytes_max: Bytes = 16 * 1024 * 1024
    """The largest body that a client may publish, as in RabbitMQ 4; `engine.message_bytes_max` and
    `amqp.unfinished_bytes_max` hold as well."""

    unfinished_bytes_max: Bytes = 256 * 1024 * 1024
    """What a connection may have sent of messages that are not complete, all channels together."""

    consumers_per_channel_max: Count = 10_000
    """Consumers on one channel."""

    parsed_memo_entries_max: Count = 4096
    """Entries of each memo (routes and properties seen, encoded prefixes) before it is emptied."""

    certificate_login: bool = True
    """Whether clients with a verified certificate may log in by EXTERNAL, as the user whose name it has."""

    anonymous_user: str = ""
    """Who clients are that log in by the mechanism ANONYMOUS; empty: it is not offered."""

    product: str = "RabbitMQ"
    """`product` in the server properties: what clients look at to know whose rules hold. Kombu, and with it Celery,
    sets a prefetch limit by RabbitMQ's rules only for a broker that says so, and loses track of it otherwise."""

    version: str = "3.13.7"
    """`version` in the server properties: the RabbitMQ whose rules hold."""

    broker: str = "Millrace 0.1.0"
    """Who this is; `platform` in the server properties begins with it."""

    cluster_name: str = ""
    """`cluster_name` in the server properties; empty stands for `millrace@` and the name of the host."""

    def within(self, engine_bytes_max: int) -> AmqpConfig:
        """The same, with no larger messages than can be taken whole: who announces one is told before it is sent."""
        most = min(engine_bytes_max, self.unfinished_bytes_max)
        return self if self.message_bytes_max <= most else msgspec.structs.replace(self, message_bytes_max=most)
