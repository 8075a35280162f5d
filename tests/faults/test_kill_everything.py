"""A short round of `kill_everything`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kill_everything import Rounds, rounds
from tests.support.power import NoSuchDisk


def until_something_was_confirmed(all_rounds: Rounds) -> None:
    """On a busy machine the kill may be earlier than that."""
    while not all_rounds.ledger.told:
        all_rounds.round()


def test_a_killed_broker_keeps_its_promises_with_everything_on(tmp_path: Path) -> None:
    with rounds(tmp_path, seed=7) as all_rounds:
        until_something_was_confirmed(all_rounds)


def test_a_broker_that_loses_power_keeps_its_promises_with_everything_on(tmp_path: Path) -> None:
    try:
        with rounds(tmp_path, seed=8, power=True) as all_rounds:
            until_something_was_confirmed(all_rounds)
    except NoSuchDisk as error:
        pytest.skip(f"no file system of its own can be had here: {error}")
