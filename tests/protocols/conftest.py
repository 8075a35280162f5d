"""What runs here is in one process, by one clock."""

from __future__ import annotations

import pytest

from tests.support import steady_clock


def pytest_itemcollected(item: pytest.Item) -> None:
    """See `steady_clock`."""
    steady_clock.use(item)
