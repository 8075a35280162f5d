"""Short rounds of `transaction_rounds`, `cluster_transaction_rounds` and `step_rounds`."""

from __future__ import annotations

import pytest

from tests.faults import cluster_transaction_rounds, step_rounds
from tests.faults.transaction_rounds import run


def test_a_killed_broker_has_done_whole_transactions_only() -> None:
    run(2, seed=5, tasks=300)


def test_a_killed_member_of_a_cluster_leaves_whole_transactions_only() -> None:
    cluster_transaction_rounds.run(1, seed=5, tasks=200)


@pytest.mark.soak
def test_steps_take_effect_once_though_members_of_a_cluster_are_killed() -> None:
    step_rounds.run(2, seed=5)
