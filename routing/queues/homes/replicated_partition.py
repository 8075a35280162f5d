"""A home partition of which other brokers have replicas, where it is led.

1. Queues get what is committed. What was published is held back until the log's high watermark has passed it, so what
   waits in a queue may be given out, whatever becomes of this broker; the queues themselves know nothing of it.
2. Who is published to has somebody waiting: what brings messages asks for the disks of all who are in sync.
3. Once a turn it is told whether this broker may serve (`serve`): if not, nothing is given out, and what clients
   publish waits somewhere else (`instead`), until it may again and all that waits there is here. What is given out
   before the turn ends asks itself (`look_again`): the process may have stood still since the last one.
4. Its log defines a set of queues before its first use in each leader epoch: where a definition stood that was known
   before, another replica's log may not reach. What is live is defined somewhere in all of them (`dead_prefix.py`).
5. When it is led here no more it is retired: what was not appended yet is dropped, and nothing is appended again. What
   clients of this broker had published is told before (`publishes`), as long as it is not committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from core_log.errors import LogUnavailable
from core_log.partition_log import PartitionLog
from routing.commits import storage_error
from routing.config import BrokerConfig
from routing.errors import StorageUnavailable
from routing.message import Slab
from routing.queues.arrivals import Arrival
from routing.queues.history import HISTORY_BIT
from routing.queues.homes.carried_states import carried_states
from routing.queues.homes.destination_sets import DestinationSet
from routing.queues.homes.queue_partition import QueuePartition

if TYPE_CHECKING:
    from routing.queues.homes.home import Home
    from routing.queues.queue import Queue


_GIVEN_WITHIN_S = 2.0
"""So long a queue is not said to be empty of what others may yet keep."""


def _nobody() -> None:
    """Nobody is to be asked."""


class _Held(NamedTuple):
    """Messages [first, end) for these queues; without `arrival` they ask for nothing. `ours`: nobody but this broker
    would publish them again.
    """

    end: int
    first: int
    destinations: DestinationSet
    arrival: Arrival | None
    delayed: bool
    ours: bool
    bytes: int


class Published(NamedTuple):
    """Messages [first, end) that a client of this broker published for these queues; without any, `repeated` ones."""

    first: int
    end: int
    queue_ids: tuple[int, ...]
    once_in_ms: int
    slab: Slab


class ReplicatedPartition(QueuePartition):
    """See the module."""

    def __init__(self, index: int, log: PartitionLog, config: BrokerConfig, **around: Any) -> None:
        super().__init__(index, log, config, **around)
        self.suspended = True
        self.ask: Callable[[], None] = _nobody
        """Calls `serve` if what this broker may do is not what it was told last."""
        self._refusal: StorageUnavailable | None = None
        self._held: deque[_Held] = deque()
        self._awaited: list[tuple[int, trio.Event]] = []
        """Up to where somebody waits for what is held."""
        self._repeated: deque[Published] = deque()
        self._told_before = self.next_offset
        self._carrying: Iterator[tuple[bytes, bytes]] | None = None
        self._carried_at = -1
        self._was_under_way = -1

    def serve(self, delivers: bool, refusal: StorageUnavailable | None, instead: Home | None = None) -> None:
        """What this broker may do now: give messages out, and take them unless there is a `refusal`; with `instead`
        clients publish there, whatever may be done here.
        """
        self._refusal, self.instead = refusal, instead
        self._look()
        if delivers is self.suspended:
            self.suspended = not delivers
            if delivers:
                for queue in self.queues.values():
                    if not queue.awake:
                        queue.awake = True
                        queue.host.runnable(queue)

    def look_again(self) -> None:
        """See `QueuePartition`. Who is suspended may be so until the turn ends."""
        if not self.suspended:
            self.ask()

    def _look(self) -> None:
        self.error = self.refusal
        if self.error is None and self.instead is not None:
            self.error = StorageUnavailable(f"home partition {self.index} takes what came before")

    @property
    def refusal(self) -> StorageUnavailable | None:
        """See `QueuePartition`."""
        return self._refusal if self.log.error is None else storage_error(self.log)

    def publishes(self) -> list[Published]:
        """What clients of this broker have published since this was asked last, and is not committed."""
        before, self._told_before = self._told_before, self.next_offset
        found = list(self._repeated)
        self._repeated.clear()
        for held in self._held:
            entry = self._cache.find(held.first) if held.ours and held.first >= before else None
            if entry is not None and entry.first == held.first and entry.end == held.end:
                ids = tuple(queue_id for queue_id in held.destinations.definition.queue_ids if queue_id < HISTORY_BIT)
                found.append(Published(held.first, held.end, ids, held.destinations.once_in_ms, entry.slab))
        found.sort(key=lambda one: one.first)
        return found

    def repeated(self, slab: Slab, destinations: DestinationSet) -> None:
        """A client of this broker publishes what is here under its numbers already, by another broker that may be gone:
        what it publishes behind that is not to come before it, should both be cut off.
        """
        end = self.next_offset
        if not self.for_others and end > self.log.high_watermark:
            ids = tuple(queue_id for queue_id in destinations.definition.queue_ids if queue_id < HISTORY_BIT)
            self._repeated.append(Published(end, end, ids, destinations.once_in_ms, slab))

    def retire(self, why: StorageUnavailable) -> None:
        """Another broker leads it, or may at any time."""
        self.retired = self.suspended = True
        self.ask = _nobody
        self.error = self._refusal = why
        self.instead = None
        self.log.listeners.remove(self._log_advanced)
        self._held.clear()
        self._tell_awaited(self.next_offset)
        self._repeated.clear()
        self._open.clear()
        self.unsealed.clear()

    def _require_led(self) -> None:
        if self.retired:
            raise LogUnavailable(str(self.error))

    # --- messages in -------------------------------------------------------------------

    def destination_set(self, queues: tuple[Queue, ...]) -> DestinationSet:
        """See `Home`."""
        found = super().destination_set(queues)
        found.simple, found.plain = found.plain, False  # so that all comes to `_admit`
        return found

    def enqueue(self, slab: Slab, destinations: DestinationSet) -> int:
        """See `Home`."""
        self._require_led()
        return super().enqueue(slab, destinations)

    def prepare(self, destinations: DestinationSet) -> None:
        """See `Home`."""
        self._require_led()
        super().prepare(destinations)

    def held_for(self, queue: Queue) -> int:
        """See `QueuePartition`."""
        return sum(held.end - held.first for held in self._held if queue in held.destinations.queues)

    async def until_given(self, queue: Queue) -> bool:
        """See `QueuePartition`. Whoever publishes and then gets has the message."""
        end = max((held.end for held in self._held if queue in held.destinations.queues), default=0)
        if not end or self.retired:
            return False
        self._awaited.append((end, given := trio.Event()))
        with trio.move_on_after(_GIVEN_WITHIN_S):
            await given.wait()
        return given.is_set()

    def held_bytes_for(self, queue: Queue) -> int:
        """See `QueuePartition`."""
        return sum(held.bytes for held in self._held if queue in held.destinations.queues)

    def _admit(self, first: int, slab: Slab, destinations: DestinationSet) -> None:
        arrival = None
        if not (destinations.simple and slab.plain):
            arrival = self._arrived(first, slab, destinations)
        ours = not self.for_others and self.instead is None
        counted = any(queue.rules.sizes is not None for queue in destinations.queues)
        size_bytes = sum(map(len, slab.bodies)) if counted else 0
        self._held.append(_Held(self.next_offset, first, destinations, arrival, slab.delayed, ours, size_bytes))

    def _log_advanced(self, log: PartitionLog) -> None:
        super()._log_advanced(log)
        self._look()
        held, committed = self._held, log.high_watermark
        while self._repeated and self._repeated[0].end <= committed:
            self._repeated.popleft()
        while held and held[0].end <= committed:
            self._give(held.popleft())
        if self._awaited:
            self._tell_awaited(committed)

    def _tell_awaited(self, committed: int) -> None:
        for one in [one for one in self._awaited if one[0] <= committed]:
            self._awaited.remove(one)
            one[1].set()

    def _give(self, held: _Held) -> None:
        """Messages are committed: now they are in their queues."""
        end, first, destinations, arrival, delayed, _, _ = held
        for queue in destinations.queues:
            if queue.deleted:
                self.forget(first, end - first)
            elif arrival is not None:
                queue.admit(arrival, delayed=delayed)
            elif queue.settings.is_plain:
                queue.enqueue(first, end - first)
            else:  # it was told something meanwhile
                queue.admit(Arrival(first, end - first, self._now_ms(), 0), delayed=False)

    # --- the log -----------------------------------------------------------------------

    def carry_states(self, begins_at: int) -> bool:
        """Write again, a bite a turn, what a replica that begins at an offset cannot know; whether that is all.

        Raises LogUnavailable.
        """
        if self._carrying is None:
            if self._carried_at >= begins_at:
                return True  # it finds it in the log, and all that came later
            self._carrying, self._carried_at = carried_states(self), self.next_offset
        for key, value in self._carrying:
            self._seal_data()
            self._append_control(key, value)
            self._mark_dirty(self)
            return False
        self._carrying = None
        self.log.request_sync()
        return self._carried_at >= begins_at  # or another one has begun meanwhile, behind a part of that

    def seal(self) -> None:
        """See `QueuePartition`."""
        if self.retired:
            return
        brought = bool(self._open.slabs)
        super().seal()
        if brought:
            self.log.request_sync()

    def finish(self, under_way: int) -> bool:
        """`seal` before it is handed over, as a rule with what was settled; whether that is all, if so much that is
        to be settled here is under way.
        """
        if under_way != self._was_under_way:
            self._was_under_way = under_way
            self.seal_all()  # not each time: consumers may settle without end
        else:
            self.seal()
        return not under_way

    def _append(self, batch: bytes, base_offset: int) -> None:
        self._require_led()
        super()._append(batch, base_offset)
