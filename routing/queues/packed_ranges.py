"""Sorted, disjoint ranges of offsets as an array of integers, `offset << 16 | (count - 1)`: 8 bytes a range.

What is live in a queue is kept and saved like this by those who look at all of it (`standby.py`); a queue itself takes
from the front and adds at the end (`offset_set.py`, the same packing). A range longer than 65,536 is several.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

COUNT_BITS = 16
COUNT_MASK = (1 << COUNT_BITS) - 1
_COUNT_MAX = 1 << COUNT_BITS

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
