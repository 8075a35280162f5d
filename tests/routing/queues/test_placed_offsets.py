"""Placed offsets against a plain dictionary of offset to flag."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.queues import offset_set
from routing.queues.placed_offsets import NOTHING, Placed

_SPACE = 200


class PlacedMachine(RuleBasedStateMachine):
    """Offsets below _SPACE."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(offset_set, "_CHUNK_RANGES", 4)
        self.real = Placed()
        self.model: dict[int, bool] = {}

    def teardown(self) -> None:
        self.patch.undo()

    @rule(first=st.integers(0, _SPACE - 1), count=st.integers(1, 5), redelivered=st.booleans())
    def add(self, first: int, count: int, redelivered: bool) -> None:
        if not self.model.keys().isdisjoint(range(first, first + count)):
            return
        self.real.add(first, count, redelivered=redelivered)
        self.model |= dict.fromkeys(range(first, first + count), redelivered)

    @precondition(lambda self: self.model)
    @rule(share=st.floats(0, 1), times=st.integers(1, 10))
    def drop(self, share: float, times: int) -> None:
        for _ in range(times):
            if not self.model:
                return
            first, count, redelivered = self.real.head()
            assert count > 0
            in_order = sorted(self.model)[:count]
            assert in_order == list(range(first, first + count))
            assert {self.model[offset] for offset in in_order} == {redelivered}
            number = max(1, int(count * share))
            self.real.drop(number)
            for offset in in_order[:number]:
                del self.model[offset]

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, _SPACE))
        run = st.integers(low, low + 50).map(lambda stop: set(range(low, stop)))
        some = sorted(data.draw(st.one_of(st.sets(st.integers(0, _SPACE), max_size=300), run)))
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
        again = [
            offset for first, count in self.real.ranges_of(redelivered=True) for offset in range(first, first + count)
        ]
        assert sorted(again) == sorted(offset for offset, redelivered in self.model.items() if redelivered)
        assert len(self.real) == self.real.count == len(self.model)
        if not self.model:
            assert self.real.head() == NOTHING
            assert not self.real.head()[1]


PlacedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPlaced = PlacedMachine.TestCase


def test_both_kinds_take_turns() -> None:
    placed = Placed()
    placed.add(10, 2)
    placed.add(20, 1)
    placed.add(15, 1, redelivered=False)
    order = []
    while placed.count:
        order.append(placed.head())
        placed.drop(order[-1][1])
    assert order == [(10, 2, True), (15, 1, False), (20, 1, True)]


def test_many_single_offsets_cost_bytes_not_objects() -> None:
    tracemalloc.start()
    try:
        placed = Placed()
        for offset in range(40_000, 0, -2):
            placed.add(offset, 1)
        assert tracemalloc.get_traced_memory()[0] / 20_000 < 12
    finally:
        tracemalloc.stop()
    assert placed.head() == (2, 1, True)
