"""Readers for whom records are kept beyond what a topic's retention says, for a while.

1. A lease names a reader and the offset from which on it still needs a partition. Whoever leads the partition keeps it
   in memory; a reader that goes on says so again, long before the lease ends, and after a change of leader.
2. Several holders may have one name: queries with the same options, and what a query was before it was started again.
   Each has a lease of its own; the name is heard of when any of them is.
3. A lease ends `lease_ms` after it was last renewed. Retention takes what it held back then, and that is said, with
   the reader's name; a quarter of that time before it is said that it will, if there is something to hold back.
4. Nobody else is held back: records that are deleted on purpose are gone.
5. Time is trio's, in ms: a wall clock that jumps ends no lease, though it may make records old.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import trio

from routing.errors import LimitExceeded

LEASES_MAX = 64
"""Readers of a partition."""
HOLDERS_MAX = 8
"""Of one name: of more the one that was not heard of for longest has no lease any more."""

logger = logging.getLogger(__name__)


def lease_clock_ms() -> int:
    """What leases of partitions go by (rule 5)."""
    return int(trio.current_time() * 1000)


class Held(NamedTuple):
    """A lease."""

    offset: int
    """From where on the partition is kept."""
    until_ms: int
    warn_ms: int
    """When to say that it ends soon."""


class Leases:
    """Those of one partition."""

    __slots__ = ("_held", "_warned", "idle_since_ms", "used")

    def __init__(self) -> None:
        self.used = True
        """Somebody read of the partition, or asked where it ends, since that was last looked at."""
        self.idle_since_ms = 0
        """When it was last seen to be used, where somebody looks; 0: nobody has."""
        self._held: dict[str, dict[str, Held]] = {}
        """By reader and holder."""
        self._warned: set[str] = set()
        """Readers of whom it was said that their leases end soon."""

    @property
    def held(self) -> bool:
        """Whether there are any, ended ones that nobody noticed among them."""
        return bool(self._held)

    def __iter__(self) -> Iterator[tuple[str, Held]]:
        """Readers, each with what its holders' leases come to."""
        return ((reader, _together(holders)) for reader, holders in self._held.items())

    def renew(self, reader: str, offset: int, until_ms: int, now_ms: int, holder: str = "") -> None:
        """Keep what lies from `offset` on. Raises LimitExceeded when there are too many readers."""
        if reader not in self._held and len(self._held) >= LEASES_MAX:
            self.drop_ended(now_ms)
            if len(self._held) >= LEASES_MAX:
                raise LimitExceeded(f"{LEASES_MAX} readers hold a lease on the partition already")
        holders = self._held.setdefault(reader, {})
        holders.pop(holder, None)  # the order is that in which they were heard of
        holders[holder] = Held(offset, until_ms, until_ms - (until_ms - now_ms) // 4)
        if len(holders) > HOLDERS_MAX:
            del holders[next(iter(holders))]
        self._warned.discard(reader)

    def give_back(self, reader: str) -> None:
        """The reader needs nothing any more."""
        self._held.pop(reader, None)
        self._warned.discard(reader)

    def drop_ended(self, now_ms: int) -> None:
        """Readers whose leases ended go, without a word."""
        self._held = {name: each for name, each in self._held.items() if _together(each).until_ms > now_ms}
        self._warned &= self._held.keys()

    def look(self, now_ms: int, name: str, log_start_offset: int, end_offset: int) -> None:
        """Leases that ended go, and that is said, as it is of those that will end soon."""
        for reader, holders in list(self._held.items()):
            held = _together(holders)
            kept = f"what it has not read (from offset {held.offset} on) is kept"
            if held.until_ms <= now_ms:
                self.give_back(reader)
                if held.offset >= log_start_offset:
                    logger.warning("%s: reader %r has not been heard of, %s no longer", name, reader, kept)
                continue
            for holder in [holder for holder, one in holders.items() if one.until_ms <= now_ms]:
                del holders[holder]
            if held.warn_ms <= now_ms and reader not in self._warned and held.offset < end_offset:
                self._warned.add(reader)
                left_s = (held.until_ms - now_ms) / 1000
                logger.warning("%s: reader %r is not heard of, %s for another %.0f s", name, reader, kept, left_s)

    def needed_from(self, now_ms: int, name: str, log_start_offset: int, end_offset: int) -> int | None:
        """The first offset that somebody needs; None if nobody does. See `look`."""
        if not self._held:
            return None
        self.look(now_ms, name, log_start_offset, end_offset)
        return min((held.offset for _, held in self), default=None)


def _together(holders: Mapping[str, Held]) -> Held:
    """What is kept for all of them, until the last one's lease ends."""
    offsets, untils, warnings = zip(*holders.values(), strict=True)
    return Held(min(offsets), max(untils), max(warnings))
