"""Brokers of one process, by one clock; those of which an etcd knows go by its clock, the world's."""

from __future__ import annotations

import pytest

from tests.support import steady_clock


def pytest_itemcollected(item: pytest.Item) -> None:
    """See `steady_clock`."""
    if "etcd" not in getattr(item, "fixturenames", ()):
        steady_clock.use(item)
