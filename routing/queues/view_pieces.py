"""Which records of its topic a view holds: pieces of partitions, by the ids that their messages have in the view.

A piece is what was taken in at once. It stays until all of it is settled, and remembers what of it is: up to where, and
where else. That is exact, for what is written down of a view is written from it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from routing.queues.packed_ranges import Range, pack, unpack, without

_PLACES_SPARE = 512


class Part(NamedTuple):
    """Messages [first, first + count) are the records of a partition from `offset` on."""

    first: int
    count: int  # type: ignore[assignment]
    partition: int
    offset: int


class Piece:
    """See the module. Of [first, end) `live` are not settled: none before `done`, and none in the `holes`."""

    __slots__ = ("done", "end", "first", "holes", "live", "offset", "partition")

    def __init__(self, part: Part) -> None:
        self.first = self.done = part.first
        self.end = part.first + part.count
        self.live: int = part.count
        self.partition = part.partition
        self.offset = part.offset
        self.holes: list[Range] = []

    def settle(self, first: int, count: int) -> None:
        """Messages of it are done with, which were not before."""
        self.live -= count
        if first == self.done:
            self.done = first + count
        elif self.holes and sum(self.holes[-1]) == first:
            self.holes[-1] = (self.holes[-1][0], self.holes[-1][1] + count)
        else:
            self.holes.append((first, count))

    def left(self) -> Iterator[Part]:
        """What is not settled."""
        ranges: Iterable[Range] = ((self.done, self.end - self.done),)
        if self.holes:
            ranges = unpack(without(pack(ranges), self.holes))
        for first, count in ranges:
            yield Part(first, count, self.partition, self.offset + first - self.first)


class Pieces:
    """All pieces of a view, in the order of their ids."""

    __slots__ = ("_firsts", "_head", "_held", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[Piece | None] = []
        self._firsts: list[int] = []
        self._head = 0
        self._held = 0

    def add(self, part: Part) -> None:
        """Hold a piece whose ids lie beyond all others."""
        self._pieces.append(Piece(part))
        self._firsts.append(part.first)
        self._held += 1

    def find(self, message: int) -> Piece | None:
        """The piece that has a message."""
        index = bisect_right(self._firsts, message, self._head) - 1
        piece = self._pieces[index] if index >= self._head else None
        return piece if piece is not None and message < piece.end else None

    def settle(self, first: int, count: int) -> None:
        """Messages are done with; pieces of which nothing is left go."""
        end = first + count
        index = max(bisect_right(self._firsts, first, self._head) - 1, self._head)
        pieces = self._pieces
        while index < len(pieces):
            piece = pieces[index]
            if piece is not None and piece.end > first:
                if piece.first >= end:
                    break
                start = max(first, piece.first)
                piece.settle(start, min(end, piece.end) - start)
                if not piece.live:
                    self._remove(index)
                if piece.end >= end:
                    break
            index += 1
        if len(pieces) > _PLACES_SPARE and self._held * 2 < len(pieces):
            self._pieces[:] = [piece for piece in pieces if piece is not None]
            self._firsts[:] = [piece.first for piece in pieces if piece is not None]
            self._head = 0

    def _remove(self, index: int) -> None:
        """Empty a place. Places never move here: `settle` is on its way through them."""
        pieces = self._pieces
        pieces[index] = None
        self._held -= 1
        if not self._held:
            pieces.clear()
            self._firsts.clear()
            self._head = 0
        elif index == self._head:
            while pieces[self._head] is None:
                self._head += 1

    def left(self) -> Iterator[Part]:
        """All that is not settled."""
        for piece in self._pieces[self._head :]:
            if piece is not None:
                yield from piece.left()

    def clear(self) -> None:
        """Forget all."""
        self._pieces.clear()
        self._firsts.clear()
        self._head = self._held = 0


def ranges_of(parts: Iterable[Part]) -> array[int]:
    """The ids of rising, disjoint parts, packed."""
    return pack((part.first, part.count) for part in parts)


def cut(parts: Sequence[Part], gone: Iterable[Range]) -> list[Part]:
    """Rising, disjoint parts without the ids `gone`."""
    left = list(unpack(without(ranges_of(parts), gone)))
    found: list[Part] = []
    at = 0
    for part in parts:
        end = part.first + part.count
        while at < len(left):
            first, count = left[at]
            start, stop = max(first, part.first), min(first + count, end)
            if start < stop:
                found.append(Part(start, stop - start, part.partition, part.offset + start - part.first))
            if first + count > end:
                break
            at += 1
    return found


def joined(parts: Sequence[Part], more: Iterable[Part]) -> list[Part]:
    """Rising, disjoint parts and what they lack of others."""
    missing = cut(sorted(more), [(part.first, part.count) for part in parts])
    return sorted([*parts, *missing]) if missing else list(parts)


def within(parts: Sequence[Part], kept: Iterable[Range]) -> list[Part]:
    """Of rising, disjoint parts what lies in the ranges `kept`."""
    return cut(parts, unpack(without(ranges_of(parts), kept)))
