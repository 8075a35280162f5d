"""What a session's publishers wait for, in order.

Publishes with `confirm` get dense sequence numbers. Once a turn the session notes what its publishes of that turn wait
for; when that is met, and everything before it, the sink gets one cumulative `confirm`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from routing.errors import BrokerError
from routing.message import Slab

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.session import Session

_Requirements = dict["PartitionLog", int]
"""Logs, and the offset each has to reach."""


class _Pending:
    __slots__ = ("error", "first", "last", "settled")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.settled = False
        self.error: BrokerError | None = None


class Confirms:
    """See the module; of one session."""

    def __init__(self, session: Session) -> None:
        self.published = 0
        """The last sequence number."""
        self._session = session
        self._noted = 0
        self._pending: deque[_Pending] = deque()
        self._requirements: _Requirements = {}
        self._needs_sync = False
        self._parts: list[tuple[int, _Requirements, bool, BrokerError | None]] = []
        """Runs of publishes of this turn that were ended by a refusal: last number, what they wait for, or why not."""

    def require(self, slab: Slab, targets: list[tuple[PartitionLog, int]]) -> None:
        """The last publish is safe when all these logs have got so far."""
        self._requirements.update(targets)
        if slab.properties.persistent:
            self._needs_sync = True

    def refuse(self, count: int, error: BrokerError) -> None:
        """The last `count` publishes were not even taken."""
        self._end_part(self.published - count)
        self._parts.append((self.published, {}, False, error))

    def _end_part(self, last: int) -> None:
        """What was published up to `last` since the last part waits for the requirements that came together."""
        self._parts.append((last, self._requirements, self._needs_sync, None))
        self._requirements, self._needs_sync = {}, False

    def note(self) -> None:
        """The turn ends, everything is appended: wait for what it published."""
        self._end_part(self.published)
        parts, self._parts = self._parts, []
        for last, requirements, needs_sync, error in parts:
            if last > self._noted:
                self._wait(last, requirements, needs_sync, error)
        self._advance()

    def _wait(self, last: int, requirements: _Requirements, needs_sync: bool, error: BrokerError | None) -> None:
        pending = _Pending(self._noted + 1, last)
        self._pending.append(pending)
        self._noted = last
        if not requirements:
            pending.settled, pending.error = True, error
            return

        def done(error: BrokerError | None) -> None:
            pending.settled, pending.error = True, error
            self._advance()

        self._session.broker.commits.when_committed(requirements.items(), done, sync=needs_sync)

    def _advance(self) -> None:
        pending, up_to = self._pending, 0
        session = self._session
        while pending and pending[0].settled:
            entry = pending.popleft()
            if entry.error is None:
                up_to = entry.last
            elif not session.closed:
                if up_to:
                    session.sink.confirm(up_to)
                    up_to = 0
                session.sink.refuse(entry.first, entry.last)
        if up_to and not session.closed:
            session.sink.confirm(up_to)
