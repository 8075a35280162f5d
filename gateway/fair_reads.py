"""How much a connection reads in one turn, and whether it needs little of the broker's time.

1. Reads grow while they are filled and shrink while they are nearly empty, so that a busy connection gets along with
   few turns and an idle one with little memory.
2. No turn is to last longer than `TURN_S`: a read grows only as far as that allows, and after two that were too
   dear comes half of it. What a byte costs differs a hundredfold, so only the clock can tell. While there are
   connections that read and need little of the broker's time, `SHARED_TURN_S` is the limit: a message of theirs waits
   for half a turn on average, and shorter turns cost who saturates the broker a little.
3. Who needs little, and at no time much, reads before the others (`gateway.readers`). Nothing is known of a new
   connection, so it counts among the others at first. Who is sent much needs much, however little his acknowledgements
   take: what he is sent is made in turns of others.
"""

from __future__ import annotations

import math

READ_BYTES_MIN = 16 << 10
TURN_S = 0.002
SHARED_TURN_S = 0.00045
LONG_TURN_S = 0.00025
"""Who takes longer at a time does not go before others, however seldom that is."""
_WINDOW_S = 0.1
"""What a connection takes of the broker's time is measured over so long."""
_LITTLE = 0.05
"""Of all time."""
LITTLE_SENT_BYTES = 1 << 20
"""In the time of a window. To make as many messages of 100 to 300 bytes takes 1 to 3 ms."""


class Neighbours:
    """Whether somebody is there who needs little, as `gateway.readers` notes it."""

    __slots__ = ("_little_until_s",)

    def __init__(self) -> None:
        self._little_until_s = 0.0

    def little(self, now_s: float) -> None:
        """Somebody who needs little has read."""
        self._little_until_s = now_s + _WINDOW_S

    def somebody(self, now_s: float) -> bool:
        """Who needs little was there of late."""
        return now_s < self._little_until_s

    def turn_s(self, now_s: float) -> float:
        """How long a turn may last."""
        return SHARED_TURN_S if self.somebody(now_s) else TURN_S


class FairReads:
    """The reads of a connection: the next has room for `size` bytes."""

    __slots__ = (
        "_busy_s",
        "_byte_s",
        "_bytes_max",
        "_neighbours",
        "_sent_bytes",
        "_since_s",
        "full",
        "needs_little",
        "size",
    )

    def __init__(self, bytes_max: int, neighbours: Neighbours) -> None:
        self._bytes_max = bytes_max
        self._neighbours = neighbours
        self._since_s = math.inf
        """When the window began."""
        self._busy_s = 0.0
        """How long our turns in it lasted."""
        self._sent_bytes = 0
        """How much the peer had been sent before it."""
        self.needs_little = False
        """In the window before; nothing is known of the first."""
        self._byte_s = math.inf
        """What a byte of the last read took."""
        self.size = min(READ_BYTES_MIN, bytes_max)
        self.full = False
        """The last read was filled: there is more."""

    def took(self, count: int, began_s: float, ended_s: float, sent_bytes: int = 0) -> None:
        """The turn of a read of `count` bytes has lasted from then till then; so much the peer was sent in all."""
        size, seconds = self.size, ended_s - began_s
        self.full = count >= size
        self._since_s = min(self._since_s, began_s)
        self._busy_s += seconds
        window_s = ended_s - self._since_s
        if window_s > _WINDOW_S:
            little_sent = (sent_bytes - self._sent_bytes) * _WINDOW_S < LITTLE_SENT_BYTES * window_s
            self.needs_little = little_sent and self._busy_s < _LITTLE * window_s and seconds <= LONG_TURN_S
            self._since_s, self._busy_s, self._sent_bytes = ended_s, 0.0, sent_bytes
        elif self._busy_s >= _LITTLE * _WINDOW_S:
            self.needs_little = False
        # What was slow once may have been interrupted.
        byte_s = seconds / max(count, 1)
        seconds = min(byte_s, self._byte_s) * count
        self._byte_s = byte_s
        turn_s = self._neighbours.turn_s(ended_s)
        if seconds > turn_s:
            size = min(size, count) >> 1
        elif self.full:
            if seconds * 4 <= turn_s:
                size <<= 2
            elif seconds * 2 <= turn_s:
                size <<= 1
        elif count < size >> 2:
            size >>= 1
        self.size = min(max(size, READ_BYTES_MIN), self._bytes_max)
