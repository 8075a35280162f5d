"""One round of every attack in `hostile_clients`."""

from __future__ import annotations

from tests.faults.hostile_clients import run


def test_an_honest_client_is_served_among_hostile_ones() -> None:
    run(0, seed=3)
