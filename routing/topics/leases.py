"""Readers for whom records are kept beyond what a topic's retention says, for a while.

1. A lease names a reader and the offset from which on it still needs a partition. Whoever leads the partition keeps it
   in memory; a reader that goes on says so again, long before the lease ends, and after a change of leader.
2. A lease ends `lease_ms` after it was last renewed. Retention takes what it held back then, and that is said, with
   the reader's name.
3. Nobody else is held back: records that are deleted on purpose are gone.
"""

from __future__ import annotations

import logging

from routing.errors import LimitExceeded

LEASES_MAX = 64
"""Readers of a partition."""

logger = logging.getLogger(__name__)


class Leases:
    """Those of one partition."""

    __slots__ = ("_held", "idle_since_ms", "used")

    def __init__(self) -> None:
        self.used = True
        """Somebody read of the partition, or asked where it ends, since that was last looked at."""
        self.idle_since_ms = 0
        """When it was last seen to be used, where somebody looks; 0: nobody has."""
        self._held: dict[str, tuple[int, int]] = {}
        """By reader: the offset, and until when (ms)."""

    @property
    def held(self) -> bool:
        """Whether there are any, ended ones that nobody noticed among them."""
        return bool(self._held)

    def renew(self, reader: str, offset: int, until_ms: int, now_ms: int) -> None:
        """Keep what lies from `offset` on. Raises LimitExceeded when there are too many readers."""
        if reader not in self._held and len(self._held) >= LEASES_MAX:
            self._held = {name: held for name, held in self._held.items() if held[1] > now_ms}
            if len(self._held) >= LEASES_MAX:
                raise LimitExceeded(f"{LEASES_MAX} readers hold a lease on the partition already")
        self._held[reader] = (offset, until_ms)

    def give_back(self, reader: str) -> None:
        """The reader needs nothing any more."""
        self._held.pop(reader, None)

    def needed_from(self, now_ms: int, name: str, log_start_offset: int) -> int | None:
        """The first offset that somebody needs; None if nobody does. Leases that ended go, and that is said."""
        if not self._held:
            return None
        for reader, (offset, until_ms) in list(self._held.items()):
            if until_ms <= now_ms:
                del self._held[reader]
                if offset >= log_start_offset:
                    kept = f"what it has not read (from offset {offset} on) is kept no longer"
                    logger.warning("%s: reader %r has not been heard of, %s", name, reader, kept)
        return min((offset for offset, _ in self._held.values()), default=None)
