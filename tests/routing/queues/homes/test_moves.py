"""Where moved messages lie, against a dictionary."""

from __future__ import annotations

import random

import pytest

from routing.queues.fact_columns import BLOCK_BITS
from routing.queues.homes.moves import Moves

BLOCK = 1 << BLOCK_BITS


@pytest.mark.parametrize("seed", range(10))
def test_random_moves(seed: int) -> None:
    dice = random.Random(seed)
    moves, where = Moves(), {}
    location = 4 * BLOCK
    for _ in range(20):
        runs, at = [], 0
        for _ in range(dice.randint(1, 40)):
            at += dice.randint(0, 3000)
            count = dice.randint(1, dice.choice([1, 20, 5000]))
            if at + count > 3 * BLOCK:
                break
            runs.append((at, count, location))
            where.update({at + index: location + index for index in range(count)})
            location += count + dice.randint(0, 2)
            at += count
        moves.place(dice.sample(runs, len(runs)))
        assert moves.before == max(where, default=-1) + 1
    found = {first + at: place + at for first, count, place in moves.all() for at in range(count)}
    assert found == where
    for first in dice.sample(range(3 * BLOCK), 50):
        count = dice.randint(1, 3000)
        pieces = list(moves.pieces(first, count))
        assert sum(number for _, number, _ in pieces) == count
        for start, number, place in pieces:
            assert all(where.get(start + at, start + at) == place + at for at in range(number))
        run = moves.run_of(first)
        assert (first if run is None else run[2] + first - run[0]) == where.get(first, first)
    loaded = Moves()
    loaded.load(moves.columns())
    assert list(loaded.all()) == list(moves.all())


@pytest.mark.parametrize("seed", range(20))
def test_what_is_moved_several_times_at_once_lies_where_it_was_moved_last(seed: int) -> None:
    dice = random.Random(seed)
    moves, where = Moves(), {}
    location = 4 * BLOCK
    for _ in range(3):
        runs = []
        for _ in range(dice.randint(1, 30)):
            first, count = dice.randrange(BLOCK - 300, BLOCK + 300), dice.randint(1, 40)
            runs.append((first, count, location))
            where.update({first + index: location + index for index in range(count)})
            location += count
        moves.place(runs)
        assert {first + at: place + at for first, count, place in moves.all() for at in range(count)} == where
        assert all(moves.location(offset) == place for offset, place in where.items())


def test_blocks_go_when_nothing_in_them_is_live() -> None:
    moves = Moves()
    moves.place([(BLOCK - 5, 10, 9 * BLOCK)])
    moves.count(BLOCK - 5, 10, 2)
    assert moves.count(BLOCK - 5, 10, -1) == []
    assert moves.first == 0
    assert moves.count(BLOCK - 5, 5, -1) == [0]
    assert moves.first == BLOCK
    assert moves.run_of(BLOCK - 1) is None
    assert moves.count(BLOCK, 5, -1) == [1]
    assert not moves
    assert moves.before == 0
