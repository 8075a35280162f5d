"""Offsets as runs of neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from routing.queues.offset_set import Range


def runs_of(offsets: Sequence[int]) -> Iterable[Range]:
    """(first, count) of every run of neighbours among distinct offsets, in rising order."""
    count = len(offsets)
    if isinstance(offsets, range):
        return ((offsets.start, count),) if count else ()
    if count == 1:
        return ((offsets[0], 1),)
    runs = []
    first = end = -1
    for offset in sorted(offsets):
        if offset == end:
            end += 1
        else:
            if end >= 0:
                runs.append((first, end - first))
            first, end = offset, offset + 1
    if end >= 0:
        runs.append((first, end - first))
    return runs


def ranges_in_order(offsets: Sequence[int]) -> list[int]:
    """First and last of every run of neighbours, one pair after the other, in the order in which these come."""
    if isinstance(offsets, range):
        return [offsets[0], offsets[-1]] if offsets else []
    found: list[int] = []
    for offset in offsets:
        if found and found[-1] + 1 == offset:
            found[-1] = offset
        else:
            found += (offset, offset)
    return found
