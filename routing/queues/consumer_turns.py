"""Whose turn it is: the consumers of a queue.

1. With one consumer a run is handed over whole; with several each gets its turn, in shares no larger than what keeps
   all of them busy.
2. Consumers of a higher priority go first; others get something only while those have no credit.
3. With `single_active` one consumer gets everything: the first of the highest priority. When a better one comes it
   takes over once the one before has settled what it holds, so that order is kept.
4. With `least_first` not whoever waits longest gets something, but who has the fewest unsettled messages, as many as
   make it equal to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routing.session import Consumer

_SHARE_MAX = 64
"""Most messages a consumer gets in one go while others of the queue wait for theirs."""
_CREDIT_MAX = 1 << 20
"""So much counts of the credit of one that may have any number."""


class ConsumerTurns:
    """See the module."""

    __slots__ = ("_active", "_count", "_next", "_ranked", "consumers", "least_first", "single_active")

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        """Those of a higher priority first, otherwise as they came."""
        self.single_active = False
        self.least_first = False
        self._active: Consumer | None = None
        self._ranked = False
        self._next = 0
        self._count = 0
        """So many have come."""

    def add(self, consumer: Consumer) -> None:
        """A new one."""
        consumers = self.consumers
        self._count += 1
        consumer.number = self._count
        at = len(consumers)
        while at and consumers[at - 1].priority < consumer.priority:
            at -= 1
        consumers.insert(at, consumer)
        self._ranked = consumers[0].priority != consumers[-1].priority

    def remove(self, consumer: Consumer) -> None:
        """One is gone. It is not looked for among all: there may be ten thousands, which go one by one."""
        consumers = self.consumers
        at = bisect_left(consumers, _rank(consumer), key=_rank)
        assert consumers[at] is consumer
        del consumers[at]
        self._ranked = bool(consumers) and consumers[0].priority != consumers[-1].priority
        if self._active is consumer:
            self._active = None

    def drain(self) -> list[Consumer]:
        """The queue is gone: all are removed and returned."""
        consumers, self.consumers = self.consumers, []
        self._active = None
        return consumers

    @property
    def active(self) -> Consumer | None:
        """Who gets everything, where only one does."""
        if self._active is None or (self._active is not self.consumers[0] and not self._active.outstanding):
            self._active = self.consumers[0] if self.consumers else None
        return self._active

    def credit(self, window: int) -> int:
        """How many messages consumers may be given now, whatever their priorities; for `window` see
        `Consumer.credit_within`.
        """
        consumers = self.consumers
        if self.single_active and consumers:
            consumers = consumers[:1] if self.active is consumers[0] else []
        return sum(max(0, min(one.credit_within(window, -1), _CREDIT_MAX)) for one in consumers)

    def choose(self, waiting: int, window: int = 0, level: int = 0) -> tuple[Consumer | None, int]:
        """The next consumer in turn that has credit, and how many of the `waiting` messages it may have; for `window`
        and `level` see `Consumer.credit_within`.
        """
        consumers = self.consumers
        if len(consumers) == 1 or self.single_active:
            consumer = consumers[0]
            if self.single_active:
                active = self.active
                if active is None or (active is not consumer and active.outstanding):
                    return None, 0
            credit = consumer.credit_within(window, level)
            return (consumer, credit) if credit > 0 else (None, 0)
        if self.least_first:
            return self._least(waiting, window, level)
        best: int | None = None
        for _ in range(len(consumers)):
            index = self._next % len(consumers)
            consumer = consumers[index]
            self._next = index + 1
            if self._ranked:
                if best is None:
                    best = next((one.priority for one in consumers if one.credit_within(window, level) > 0), None)
                if consumer.priority != best:
                    continue
            credit = consumer.credit_within(window, level)
            if credit > 0:
                share = -(-waiting // len(consumers))
                return consumer, min(credit, max(1, min(share, _SHARE_MAX)))
        return None, 0

    def _least(self, waiting: int, window: int, level: int) -> tuple[Consumer | None, int]:
        """See rule 4; of equals, in turn."""
        consumers, count = self.consumers, len(self.consumers)
        able = [
            consumer
            for consumer in (*consumers[self._next % count :], *consumers[: self._next % count])
            if consumer.credit_within(window, level) > 0
        ]
        if not able:
            return None, 0
        best = max(consumer.priority for consumer in able)
        able = [consumer for consumer in able if consumer.priority == best]
        chosen = min(able, key=_outstanding)
        self._next = consumers.index(chosen) + 1
        above = min((one.outstanding for one in able if one.outstanding > chosen.outstanding), default=None)
        share = -(-waiting // len(able)) if above is None else above - chosen.outstanding
        return chosen, min(chosen.credit_within(window, level), max(1, min(share, _SHARE_MAX)))


def _rank(consumer: Consumer) -> tuple[int, int]:
    """What consumers are in order of."""
    return -consumer.priority, consumer.number


def _outstanding(consumer: Consumer) -> int:
    return consumer.outstanding
