"""The numbers of an idempotent producer's batches in one partition. Pure but for the dice of a new id.

Batches keep their numbers when they are sent again: what the log has already is not appended again. When one is given
up, or refused for good, the next is refused as one before it is missing (SEQUENCE_OUT_OF_ORDER). Neither that one nor
any behind it is in the log then, so all of them are numbered anew, in the next epoch.
"""

from __future__ import annotations

import secrets

from core_log.batch_header import NO_PRODUCER

_SEQUENCES = 1 << 31
_EPOCH_MAX = (1 << 15) - 1
_ID_BITS = 62


class Sequences:
    """See the module. `producer_id` -1: batches have no numbers."""

    __slots__ = ("_epoch", "_next", "_producer_id")

    def __init__(self, producer_id: int, epoch: int = 0) -> None:
        self._producer_id = producer_id
        self._epoch = epoch
        self._next = 0

    def stamp(self, records: int) -> tuple[int, int, int]:
        """Producer id, epoch and sequence number of the next batch."""
        if self._producer_id < 0:
            return NO_PRODUCER
        first = self._next
        self._next = (first + records) % _SEQUENCES
        return self._producer_id, self._epoch, first

    def renew(self) -> None:
        """The next batch is the first of another epoch."""
        self._next = 0
        self._epoch += 1
        if self._epoch > _EPOCH_MAX:
            self._producer_id, self._epoch = secrets.randbits(_ID_BITS), 0
