"""Readers for whom records are kept beyond what a topic's retention says, for a while.

1. A lease names a reader and the offset from which on it still needs a partition. Whoever leads the partition keeps it
   in memory; a reader that goes on says so again, long before the lease ends, and after a change of leader.
2. A lease ends `lease_ms` after it was last renewed. Retention takes what it held back then, and that is said, with
   the reader's name; a quarter of that time before it is said that it will, if there is something to hold back.
3. Nobody else is held back: records that are deleted on purpose are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from routing.errors import LimitExceeded

LEASES_MAX = 64
"""Readers of a partition."""

logger = logging.getLogger(__name__)


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
        self._held: dict[str, Held] = {}
        self._warned: set[str] = set()
        """Readers of whom it was said that their leases end soon."""

    @property
    def held(self) -> bool:
        """Whether there are any, ended ones that nobody noticed among them."""
        return bool(self._held)

    def __iter__(self) -> Iterator[tuple[str, Held]]:
        """Readers and their leases."""
        return iter(self._held.items())

    def renew(self, reader: str, offset: int, until_ms: int, now_ms: int) -> None:
        """Keep what lies from `offset` on. Raises LimitExceeded when there are too many readers."""
        if reader not in self._held and len(self._held) >= LEASES_MAX:
            self._held = {name: held for name, held in self._held.items() if held.until_ms > now_ms}
            self._warned &= self._held.keys()
            if len(self._held) >= LEASES_MAX:
                raise LimitExceeded(f"{LEASES_MAX} readers hold a lease on the partition already")
        self._held[reader] = Held(offset, until_ms, until_ms - (until_ms - now_ms) // 4)
        self._warned.discard(reader)

    def give_back(self, reader: str) -> None:
        """The reader needs nothing any more."""
        self._held.pop(reader, None)
        self._warned.discard(reader)

    def look(self, now_ms: int, name: str, log_start_offset: int, end_offset: int) -> None:
        """Leases that ended go, and that is said, as it is of those that will end soon."""
        for reader, held in list(self._held.items()):
            kept = f"what it has not read (from offset {held.offset} on) is kept"
            if held.until_ms <= now_ms:
                self.give_back(reader)
                if held.offset >= log_start_offset:
                    logger.warning("%s: reader %r has not been heard of, %s no longer", name, reader, kept)
            elif held.warn_ms <= now_ms and reader not in self._warned and held.offset < end_offset:
                self._warned.add(reader)
                left_s = (held.until_ms - now_ms) / 1000
                logger.warning("%s: reader %r is not heard of, %s for another %.0f s", name, reader, kept, left_s)

    def needed_from(self, now_ms: int, name: str, log_start_offset: int, end_offset: int) -> int | None:
        """The first offset that somebody needs; None if nobody does. See `look`."""
        if not self._held:
            return None
        self.look(now_ms, name, log_start_offset, end_offset)
        return min((held.offset for held in self._held.values()), default=None)
