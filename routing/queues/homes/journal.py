"""What a home partition appended to its log since its last checkpoint, as far as it says what is live.

These are the very bytes that were written (directories, settlements, definitions of sets), so keeping them costs a
reference a batch, and the next checkpoint is made of the last one and these without reading the log (`standby.py`).
Where they grow too many, because no checkpoint could be saved, they are dropped: then the log is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_BYTES_MAX = 16 << 20
_ENTRY_BYTES = 100


class Entry(NamedTuple):
    """A control record of this key, or the directory of a batch if there is none."""

    key: bytes | None
    offset: int
    timestamp_ms: int
    value: bytes


class Journal:
    """Everything from `start` on."""

    __slots__ = ("_bytes", "entries", "overflowed", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.entries: list[Entry] = []
        self.overflowed = False
        self._bytes = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def add(self, key: bytes | None, offset: int, timestamp_ms: int, value: bytes) -> None:
        """Note what was appended."""
        self._bytes += len(value) + _ENTRY_BYTES
        if self._bytes > _BYTES_MAX:
            self.start = offset
            self.overflowed = True
            self.entries.clear()
            self._bytes = len(value)
        self.entries.append(Entry(key, offset, timestamp_ms, value))
