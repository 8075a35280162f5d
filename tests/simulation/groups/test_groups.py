"""Consumer groups under faults: random schedules, and rules that are wrong."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.simulation.checker import Violation
from tests.simulation.groups.mutations import MUTATIONS
from tests.simulation.groups.schedules import KINDS, run_seed
from tests.simulation.groups.seeds import GROUPS

SCHEDULES = 12
FIRST = 1_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_twice_or_by_nobody_and_no_offset_goes_back(kind: str) -> None:
    found = [run_seed(seed, kind=kind) for seed in range(FIRST, FIRST + SCHEDULES)]
    assert sum(one.committed for one in found) > SCHEDULES * 100, "schedules in which nothing is read show nothing"
    assert sum(one.restarts for one in found) > SCHEDULES


@pytest.mark.parametrize("seed", GROUPS)
def test_what_was_once_wrong(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_that_is_wrong_is_found(name: str) -> None:
    kind, known, mutation = MUTATIONS[name]
    with mutation(), pytest.raises((Violation, KeyError)):  # a group may notice that a place has no owner
        run_seeds([known, *range(200)], kind)


def run_seeds(seeds: Iterable[int], kind: str) -> None:
    for seed in seeds:
        run_seed(seed, kind=kind)
