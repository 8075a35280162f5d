"""Sorted, disjoint ranges of offsets as an array of integers, `offset << 16 | (count - 1)`: 8 bytes a range.

What is live in a queue is kept and saved like this by those who look at all of it (`standby.py`); a queue itself takes
from the front and adds at the end (`offset_set.py`, the same packing). A range longer than 65,536 is several.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import compress, islice, repeat
from operator import le, or_

COUNT_BITS = 16
COUNT_MASK = (1 << COUNT_BITS) - 1
_COUNT_MAX = 1 << COUNT_BITS
_MANY = 16
_COUNT_LANE = COUNT_MASK.to_bytes(8, "little")
_ONE_LANE = _COUNT_MAX.to_bytes(8, "little")
_TOUCHING_SHARE = 4
"""Ranges are joined if more than one in so many touches the one before it."""
_MARKS = bytes(byte > 0 for byte in range(256))

Range = tuple[int, int]
"""First offset and count."""


def pack(ranges: Iterable[Range]) -> array[int]:
    """Sorted, disjoint ranges; those that touch are joined."""
    packed: list[int] = []
    first = end = 0
    for start, count in ranges:
        if start == end:
            end += count
            continue
        if end > first:
            if end - first <= _COUNT_MAX:
                packed.append(first << COUNT_BITS | end - first - 1)
            else:
                _pack_long(packed, first, end)
        first, end = start, start + count
    _pack_long(packed, first, end)
    return array("Q", packed)


def _pack_long(packed: list[int], first: int, end: int) -> None:
    while first < end:
        count = min(end - first, _COUNT_MAX)
        packed.append(first << COUNT_BITS | count - 1)
        first += count


def unpack(packed: array[int]) -> Iterator[Range]:
    """The inverse; what was cut for its length stays in pieces."""
    for one in packed:
        yield one >> COUNT_BITS, (one & COUNT_MASK) + 1


def pack_all(ranges: list[int]) -> array[int]:
    """The same of ranges that are packed already; those that touch stay as they are where few do."""
    packed = array("Q", ranges)
    ends = [(one >> COUNT_BITS) + (one & COUNT_MASK) + 1 << COUNT_BITS for one in ranges]
    touching = sum(map(le, islice(ranges, 1, None), map(or_, ends, repeat(COUNT_MASK))))
    return pack(unpack(packed)) if touching * _TOUCHING_SHARE > len(packed) else packed


def count_of(packed: array[int]) -> int:
    """How many messages the ranges hold."""
    data = to_bytes(packed)
    return len(packed) + sum(data[0::8]) + (sum(data[1::8]) << 8)


def count_below(packed: array[int], offset: int) -> int:
    """How many messages of rising ranges lie below an offset."""
    at = bisect_left(packed, offset << COUNT_BITS)
    if not at:
        return 0
    last = packed[at - 1]
    return count_of(packed[:at]) - max((last >> COUNT_BITS) + (last & COUNT_MASK) + 1 - offset, 0)


def singles_of(packed: array[int]) -> list[int] | None:
    """The offsets in the ranges, if each is of one message."""
    count = len(packed)
    if count < _MANY:
        found = [one >> COUNT_BITS for one in packed if not one & COUNT_MASK]
        return found if len(found) == count else None
    if count_of(packed) > count:
        return None
    # All at once: the lowest bits of each are 0, so nothing is shifted from one into another.
    together = int.from_bytes(to_bytes(packed), "little") >> COUNT_BITS
    return from_bytes(together.to_bytes(8 * count, "little")).tolist()


def offsets_of(packed: array[int]) -> list[int]:
    """All offsets in the ranges."""
    found = singles_of(packed)
    if found is not None:
        return found
    found = []
    for one in packed:
        first = one >> COUNT_BITS
        found += range(first, first + (one & COUNT_MASK) + 1)
    return found


def singly(packed: array[int]) -> array[int]:
    """The same messages, a range for each."""
    data = to_bytes(packed)
    lowest = data[0::8]
    wider = len(lowest) - lowest.count(0)
    if any(data[1::8]) or wider * _TOUCHING_SHARE > len(lowest):
        return array("Q", [at << COUNT_BITS for at in offsets_of(packed)])
    if not wider:
        return packed
    found, at, marks = array("Q"), 0, lowest.translate(_MARKS)
    while (place := marks.find(1, at)) >= 0:
        found += packed[at:place]
        first = packed[place] - lowest[place]
        found.extend(range(first, first + (lowest[place] + 1 << COUNT_BITS), 1 << COUNT_BITS))
        at = place + 1
    return found + packed[at:] if at else packed


def low_bits(singles: array[int], bits: int) -> list[int]:
    """The lowest `bits`, 8 to 16, of the offsets of ranges of one message."""
    data, lanes = to_bytes(singles), bytearray(2 * len(singles))
    lanes[0::2], lanes[1::2] = data[2::8], data[3::8].translate(_low_bytes(bits - 8))
    found = array("H", bytes(lanes))
    if sys.byteorder == "big":
        found.byteswap()
    return found.tolist()


@lru_cache(8)
def _low_bytes(bits: int) -> bytes:
    return bytes(byte & (1 << bits) - 1 for byte in range(256))


def by_blocks(packed: array[int], bits: int) -> Iterator[tuple[int, array[int]]]:
    """Rising ranges, cut where a block of offsets ends, with its number: the offset without its lowest `bits`."""
    at, size, rest = 0, len(packed), 0
    while at < size or rest:
        number = (rest or packed[at]) >> COUNT_BITS + bits
        limit = number + 1 << bits
        stop = bisect_left(packed, limit << COUNT_BITS, at)
        piece = packed[at:stop]
        if rest:
            piece.insert(0, rest)
            rest = 0
        over = (piece[-1] >> COUNT_BITS) + (piece[-1] & COUNT_MASK) + 1 - limit
        if over > 0:
            piece[-1] -= over
            rest = limit << COUNT_BITS | over - 1
        at = stop
        yield number, piece


def holds(packed: array[int], offset: int) -> bool:
    """Whether an offset lies in one of the rising ranges."""
    at = bisect_right(packed, offset << COUNT_BITS | COUNT_MASK) - 1
    return at >= 0 and offset - (packed[at] >> COUNT_BITS) <= packed[at] & COUNT_MASK


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in any order, overlapping or not, as sorted, disjoint ones."""
    out: list[Range] = []
    first = end = -1
    for start, count in sorted(ranges):
        if start <= end:
            end = max(end, start + count)
            continue
        if end > first:
            out.append((first, end - first))
        first, end = start, start + count
    if end > first:
        out.append((first, end - first))
    return out


