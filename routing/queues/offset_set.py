"""Ordered sets of offsets: what a queue still has to give out.

A backlog is ranges of integers, never objects. `OffsetSet` grows at its end and shrinks at its front, and that is what
a queue does all the time: a contiguous backlog is one range whatever its length, a sparse one costs 8 bytes a range.
Ranges are packed into one unsigned 64-bit integer, `offset << 16 | (count - 1)`, in chunks that are dropped as they are
used up. The first and the last range are kept unpacked, and only they change in `append` and `drop`.

What is rarer, messages that leave or come back anywhere (`discard`, `add`), packs those two first, so that it knows
chunks only: it finds the chunk by bisection, and within the chunk the range. A chunk that grew to more than twice its
size is cut, one that shrank below a quarter is joined to a neighbour that has room.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from routing.queues.packed_ranges import count_below, count_of, pack, singles_of

_CHUNK_RANGES = 4096
_RANGE_MESSAGES_MAX = 1 << 16
_STRIDE = 8  # hits of a batch that lie so close are found without bisecting the whole chunk
_first_packed = itemgetter(0)

Range = tuple[int, int]
"""First offset and count."""


def together(parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """How many several have (`OffsetSet.from_on`), and the first of all."""
    return sum(count for count, _ in parts), min((first for count, first in parts if count), default=0)


class OffsetSet:
    """Offsets in rising order; `count` is how many there are."""

    __slots__ = ("_chunks", "_head_count", "_head_first", "_position", "_tail_count", "_tail_first", "count")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.count = 0
        self._chunks: list[array[int]] = []
        self._position = 0
        self._head_first = self._head_count = 0
        self._tail_first = self._tail_count = 0
        self.extend(pack(ranges))

    def __len__(self) -> int:
        return self.count

    def append(self, first: int, count: int) -> None:
        """Add `count` offsets from `first`, which lies beyond all that are in the set."""
        self.count += count
        if self._tail_count:
            if self._tail_first + self._tail_count == first:
                self._tail_count += count
                return
            self._push(self._tail_first, self._tail_count)
        self._tail_first = first
        self._tail_count = count

    def extend(self, packed: array[int]) -> None:
        """Add rising packed ranges (`packed_ranges.py`) that lie beyond all that are in the set, and mostly apart."""
        if not packed:
            return
        self.count += count_of(packed)
        if self._tail_count:
            self._push(self._tail_first, self._tail_count)
        self._tail_first, self._tail_count = packed[-1] >> 16, (packed[-1] & 0xFFFF) + 1
        chunks, count = self._chunks, len(packed) - 1
        if chunks and len(chunks[-1]) + count <= _CHUNK_RANGES:
            chunks[-1].extend(packed)
            chunks[-1].pop()
            return
        at = 0
        while at < count:
            if not chunks or len(chunks[-1]) >= _CHUNK_RANGES:
                chunks.append(array("Q"))
            stop = min(count, at + _CHUNK_RANGES - len(chunks[-1]))
            chunks[-1].extend(packed[at:stop])
            at = stop

    def _push(self, first: int, count: int) -> None:
        chunks = self._chunks
        while count:
            if not chunks or len(chunks[-1]) >= _CHUNK_RANGES:
                chunks.append(array("Q"))
            piece = min(count, _RANGE_MESSAGES_MAX)
            chunks[-1].append(first << 16 | (piece - 1))
            first += piece
            count -= piece

    def head(self) -> Range:
        """The first range, `(0, 0)` when the set is empty; it may end before a contiguous one that follows."""
        if not self._head_count:
            self._refill()
        return self._head_first, self._head_count

    def _refill(self) -> None:
        if self._chunks:
            chunk = self._chunks[0]
            packed = chunk[self._position]
            self._position += 1
            if self._position == len(chunk):
                del self._chunks[0]
                self._position = 0
            self._head_first, self._head_count = packed >> 16, (packed & 0xFFFF) + 1
        else:
            self._head_first, self._head_count = self._tail_first, self._tail_count
            self._tail_count = 0

    def drop(self, count: int) -> None:
        """Remove `count` offsets from the front; not more than `head()` said."""
        self._head_first += count
        self._head_count -= count
        self.count -= count

    def ranges(self) -> Iterator[Range]:
        """All ranges in order, contiguous ones joined."""
        pending_first, pending_count = self._head_first, self._head_count
        position = self._position
        for chunk in self._chunks:
            for index in range(position, len(chunk)):
                first, count = chunk[index] >> 16, (chunk[index] & 0xFFFF) + 1
                if pending_count and pending_first + pending_count == first:
                    pending_count += count
                else:
                    if pending_count:
                        yield pending_first, pending_count
                    pending_first, pending_count = first, count
            position = 0
        if self._tail_count and pending_count and pending_first + pending_count == self._tail_first:
            yield pending_first, pending_count + self._tail_count
            return
        if pending_count:
            yield pending_first, pending_count
        if self._tail_count:
            yield self._tail_first, self._tail_count

    def take(self, count: int) -> list[int]:
        """Remove up to `count` offsets from the front, and return them."""
        taken: list[int] = []
        left = max(min(count, self.count), 0)
        self.count -= left
        while left:
            if not self._head_count:
                left = self._take_whole_ranges(taken, left)
                if not left:
                    break
                self._refill()
            first = self._head_first
            number = min(left, self._head_count)
            taken += range(first, first + number)
            self._head_first = first + number
            self._head_count -= number
            left -= number
        return taken

    def _take_whole_ranges(self, taken: list[int], left: int) -> int:
        """Move ranges of the first chunk to `taken` as long as they fit into `left`; returns what is left of that."""
        if not self._chunks:
            return left
        chunk, position = self._chunks[0], self._position
        piece = chunk[position : position + left]
        singles = singles_of(piece)
        if singles is not None:
            taken += singles
            left -= len(singles)
            position += len(singles)
            piece = piece[:0]
        for packed in piece:
            number = (packed & 0xFFFF) + 1
            if number > left:
                break
            first = packed >> 16
            if number == 1:
                taken.append(first)
            else:
                taken += range(first, first + number)
            left -= number
            position += 1
        if position == len(chunk):
            del self._chunks[0]
            position = 0
        self._position = position
        return left

    def present(self, offsets: Sequence[int]) -> list[int]:
        """Those of `offsets`, which rise and are distinct, that are in the set."""
        found: list[int] = []
        stop = 0
        if self._head_count:
            start = bisect_left(offsets, self._head_first)
            stop = bisect_left(offsets, self._head_first + self._head_count, start)
            found += offsets[start:stop]
        for at, low, high in self._groups(offsets, stop):
            chunk = self._chunks[at]
            for _, start, stop in _hits(chunk, 0 if at else self._position, offsets, low, high):
                if stop - start == 1:
                    found.append(offsets[start])
                else:
                    found += offsets[start:stop]
        if self._tail_count:
            start = bisect_left(offsets, self._tail_first)
            found += offsets[start : bisect_left(offsets, self._tail_first + self._tail_count, start)]
        return found

    def between(self, first: int, end: int) -> list[int]:
        """Those of [first, end) that are in the set, rising."""
        low, high = first << 16, end << 16
        ranges: list[Range] = [(self._head_first, self._head_count)]
        at = max(bisect_right(self._chunks, low | 0xFFFF, key=_first_packed) - 1, 0)
        for chunk in islice(self._chunks, at, None):
            if chunk[0] >= high:
                break
            start = max(bisect_right(chunk, low | 0xFFFF) - 1, 0 if at else self._position)
            ranges += [(packed >> 16, (packed & 0xFFFF) + 1) for packed in chunk[start : bisect_left(chunk, high)]]
            at += 1
        ranges.append((self._tail_first, self._tail_count))
        found: list[int] = []
        for start, count in ranges:
            found += range(max(start, first), min(start + count, end))
        return found

    def from_on(self, offset: int) -> tuple[int, int]:
        """How many lie at or behind an offset, and the first of them; `(0, 0)`: none. Goes over ranges, the fewer of
        those before it and behind it.
        """
        chunks, found = self._chunks, [(self._head_first, self._head_count)]
        at = bisect_right(chunks, offset << 16 | 0xFFFF, key=_first_packed)
        inside = 0
        if at:
            chunk = self._piece(at - 1)
            below = count_below(chunk, offset)
            if at > len(chunks) // 2:
                inside = count_of(chunk) - below + sum(map(count_of, chunks[at:]))
            else:
                below += sum(count_of(self._piece(index)) for index in range(at - 1))
                inside = self.count - self._head_count - self._tail_count - below
            index = max(bisect_right(chunk, offset << 16 | 0xFFFF) - 1, 0)
            found += [(packed >> 16, (packed & 0xFFFF) + 1) for packed in chunk[index : index + 2]]
        else:
            inside = self.count - self._head_count - self._tail_count
        if at < len(chunks):
            packed = self._piece(at)[0]
            found.append((packed >> 16, (packed & 0xFFFF) + 1))
        found.append((self._tail_first, self._tail_count))
        ends = sum(max(first + count - max(first, offset), 0) for first, count in (found[0], found[-1]))
        beyond = (max(first, offset) for first, count in found if count and first + count > offset)
        return (inside + ends, next(beyond)) if inside + ends else (0, 0)

    def _piece(self, at: int) -> array[int]:
        """What is left of a chunk."""
        return self._chunks[at] if at else self._chunks[0][self._position :]

    def discard(self, offsets: Sequence[int]) -> list[int]:
        """Remove `offsets`, which rise and are distinct, wherever they are; returns those that were in the set."""
        if not offsets or not self.count:
            return []
        self._pack()
        found: list[int] = []
        changed: list[int] = []
        for at, low, high in self._groups(offsets, 0):
            chunk = self._chunks[at]
            hits = _hits(chunk, 0, offsets, low, high)
            if hits:
                changed.append(at)
                for _, start, stop in hits:
                    if stop - start == 1:
                        found.append(offsets[start])
                    else:
                        found += offsets[start:stop]
                _cut_out(chunk, hits, offsets)
        for at in reversed(changed):
            self._fit(at)
        self._unpack_tail()
        self.count -= len(found)
        return found

    def add(self, first: int, count: int) -> None:
        """Put in `count` offsets from `first`, none of which is in the set, wherever they belong."""
        if not self.count or (self._tail_count and first >= self._tail_first + self._tail_count):
            self.append(first, count)
            return
        if self._head_count and first + count == self._head_first:
            self._head_first = first
            self._head_count += count
            self.count += count
            return
        self._pack()
        self.count += count
        chunks = self._chunks
        at = max(bisect_right(chunks, first << 16, key=_first_packed) - 1, 0)
        chunk = chunks[at]
        start = stop = bisect_left(chunk, first << 16)
        if start and (chunk[start - 1] >> 16) + (chunk[start - 1] & 0xFFFF) + 1 == first:
            start -= 1
            first = chunk[start] >> 16
            count += (chunk[start] & 0xFFFF) + 1
        if stop < len(chunk) and chunk[stop] >> 16 == first + count:
            count += (chunk[stop] & 0xFFFF) + 1
            stop += 1
        chunk[start:stop] = array("Q", _packed(first, count))
        self._fit(at)
        self._unpack_tail()

    def _pack(self) -> None:
        """Put the first and the last range into the chunks, where what is used up goes away."""
        head = array("Q", _packed(self._head_first, self._head_count))
        if self._chunks:
            self._chunks[0][: self._position] = head
        elif head:
            self._chunks.append(head)
        self._head_count = self._position = 0
        if self._tail_count:
            self._push(self._tail_first, self._tail_count)
            self._tail_count = 0

    def _unpack_tail(self) -> None:
        """Take the last range out of the chunks, so that what is appended can join it."""
        if self._chunks:
            packed = self._chunks[-1].pop()
            self._tail_first, self._tail_count = packed >> 16, (packed & 0xFFFF) + 1
            if not self._chunks[-1]:
                self._chunks.pop()

    def _groups(self, offsets: Sequence[int], low: int) -> Iterator[tuple[int, int, int]]:
        """Which chunk may hold which of `offsets` from index `low` on: (index of the chunk, low, high)."""
        chunks = self._chunks
        begin, size = 0, len(offsets)
        while low < size and chunks:
            # A chunk that was given out is not looked at again: it may be empty by now.
            at = max(bisect_right(chunks, offsets[low] << 16 | 0xFFFF, begin, key=_first_packed) - 1, 0)
            begin = at + 1
            high = bisect_left(offsets, chunks[begin][0] >> 16, low) if begin < len(chunks) else size
            yield at, low, high
            low = high

    def _fit(self, at: int) -> None:
        """Cut, join or drop a chunk that was changed; those before it keep their indexes."""
        chunks = self._chunks
        chunk = chunks[at]
        size = len(chunk)
        if size > 2 * _CHUNK_RANGES:
            chunks[at : at + 1] = [chunk[start : start + _CHUNK_RANGES] for start in range(0, size, _CHUNK_RANGES)]
        elif not size:
            del chunks[at]
        elif size * 4 < _CHUNK_RANGES:
            for left in (at, at - 1):
                if 0 <= left < len(chunks) - 1 and len(chunks[left]) + len(chunks[left + 1]) <= _CHUNK_RANGES:
                    chunks[left].extend(chunks.pop(left + 1))

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]


def _packed(first: int, count: int) -> list[int]:
    """A range of any length as packed ranges."""
    full, rest = divmod(count, _RANGE_MESSAGES_MAX)
    pieces = [(first + piece * _RANGE_MESSAGES_MAX) << 16 | (_RANGE_MESSAGES_MAX - 1) for piece in range(full)]
    if rest:
        pieces.append((first + full * _RANGE_MESSAGES_MAX) << 16 | (rest - 1))
    return pieces


def _hits(chunk: array[int], begin: int, offsets: Sequence[int], low: int, high: int) -> list[tuple[int, int, int]]:
    """Which ranges of `chunk`, from index `begin` on, hold which of `offsets[low:high]`: (index, start, stop)."""
    hits: list[tuple[int, int, int]] = []
    end = len(chunk)
    index = begin
    while low < high:
        offset = offsets[low]
        key = offset << 16 | 0xFFFF
        near = index + _STRIDE
        if near < end and chunk[near] <= key:
            index = bisect_right(chunk, key, near, end) - 1
        else:
            index = bisect_right(chunk, key, index, min(near, end)) - 1
        if index < begin:
            # Before all that the chunk holds.
            index = begin
            low = bisect_left(offsets, chunk[begin] >> 16, low, high)
            continue
        packed = chunk[index]
        beyond = (packed >> 16) + (packed & 0xFFFF) + 1
        stop = low + 1
        if offset < beyond:
            if stop < high and offsets[stop] < beyond:
                stop = bisect_left(offsets, beyond, stop, high)
            hits.append((index, low, stop))
        low = stop
    return hits


def _cut_out(chunk: array[int], hits: list[tuple[int, int, int]], offsets: Sequence[int]) -> None:
    """Remove what `_hits` found, from behind, so that the indexes of what is still to come stay true."""
    for index, start, stop in reversed(hits):
        packed = chunk[index]
        first, count = packed >> 16, (packed & 0xFFFF) + 1
        if count == stop - start:
            del chunk[index]
            continue
        end = first + count
        pieces: list[int] = []
        if offsets[stop - 1] - offsets[start] == stop - start - 1:
            if first < offsets[start]:
                pieces.append(first << 16 | (offsets[start] - first - 1))
            first = offsets[stop - 1] + 1
        else:
            for offset in offsets[start:stop]:
                if first < offset:
                    pieces.append(first << 16 | (offset - first - 1))
                first = offset + 1
        if first < end:
            pieces.append(first << 16 | (end - first - 1))
        if len(pieces) == 1:
            chunk[index] = pieces[0]
        else:
            chunk[index : index + 1] = array("Q", pieces)
