"""Fixtures of the engine's tests. Brokers, what is between them, and the store of their leases are in one process here,
by one clock.
"""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from tests.support.steady_clock import pytest_itemcollected as pytest_itemcollected


@pytest.fixture
def clock() -> MockClock:
    """Makes time a parameter of the test: it goes by only when the test says so (`harness.passing`)."""
    return MockClock()
