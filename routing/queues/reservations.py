"""Messages that are set aside for a reader which takes them in steps, and may ask for the same step again.

1. A reader is a name: it outlives connections, and the process. What is reserved for it is out of line, as a delivery
   is, and known by *positions* that follow each other from where the reader says: a position means the same message
   for as long as it is reserved. A record in the home's log says what is (RESERVED, `settlement.py`), so a start, and
   whoever leads the queue next, sets the same aside before anybody is given anything.
2. A reader that says a position is done with all before it: that is settled. One that says a position that is not
   among its own begins anew there: what was reserved for it stands in line again.
3. Who has not been heard of for as long as it said loses what is reserved; it stands in line again, and that is noted
   first.
4. Reserved messages neither expire nor count as ready. Where the home keeps nothing, nothing is kept of this either.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from core_log.errors import LogUnavailable
from routing.errors import AccessRefused, LimitExceeded, PreconditionFailed, StorageUnavailable
from routing.queues.packed_ranges import COUNT_BITS, COUNT_MASK, Range
from routing.queues.settlement import RESERVED_KEY, Reserved, decode_ranges, encode_ranges, encode_reserved

if TYPE_CHECKING:
    from array import array

    from routing.queues.queue import Queue

logger = logging.getLogger(__name__)

READERS_MAX = 64
"""Of a queue."""
RANGES_MAX = 50_000
"""Most ranges that one call reserves: their record is one batch."""
_RETRY_MS = 1000


class Reservation:
    """What is reserved for one reader: ranges of offsets in the order of their positions, the last of which is before
    `end`.
    """

    __slots__ = ("_starts", "count", "end", "lease_ms", "ranges", "until_ms")

    def __init__(self, position: int, lease_ms: int, ranges: Iterable[Range] = ()) -> None:
        self.end = position
        self.lease_ms = lease_ms
        self.until_ms = 0
        self.count = 0
        self.ranges: list[Range] = []
        self._starts: list[int] = []
        """How many messages lie before each range, when that was worked out."""
        self.add(ranges)

    @property
    def position(self) -> int:
        """Of the first message."""
        return self.end - self.count

    def add(self, ranges: Iterable[Range]) -> None:
        """These are reserved as well."""
        for first, count in ranges:
            self.ranges.append((first, count))
            self.count += count
            self.end += count
        self._starts = []

    def take(self, count: int) -> list[Range]:
        """Remove the first so many."""
        taken: list[Range] = []
        self.count -= count
        at = 0
        while count:
            first, size = self.ranges[at]
            number = min(size, count)
            taken.append((first, number))
            count -= number
            if number < size:
                self.ranges[at] = (first + number, size - number)
            else:
                at += 1
        del self.ranges[:at]
        self._starts = []
        return taken

    def between(self, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(position, first offset, count) of what lies between two positions."""
        if len(self._starts) != len(self.ranges):
            self._starts = [0, *accumulate(count for _, count in self.ranges)][: len(self.ranges)]
        base = self.position
        at = max(bisect_right(self._starts, position - base) - 1, 0)
        while at < len(self.ranges):
            first, count = self.ranges[at]
            start = base + self._starts[at]
            skipped = max(position - start, 0)
            number = min(count, end - start) - skipped
            if number <= 0:
                return
            yield start + skipped, first + skipped, number
            at += 1


def reserve(queue: Queue, reader: str, position: int, count_max: int, lease_ms: int) -> Reservation:
    """Be done with what lies before `position`, and have `count_max` messages reserved from there on, as far as so many
    wait. Who waits for the home's log (`next_offset`) knows that it is durable.

    Raises AccessRefused, LimitExceeded, PreconditionFailed (no such queue can), StorageUnavailable.
    """
    _require(queue, reader)
    found = (queue.reserved or {}).get(reader)
    if found is not None and not found.position <= position <= found.end:
        give_back(queue, reader)
        found = None
    try:
        if found is None:
            found = Reservation(position, lease_ms)
        else:
            _settle(queue, found, position - found.position)
        found.lease_ms = lease_ms
        _reserve_more(queue, reader, found, count_max - found.count)
    except LogUnavailable as error:
        raise StorageUnavailable(str(error)) from error
    if queue.reserved is None:
        queue.reserved = {}
    queue.reserved[reader] = found
    renew(queue, reader, found)
    return found


def _require(queue: Queue, reader: str) -> None:
    queue.require_led()
    what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
    if queue.settings.view_of is not None or queue.groups is not None:
        raise PreconditionFailed(f"{what}: nothing is reserved in views, and in queues that group messages")
    if queue.consumers and queue.consumers[0].exclusive:
        raise AccessRefused(f"{what} in exclusive use")
    readers = queue.reserved or {}
    if reader not in readers and len(readers) >= READERS_MAX:
        raise LimitExceeded(f"{what} has {READERS_MAX} readers already")
    if queue.partition.refusal is not None:
        raise queue.partition.refusal


def _settle(queue: Queue, found: Reservation, count: int) -> None:
    """The reader is done with the first so many; the log says so before a checkpoint can."""
    if count:
        for first, number in found.take(count):
            queue.settle(first, number)
        queue.partition.seal_all()


def _reserve_more(queue: Queue, reader: str, found: Reservation, count: int) -> None:
    taken: list[Range] = []
    heads: list[tuple[int, int, bool]] = []
    while count > 0 and len(taken) < RANGES_MAX:
        first, number, redelivered = queue.head()
        number = min(number, count)
        if not number:
            break
        queue.take(number)
        heads.append((first, number, redelivered))
        count -= number
        if taken and sum(taken[-1]) == first:
            taken[-1] = taken[-1][0], taken[-1][1] + number
        else:
            taken.append((first, number))
    if not taken:
        return
    try:
        _note(queue, reader, found, taken)
    except LogUnavailable:
        for first, number, redelivered in heads:
            queue.not_taken(range(first, first + number), redelivered)
        raise
    found.add(taken)
    queue.rules.used()


