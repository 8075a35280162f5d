"""The client connections of all doors, as the engine knows them: for lists of them, and for ending one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from core_log.wall_clock import wall_clock_ms


@dataclass(slots=True, frozen=True, eq=False)
class Client:
    """A client that has logged in. `close` ends its connection in the words of its protocol."""

    protocol: str
    user: str
    vhost: str
    peer: str
    close: Callable[[str], None]
    name: str = ""
    """What the client calls itself."""
    version: str = ""
    """Of its protocol, where there are several."""
    connected_at_ms: int = field(default_factory=wall_clock_ms)
