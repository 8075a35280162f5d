"""`connection.blocked` and `connection.unblocked`: a publishing client is told when the broker runs short of something.

As in RabbitMQ only connections that publish are told, and only clients that announced the capability
`connection.blocked`. That such a connection is not read from meanwhile is the shell's business
(`protocols.sansio.Adapter.left`).
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.amqp import methods
from protocols.amqp.method_codec import Method
from routing.alarms import Alarms


class BlockedNotice:
    """What one connection has been told; `send` sends a method on channel 0."""

    __slots__ = ("_alarms", "_listening", "_send", "_told")

    def __init__(self, alarms: Alarms, send: Callable[[Method], None]) -> None:
        self._alarms = alarms
        self._send = send
        self._listening = False
        self._told = False

    def publishes(self, announced: bool) -> None:
        """The client publishes; `announced` is its capability."""
        if self._listening or not announced:
            return
        self._listening = True
        self._alarms.listeners[self._changed] = None
        self._changed(self._alarms.blocked)

    def leave(self) -> None:
        """The connection ends."""
        self._alarms.listeners.pop(self._changed, None)

    def _changed(self, reason: str | None) -> None:
        if (reason is not None) == self._told:
            return
        self._told = reason is not None
        if reason is None:
            self._send(methods.ConnectionUnblocked())
        else:
            self._send(methods.ConnectionBlocked(reason))
