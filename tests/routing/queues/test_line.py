"""The order of a line: what is its own place, what was given back, what has become due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.queues.line import Levels, Line


def drain(line: Line) -> list[int]:
    out = []
    while True:
        first, count, _ = line.head()
        if not count:
            return out
        line.take(count)
        out += range(first, first + count)


def test_due_messages_stand_behind_what_was_there_and_before_what_came_later() -> None:
    line = Line([(10, 3)])
    line.due.append((13, 2))
    line.due.append((13, 1))
    line.ready.append(13, 2)
    assert drain(line) == [10, 11, 12, 2, 1, 13, 14]


def test_returned_messages_take_their_old_places() -> None:
    line = Line([(10, 3)])
    line.placed.add(4, 2)
    line.ready.discard([11])
    line.placed.add(11, 1)
    assert line.head() == (4, 2, True)
    assert drain(line) == [4, 5, 10, 11, 12]


@given(
    st.sets(st.integers(0, 60)), st.sets(st.integers(61, 80)), st.sets(st.integers(81, 90)), st.sets(st.integers(0, 90))
)
def test_nothing_is_lost_or_given_twice(ready: set[int], due: set[int], placed: set[int], gone: set[int]) -> None:
    line = Line([(offset, 1) for offset in sorted(ready)])
    for offset in due:
        line.due.append((61, offset))
    for offset in placed:
        line.placed.add(offset, 1)
    assert line.count == len(ready | due | placed)
    for place in gone:
        behind = [offset for offset in ready | due | placed if offset >= place]
        assert line.from_on(place) == (len(behind), min(behind, default=0))
    assert sorted(line.present(sorted(gone))) == sorted(gone & (ready | due | placed))
    assert sorted(line.discard(sorted(gone))) == sorted(gone & (ready | due | placed))
    assert sorted(drain(line)) == sorted((ready | due | placed) - gone)
    assert line.count == 0


def test_levels_know_the_highest_and_the_lowest_that_is_occupied() -> None:
    levels = Levels(5)
    assert levels.top() is None
    levels.at(9).ready.append(0, 1)
    levels.at(2).ready.append(1, 1)
    assert levels.top_level() == 5
    assert levels.lowest() is levels.at(2)
    levels.at(5).take(1)
    assert levels.top_level() == 2


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(100, 140)), max_size=12, unique_by=lambda entry: entry[1]),
    st.sets(st.integers(0, 40), max_size=6),
    st.sets(st.integers(41, 60), max_size=6),
    st.integers(1, 5),
)
def test_due_messages_are_told_as_far_as_nothing_else_comes_between(
    due: list[tuple[int, int]], placed: set[int], ready: set[int], limit: int
) -> None:
    def filled() -> Line:
        line = Line([(offset, 1) for offset in sorted(ready)])
        line.due.extend(sorted(due, key=lambda entry: entry[0]))
        for offset in placed:
            line.placed.add(offset, 1)
        return line

    line, found = filled(), []
    while line.count:
        told = line.next_due(limit)
        assert len(told) <= limit
        line.take_due(len(told))
        found += told
        first, count, _ = line.head()
        if count and not line.next_due(1):
            line.take(1)
            found.append(first)
    assert found == drain(filled())
