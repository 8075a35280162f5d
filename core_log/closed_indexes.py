"""Sparse indexes of closed segments in memory, while somebody reads those one range after the other.

A closed segment's index is a file, which only a thread may look at. Whoever reads a whole segment would have to go to
one for each range. So the index is kept, of as many segments of all logs as `BYTES_MAX` allows; one that nobody has
looked at for `IDLE_S` makes room. Where there is none readers go on as they did, and nothing is read in vain.
"""

from __future__ import annotations

import threading
import time
from array import array

from core_log.files import Files
from core_log.segment import Segment
from core_log.segment_index import ENTRY_BYTES, OFFSET_ENTRY, OffsetEntries, read_entries

BYTES_MAX = 32 << 20
IDLE_S = 10.0


class ClosedIndexes:
    """See the module. For all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Segment, tuple[OffsetEntries, float]] = {}
        """With when it was looked at last; that of the longest idle one is the first."""
        self._bytes = 0

    def known(self, segment: Segment) -> OffsetEntries | None:
        """That of a closed segment, if it is here."""
        with self._lock:
            found = self._known.pop(segment, None)
            if found is None:
                return None
            self._known[segment] = (found[0], time.monotonic())
            return found[0]

    def load(self, files: Files, segment: Segment) -> OffsetEntries | None:
        """The same, read if there is room for it. Blocks; raises OSError."""
        size = segment.by_index(files, lambda: files.size(segment.stem + ".index"), 0)
        with self._lock:
            if not self._has_room(size // OFFSET_ENTRY.size * ENTRY_BYTES):
                return None
        index = entries_of(files, segment)
        with self._lock:
            if segment not in self._known and index.offsets:  # without any the disk may have refused them
                self._known[segment] = (index, time.monotonic())
                self._bytes += index.bytes
        return index

    def forget(self, segment: Segment) -> None:
        """It is cut, and written to again."""
        with self._lock:
            found = self._known.pop(segment, None)
            if found is not None:
                self._bytes -= found[0].bytes

    def _has_room(self, size: int) -> bool:
        idle_before = time.monotonic() - IDLE_S
        while self._known and self._bytes + size > BYTES_MAX:
            oldest = next(iter(self._known))
            index, looked_at = self._known[oldest]
            if looked_at > idle_before:
                return False
            del self._known[oldest]
            self._bytes -= index.bytes
        return self._bytes + size <= BYTES_MAX


def entries_of(files: Files, segment: Segment) -> OffsetEntries:
    """Those of a closed segment, all of them, as far as they can be read. Blocks; raises OSError."""
    nothing = OffsetEntries(array("I"), array("I"))
    return segment.by_index(files, lambda: read_entries(files, segment.stem), nothing)


CLOSED_INDEXES = ClosedIndexes()
"""Of this process."""
