"""What other brokers have published to the logs that this one leads: what was taken, and how far the logs are with it.

Positions count what a process has sent to a log. What it sends again is known by them (`Taken.next_position`), for as
long as this broker leads the log, in one leader epoch or in several without a pause: another leader begins anew, and so
does another process.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from core_log.replication.leader import Leader
    from routing.cluster.clients.served import ServedLink


class Taken:
    """What one process of another broker has published to one log while this broker led it."""

    def __init__(
        self, name: str, leader_epoch: int, log: PartitionLog, publisher: Publisher, role: Leader | None
    ) -> None:
        self.name = name
        self.leader_epoch = leader_epoch
        self.log = log
        self.next_position = 0
        self.written = self.committed = 0
        self.refused: list[int] = []
        self.sync_wanted = False
        self.role = role
        self._told: tuple[int, int, int] = (0, 0, 0)
        self._publisher = publisher
        self._unwritten: deque[tuple[int, int]] = deque()
        """(position, offset): what was published before the position is there when the log has got to the offset."""
        self._uncommitted: deque[tuple[int, int]] = deque()
        log.listeners.append(self._advanced)

    def close(self) -> None:
        """Nobody asks any more."""
        if self._advanced in self.log.listeners:
            self.log.listeners.remove(self._advanced)

    def add(self, position: int, offset: int) -> None:
        """All before the position was taken; the log has to get to the offset."""
        self.next_position = position
        self._unwritten.append((position, offset))
        self._uncommitted.append((position, offset))
        self._publisher.news[self] = None

    def refuse(self, first: int, last: int) -> None:
        """These positions were not taken."""
        self.refused += (first, last)

    def heard(self, before: int, sync_before: int) -> None:
        """Answers to what is before a position have come. Somebody waits for what is before the other."""
        self.sync_wanted = self.sync_wanted or sync_before > self.committed
        refused = self.refused
        while len(refused) > 1 and refused[1] < before:
            del refused[:2]

    def again(self) -> None:
        """All has to be told anew."""
        self._told = (0, 0, 0)
        self._publisher.news[self] = None

    def _advanced(self, log: PartitionLog) -> None:
        if self._uncommitted or self._unwritten:
            self._publisher.news[self] = None

    def tell(self, link: ServedLink) -> None:
        """The turn ends: ask for what is waited for, and say what is new."""
        log = self.log
        if self.sync_wanted:
            self.sync_wanted = False
            log.request_sync()
        self.written = _reached(self._unwritten, log.written_offset, self.written)
        self.committed = _reached(self._uncommitted, log.committed_offset, self.committed)
        found = self.written, self.committed, len(self.refused)
        if found != self._told:
            self._told = found
            link.done(self.name, self.leader_epoch, self.written, self.committed, self.refused)


def _reached(waiting: deque[tuple[int, int]], offset: int, position: int) -> int:
    while waiting and waiting[0][1] <= offset:
        position = waiting.popleft()[0]
    return position


class Publisher:
    """One process of another broker; it outlives its links."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.logs: dict[str, Taken] = {}
        self.news: dict[Taken, None] = {}

    def moved(self, name: str, leader_epoch: int, role: Leader | None, link: ServedLink | None) -> None:
        """A log has another leader epoch, or this broker has another role in it. If the role is the same the log is
        what it was. Else what becomes of it now is no answer to what was taken: other records may come to lie there.
        """
        taken = self.logs.get(name)
        if taken is None or (taken.leader_epoch == leader_epoch and taken.role is role):
            return
        if role is not None and taken.role is role:
            taken.leader_epoch = leader_epoch
            taken.again()
            return
        if link is not None:
            taken.tell(link)
        taken.close()
        del self.logs[name]
        self.news.pop(taken, None)

    def close(self) -> None:
        """It is gone."""
        for taken in self.logs.values():
            taken.close()
