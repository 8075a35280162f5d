"""The connections here of clients that may connect to any broker: which of them are known to be the client's latest.

A connection of a client whose queue lasts has an *epoch*, given out by the leader of that queue's home
(`ClientsElsewhere.begin`), which orders all connections of the client. What is said for it to a home, messages that are
numbered and orders, has the epoch; a home that knows of a later one does none of it, says so first (`fence`) and then
that it is done with it. So the client of an earlier connection is not told that it was done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from routing.queues.homes.receipts import begin

if TYPE_CHECKING:
    from routing.cluster.clients.served import ServedLink
    from routing.message import Numbered
    from routing.queues.homes.queue_partition import QueuePartition


class LatestConnections:
    """See the module; of one broker. Clients are ids of their queues."""

    def __init__(self) -> None:
        self._here: dict[int, tuple[int, Callable[[], None]]] = {}

    def begun(self, client: int, epoch: int, end: Callable[[], None]) -> None:
        """There is a connection here; `end` marks it as over."""
        self._here[client] = epoch, end

    def ended(self, client: int, epoch: int) -> None:
        """It is over."""
        if self._here.get(client, (0,))[0] == epoch:
            del self._here[client]

    def fence(self, client: int, epoch: int) -> None:
        """A client has a connection of this epoch: an earlier one that is here is over."""
        there = self._here.get(client)
        if there is not None and there[0] < epoch:
            del self._here[client]
            there[1]()


def is_latest(home: QueuePartition, once: Numbered, link: ServedLink, connections: LatestConnections) -> bool:
    """Whether what is said over a link for a client is of its latest connection, for all that a home led here knows; if
    it is not, that is told.
    """
    client, _, epoch = once
    if not begin(home, client, epoch):
        link.fenced(client, home.numbers.epochs[client])
        return False
    connections.fence(client, epoch)
    return True
