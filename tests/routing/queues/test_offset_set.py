"""Sets of offsets against the plainest model there is: a list of integers."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.queues import offset_set
from routing.queues.offset_set import OffsetSet, Range
from routing.queues.placed_offsets import NOTHING, Placed

# What matters is where ranges are cut: 16 bits hold a range's length, a chunk holds 4096 ranges.
_LENGTHS = st.one_of(st.integers(1, 5), st.sampled_from([65535, 65536, 65537, 131072, 200_000]))
_GAPS = st.one_of(st.just(0), st.integers(1, 3), st.just(1 << 20))


def offsets(ranges: list[Range]) -> list[int]:
    return [offset for first, count in ranges for offset in range(first, first + count)]


def joined(ranges: list[Range]) -> list[Range]:
    """Contiguous neighbours as one range."""
    out: list[Range] = []
    for first, count in ranges:
        if out and sum(out[-1]) == first:
            out[-1] = (out[-1][0], out[-1][1] + count)
        else:
            out.append((first, count))
    return out


class OffsetSetMachine(RuleBasedStateMachine):
    """The model is a list of joined ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.real = OffsetSet()
        self.model: list[Range] = []
        self.end = 0

    @rule(gap=_GAPS, count=_LENGTHS)
    def append(self, gap: int, count: int) -> None:
        self.real.append(self.end + gap, count)
        self.model = joined([*self.model, (self.end + gap, count)])
        self.end += gap + count

    @rule(number=st.integers(1, 9000))
    def append_single_messages(self, number: int) -> None:
        for _ in range(number):
            self.end += 1
            self.real.append(self.end, 1)
            self.model.append((self.end, 1))
            self.end += 1

    @precondition(lambda self: self.model)
    @rule(share=st.floats(0, 1), times=st.integers(1, 5000))
    def drop(self, share: float, times: int) -> None:
        for _ in range(times):
            first, count = self.real.head()
            if not self.model:
                assert count == 0
                return
            assert first == self.model[0][0]
            assert 0 < count <= self.model[0][1]
            taken = max(1, int(count * share))
            self.real.drop(taken)
            if taken == self.model[0][1]:
                del self.model[0]
            else:
                self.model[0] = (first + taken, self.model[0][1] - taken)

    @rule()
    def clear(self) -> None:
        self.real.clear()
        self.model.clear()

    @rule()
    def look_at_the_head(self) -> None:
        first, count = self.real.head()
        if self.model:
            assert first == self.model[0][0]
            assert 0 < count <= self.model[0][1]
        else:
            assert count == 0

    @invariant()
    def same(self) -> None:
        assert list(self.real.ranges()) == self.model
        assert len(self.real) == self.real.count == sum(count for _, count in self.model)
        for place in (0, self.end // 2, self.end - self.end // 8, self.end):
            behind = [(max(first, place), first + count) for first, count in self.model if first + count > place]
            expected = sum(end - first for first, end in behind), behind[0][0] if behind else 0
            assert self.real.from_on(place) == expected


OffsetSetMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestOffsetSet = OffsetSetMachine.TestCase


def test_a_range_of_any_length_is_given_out_whole_and_in_order() -> None:
    ready = OffsetSet([(5, 1_000_000)])
    ready.append(2_000_000, 1)
    position = 5
    while position < 1_000_005:
        first, count = ready.head()
        assert first == position
        ready.drop(count)
        position += count
    assert ready.head() == (2_000_000, 1)


def test_a_contiguous_backlog_is_one_range_in_memory() -> None:
    ready = OffsetSet()
    for first in range(0, 1_000_000, 10):
        ready.append(first, 10)
    assert list(ready.ranges()) == [(0, 1_000_000)]
    assert not ready._chunks


def test_used_chunks_are_dropped() -> None:
    ready = OffsetSet((offset, 1) for offset in range(0, 100_000, 2))
    assert len(ready._chunks) == 13
    for _ in range(46_000):
        ready.head()
        ready.drop(1)
    assert len(ready._chunks) == 2
    assert next(ready.ranges()) == (92_000, 1)


@given(st.lists(st.tuples(_GAPS, _LENGTHS), max_size=20))
def test_ranges_build_an_equal_set(pieces: list[tuple[int, int]]) -> None:
    ranges, end = [], 0
    for gap, count in pieces:
        ranges.append((end + gap, count))
        end += gap + count
    assert list(OffsetSet(ranges).ranges()) == joined(ranges)


@given(st.permutations(range(40)), st.lists(st.integers(1, 6), min_size=40, max_size=40), st.data())
@settings(max_examples=50, deadline=None)
def test_returned_offsets_come_out_in_offset_order(order: list[int], sizes: list[int], data: st.DataObject) -> None:
    returned = Placed()
    held: list[int] = []
    for place in order:
        returned.add(place * 10, sizes[place])
        held += range(place * 10, place * 10 + sizes[place])
        if data.draw(st.booleans()):
            first, count, redelivered = returned.head()
            assert redelivered
            held.sort()
            taken = data.draw(st.integers(1, count))
            assert list(range(first, first + taken)) == held[:taken]
            returned.drop(taken)
            del held[:taken]
        assert len(returned) == returned.count == len(held)
    assert offsets(list(returned.ranges())) == sorted(held)
    returned.clear()
    assert (returned.head(), returned.count, list(returned.ranges())) == (NOTHING, 0, [])


class SparseMachine(RuleBasedStateMachine):
    """All that `OffsetSet` can do, on chunks of a few ranges of a few messages; a sorted list is the model."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(offset_set, "_CHUNK_RANGES", 4)
        self.patch.setattr(offset_set, "_RANGE_MESSAGES_MAX", 16)
        self.patch.setattr(offset_set, "_STRIDE", 2)
        self.real = OffsetSet()
        self.model: list[int] = []
        self.end = 0

    def teardown(self) -> None:
        self.patch.undo()

    @rule(gaps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=30))
    def append(self, gaps: list[tuple[int, int]]) -> None:
        for gap, count in gaps:
            first = self.end + gap
            self.end = first + count
            self.real.append(first, count)
            self.model += range(first, self.end)

    @rule(count=st.integers(1, 100))
    def append_more_than_a_packed_range_holds(self, count: int) -> None:
        self.real.append(self.end + 1, count)
        self.model += range(self.end + 1, self.end + 1 + count)
        self.end += 1 + count

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        chosen = self._some(data)
        there = sorted(set(self.model).intersection(chosen))
        assert self.real.present(chosen) == there
        if chosen:
            first, end = chosen[0], chosen[-1]
            assert self.real.between(first, end) == [one for one in sorted(self.model) if first <= one < end]
            for place in (first, end, end + 1):
                behind = [one for one in self.model if one >= place]
                assert self.real.from_on(place) == (len(behind), min(behind, default=0))
        assert self.real.discard(chosen) == there
        gone = set(there)
        self.model = [offset for offset in self.model if offset not in gone]

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        chosen = sorted(set(self._some(data)) - set(self.model) - {self.end})[:20]
        for first, count in data.draw(st.permutations(joined([(offset, 1) for offset in chosen]))):
            self.real.add(first, count)
        self.model = sorted(self.model + chosen)

    def _some(self, data: st.DataObject) -> list[int]:
        low = data.draw(st.integers(0, self.end))
        near = st.sets(st.integers(low, min(low + 60, self.end)), max_size=60)
        run = st.integers(low, min(low + 100, self.end)).map(lambda stop: set(range(low, stop)))
        anywhere = st.sets(st.integers(0, self.end), max_size=30)
        everything = st.sampled_from([1, 2, 3]).map(lambda step: set(self.model[::step]))
        return sorted(data.draw(st.one_of(near, run, anywhere, everything)))

    @rule(count=st.integers(0, 100))
    def take(self, count: int) -> None:
        assert self.real.take(count) == self.model[:count]
        del self.model[:count]

    @rule(share=st.floats(0, 1), times=st.integers(1, 20))
    def drop(self, share: float, times: int) -> None:
        for _ in range(times):
            first, count = self.real.head()
            assert self.model[:count] == list(range(first, first + count))
            assert bool(count) == bool(self.model)
            taken = int(count * share)
            self.real.drop(taken)
            del self.model[:taken]

    @invariant()
    def same(self) -> None:
        assert offsets(list(self.real.ranges())) == self.model
        assert len(self.real) == len(self.model)
        assert all(self.real._chunks), "an empty chunk is dropped"


SparseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSparse = SparseMachine.TestCase


def test_discard_and_add_keep_a_range_at_eight_bytes() -> None:
    sparse = OffsetSet((offset, 1) for offset in range(0, 400_000, 2))
    assert sparse.discard(range(0, 300_000)) == list(range(0, 300_000, 2))
    assert sparse.discard([offset for offset in range(300_000, 400_000) if offset % 64]) == [
        offset for offset in range(300_000, 400_000, 2) if offset % 64
    ]
    assert len(sparse._chunks) == 1, "what was left of 24 chunks went together"
    holes = OffsetSet([(0, 40_000)])
    holes.discard(range(0, 40_000, 2))
    assert sum(len(chunk) for chunk in holes._chunks) == 19_999  # and the last
    assert max(len(chunk) for chunk in holes._chunks) <= 8192
    for offset in range(39_000, 0, -2):
        holes.add(offset, 1)
    assert sum(len(chunk) for chunk in holes._chunks) < 2000, "contiguous again"


def test_what_follows_a_discard_still_joins_the_end() -> None:
    ready = OffsetSet([(0, 10)])
    assert ready.discard([3]) == [3]
    for first in range(10, 1000, 10):
        ready.append(first, 10)
        assert ready.discard([3, first + 5000]) == []
    assert list(ready.ranges()) == [(0, 3), (4, 996)]
    assert sum(len(chunk) for chunk in ready._chunks) <= 1


@given(st.lists(st.integers(1, 20), max_size=60), st.lists(st.integers(1, 3), max_size=40))
def test_extending_is_appending_one_by_one(counts: list[int], steps: list[int]) -> None:
    extended, appended, at = OffsetSet(), OffsetSet(), 0
    for count in counts:
        offsets = []
        for step in range(count):
            at += steps[(at + step) % len(steps)] if steps else 1
            offsets.append(at)
            appended.append(at, 1)
        extended.extend(array("Q", [offset << 16 for offset in offsets]))
        assert list(extended.ranges()) == list(appended.ranges())
    assert extended.take(len(counts)) == appended.take(len(counts))
    assert list(extended.ranges()) == list(appended.ranges())
    assert extended.count == appended.count
