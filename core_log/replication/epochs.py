"""The leader epochs of a log: which of its offsets were written in which epoch.

Every batch carries the epoch it was appended in. An epoch begins whenever records that readers may have seen could be
replaced by others at the same offsets: in a cluster with a change of leader, on one broker with a start after anything
but a clean stop. So (epoch, offset) never means two records.

    clean_end   i64   the log end offset of a clean stop; -1 since something was written after it
    entries     (epoch u32, first offset i64) repeated, both rising
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from struct import Struct

_HEAD = Struct(">q")
_ENTRY = Struct(">Iq")
NOT_CLEAN = -1
_epoch = itemgetter(0)


class LeaderEpochs:
    """See the module. A log without any is in epoch 0."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries = list(entries)

    @property
    def latest(self) -> int:
        """The epoch that appends belong to."""
        return self.entries[-1][0] if self.entries else 0

    def begin(self, epoch: int, first_offset: int) -> None:
        """What is appended from `first_offset` on belongs to `epoch`, which is above all others."""
        if self.entries and epoch <= self.latest:
            raise ValueError(f"epoch {epoch} after {self.latest}")
        self.cut(first_offset)  # an epoch of which nothing is left has no place
        self.entries.append((epoch, first_offset))

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """The largest epoch up to `epoch`, and where it ends; None when all are above it.

        KIP-101, KIP-279: two logs that have the same batch at one offset and epoch are equal up to there.
        """
        at = bisect_right(self.entries, epoch, key=_epoch)
        if not at:
            return None
        return self.entries[at - 1][0], self.entries[at][1] if at < len(self.entries) else log_end_offset

    def cut(self, end_offset: int) -> None:
        """The log ends at `end_offset` now: no epoch begins there or behind it."""
        while self.entries and self.entries[-1][1] >= end_offset:
            self.entries.pop()

    def trim(self, start_offset: int) -> None:
        """The log starts at `start_offset` now: epochs that ended before it are forgotten."""
        while len(self.entries) > 1 and self.entries[1][1] <= start_offset:
            del self.entries[0]

    def encode(self, clean_end: int = NOT_CLEAN) -> bytes:
        """The content of the file."""
        return _HEAD.pack(clean_end) + b"".join(_ENTRY.pack(*entry) for entry in self.entries)

    @classmethod
    def decode(cls, data: bytes) -> tuple[LeaderEpochs, int]:
        """The epochs and where a clean stop ended. Raises ValueError."""
        if len(data) < _HEAD.size or (len(data) - _HEAD.size) % _ENTRY.size:
            raise ValueError(f"{len(data)} bytes of leader epochs")
        entries = list(_ENTRY.iter_unpack(data[_HEAD.size :]))
        if entries != sorted(set(entries)):
            raise ValueError("leader epochs do not rise")
        return cls(entries), _HEAD.unpack_from(data)[0]
