"""One round of every attack in `hostile`."""

from __future__ import annotations

from tests.protocols.mqtt.hostile import run


def test_an_honest_device_is_served_among_hostile_ones() -> None:
    run(0, seed=5)
