"""Seeds of random tests: a few for every run, the others with what is left out unless it is asked for."""

from __future__ import annotations

from typing import Any

import pytest


def seeds(every_day: int, soak: int) -> list[Any]:
    """Parameters from 0 on; those from `every_day` on, up to `soak`, are for `pytest -m soak`."""
    return [*range(every_day), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(every_day, soak))]
