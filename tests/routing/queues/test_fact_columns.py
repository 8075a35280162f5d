"""Facts by offset: what goes in comes out, block by block, whatever the runs are."""

from __future__ import annotations

import random

from routing.queues.fact_columns import BLOCK_BITS, FactColumns, from_columns, to_columns

WIDE = (1 << 83) + 5
BLOCK = 1 << BLOCK_BITS


def test_columns_both_ways() -> None:
    for facts in ([0], [1, 2, 3], [(1 << 64) - 1], [WIDE], [1, WIDE, 0, (1 << 64)]):
        assert from_columns(*to_columns(facts)) == facts
    assert to_columns([1, 2])[1] is None


def test_random_runs_against_a_dictionary() -> None:
    dice = random.Random(5)
    columns, expected = FactColumns(), {}
    offset = 100
    for time_ms in range(400):
        offset += dice.choice([0, 1, 50])
        facts = [dice.choice([3, 700, WIDE]) for _ in range(dice.choice([1, 7, 300]))]
        columns.add(offset, to_columns(facts), time_ms)
        expected.update({offset + at: (one, time_ms) for at, one in enumerate(facts)})
        offset += len(facts)
    for start in range(0, offset, 997):
        found = {
            run.first + at: (one, run.timestamp_ms)
            for run in columns.between(start, 1500)
            for at, one in enumerate(run.facts)
        }
        assert found == {at: expected[at] for at in range(start, start + 1500) if at in expected}
    for at in dice.sample(range(offset), 200):
        assert columns.of(at) == expected.get(at)


def test_a_run_over_several_blocks_goes_with_them() -> None:
    columns = FactColumns()
    columns.add(BLOCK - 10, to_columns([7] * (BLOCK + 20)), 5)
    assert sum(len(run.facts) for run in columns.between(0, 4 * BLOCK)) == BLOCK + 20
    columns.drop(1)
    assert [(run.first, len(run.facts)) for run in columns.between(0, 4 * BLOCK)] == [(BLOCK - 10, 10), (2 * BLOCK, 10)]
    columns.keep({2})
    assert columns.of(BLOCK - 1) is None
    assert columns.of(2 * BLOCK + 9) == (7, 5)
    columns.drop(2)
    assert not columns
