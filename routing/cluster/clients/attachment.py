"""A consumer of a queue that another broker leads, as its leader knows it (`remote_queue.py`, rules 1 and 2)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from routing.cluster.clients.places import Places
from routing.message import Slab
from routing.unsettled import Outcome

if TYPE_CHECKING:
    from routing.cluster.clients.forwarding import EngineLink
    from routing.consumer import Consumer

WINDOW_MESSAGES = 4096
WINDOW_BYTES = 1 << 20
NUMBER_SHIFT = 40
ID_MASK = (1 << NUMBER_SHIFT) - 1


class Attachment:
    """A consumer, or who gets single messages, as the leader knows it."""

    __slots__ = (
        "buffer", "consumer", "granted", "granted_bytes", "handed", "handed_bytes", "is_recalled", "link", "number",
        "ready", "settles", "unsettled",
    )  # fmt: skip

    def __init__(self, number: int, link: EngineLink, consumer: Consumer | None) -> None:
        self.number = number
        self.link = link
        self.consumer = consumer
        self.settles = consumer is not None and consumer.no_ack and not consumer.exclusive
        """What it is given is settled as it is passed on: rule 5."""
        self.ready = False
        self.handed = self.handed_bytes = 0
        """What was passed on to the session, since it was attached."""
        self.granted = self.granted_bytes = 0
        """What the leader may have sent by now."""
        self.unsettled = 0
        self.is_recalled = False
        """What comes goes back, until the leader has answered: rule 6."""
        self.buffer: deque[tuple[int, Slab, int, bool]] = deque()
        """First id, slab, where in it to go on, redelivered."""

    def more(self) -> bool:
        """Raise what is granted to what the session can take; whether it rose by enough to say so."""
        consumer = self.consumer
        assert consumer is not None
        credit = min(max(consumer.credit(), 0), WINDOW_MESSAGES)
        limit = consumer.session.prefetch
        if limit and len(consumer.session.consumers) > 1:
            credit = min(credit, max(1, credit // len(consumer.session.consumers)))
        messages, size_bytes = self.handed + credit, self.handed_bytes + WINDOW_BYTES
        few = consumer.no_ack or not (consumer.prefetch or limit)
        rise = messages - self.granted
        if rise < (WINDOW_MESSAGES // 2 if few else 1) and size_bytes - self.granted_bytes < WINDOW_BYTES // 2:
            return False
        self.granted = max(self.granted, messages)
        self.granted_bytes = size_bytes
        return True

    @property
    def is_held_up(self) -> bool:
        """Something has come for it, and its session has all that it may have, of this queue or of others."""
        consumer = self.consumer
        if not self.buffer or consumer is None or consumer.no_ack or consumer.exclusive:
            return False
        session = consumer.session
        return 0 < session.prefetch <= session.outstanding

    def went(self, count: int, size_bytes: int) -> None:
        """So much of what has come does not wait here any more."""
        self.handed += count
        self.handed_bytes += size_bytes

    def give_back(self, places: Places) -> None:
        """Have the leader give to others what has come, and nothing more to this one."""
        for first_id, slab, start, redelivered in self.left(places):
            stop = len(slab.bodies)
            self.went(stop - start, slab.size_of(start, stop))
            unseen(self.link, self.number, first_id + start, stop - start, redelivered)
        self.granted, self.granted_bytes = self.handed, self.handed_bytes
        self.link.credit(self.number, self.granted, self.granted_bytes)

    def left(self, places: Places) -> list[tuple[int, Slab, int, bool]]:
        """Take what has come and is passed on to nobody any more."""
        left = list(self.buffer)
        self.buffer.clear()
        for first_id, slab, start, _ in left:
            first = self.number << NUMBER_SHIFT | first_id
            places.settle(range(first + start, first + len(slab.bodies)))
        return left


def unseen(link: EngineLink, number: int, first_id: int, count: int, redelivered: bool) -> None:
    """Nobody was given these deliveries."""
    outcome = Outcome.UNSEEN_AGAIN if redelivered else Outcome.UNSEEN
    link.settle(number, outcome, [first_id, first_id + count - 1])
