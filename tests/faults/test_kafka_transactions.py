"""A short round of `kafka_rounds`."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")


def test_what_is_copied_in_transactions_is_there_once_whoever_is_killed() -> None:
    from tests.faults import kafka_rounds

    kafka_rounds.run(1, seed=0)
