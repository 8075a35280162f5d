"""A short round of `transaction_rounds`."""

from __future__ import annotations

from tests.faults.transaction_rounds import run


def test_a_killed_broker_has_done_whole_transactions_only() -> None:
    run(2, seed=5, tasks=300)
