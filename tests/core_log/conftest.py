"""What runs here is in one process, by one clock."""

from __future__ import annotations

from tests.support.steady_clock import pytest_itemcollected as pytest_itemcollected
