"""Log that stays on disk because of few messages is to be seen."""

from __future__ import annotations

import pytest

from core_log.files import MemoryFiles
from routing.queues.homes.home_status import warn_of_pinned_bytes
from tests.routing.harness import engine


async def test_one_straggler_pins_what_was_settled_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(MemoryFiles(), stripes=1, pinned_warning_bytes=50_000) as running:
        await running.queue("q")
        client = running.client()
        await client.publish_safely("q", *["x" * 100] * 1000)
        await client.consume("q")
        client.take()
        home = running.home("q")
        assert home.status.live_messages == 1000
        assert home.status.pinned_bytes < 1000
        warn_of_pinned_bytes(home)
        assert not caplog.records
        client.ack(2, 1000)
        running.turn()
        status = running.broker.home_statuses()[0]
        assert (status.stripe, status.queues, status.live_messages) == (0, 1, 1)
        assert status.pinned_bytes > 100_000
        warn_of_pinned_bytes(home)
        warn_of_pinned_bytes(home)
        assert [str(status.pinned_bytes) in record.message for record in caplog.records] == [True]
        client.session.close()
