"""A short round of `kill_everything`."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_everything import rounds


def test_a_killed_broker_keeps_its_promises_with_everything_on(tmp_path: Path) -> None:
    with rounds(tmp_path, seed=7) as all_rounds:
        all_rounds.round()
        assert all_rounds.ledger.told
