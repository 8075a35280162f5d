"""Short rounds of `transaction_rounds` and `cluster_transaction_rounds`."""

from __future__ import annotations

from tests.faults import cluster_transaction_rounds
from tests.faults.transaction_rounds import run


def test_a_killed_broker_has_done_whole_transactions_only() -> None:
    run(2, seed=5, tasks=300)


def test_a_killed_member_of_a_cluster_leaves_whole_transactions_only() -> None:
    cluster_transaction_rounds.run(1, seed=5, tasks=200)