def rising(packed: array[int]) -> Iterable[Range]:
    """Packed ranges in any order, overlapping or not, as sorted, disjoint ones; thousands that touch take no time."""
    ordered, count = array("Q", sorted(packed)), len(packed)
    if count < _MANY:
        return merged(unpack(ordered))
    # All at once, each in 64 bits of its own: the first and the end of each, and whether that is the next one's first.
    together = int.from_bytes(to_bytes(ordered), "little")
    lengths = together & int.from_bytes(_COUNT_LANE * count, "little")
    firsts = together - lengths
    ends = firsts + (lengths << COUNT_BITS) + int.from_bytes(_ONE_LANE * count, "little")
    gaps = firsts >> 64 ^ ends & (1 << 64 * (count - 1)) - 1
    begins = [0, *compress(range(1, count), from_bytes(gaps.to_bytes(8 * count, "little")))]
    stops = from_bytes(ends.to_bytes(8 * count, "little"))
    found, end = [], -1
    for begin, behind in zip(begins, [*begins[1:], count]):
        first = ordered[begin] >> COUNT_BITS
        if first < end:
            return merged(unpack(ordered))
        end = stops[behind - 1] >> COUNT_BITS
        found.append((first, end - first))
    return found


def without(packed: array[int], gone: Iterable[Range]) -> array[int]:
    """What is left without the ranges `gone`, which may be in any order and overlap."""
    left = array("Q")
    at, size = 0, len(packed)
    cut: tuple[int, int] | None = None
    """What is left to be looked at of the range before `at`: [first, end)."""
    for first, count in merged(gone):
        end = first + count
        if cut is not None:
            if cut[1] > first:
                if cut[0] < first:
                    left.append(cut[0] << COUNT_BITS | first - cut[0] - 1)
                cut = (max(cut[0], end), cut[1]) if cut[1] > end else None
                if cut is not None:
                    continue
            else:
                left.append(cut[0] << COUNT_BITS | cut[1] - cut[0] - 1)
                cut = None
        index = bisect_right(packed, first << COUNT_BITS | COUNT_MASK, at) - 1
        if index < at or (packed[index] >> COUNT_BITS) + (packed[index] & COUNT_MASK) + 1 <= first:
            index += 1
        left.extend(packed[at:index])
        at = index
        while at < size and packed[at] >> COUNT_BITS < end:
            start = packed[at] >> COUNT_BITS
            stop = start + (packed[at] & COUNT_MASK) + 1
            at += 1
            if start < first:
                left.append(start << COUNT_BITS | first - start - 1)
            if stop > end:
                cut = (end, stop)
                break
    if cut is not None:
        left.append(cut[0] << COUNT_BITS | cut[1] - cut[0] - 1)
    left.extend(packed[at:])
    return left


def to_bytes(column: array[int]) -> bytes:
    """A column as it is saved: little-endian."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def from_bytes(data: bytes) -> array[int]:
    """The inverse. Raises ValueError if it is no whole number of items."""
    column = array("Q")
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
