"""Offsets as runs of neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routing.queues.packed_ranges import Range

_PIECE = 64
"""So many are looked at at once: often they are one run."""


def runs_of(offsets: Sequence[int]) -> Iterable[Range]:
    """(first, count) of every run of neighbours among distinct offsets, in rising order."""
    count = len(offsets)
    if isinstance(offsets, range):
        return ((offsets.start, count),) if count else ()
    if count == 1:
        return ((offsets[0], 1),)
    runs = []
    first = end = -1
    ordered = sorted(offsets)
    for at in range(0, count, _PIECE):
        piece = ordered[at : at + _PIECE]
        if piece[0] == end and piece[-1] - end == len(piece) - 1:
            end = piece[-1] + 1
            continue
        for offset in piece:
            if offset == end:
                end += 1
            else:
                if end >= 0:
                    runs.append((first, end - first))
                first, end = offset, offset + 1
    if end >= 0:
        runs.append((first, end - first))
    return runs
