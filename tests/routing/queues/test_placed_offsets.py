"""Placed offsets against a plain dictionary of offset to position and flag."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.queues import offset_set
from routing.queues.placed_offsets import NOTHING, Placed

_SPACE = 200


class PlacedMachine(RuleBasedStateMachine):
    """Messages 0.._SPACE have their positions; what was relocated lies at offsets beyond, at the same positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(offset_set, "_CHUNK_RANGES", 4)
        self.real = Placed()
        self.model: dict[int, tuple[int, bool]] = {}
        self.next_offset = _SPACE

    def teardown(self) -> None:
        self.patch.undo()

    @rule(position=st.integers(0, _SPACE - 1), count=st.integers(1, 5), redelivered=st.booleans(), moved=st.booleans())
    def add(self, position: int, count: int, redelivered: bool, moved: bool) -> None:
        taken = {held for held, _ in self.model.values()}
        if taken.intersection(range(position, position + count)) or position + count > _SPACE:
            return
        if moved:
            first = self.next_offset
            self.next_offset += count + position % 2  # contiguous offsets at other positions, and gaps
            self.real.add(first, count, position=position, redelivered=redelivered)
        else:
            first = position
            self.real.add(first, count, redelivered=redelivered)
        self.model |= {first + index: (position + index, redelivered) for index in range(count)}

    @precondition(lambda self: self.model)
    @rule(share=st.floats(0, 1), times=st.integers(1, 10))
    def drop(self, share: float, times: int) -> None:
        for _ in range(times):
            if not self.model:
                return
            position, first, count, redelivered = self.real.head()
            assert count > 0
            in_order = sorted(self.model, key=self.model.__getitem__)[:count]
            assert in_order == list(range(first, first + count))
            assert [self.model[offset] for offset in in_order] == [
                (position + index, redelivered) for index in range(count)
            ]
            number = max(1, int(count * share))
            self.real.drop(number)
            for offset in in_order[:number]:
                del self.model[offset]

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, self.next_offset))
        run = st.integers(low, low + 50).map(lambda stop: set(range(low, stop)))
        some = sorted(data.draw(st.one_of(st.sets(st.integers(0, self.next_offset), max_size=300), run)))
        there = [offset for offset in some if offset in self.model]
        assert self.real.present(some) == there
        assert self.real.discard(some) == there
        for offset in there:
            del self.model[offset]

    @rule()
    def clear(self) -> None:
        self.real.clear()
        self.model.clear()

    @invariant()
    def same(self) -> None:
        held = [offset for first, count in self.real.ranges() for offset in range(first, first + count)]
        assert sorted(held) == sorted(self.model)
        assert len(self.real) == self.real.count == len(self.model)
        if not self.model:
            assert self.real.head() == NOTHING
            assert not self.real.head()[2]


PlacedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPlaced = PlacedMachine.TestCase


def test_a_relocated_message_keeps_its_place_between_others() -> None:
    placed = Placed()
    placed.add(10, 2)
    placed.add(20, 1)
    placed.add(900, 1, position=15, redelivered=False)
    order = []
    while placed.count:
        order.append(placed.head())
        placed.drop(order[-1][2])
    assert order == [(10, 10, 2, True), (15, 900, 1, False), (20, 20, 1, True)]


def test_many_single_offsets_cost_bytes_not_objects() -> None:
    tracemalloc.start()
    try:
        placed = Placed()
        for offset in range(40_000, 0, -2):
            placed.add(offset, 1)
        assert tracemalloc.get_traced_memory()[0] / 20_000 < 12
    finally:
        tracemalloc.stop()
    assert placed.head() == (2, 2, 1, True)


def test_nothing_relocated_costs_nothing() -> None:
    placed = Placed()
    placed.add(500, 1, position=3)
    placed.drop(1)
    assert placed._relocated is None
    assert sys.getsizeof(placed) < 100