def _note(queue: Queue, reader: str, found: Reservation, ranges: list[Range]) -> None:
    """Have the log say that these are reserved behind `found.end`; nothing is: that nothing is any more. Raises
    LogUnavailable.
    """
    home = queue.partition
    if home.durable:
        home.seal()
        said = Reserved(queue.id, reader, found.lease_ms, found.end, ranges)
        home.append_controls([(RESERVED_KEY, encode_reserved(said))])


def give_back(queue: Queue, reader: str) -> int:
    """What is reserved for a reader stands in line again; how many messages. Raises StorageUnavailable."""
    found = (queue.reserved or {}).get(reader)
    if found is None or queue.reserved is None:
        return 0
    if found.count:
        try:
            _note(queue, reader, found, [])
        except LogUnavailable as error:
            raise StorageUnavailable(str(error)) from error
    del queue.reserved[reader]
    count = found.count
    queue.give_back_offsets([one for first, number in found.ranges for one in range(first, first + number)])
    return count


def let_go(queue: Queue) -> None:
    """The queue is deleted, and what is reserved with it."""
    reserved, queue.reserved = queue.reserved or {}, None
    for found in reserved.values():
        queue.outstanding -= found.count
        for first, count in found.ranges:
            queue.store.forget(first, count)


def renew(queue: Queue, reader: str, found: Reservation) -> None:
    """The reader was heard of."""
    due = found.until_ms
    found.until_ms = queue.host.now_ms() + found.lease_ms
    if not due:
        queue.host.at_ms(found.until_ms, partial(_look, queue, reader, found))


def _look(queue: Queue, reader: str, found: Reservation) -> None:
    """A lease may have ended."""
    if queue.deleted or (queue.reserved or {}).get(reader) is not found:
        return
    due = found.until_ms
    now_ms = queue.host.now_ms()
    if due <= now_ms and not queue.partition.suspended:
        try:
            count = give_back(queue, reader)
        except StorageUnavailable:
            pass
        else:
            if count:
                logger.warning(
                    "queue %s: reader %r has not been heard of, %d messages stand in line again",
                    queue.name,
                    reader,
                    count,
                )
            return
    queue.host.at_ms(due if due > now_ms else now_ms + _RETRY_MS, partial(_look, queue, reader, found))


# --- over a stop ------------------------------------------------------------------------------------------------------

State = dict[str, tuple[int, int, bytes]]
"""By reader: the position behind the last, the lease in ms, and the ranges."""


def reserved_ranges(queue: Queue) -> list[Range]:
    """What is reserved, for all readers; in order."""
    return sorted(one for found in (queue.reserved or {}).values() for one in found.ranges)


def reserved_count(queue: Queue) -> int:
    """How many messages are reserved."""
    return sum(found.count for found in (queue.reserved or {}).values())


def state_of(queue: Queue) -> State:
    """What a checkpoint keeps."""
    reserved = queue.reserved or {}
    return {
        reader: (found.end, found.lease_ms, encode_ranges(found.ranges))
        for reader, found in reserved.items()
        if found.count
    }


def restore(queue: Queue, state: Mapping[str, Any]) -> None:
    """Set aside what was; the lines have none of it."""
    queue.reserved = {}
    for reader, (end, lease_ms, packed) in state.items():
        found = Reservation(0, lease_ms, decode_ranges(packed))
        found.end = end
        queue.reserved[reader] = found
        queue.outstanding += found.count
        renew(queue, reader, found)


def records(queue: Queue) -> Iterator[tuple[bytes, bytes]]:
    """All of it for a log that has forgotten its beginning; readers may come and go before the next is asked for."""
    for reader in list(queue.reserved or ()):
        found = (queue.reserved or {}).get(reader)
        if found is None:
            continue
        end = found.position
        for at in range(0, len(found.ranges), RANGES_MAX):
            ranges = found.ranges[at : at + RANGES_MAX]
            yield RESERVED_KEY, encode_reserved(Reserved(queue.id, reader, found.lease_ms, end, ranges))
            end += sum(count for _, count in ranges)


def fold(before: Mapping[str, Any], changes: Iterable[Reserved], live: array[int]) -> State:
    """What is reserved after some records; `live` is all that is there of the queue, as packed ranges."""
    known = {reader: (end, lease_ms, decode_ranges(packed)) for reader, (end, lease_ms, packed) in before.items()}
    for one in changes:
        end, _, ranges = known.get(one.reader, (-1, 0, []))
        if end != one.position or not one.ranges:
            ranges = []
        end = one.position + sum(count for _, count in one.ranges)
        known[one.reader] = (end, one.lease_ms, [*ranges, *one.ranges])
    found = {}
    for reader, (end, lease_ms, ranges) in known.items():
        left = [part for one in ranges for part in _within(one, live)]
        if left:
            found[reader] = (end, lease_ms, encode_ranges(left))
    return found


def _within(one: Range, live: array[int]) -> Iterator[Range]:
    """What is left of a range."""
    first, end = one[0], one[0] + one[1]
    at = max(bisect_right(live, first << COUNT_BITS | COUNT_MASK) - 1, 0)
    while at < len(live) and live[at] >> COUNT_BITS < end:
        start = max(live[at] >> COUNT_BITS, first)
        stop = min((live[at] >> COUNT_BITS) + (live[at] & COUNT_MASK) + 1, end)
        if start < stop:
            yield start, stop - start
        at += 1
