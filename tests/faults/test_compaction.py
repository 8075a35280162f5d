"""A short round of kill -9 while a log is compacted."""

from __future__ import annotations

from tests.faults.compaction_rounds import rounds


def test_a_few_rounds() -> None:
    rounds(5, 7)
