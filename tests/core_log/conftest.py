"""What runs here is in one process, by one clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from core_log.log_flusher import LogFlusher
from tests.support.steady_clock import pytest_itemcollected as pytest_itemcollected


@pytest.fixture
async def flusher() -> AsyncIterator[LogFlusher]:
    """One that runs and retries at once."""
    flusher = LogFlusher(retry_interval_s=0.001)
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        yield flusher
        nursery.cancel_scope.cancel()
