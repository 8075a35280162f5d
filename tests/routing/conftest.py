"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from tests.support import steady_clock


def pytest_itemcollected(item: pytest.Item) -> None:
    """Brokers, what is between them, and the store of their leases are in one process here."""
    steady_clock.use(item)


@pytest.fixture
def clock() -> MockClock:
    """Makes time a parameter of the test: it goes by only when the test says so (`harness.passing`)."""
    return MockClock()
