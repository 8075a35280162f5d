"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture
def clock() -> MockClock:
    """Makes time a parameter of the test: it goes by only when the test says so (`harness.passing`)."""
    return MockClock()
