"""Sorting many messages at once against looking at each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.facts import pack, priority_of
from routing.queues.arrivals import Arrival
from routing.queues.fact_columns import to_columns
from routing.queues.line import Levels
from routing.queues.priority_sort import sort_in

_PRIORITIES = st.one_of(st.integers(0, 3), st.integers(0, 12), st.integers(0, 255))
_FACTS = st.builds(
    pack,
    st.booleans(),
    _PRIORITIES,
    st.one_of(st.none(), st.integers(0, 1 << 32)),
    st.sampled_from([0, 0, 0, 1, 1 << 20, 1 << 40]),
)


@settings(max_examples=200, deadline=None)
@given(
    arrivals=st.lists(st.lists(_FACTS, min_size=1, max_size=90), min_size=1, max_size=4),
    times=st.sampled_from([1, 1, 60]),
    highest=st.sampled_from([1, 10, 255]),
    cut=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    gap=st.integers(0, 1),
)
def test_lines_hold_what_has_their_priority(
    arrivals: list[list[int]], times: int, highest: int, cut: tuple[int, int], gap: int
) -> None:
    levels, first = Levels(highest), 1 << 33
    expected: dict[int, list[int]] = {}
    for facts in arrivals:
        facts = facts * times  # more than are sorted at once
        end = first + len(facts)
        start, stop = min(first + cut[0], end - 1), max(end - cut[1], first + cut[0] + 1)
        stop = max(min(stop, end), start + 1)
        low, high = to_columns(facts)
        sort_in(levels, Arrival(first, len(facts), 0, facts, low if high is None else None), start, stop)
        for offset in range(start, stop):
            level = min(priority_of(facts[offset - first]), highest)
            expected.setdefault(level, []).append(offset)
        first = end + gap
    for level, offsets in expected.items():
        ready = levels.at(level).ready
        assert ready.count == len(offsets)
        assert [one for start, count in ready.ranges() for one in range(start, start + count)] == offsets
        assert ready.take(len(offsets) + 1) == offsets
    assert levels.is_empty
