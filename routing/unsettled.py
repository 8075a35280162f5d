"""What a session has been given and has not settled, as runs of ids that map to offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from routing.topics.stream import Stream

if TYPE_CHECKING:
    from routing.consumer import Consumer
    from routing.queues.passed import Passed
    from routing.queues.queue import Queue


class Outcome(Enum):
    """What becomes of delivered messages; RELEASE puts them back without a verdict of who had them, UNSEEN those that
    came to another broker and no further, UNSEEN_AGAIN such as had been delivered before. RECEIVED is the first of two
    steps to be done with them (`receipts.receive`).
    """

    ACK = "ack"
    RECEIVED = "received"
    REQUEUE = "requeue"
    DISCARD = "discard"
    RELEASE = "release"
    UNSEEN = "unseen"
    UNSEEN_AGAIN = "unseen_again"


ACK = Outcome.ACK
"""By a name of its own: what is looked up in the class of an enumeration takes long."""


class Unsettled:
    """A run of deliveries: ids [first, end), the offset of the first, and whose they are (no consumer after a get).

    `offsets` has the offset of each where they are not neighbours in the log.
    """

    __slots__ = ("consumer", "end", "first", "offset", "offsets", "queue")

    def __init__(
        self,
        first: int,
        end: int,
        offset: int,
        queue: Queue | Stream | Passed,
        consumer: Consumer | None,
        offsets: list[int] | None = None,
    ) -> None:
        self.first = first
        self.end = end
        self.offset = offset
        self.queue = queue
        self.consumer = consumer
        self.offsets = offsets

    def continues(self, entry: Unsettled) -> bool:
        """Whether `entry` follows this one in ids and offsets, of the same consumer, so that both can be one."""
        return (
            self.offsets is None
            and entry.offsets is None
            and self.end == entry.first
            and self.queue is entry.queue
            and self.consumer is entry.consumer
            and self.offset + self.end - self.first == entry.offset
        )

    def offsets_of(self, first: int, stop: int) -> Sequence[int]:
        """The offsets of the ids [first, stop)."""
        if self.offsets is None:
            start = self.offset + first - self.first
            return range(start, start + stop - first)
        return self.offsets[first - self.first : stop - self.first]

    @property
    def end_offset(self) -> int:
        """Behind all of its offsets."""
        return self.offset + self.end - self.first if self.offsets is None else max(self.offsets) + 1

    def begin_at(self, first: int) -> None:
        """Forget the ids below `first`."""
        if self.offsets is None:
            self.offset += first - self.first
        else:
            del self.offsets[: first - self.first]
        self.first = first

    def cut(self, first: int, stop: int) -> Unsettled | None:
        """Forget the ids [first, stop) within or at the end; what lies behind them is an entry of its own."""
        rest = None
        if stop < self.end:
            behind = self.offsets_of(stop, self.end)
            offsets = None if self.offsets is None else list(behind)
            rest = Unsettled(stop, self.end, behind[0], self.queue, self.consumer, offsets)
        if self.offsets is not None:
            del self.offsets[first - self.first :]
        self.end = first
        return rest


def add_run(
    unsettled: list[Unsettled], first: int, end: int, offset: int, queue: Queue | Stream | Passed, consumer: Consumer
) -> None:
    """Append deliveries [first, end) of neighbours in the log, to the last run where they follow it."""
    last = unsettled[-1] if unsettled else None
    if (
        last is not None
        and last.end == first
        and last.consumer is consumer
        and last.queue is queue
        and last.offset + last.end - last.first == offset
        and last.offsets is None
    ):
        last.end = end
    else:
        unsettled.append(Unsettled(first, end, offset, queue, consumer))


def entry_first(entry: Unsettled) -> int:
    """What entries are ordered by."""
    return entry.first


def entry_at(unsettled: list[Unsettled], delivery_id: int) -> Unsettled:
    """The run that an outstanding delivery belongs to."""
    return unsettled[bisect_right(unsettled, delivery_id, key=entry_first) - 1]


def require_returnable(unsettled: list[Unsettled], first_id: int, last_id: int) -> None:
    """Raises NotImplementedYet if one of these deliveries is of a stream, which takes nothing back."""
    start = max(0, bisect_right(unsettled, first_id, key=entry_first) - 1)
    for entry in islice(unsettled, start, None):
        if entry.first > last_id:
            return
        if entry.end > first_id and isinstance(entry.queue, Stream):
            entry.queue.refuse("basic.nack and basic.reject")
