"""Large batches known by pieces, so that one record of them is read without all that lies before it.

1. A batch that is asked for again is walked through once. What is remembered of each of its pieces, of some 8 KiB, is
   the number of its first record, where it lies, and the CRC of its bytes: a piece is checked as well as a batch is.
2. A piece whose bytes are others now (a replica's log may be cut and written anew) is no damage yet: the batch is
   forgotten, and whoever wants it reads it whole, which tells.
3. Only batches without gaps, and without compression. What is remembered takes about a thousandth of what it is of, and
   has a limit; the oldest goes first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from crc32c import crc32c

from core_log.batch_header import HEADER_BYTES, BatchHeader
from core_log.errors import CorruptBatch
from core_log.record_decoder import RecordRun
from core_log.record_finder import is_dense, record_at, step_over

PIECE_BYTES = 8 << 10
LARGE_BYTES = 2 * PIECE_BYTES
_BATCHES_MAX = 16_384
"""Remembered for one caller; some 500 bytes each."""

Place = tuple[str, int]
"""Where the index says to look for the batch: a segment, and a position in it. It leads to one large batch at most."""


class Readable(Protocol):
    """What is read from; see `File`."""

    def pread(self, size: int, position: int, /) -> bytes:
        """`size` bytes at `position`."""


class Pieces(NamedTuple):
    """Of one batch."""

    base_offset: int
    next_offset: int
    firsts: array[int]
    """The number of each piece's first record."""
    positions: array[int]
    """Where in the segment each begins, and where the last ends."""
    crcs: array[int]

    def read(self, file: Readable, offsets: Sequence[int]) -> list[RecordRun] | None:
        """The records at the rising `offsets`, all of this batch; None if the bytes are others now. Raises OSError."""
        found: list[RecordRun] = []
        base, firsts, positions = self.base_offset, self.firsts, self.positions
        at = 0
        while at < len(offsets):
            piece = bisect_right(firsts, offsets[at] - base) - 1
            start, end = positions[piece], positions[piece + 1]
            data = file.pread(end - start, start)
            if crc32c(data) != self.crcs[piece]:
                return None
            stop = len(offsets) if piece + 1 == len(firsts) else bisect_left(offsets, base + firsts[piece + 1], at)
            number, begin = base + firsts[piece], 0
            try:
                for offset in offsets[at:stop]:
                    begin = step_over(data, begin, offset - number)
                    found.append(record_at(data, begin, base))
                    number = offset
            except (CorruptBatch, IndexError):
                return None
            at = stop
        return found


class KnownPieces:
    """The batches of a log that are known by pieces. For several threads: what is known is replaced, never changed."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Place, Pieces | None] = {}

    def of(self, place: Place, offset: int) -> Pieces | None:
        """The batch that holds `offset`, if it is known."""
        pieces = self._known.get(place)
        return pieces if pieces is not None and pieces.base_offset <= offset < pieces.next_offset else None

    def forget(self, place: Place) -> None:
        """The batch there is not what it was."""
        self._known.pop(place, None)

    def was_read(self, place: Place, position: int, data: bytes, header: BatchHeader) -> None:
        """A large batch was read whole, and checked, at a position of the segment. Raises CorruptBatch."""
        if not is_dense(header) or header.compression or header.is_control:
            return
        if place not in self._known:
            if len(self._known) >= _BATCHES_MAX:
                self._known.pop(next(iter(self._known)), None)
            self._known[place] = None  # the next time it is worth it
        else:
            self._known[place] = divide(position, data, header)


def divide(position: int, data: bytes, header: BatchHeader) -> Pieces:
    """The pieces of a batch that lies at a position of its segment. Raises CorruptBatch."""
    firsts, places, crcs = array("I"), array("I"), array("I")
    view = memoryview(data)
    number, at, count = 0, HEADER_BYTES, header.record_count
    try:
        while number < count:
            start = at
            firsts.append(number)
            places.append(position + start)
            while number < count and at - start < PIECE_BYTES:
                at = step_over(data, at, 1)
                number += 1
            crcs.append(crc32c(view[start:at]))
    except IndexError:
        raise CorruptBatch("a record is cut short") from None
    places.append(position + at)
    return Pieces(header.base_offset, header.next_offset, firsts, places, crcs)
