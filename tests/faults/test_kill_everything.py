"""A short round of `kill_everything`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kill_everything import rounds
from tests.support.power import NoSuchDisk


def test_a_killed_broker_keeps_its_promises_with_everything_on(tmp_path: Path) -> None:
    with rounds(tmp_path, seed=7) as all_rounds:
        all_rounds.round()
        assert all_rounds.ledger.told


def test_a_broker_that_loses_power_keeps_its_promises_with_everything_on(tmp_path: Path) -> None:
    try:
        with rounds(tmp_path, seed=8, power=True) as all_rounds:
            all_rounds.round()
            assert all_rounds.ledger.told
    except NoSuchDisk as error:
        pytest.skip(f"no file system of its own can be had here: {error}")
