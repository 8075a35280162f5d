"""Deliveries that a consumer holds for too long, where a queue has a limit for that (`x-consumer-timeout`).

By default there is none: a job may take days. Deliveries carry no time; instead it is noted now and then how far each
session has come with its ids, which tells the age of the oldest that is not settled to within one interval.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING
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

    def look(self, queues: Iterable[Queue], now_ms: int) -> None:
        """End every session that holds a delivery of one of these queues for longer than the queue allows."""
        for queue in list(queues):
            timeout_ms = queue.settings.consumer_timeout_ms
            if not timeout_ms or queue.deleted:
                continue
            for session in {consumer.session for consumer in queue.consumers}:
                if self._age_ms(session, queue, now_ms) > timeout_ms and session.on_overdue is not None:
                    session.on_overdue(
                        PreconditionFailed(
                            f"delivery acknowledgement timed out. Timeout value used: {timeout_ms} ms. "
                            "This timeout value can be configured, see consumers doc guide to learn more"
                        )
                    )

    def _age_ms(self, session: Session, queue: Queue, now_ms: int) -> int:
        """How long the session has held the oldest delivery of the queue, at least."""
        marks = self._marks.setdefault(session, deque())
        oldest = next((entry.first for entry in session.unsettled if entry.queue is queue), None)
        lowest = session.unsettled[0].first if session.unsettled else session.next_id
        while len(marks) > 1 and marks[0][0] <= lowest:
            marks.popleft()  # says nothing of what is still there
        if not marks or marks[-1][0] < session.next_id:
            marks.append((session.next_id, now_ms))
        return 0 if oldest is None else now_ms - next((at_ms for end, at_ms in marks if end > oldest), now_ms)
