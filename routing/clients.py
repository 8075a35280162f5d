"""The client connections of all doors, as the engine knows them: for lists of them, and for ending one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from core_log.wall_clock import wall_clock_ms
from routing.bites import BITE_S

LIBRARY_CHARACTERS_MAX = 100


@dataclass(slots=True, eq=False)
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
    send_on: Callable[[str], None] | None = None
    """Of one that asks who leads what it wants: ends its connection, and it goes on by another broker."""
    connected_at_ms: int = field(default_factory=wall_clock_ms)
    library: str = ""
    """What it is made with, as it says itself (`library_of`). Kafka's clients may say so after their login."""


def library_of(name: object, version: object) -> str:
    """Of what a client says about itself, which may be anything: what is text, and not too long."""
    return " ".join(said for said in (name, version) if isinstance(said, str) and said)[:LIBRARY_CHARACTERS_MAX]


def close_some(left: deque[tuple[Client, Callable[[], None]]], connected: Iterable[Client]) -> None:
    """End connections, each in its way, until that has taken `BITE_S`; those done are `left` no more. Who is not
    `connected` any more needs nothing.
    """
    there, until_s = set(connected), time.perf_counter() + BITE_S
    while left:
        client, end = left.popleft()
        if client in there:
            end()
        if time.perf_counter() > until_s:
            return
