"""Replicated logs under faults: random schedules, those that once found something, and rules that are wrong."""

from __future__ import annotations

import itertools

import pytest

from tests.simulation.checker import Violation
from tests.simulation.mutations import CAUGHT_BY, CAUGHT_WITH_MOVES_BY, Mutation
from tests.simulation.seeds import LOGS
from tests.simulation.world import run_seed

SCHEDULES = 100
WITH_MOVES = 20
FIRST = 1_000_000


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_lost_whatever_fails(part: int) -> None:
    confirmed = given = 0
    for seed in range(FIRST + part, FIRST + SCHEDULES, 4):
        world = run_seed(seed)
        confirmed += sum(history.confirmed for history in world.checker.histories.values())
        given += sum(history.given for history in world.checker.histories.values())
    assert confirmed > SCHEDULES * 5, "schedules in which nothing is confirmed show nothing"
    assert given > SCHEDULES * 5


def test_nothing_is_lost_while_leaders_and_replicas_move() -> None:
    confirmed = handed_over = dropped = 0
    for seed in range(FIRST, FIRST + WITH_MOVES):
        world = run_seed(seed, moves=True)
        confirmed += sum(history.confirmed for history in world.checker.histories.values())
        dropped += sum(sum(machine.dropped.values()) for machine in world.machines.values())
        handed_over += sum(history.handed_over for history in world.checker.histories.values())
    assert min(confirmed / 10, handed_over, dropped) > WITH_MOVES, (confirmed, handed_over, dropped)


@pytest.mark.parametrize(("seed", "found"), LOGS.items())
def test_what_once_went_wrong(seed: int, found: str) -> None:
    run_seed(seed)


def test_one_seed_is_one_story() -> None:
    stories = [run_seed(7).clockwork.story for _ in range(2)]
    assert stories[0] == stories[1]
    assert run_seed(8).clockwork.story != stories[0]


@pytest.mark.parametrize("mutation", CAUGHT_BY, ids=lambda mutation: mutation.__name__)
def test_a_wrong_rule_is_caught(mutation: Mutation) -> None:
    is_caught(mutation, CAUGHT_BY[mutation], moves=False)


@pytest.mark.parametrize("mutation", CAUGHT_WITH_MOVES_BY, ids=lambda mutation: mutation.__name__)
def test_a_wrong_rule_of_moves_is_caught(mutation: Mutation) -> None:
    is_caught(mutation, CAUGHT_WITH_MOVES_BY[mutation], moves=True)


def is_caught(mutation: Mutation, known: int, *, moves: bool) -> None:
    """By the seed that did it when this was written, else by one of the next hundred."""
    for seed in itertools.chain([known], range(100)):
        with mutation():
            found = violation_of(seed, moves)
        if found is not None:
            assert found[:2] in ("1:", "2:", "3:", "4:", "5:", "7:"), found
            return
    pytest.fail(f"{mutation.__name__} breaks nothing that is looked at")


def violation_of(seed: int, moves: bool) -> str | None:
    try:
        run_seed(seed, moves=moves)
    except Violation as violation:
        return str(violation)
    return None
