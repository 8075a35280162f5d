"""What the log says of clients that connect while they are connected: one that has lost its connection and is back, or
two devices that have one identifier and throw each other out for ever.

In `WINDOW_S` there is one line for each identifier, and one more, a warning, when it is taken over for the `MANY`th
time; no more than `LINES_MAX` of the former for all of them.
"""

from __future__ import annotations

import logging

WINDOW_S = 60.0
MANY = 3
LINES_MAX = 100
_KNOWN_MAX = 10_000
_SHOWN_MAX = 200

log = logging.getLogger(__name__)


class Takeovers:
    """See the module."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        """By identifier, since the window began."""
        self._ends_s = 0.0

    def happened(self, client_id: str, peer: str, by: str, now_s: float) -> None:
        """The connection of a client from `peer` ends, as it has connected from `by`."""
        counts = self._counts
        if now_s >= self._ends_s or len(counts) >= _KNOWN_MAX:
            counts.clear()
            self._ends_s = now_s + WINDOW_S
        count = counts[client_id] = counts.get(client_id, 0) + 1
        name = client_id[:_SHOWN_MAX]
        if count == 1 and len(counts) <= LINES_MAX:
            log.info("MQTT %s: client %r connected again from %s, its connection here ends", peer, name, by)
        elif count == MANY:
            log.warning(
                "MQTT %s: client %r was taken over %d times within %d s, now from %s: there may be two of them",
                peer, name, count, WINDOW_S, by,
            )  # fmt: skip
