"""Two rounds of `mqtt_rounds`."""

from __future__ import annotations

import pytest

pytest.importorskip("paho.mqtt.client")


def test_exactly_once_whoever_is_killed() -> None:
    from tests.faults import mqtt_rounds

    mqtt_rounds.run(2, seed=1)
