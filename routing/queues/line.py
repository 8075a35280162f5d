"""A line: messages of a queue that wait, in the order in which they are given out.

Every message has a *position*, and the lowest goes first. For most it is their own offset, which needs no memory but
the range they lie in (`ready`). Others were given back (`placed`), or have become due after a delay (`due`): these
stand behind all that was there when they did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile

from routing.queues.offset_set import OffsetSet, Range, together
from routing.queues.placed_offsets import Placed

_FAR = 1 << 62


class Line:
    """See the module."""

    __slots__ = ("due", "placed", "ready")

    def __init__(self, ready: Iterable[Range] = ()) -> None:
        self.ready = OffsetSet(ready)
        self.placed = Placed()
        self.due: deque[tuple[int, int]] = deque()
        """(position, offset) of messages that were delayed."""

    @property
    def count(self) -> int:
        """How many wait."""
        return self.ready.count + self.placed.count + len(self.due)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits; told sooner than how many do."""
        return not (self.ready.count or self.placed.count or self.due)

    @property
    def simple(self) -> bool:
        """All that waits has its own offset as position."""
        return not self.placed.count and not self.due

    def head(self) -> tuple[int, int, bool]:
        """First offset, count and redelivered flag of what comes next; count 0 when there is nothing."""
        if not self.placed.count and not self.due:
            first, count = self.ready.head()
            return first, count, False
        return self._mixed_head()[1:]

    def _mixed_head(self) -> tuple[int, int, int, bool]:
        """Which of placed (0), due (1) and ready (2) is next, then as `head`."""
        placed_first, placed_count, redelivered = self.placed.head()
        placed_at = placed_first if placed_count else _FAR
        due_at, due_offset = self.due[0] if self.due else (_FAR, 0)
        first, count = self.ready.head()
        ready_at = first if count else _FAR
        if placed_count and placed_at <= due_at and placed_at <= ready_at:
            return 0, placed_first, min(placed_count, max(1, min(due_at, ready_at) - placed_at)), redelivered
        if due_at <= ready_at and self.due:
            return 1, due_offset, 1, False
        return 2, first, min(count, min(placed_at, due_at) - first), False

    def take(self, count: int) -> None:
        """Remove the first `count` of `head()`."""
        if not self.placed.count and not self.due:
            self.ready.drop(count)
            return
        source = self._mixed_head()[0]
        if source == 0:
            self.placed.drop(count)
        elif source == 1:
            self.due.popleft()
        else:
            self.ready.drop(count)

    def next_due(self, count: int) -> list[int]:
        """Messages that were delayed and come before all others that wait, at most `count`."""
        placed_first, placed_count, _ = self.placed.head()
        first, ready_count = self.ready.head()
        before = min(placed_first if placed_count else _FAR, first + 1 if ready_count else _FAR)
        return [offset for _, offset in takewhile(lambda entry: entry[0] < before, islice(self.due, count))]

    def take_due(self, count: int) -> None:
        """Remove the first `count` of `next_due()`."""
        for _ in range(count):
            self.due.popleft()

    def peek(self, count: int) -> list[int]:
        """Some `count` offsets that come next or soon, the first of them first."""
        first, number, _ = self.head()
        found = list(range(first, first + min(number, count)))
        for ranges in (self.placed.ranges(), ((offset, 1) for _, offset in self.due), self.ready.ranges()):
            for range_first, range_count in ranges:
                if len(found) >= count:
                    return found
                found += range(range_first, range_first + min(range_count, count - len(found)))
        return found

    def discard(self, offsets: Sequence[int]) -> list[int]:
        """Remove those of the rising `offsets` that wait here, wherever they stand; returns them."""
        found = self.ready.discard(offsets)
        if self.placed.count:
            found += self.placed.discard(offsets)
        if self.due:
            wanted = set(offsets)
            due = [offset for _, offset in self.due if offset in wanted]
            if due:
                found += due
                self.due = deque(entry for entry in self.due if entry[1] not in wanted)
        return found

    def present(self, offsets: Sequence[int]) -> list[int]:
        """Those of the rising `offsets` that wait here, in no particular order."""
        found = self.ready.present(offsets)
        if self.placed.count:
            found += self.placed.present(offsets)
        if self.due:
            waiting = {offset for _, offset in self.due}
            found += [offset for offset in offsets if offset in waiting]
        return found

    def between(self, first: int, end: int) -> list[int]:
        """Those of [first, end) that wait here, in no particular order."""
        found = self.ready.between(first, end)
        if self.placed.count:
            found += self.placed.present(range(first, end))
        if self.due:
            found += [offset for _, offset in self.due if first <= offset < end]
        return found

    def from_on(self, offset: int) -> tuple[int, int]:
        """How many of those that wait here lie at or behind an offset, and the first of them; `(0, 0)`: none."""
        due = [one for _, one in self.due if one >= offset]
        return together([self.ready.from_on(offset), self.placed.from_on(offset), (len(due), min(due, default=0))])

    def fresh_ranges(self) -> Iterator[Range]:
        """What was never given out, in no particular order."""
        yield from self.ready.ranges()
        for _, offset in self.due:
            yield offset, 1
        yield from self.placed.ranges_of(redelivered=False)

    def ranges(self) -> Iterator[Range]:
        """All that waits, in no particular order."""
        yield from self.fresh_ranges()
        yield from self.placed.ranges_of(redelivered=True)

    def clear(self) -> None:
        """Forget everything."""
        self.ready.clear()
        self.placed.clear()
        self.due.clear()


class Levels:
    """The lines of a queue that tells priorities apart, made as they are used.

    Messages that have just come stand in `fresh`, in their order: as long as nothing else waits they are given out like
    that, as if each had met an empty queue. Those that have to wait are sorted in.
    """

    __slots__ = ("_lines", "_occupied", "fresh", "highest")

    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.fresh = Line()
        self._lines: dict[int, Line] = {}
        self._occupied = 0

    def at(self, priority: int) -> Line:
        """The line for a priority, to put something in."""
        level = min(priority, self.highest)
        self._occupied |= 1 << level
        line = self._lines.get(level)
        if line is None:
            line = self._lines[level] = Line()
        return line

    def top(self) -> Line | None:
        """The highest line in which something waits."""
        level = self.top_level()
        return None if level < 0 else self._lines[level]

    def top_level(self) -> int:
        """The priority of that line; -1 when there is none."""
        while self._occupied:
            level = self._occupied.bit_length() - 1
            if self._lines[level].count:
                return level
            self._occupied ^= 1 << level
        return -1

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self.top_level() < 0 and not self.fresh.count

    @property
    def may_be_several(self) -> bool:
        """False: all that waits stands in one line, if it has been sorted in."""
        return self._occupied & self._occupied - 1 != 0

    def descending(self) -> list[Line]:
        """The lines in which something waits, the highest first."""
        return [self._lines[level] for level in sorted(self._lines, reverse=True) if self._lines[level].count]

    def lowest(self) -> Line:
        """The lowest line in which something waits, or the fresh one."""
        return next((self._lines[level] for level in sorted(self._lines) if self._lines[level].count), self.fresh)

    def lines(self) -> list[Line]:
        """All lines, the fresh one first."""
        return [self.fresh, *self._lines.values()]
