"""The contract between a protocol and the process that carries its bytes.

A protocol folder has a sans-IO codec and state machine (`wire`, `connection`: bytes in, events out, no clock, no
sockets) and an `adapter`, the only file that knows the engine. The gateway's shell owns the sockets and knows only this
module.
Times are monotonic seconds and always a parameter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

Rest: TypeAlias = Callable[[], Awaitable[None]]
"""Takes what an adapter has put off."""


class RemoteProtocolError(Exception):
    """The peer broke the protocol; subclasses carry what to answer before the connection or channel closes."""


class LocalProtocolError(Exception):
    """We used a codec wrongly: a bug of ours."""


class Outbox(Protocol):
    """Where an adapter puts bytes for its peer. Writing never waits; the shell sends once a turn."""

    pending_bytes: int
    """Bytes written but not yet taken by the kernel."""

    written_bytes: int
    """Bytes written ever, of the protocol: not what TLS and WebSockets add."""

    writable: bool
    """False above the high mark. A consumer with a full outbox gets no more deliveries until it has drained."""

    on_writable: Callable[[], None] | None
    """Called by the shell when `writable` turns true again."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append `data` (any bytes-like object that is not changed afterwards)."""


class Adapter(Protocol):
    """One client connection, between the shell and the engine.

    The shell calls `handle` for every socket read, one call at a time, then ends the engine's turn and sends the
    outbox. `handle` must not suspend for data (publish, ack, credit); only control operations may wait.
    """

    closed: bool
    """True once the protocol is finished: the shell sends what is in the outbox, then closes the transport.

    The shell looks after each of the calls below and whenever it sends the outbox; if `closed` changes at another time,
    writing nothing (`b""`) to the outbox makes it look."""

    published: bool
    """Set whenever the peer publishes; cleared by the shell."""

    left: Rest | None
    """Set by `handle` when the peer publishes while the broker is short of disk or memory, and is not to be told that
    it is refused: nothing is read until there is room, and then this takes what is left of the read."""

    held: bool
    """Set by the shell while it does not read, for that reason or because `handle` waits: the peer's silence means
    nothing then."""

    async def handle(self, data: bytes) -> None:
        """Take bytes read from the peer; `b""` means the peer closed its side."""

    def next_timer_at(self) -> float:
        """When `handle_timer` wants to be called (`math.inf`: never). Asked after each `handle` and `handle_timer`."""

    def handle_timer(self, now: float) -> None:
        """Heartbeats, keep-alive and other deadlines that are due."""

    def connection_lost(self) -> None:
        """The transport is gone: give everything back to the engine. Called exactly once, last."""

    def shut_down(self, reason: str) -> None:
        """The broker is stopping: tell the peer in the protocol's own words, if it has any, and set `closed`."""
