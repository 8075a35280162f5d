"""What a session's publishers wait for, in order.

Publishes with `confirm` get dense sequence numbers. Once a turn the session notes what its publishes of that turn wait
for; when that is met, and everything before it, the sink gets one cumulative `confirm`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast
from weakref import ref

from routing.cluster.clients.streams import Stream, Watch
from routing.commits import Done
from routing.errors import BrokerError, LimitExceeded, StorageUnavailable
from routing.message import Slab
from routing.queues.homes.home import led_elsewhere
from routing.queues.runs_of import runs_of

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.queues.homes.home import Home
    from routing.session import Session
    from routing.topology.route import Route

_Requirements = dict["PartitionLog", int]
"""Logs, and the offset each has to reach."""


class _Pending:
    __slots__ = ("error", "first", "last", "settled", "watches")

    def __init__(self, first: int, last: int, watches: Sequence[Watch]) -> None:
        self.watches = watches
        self.first = first
        self.last = last
        self.settled = False
        self.error: BrokerError | None = None

    def refused(self) -> list[tuple[int, int]]:
        """First and last number of each run that is not safe."""
        if self.error is not None:
            return [(self.first, self.last)]
        if not self.watches:
            return []
        found = sorted({at for watch in self.watches for one in watch.refused for at in range(one[0], one[1] + 1)})
        return [(self.first + first, self.first + first + count - 1) for first, count in runs_of(found)]


def watch(targets: Iterable[tuple[PartitionLog, int]], count: int) -> list[Watch]:
    """Who knows which of the last `count` messages there leaders elsewhere refuse, as full queues do. Also where nobody
    waits for these: else all fails that others wait for (`streams.py`, rule 6).
    """
    logs: Iterable[tuple[object, int]] = targets
    return [log.watch(end, count) for log, end in logs if isinstance(log, Stream)]


def deliver_regardless(route: Route, slab: Slab) -> list[tuple[PartitionLog, int]]:
    """As `Route.deliver`, for messages of which nobody wants to know what becomes of them."""
    targets = route.deliver(slab)
    if route.asks:
        watch(targets, len(slab.bodies))
    return targets


def _given_up(needed: Iterable[tuple[PartitionLog, int]]) -> StorageUnavailable | None:
    """Why something is not safe that was sent in this turn: who sends it gave up in the same."""
    for log, end in needed:
        if isinstance(log, Stream) and log.committed_offset < end <= log.given_up:
            return StorageUnavailable(f"{log.name}: nobody has taken it in time")
    return None


class Confirms:
    """See the module; of one session."""

    __slots__ = (
        "_broker", "_needs_sync", "_noted", "_parts", "_pending", "_requirements", "_session", "_written", "published",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.published = 0
        """The last sequence number."""
        self._session = ref(session)
        self._broker = session.broker
        self._noted = 0
        self._written: list[tuple[Collection[Home], Done]] = []
        self._pending: list[_Pending] = []
        self._requirements: _Requirements = {}
        self._needs_sync = False
        self._parts: list[tuple[int, _Requirements, bool, BrokerError | None, Sequence[Watch]]] = []
        """Runs of publishes of this turn that were ended by a refusal: last number, what they wait for, or why not;
        who will know what was refused."""

    def require(
        self, slab: Slab, targets: list[tuple[PartitionLog, int]], *, asks: bool = False, behind: int = 0
    ) -> None:
        """The last publish, but for `behind` messages at its end, is safe when all these logs have got so far; `asks`:
        queues elsewhere may refuse some of it.
        """
        if asks:
            self._end_part(self.published - behind - len(slab.bodies))
        self._requirements.update(targets)
        if slab.properties.persistent:
            self._needs_sync = True
        if asks:
            self._end_part(self.published - behind, watch(targets, len(slab.bodies)))

    def also(self, count: int, log: Stream, end: int, *, asks: bool) -> None:
        """The last `count` publishes are safe when this has got so far, too; `asks` as in `require`."""
        watches = [log.watch(end, count)] if asks else []
        target = {cast("PartitionLog", log): end}
        if self._parts and self._parts[-1][0] == self.published:
            last, requirements, _, error, others = self._parts[-1]
            self._parts[-1] = last, requirements | target, True, error, [*others, *watches]
            return
        if asks:
            requirements, self._requirements = self._requirements, {}
            self._end_part(self.published - count)
            self._requirements = requirements
        self._requirements.update(target)
        self._needs_sync = True
        if asks:
            self._end_part(self.published, watches)

    def refuse(self, count: int, error: BrokerError) -> None:
        """The last `count` publishes were not even taken."""
        self._end_part(self.published - count)
        self._parts.append((self.published, {}, False, error, ()))

    def let_go(self, log: PartitionLog) -> None:
        """The log is deleted: see `CommitWaiter.forget`."""
        for requirements in (self._requirements, *(part[1] for part in self._parts)):
            requirements.pop(log, None)

    def lost(self, log: PartitionLog, error: BrokerError) -> None:
        """What was published in this turn and is to be safe in this log is not taken."""
        self._end_part(self.published)
        self._parts = [(part[0], {}, False, error, ()) if log in part[1] else part for part in self._parts]

    def moved(self, log: PartitionLog, to: PartitionLog, places: Mapping[int, int], error: BrokerError) -> None:
        """What was published in this turn is to be safe elsewhere: see `CommitWaiter.move`."""
        self._end_part(self.published)
        parts, self._parts = self._parts, []
        for last, requirements, needs_sync, refused, watches in parts:
            offset = requirements.get(log)
            if offset is None or offset <= log.committed_offset:
                self._parts.append((last, requirements, needs_sync, refused, watches))
            elif offset in places:
                rest = {other: end for other, end in requirements.items() if other is not log}
                rest[to] = max(rest.get(to, 0), places[offset])
                self._parts.append((last, rest, needs_sync, refused, watches))
            else:
                self._parts.append((last, {}, False, error, ()))

    def _open(self) -> Session | None:
        """The session, unless it is closed. It has this, so that one of the two does not have the other."""
        session = self._session()
        return None if session is None or session.closed else session

    def _end_part(self, last: int, watches: Sequence[Watch] = ()) -> None:
        """What was published up to `last` since the last part waits for the requirements that came together."""
        self._parts.append((last, self._requirements, self._needs_sync, None, watches))
        self._requirements, self._needs_sync = {}, False

    def when_written(self, homes: Collection[Home], done: Done) -> None:
        """Call `done` when what was settled or released in these homes so far is committed, see `CommitWaiter`."""
        for home in homes:
            home.settlements_due()
        self._written.append((homes, done))
        session = self._session()
        if session is not None:
            self._broker.confirming[session] = None

    def note(self) -> None:
        """The turn ends, everything is appended: wait for what it published."""
        if self._requirements or self._parts or self._pending:
            self._end_part(self.published)
            parts, self._parts = self._parts, []
            for last, requirements, needs_sync, error, watches in parts:
                if last > self._noted:
                    self._wait(last, requirements, needs_sync, error, watches)
            self._advance()
        elif self.published > self._noted:  # that waits for nothing
            self._noted = self.published
            if (session := self._open()) is not None:
                session.sink.confirm(self._noted)
        if self._written:
            written, self._written = self._written, []
            for homes, done in written:
                if led_elsewhere(homes):
                    done(StorageUnavailable("another broker leads a home partition now"))
                    continue
                needed = [(home.log, home.log.log_end_offset) for home in homes]
                if (error := _given_up(needed)) is not None:
                    done(error)
                    continue
                self._broker.commits.when_committed(needed, done)

    def _wait(
        self,
        last: int,
        requirements: _Requirements,
        needs_sync: bool,
        error: BrokerError | None,
        watches: Sequence[Watch],
    ) -> None:
        pending = _Pending(self._noted + 1, last, watches)
        self._pending.append(pending)
        self._noted = last
        error = error or _given_up(requirements.items())
        if error is not None or not requirements:
            pending.settled, pending.error = True, error
            return

        def done(error: BrokerError | None) -> None:
            pending.settled, pending.error = True, error
            self._advance()

        self._broker.commits.when_committed(requirements.items(), done, sync=needs_sync, moves=True)

    def _advance(self) -> None:
        pending, up_to = self._pending, 0
        session = self._open()
        while pending and pending[0].settled:
            entry = pending.pop(0)
            refused = entry.refused()
            if not refused:
                up_to = entry.last
            elif session is not None:
                confirmed = entry.first - 1
                error = entry.error or LimitExceeded("a queue is full")
                for first, last in refused:
                    if first - 1 > confirmed:
                        up_to = first - 1
                    if up_to:
                        session.sink.confirm(up_to)
                        up_to = 0
                    session.sink.refuse(first, last, error)
                    confirmed = last
                if refused[-1][1] < entry.last:
                    up_to = entry.last
        if up_to and session is not None:
            session.sink.confirm(up_to)
