"""Deliveries that are held for too long, where a queue or a consumer has a limit for that (`x-consumer-timeout`; of
both the lower counts): by a consumer, or after it was cancelled, or by who got them one by one. What is settled in a
transaction is held until that is committed.

By default there is none: a job may take days. Deliveries carry no time; instead it is noted now and then how far each
session has come with its ids, which tells the age of the oldest that is not settled to within one interval.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from routing.errors import PreconditionFailed

if TYPE_CHECKING:
    from routing.queues.queue import Queue
    from routing.session import Session


class ConsumerTimeouts:
    """See the module."""

    def __init__(self) -> None:
        self._marks: WeakKeyDictionary[Session, deque[tuple[int, int]]] = WeakKeyDictionary()
        """(the next id, when): every id below had been given out by then."""

    def look(self, queues: Iterable[Queue], sessions: Iterable[Session], now_ms: int) -> None:
        """End each of these sessions that holds a delivery for longer than its consumer allows, or its queue, which is
        one of these.
        """
        limits = {
            queue: queue.settings.consumer_timeout_ms
            for queue in queues
            if queue.settings.consumer_timeout_ms and not queue.deleted
        }
        for session in list(sessions):
            if not limits and not session.impatient:
                continue
            oldest = _oldest(session, limits)
            if oldest:
                self._mark(session, min(oldest.values()), now_ms)
            for limit_ms, first in oldest.items():
                if self._age_ms(session, first, now_ms) > limit_ms and session.on_overdue is not None:
                    session.on_overdue(
                        PreconditionFailed(
                            f"delivery acknowledgement timed out. Timeout value used: {limit_ms} ms. "
                            "This timeout value can be configured, see consumers doc guide to learn more"
                        )
                    )
                    break

    def _mark(self, session: Session, lowest: int, now_ms: int) -> None:
        """Note how far the session is; `lowest` is the oldest delivery that a limit is for."""
        marks = self._marks.setdefault(session, deque())
        while len(marks) > 1 and marks[0][0] <= lowest:
            marks.popleft()  # says nothing of what is asked for
        if not marks or marks[-1][0] < session.next_id:
            marks.append((session.next_id, now_ms))

    def _age_ms(self, session: Session, oldest: int, now_ms: int) -> int:
        """How long the session has held the delivery `oldest`, at least."""
        return now_ms - next((at_ms for end, at_ms in self._marks[session] if end > oldest), now_ms)


def _oldest(session: Session, limits: Mapping[Any, int]) -> dict[int, int]:
    """By each limit in ms that a session has to keep, the oldest delivery that it is for."""
    oldest: dict[int, int] = {}
    taken = session.transaction.taken if session.transaction is not None else ()
    for entry in chain(session.unsettled, (entry for entry, _ in taken)):
        of_queue, of_consumer = limits.get(entry.queue, 0), entry.consumer.timeout_ms if entry.consumer else 0
        limit_ms = min(of_queue, of_consumer) or max(of_queue, of_consumer)
        if limit_ms:
            oldest[limit_ms] = min(oldest.get(limit_ms, entry.first), entry.first)
    return oldest
