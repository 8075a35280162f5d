"""The first pass over what was never compacted: which record of each key is the last.

Keys are kept as they are up to `_KEY_BYTES_MAX`, longer ones as a hash of 264 bits, so that a map of so many entries
takes at most so much memory. A pass ends where the map is full, between two batches; what follows is for the next one.
Records without a key, and those of transactions that were aborted, are nobody's last.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from core_log.batch_header import BatchHeader
from core_log.compaction.batches import Pause, read_batches
from core_log.compaction.records import payload, read_keys
from core_log.compaction.survey import Survey
from core_log.errors import CorruptBatch

if TYPE_CHECKING:
    from core_log.readable_log import ReadableLog

ENTRY_BYTES = 208
"""What an entry of the map takes at most, with its key, its offset, and room for the map to grow."""
_KEY_BYTES_MAX = 32
_HASH_BYTES = _KEY_BYTES_MAX + 1


def hashed(keys: list[bytes | None]) -> list[bytes | None]:
    """The keys as the map has them."""
    if None not in keys and max(map(len, keys), default=0) <= _KEY_BYTES_MAX:  # type: ignore[arg-type]
        return keys
    return [
        key if key is None or len(key) <= _KEY_BYTES_MAX else blake2b(key, digest_size=_HASH_BYTES).digest()
        for key in keys
    ]


class KeyMap:
    """The last offset of each key within [first, end). `live` has a byte for each of these offsets: 1 if its record is
    the last of its key.
    """

    def __init__(self, first: int, memory_bytes_max: int) -> None:
        self.first = self.end = first
        self.offsets: dict[bytes | None, int] = {}
        self.live = bytearray()
        self.opaque: set[int] = set()
        """Base offsets of batches whose records cannot be told apart: they stay as they are."""
        self.records = 0
        self.has_tombstones = False
        self._entries_max = max(memory_bytes_max * 3 // 4 // ENTRY_BYTES, 1)
        self._live_bytes_max = max(memory_bytes_max // 4, 1)

    def has_room(self, header: BatchHeader) -> bool:
        """Whether it takes another batch."""
        return not self.records or (
            len(self.offsets) + header.record_count <= self._entries_max
            and header.next_offset - self.first <= self._live_bytes_max
        )

    def add(self, header: BatchHeader, batch: bytes, decompressed_bytes_max: int) -> None:
        """Take the keys of a batch of data."""
        try:
            data, at = payload(batch, header, decompressed_bytes_max)
            keys, deltas, tombstones = read_keys(data, at, header)
        except CorruptBatch:
            self.opaque.add(header.base_offset)
            return
        base = header.base_offset
        offsets = range(base, base + len(keys)) if isinstance(deltas, range) else [base + delta for delta in deltas]
        self.offsets.update(zip(hashed(keys), offsets))
        self.offsets.pop(None, None)
        self.records += len(keys)
        self.has_tombstones = self.has_tombstones or bool(tombstones)

    def close(self, end: int) -> None:
        """All of [first, end) was taken."""
        self.end = end
        first = self.first
        live = self.live = bytearray(max(end - first, 0))
        for offset in self.offsets.values():
            live[offset - first] = 1

    def survives(self, keys: list[bytes | None], deltas: list[int] | range, base_offset: int) -> bytes:
        """For records from before, or partly from within: a byte each, 1 if no later one has its key."""
        names = hashed(keys)
        if None not in names and self.offsets.keys().isdisjoint(names):
            return b"\1" * len(keys)
        last = self.offsets.get
        return bytes(name is not None and last(name, -1) <= base_offset + delta for name, delta in zip(names, deltas))


def read_key_map(
    log: ReadableLog, first: int, end: int, survey: Survey, memory_bytes_max: int, bytes_max: int, pause: Pause
) -> KeyMap:
    """The keys of [first, end), or of as much of it as there is memory for; blocks.

    Raises CorruptBatch, OSError.
    """
    found = KeyMap(first, memory_bytes_max)
    for segment in log.segments_from(first):
        if segment.base_offset >= end or not segment.written_bytes:
            continue
        file = log.files.open(segment.log_path, create=False)
        try:
            for header, _, chunk, at in read_batches(file, segment, segment.written_bytes, pause):
                if header.next_offset <= first:
                    continue
                if header.next_offset > end or not found.has_room(header):
                    found.close(header.base_offset)
                    return found
                found.first = min(found.first, header.base_offset)  # the log starts within a batch
                if not header.is_control and header.record_count and not survey.is_aborted(header):
                    found.add(header, chunk[at : at + header.size], bytes_max)
        finally:
            file.close()
    found.close(end)
    return found


def runs(flags: bytes) -> list[tuple[int, int]]:
    """[start, stop) of each stretch of ones."""
    found = []
    stop = 0
    while (start := flags.find(1, stop)) >= 0:
        stop = flags.find(0, start)
        if stop < 0:
            stop = len(flags)
        found.append((start, stop))
    return found
