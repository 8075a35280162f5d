"""Whole brokers under faults: random schedules, those that once found something, and rules that are wrong.

Each part is a process of its own, in which sets have the order that they have when a seed is run again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.simulation.brokers.mutations import CAUGHT_BY, Mutation
from tests.simulation.seeds import BROKERS, HARSH

FIRST = 1_000_000


def simulate(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", "--brokers", *map(str, options)]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment, check=False)


@pytest.mark.parametrize(("schedules", "kind"), [(4, []), (3, ["--harsh"])], ids=["plain", "harsh"])
def test_nothing_is_lost_whatever_fails(schedules: int, kind: list[str]) -> None:
    found = simulate("--schedules", schedules, "--first", FIRST, *kind)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    confirmed, delivered, again = (
        int(re.search(rf"(\d+) {name}", found.stdout)[1])  # type: ignore[index]
        for name in ("messages confirmed", "deliveries", "of them again")
    )
    assert min(confirmed, delivered, 10 * again) > 100 * schedules, found.stdout


@pytest.mark.soak
@pytest.mark.parametrize(("seeds", "kind"), [(BROKERS, []), (HARSH, ["--harsh"])], ids=["plain", "harsh"])
def test_what_once_went_wrong(seeds: dict[int, str], kind: list[str]) -> None:
    found = simulate(*(option for seed in seeds for option in ("--seed", seed)), *kind)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]


def test_one_seed_is_one_story() -> None:
    stories = simulate("--seed", 7, "--seed", 7).stdout.splitlines()
    assert stories[0].startswith("seed 7: ")
    assert stories[0] == stories[1]


@pytest.mark.parametrize("mutation", CAUGHT_BY, ids=lambda mutation: mutation.__name__)
def test_a_wrong_rule_is_caught(mutation: Mutation) -> None:
    seed, invariants = CAUGHT_BY[mutation]
    is_caught(mutation, invariants, (seed, 1), (0, 40))


def is_caught(mutation: Mutation, invariants: str, *seeds: tuple[int, int]) -> None:
    for first, schedules in seeds:
        found = simulate("--mutation", mutation.__name__, "--first", first, "--schedules", schedules)
        if found.returncode:
            assert found.stdout[0] in invariants, found.stdout[-6000:] + found.stderr[-2000:]
            assert "again: python -m tests.simulation --seed" in found.stdout
            return
    pytest.fail(f"{mutation.__name__} breaks nothing that is looked at")
