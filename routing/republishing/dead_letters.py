"""Dead letters: messages that a queue gives up are published again, with their history, to where the queue says.

1. Queues only note offsets here (`add`), in the middle of whatever they do; the copies are made when the turn ends, a
   bite at a time, so that ten thousand messages that expire at once hold nobody up.
2. The original is settled once the copy is committed in every log it went to, and not before: a crash leaves one of
   them or both, never none. So few are under way at any time (`dead_letters_in_flight_max` and `_bytes_max`), the rest
   waits as eight bytes each.
3. A copy that reaches no queue, or only such as it must not come to again (`death_history.py`), is dropped, as RabbitMQ
   does. Where a log refuses it is tried again after a while. So it is where the queue says `at-least-once`, as in
   RabbitMQ, and where the queue at the end of a retry ladder is missing: nobody who asks for retries wants to lose the
   message at the last of them. Those that have nowhere to go let others pass, up to a limit.
4. What waits here counts as delivered in its queue, and is back in it after a start.
5. Where nothing may be given out now (`suspended`) no copies are made: another broker may lead the queue, and have had
   the message settled. Nor are they where nothing can be settled; a home that is handed over waits for those under way.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import trio

from core_log.errors import LogUnavailable
from routing.errors import LimitExceeded, NotFound, StorageUnavailable
from routing.message import Slab
from routing.queues.death_history import DELIVERY_LIMIT, MAXLEN, REJECTED
from routing.queues.homes.home import for_others
from routing.republishing.death_copies import Copies, CopyMaker, Like, Target
from routing.topology.route import Route

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.broker import Broker
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.queue import Queue
    from routing.topology.virtual_host import VirtualHost

logger = logging.getLogger(__name__)

_BITE = 128
"""Messages of one queue that are copied in one go."""
_AHEAD = 1024
"""Messages that are read at once where they lie scattered."""
_DENSE = 8
"""Where every so many-th message is wanted, the log is read as a whole."""
_HOMELESS_MAX = 1024
"""Messages of one queue that may have nowhere to go before those behind them wait as well."""
_TURN_S = 0.002
"""How long copies are made in one turn."""


class _Waiting:
    """Offsets in one queue that died for one reason, from `start` on."""

    __slots__ = ("asleep", "homeless", "offsets", "queue", "reason", "start", "told", "warned")

    def __init__(self, queue: Queue, reason: str) -> None:
        self.queue = queue
        self.reason = reason
        self.offsets = array("Q")
        self.start = 0
        self.asleep = False
        """Waits for the disk, or for time to pass."""
        self.homeless = array("Q")
        """Those that had nowhere to go when it was their turn."""
        self.told: set[str] = set()
        """Why some have nowhere to go, as far as it was said."""
        self.warned = False

    def next(self, count: int) -> array[int]:
        """What is to be done next."""
        return self.offsets[self.start : self.start + count]

    def again(self) -> None:
        """Those that had nowhere to go are tried again: in their old order, but behind the others if they are many."""
        if len(self.homeless) < _HOMELESS_MAX:
            self.offsets[self.start : self.start] = self.homeless
        else:
            self.offsets.extend(self.homeless)
        self.homeless = array("Q")

    def done(self, count: int) -> None:
        """The first `count` are taken care of."""
        self.start += count
        if self.start * 2 > len(self.offsets):
            del self.offsets[: self.start]
            self.start = 0


class _Flight:
    """Originals whose copies were published together, and what these wait for."""

    __slots__ = ("offsets", "queue", "reason", "size", "sync", "targets")

    def __init__(
        self,
        waiting: _Waiting,
        offsets: Sequence[int],
        targets: dict[PartitionLog, int],
        size: int,
        sync: bool,
    ) -> None:
        self.queue = waiting.queue
        self.reason = waiting.reason
        self.offsets = offsets
        self.targets = targets
        self.size = size
        self.sync = sync


class DeadLetters:
    """See the module. `due` says that `run` has something to do when the turn ends."""

    def __init__(self, broker: Broker) -> None:
        self.due = False
        self.counts: Counter[str] = Counter()
        """Messages by what became of them: "published", "dropped"."""
        self._broker = broker
        self._config = broker.config
        self._waiting: dict[tuple[Queue, str], _Waiting] = {}
        self._refused: list[tuple[Queue, Slab]] = []
        self.published: list[_Flight] = []
        """Copies of this turn, to be waited for (`note_commits`)."""
        self._flights: dict[_Flight, None] = {}
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._armed = False

    def add(self, queue: Queue, offsets: Sequence[int], reason: str) -> None:
        """Messages that are outstanding in their queue died."""
        waiting = self._waiting.get((queue, reason))
        if waiting is None:
            waiting = self._waiting[queue, reason] = _Waiting(queue, reason)
        waiting.offsets.extend(offsets)
        self.due = True

    def add_refused(self, queue: Queue, slab: Slab) -> None:
        """A full queue did not take these messages: copies are published when the turn ends, or never."""
        queue.gave_way += len(slab.bodies)
        queue.host.gave_way(queue, len(slab.bodies))
        queue.host.deaths[MAXLEN] += len(slab.bodies)
        self._refused.append((queue, slab))
        self.due = True

    def put_back(self) -> None:
        """The engine stops: what is not settled goes back to its queue."""
        self.due = False
        for waiting in self._waiting.values():
            waiting.again()
            waiting.queue.put_back(waiting.offsets[waiting.start :])
        for flight in (*self._flights, *self.published):
            flight.queue.put_back(flight.offsets)
        self._waiting.clear()
        self._flights.clear()
        self.published.clear()

    def under_way(self, home: QueuePartition) -> int:
        """How many times originals of a home wait for their copies."""
        return sum(flight.queue.partition is home for flight in (*self._flights, *self.published))

    def lost(self, log: PartitionLog) -> None:
        """What is not committed in a log may not stay: copies that it has are made again, for where they go now."""
        committed = log.committed_offset
        flights = (*self._flights, *self.published)
        lost = [flight for flight in flights if flight.targets.get(log, committed) > committed]
        self.published = [flight for flight in self.published if flight not in lost]
        for flight in lost:
            self._again(flight)

    def _again(self, flight: _Flight) -> None:
        self._flights.pop(flight, None)
        self._in_flight -= len(flight.offsets)
        self._in_flight_bytes -= flight.size
        self.add(flight.queue, flight.offsets, flight.reason)

    # --- in a turn ---------------------------------------------------------------------

    def run(self) -> None:
        """Publish copies for a moment; if that is not all, there will be another turn for the rest."""
        self.due = False
        refused, self._refused = self._refused, []
        for queue, slab in refused:
            self._bury_refused(queue, slab)
        end = time.perf_counter() + _TURN_S
        config = self._config
        while True:
            awake = [waiting for waiting in self._waiting.values() if not waiting.asleep]
            for waiting in awake:
                full = (
                    self._in_flight >= config.dead_letters_in_flight_max
                    or self._in_flight_bytes >= config.dead_letters_in_flight_bytes_max
                )
                if full:
                    return  # `_landed` goes on
                if time.perf_counter() > end:
                    self._soon()
                    return
                self._bite(waiting)
            if not awake:
                return

    def note_commits(self) -> None:
        """The turn's copies are appended: wait for them."""
        sealing, self.published = self.published, []
        for flight in sealing:
            self._await(flight)

    def _soon(self) -> None:
        """Another turn, when everybody else has had one."""
        if not self._armed:
            self._armed = True
            self._broker.spawn(self._next_turn)

    async def _next_turn(self) -> None:
        await trio.lowlevel.checkpoint()
        self._armed = False
        self.due = True
        self._broker.end_turn()

    def _sleep(self, waiting: _Waiting) -> None:
        """It cannot be done now; try again after a while."""
        waiting.asleep = True

        def wake() -> None:
            waiting.asleep = False
            waiting.again()
            self.due = True

        self._broker.timers.at(trio.current_time() + self._config.dead_letter_retry_ms / 1000, wake)

    def _bite(self, waiting: _Waiting) -> None:
        queue = waiting.queue
        offsets = waiting.next(_BITE)
        if not offsets:
            if waiting.homeless:
                self._sleep(waiting)
            else:
                del self._waiting[queue, waiting.reason]
            return
        target = _target(queue, waiting.reason)
        if queue.deleted or target is None:
            waiting.done(len(offsets))
            queue.settle_offsets(offsets)
            return
        if queue.partition.suspended or queue.partition.refusal is not None:
            self._sleep(waiting)
            return
        maker = CopyMaker(queue.name, waiting.reason, target, self._broker.clock.now_ms() // 1000)
        count = self._copy(queue, offsets, maker)
        published = self._publish_runs(waiting, maker.runs, target, offsets[:count])
        waiting.done(published)
        if published < count:
            self._sleep(waiting)
        elif count < len(offsets):
            self._load(waiting, offsets[count])

    def _copy(self, queue: Queue, offsets: Sequence[int], maker: CopyMaker) -> int:
        """Make copies up to the first message that is not in memory; how many."""
        find, facts = queue.store.find, queue.store.facts
        done = start = 0
        while done < len(offsets):
            entry = find(offsets[start])
            if entry is None:
                break
            while done < len(offsets) and entry.first <= offsets[done] < entry.end:
                done += 1
            slab, run = entry.slab, offsets[start:done]
            asked = facts.each(run, int(slab.properties.persistent)) if facts else None
            maker.add(slab, [offset - entry.first for offset in run], asked)
            start = done
        return done

    def _load(self, waiting: _Waiting, offset: int) -> None:
        """Read the next message, with its neighbours in the log or, if they lie far apart, with those that are next."""
        waiting.asleep = True
        queue = waiting.queue
        store = queue.store
        ahead = waiting.next(_AHEAD)
        scattered = max(ahead) - min(ahead) > _DENSE * len(ahead)

        async def load() -> None:
            if scattered:
                await store.read_scattered([one for one in ahead if store.find(one) is None])
            if store.find(offset) is None:
                await store.load_now(offset, queue)
            waiting.asleep = False
            if store.find(offset) is None and not (queue.deleted or queue.partition.suspended):
                logger.error("offset %d of queue %s cannot be read: its dead letter is lost", offset, queue.name)
                del waiting.offsets[waiting.offsets.index(offset, waiting.start)]
                queue.settle_offsets([offset])
            self.due = True
            self._broker.end_turn()

        self._broker.spawn(load)

    # --- publishing --------------------------------------------------------------------

    def _publish_runs(self, waiting: _Waiting, runs: list[Copies], target: Target, offsets: Sequence[int]) -> int:
        """Publish the copies of `offsets`; returns for how many that was possible."""
        queue = waiting.queue
        vhost = self._broker.topology.vhost(queue.vhost)
        published = 0
        for run in runs:
            slab = run.slab(target.exchange)
            for route, part in self._routed(vhost, slab, run.like):
                count = len(part.bodies)
                if not route.homes and not route.topics:
                    if not target.must_exist:
                        self.counts["dropped"] += count
                        queue.settle_offsets(offsets[published : published + count])
                    else:
                        self._tell(waiting, target, vhost, part, run.like)
                        if not self._keep(waiting, offsets[published : published + count]):
                            return published
                elif not self._publish(waiting, route, part, offsets[published : published + count]):
                    return published
                published += count
        return published

    def _bury_refused(self, queue: Queue, slab: Slab) -> None:
        """Nobody was told that these are safe, so that there is nothing to be waited for."""
        target = None if queue.deleted else _target(queue, MAXLEN)
        if target is None:
            return
        maker = CopyMaker(queue.name, MAXLEN, target, self._broker.clock.now_ms() // 1000)
        maker.add(slab, range(len(slab.bodies)), slab.facts)
        vhost = self._broker.topology.vhost(queue.vhost)
        for run in maker.runs:
            for route, part in self._routed(vhost, run.slab(target.exchange), run.like):
                leads = bool(route.homes or route.topics)
                reached = leads and not isinstance(self._put(queue, route, part), str)
                self.counts["published" if reached else "dropped"] += len(part.bodies)

    def _routed(self, vhost: VirtualHost, slab: Slab, like: Like) -> Iterable[tuple[Route, Slab]]:
        try:
            parts = vhost.router.routed_inside(slab, like.further)
        except NotFound:
            return [(Route([], []), slab)]
        if like.barred:
            parts = [(route.after_death(like.barred), part) for route, part in parts]
        return parts

    def _publish(self, waiting: _Waiting, route: Route, slab: Slab, offsets: Sequence[int]) -> bool:
        """Enqueue copies; False when a log refuses them."""
        targets = self._put(waiting.queue, route, slab)
        if isinstance(targets, str):
            self._warn(waiting, targets)
            return False
        waiting.warned = False
        self.counts["published"] += len(slab.bodies)
        if not targets or not waiting.queue.durable:
            waiting.queue.settle_offsets(offsets)
            return True
        flight = _Flight(waiting, offsets, targets, slab.size, slab.properties.persistent)
        self.published.append(flight)
        self._in_flight += len(offsets)
        self._in_flight_bytes += slab.size
        return True

    def _put(self, queue: Queue, route: Route, slab: Slab) -> dict[PartitionLog, int] | str:
        """Where copies went, or why a log refuses them."""
        route = route.as_new()
        try:
            route.require_room(slab)
        except LimitExceeded as error:
            logger.warning("dead letters of queue %s are too large for a topic: %s", queue.name, error)
            route = Route(route.queues, [], delayed=route.delayed)
        failed = route.error()
        if failed is not None:
            return str(failed)
        try:
            with for_others(route.durable_homes):
                return dict(route.deliver(slab))
        except LogUnavailable as unavailable:
            return str(unavailable)

    def _tell(self, waiting: _Waiting, target: Target, vhost: VirtualHost, slab: Slab, like: Like) -> None:
        """Say why copies have nowhere to go."""
        anywhere = self._routed(vhost, slab, like._replace(barred=frozenset()))
        circle = any(route.homes or route.topics for route, _ in anywhere)
        why = (
            "leads to queues alone that they died in before, by their header x-death" if circle else "leads to no queue"
        )
        if why not in waiting.told:
            waiting.told.add(why)
            key = "" if target.routing_key is None else f" with key '{target.routing_key}'"
            place = f"exchange '{target.exchange}'{key}"
            logger.warning("dead letters of queue %s have to wait: %s %s", waiting.queue.name, place, why)

    def _keep(self, waiting: _Waiting, offsets: Sequence[int]) -> bool:
        """These have nowhere to go and are tried again after a while; False where there are too many already."""
        if len(waiting.homeless) >= _HOMELESS_MAX:
            return False
        waiting.homeless.extend(offsets)
        return True

    def _warn(self, waiting: _Waiting, why: str) -> None:
        if not waiting.warned:
            waiting.warned = True
            logger.warning("dead letters of queue %s have to wait: %s", waiting.queue.name, why)

    def _await(self, flight: _Flight) -> None:
        self._flights[flight] = None

        def done(error: StorageUnavailable | None) -> None:
            if flight not in self._flights:
                return  # put back, or lost
            if error is None or all(log.closed for log in flight.targets):
                self._landed(flight)
            elif any(log.drops_what_failed for log in flight.targets):
                self._again(flight)
                self._sleep(self._waiting[flight.queue, flight.reason])
            else:
                # The copies are in their queues, and in memory until the log takes them: they are not made again.
                later = trio.current_time() + self._config.dead_letter_retry_ms / 1000
                self._broker.timers.at(later, lambda: self._await(flight) if flight in self._flights else None)

        targets = [(log, offset) for log, offset in flight.targets.items() if not log.closed]
        self._broker.commits.when_committed(targets, done, sync=flight.sync)

    def _landed(self, flight: _Flight) -> None:
        del self._flights[flight]
        self._in_flight -= len(flight.offsets)
        self._in_flight_bytes -= flight.size
        flight.queue.settle_offsets(flight.offsets)
        if self._waiting:
            self.due = True


def _target(queue: Queue, reason: str) -> Target | None:
    """Where messages of a queue go that died; None: nowhere."""
    settings = queue.settings
    if settings.retry_then is not None and settings.retry_ms and reason in (REJECTED, DELIVERY_LIMIT):
        return Target("", settings.retry_then, must_exist=True)
    if settings.dead_letter_exchange is None:
        return None
    keeps = settings.keeps_dead_letters
    return Target(settings.dead_letter_exchange, settings.dead_letter_routing_key, must_exist=keeps)
