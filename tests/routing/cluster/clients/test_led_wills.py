"""What the leader of wills remembers of the processes that speak of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from core_log.memory_files import MemoryFiles
from routing.broker import open_broker
from routing.cluster.clients import led_wills
from routing.cluster.clients.led_wills import LedWills
from routing.kept.wills import Will

PROCESS = 7


async def test_a_process_that_was_away_for_a_while_is_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said once more what it had said before, and its clients' wills were made, and published, twice."""
    async with open_broker(MemoryFiles()) as broker:
        keeping: Any = SimpleNamespace(retained=broker.retained, is_over=False, may_write=True)
        wills = LedWills(broker, broker.retained._store, cast("Any", keeping), 0)
        will = Will("guest", "amq.topic", "t", b"", None, b"gone", holder=(2, PROCESS, 1))
        said = [("keep", "device", tuple(will)), ("erase", "device", (2, PROCESS, 1))]
        for position, fields in enumerate(said):
            wills.take(PROCESS, position, "/", fields)
        wills.forget_processes([])
        for position, fields in enumerate(said[:1]):
            wills.take(PROCESS, position, "/", fields)
        assert not wills._holders
        monkeypatch.setattr(led_wills, "_FORGOTTEN_AFTER_S", 0.0)
        wills.forget_processes([PROCESS])
        assert PROCESS in wills._positions
        wills.forget_processes([])
        assert PROCESS not in wills._positions
        keeping.is_over = True
