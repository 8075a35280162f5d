"""The deadlines of a connection: handshake, heartbeats both ways, close. Pure: `now` is a parameter, in seconds.

A heartbeat is sent every half interval in which nothing else was, and no later than three quarters of an interval after
what was sent last: there are clients that close when nothing came for a whole one. A peer from which nothing came for
two intervals "or longer" is gone (AMQP 0-9-1 section 4.2.7), unless it is busy and has a grace: three, since RabbitMQ
looks once an interval, closes after two to three of them, and there are clients that take a little more than two.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

SILENT_INTERVALS = 3
"""After so many of them without a byte a peer is gone."""


class Due(enum.Enum):
    """What is to be done now."""

    NOTHING = enum.auto()
    SEND_HEARTBEAT = enum.auto()
    GIVE_UP = enum.auto()


class ConnectionTimers:
    """See the module. `wrote` is set by whoever writes to the peer."""

    def __init__(self, now: float, handshake_timeout_s: float, busy_grace_s: float = 0.0) -> None:
        """`busy_grace_s`: how long a peer that is busy may be silent."""
        self.wrote = False
        self._busy_grace_s = busy_grace_s
        self._excused_until = 0.0
        self._deadline = now + handshake_timeout_s
        self._interval_s = 0.0
        self._received_at = now
        self._send_at = math.inf

    def opened(self, now: float, heartbeat_s: int) -> None:
        """The handshake is over; 0 is no heartbeats."""
        self._deadline = math.inf
        self._interval_s = heartbeat_s
        self._received_at = now
        if heartbeat_s:
            self._send_at = now + heartbeat_s / 2

    def received(self, now: float) -> None:
        """Bytes came from the peer."""
        self._received_at = now

    def closing(self, now: float, timeout_s: float) -> None:
        """A close was sent; wait for the answer no longer than `timeout_s`."""
        self._interval_s = 0.0
        self._send_at = math.inf
        self._deadline = now + timeout_s

    def next_at(self) -> float:
        """When `due` wants to be asked, `math.inf` for never."""
        return min(self._deadline, self._send_at, self._silent_at())

    def _silent_at(self) -> float:
        """When the peer has been silent for too long, `math.inf` for never."""
        if not self._interval_s:
            return math.inf
        return max(self._received_at + SILENT_INTERVALS * self._interval_s, self._excused_until)

    def due(self, now: float, busy: Callable[[], bool] = bool) -> Due:
        """What is due at `now`; `busy` is asked only of a peer that is silent."""
        if now >= self._deadline:
            return Due.GIVE_UP
        if now >= self._silent_at():
            grace_until = self._received_at + self._busy_grace_s
            if now >= grace_until or not busy():
                return Due.GIVE_UP
            self._excused_until = min(now + self._interval_s, grace_until)
        if now < self._send_at:
            return Due.NOTHING
        wrote, self.wrote = self.wrote, False
        self._send_at = now + self._interval_s / (4 if wrote else 2)
        return Due.NOTHING if wrote else Due.SEND_HEARTBEAT
