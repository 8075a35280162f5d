"""What the leader of wills remembers of the processes that speak of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from trio.testing import MockClock

from core_log.errors import LogUnavailable
from core_log.memory_files import MemoryFiles
from routing.broker import open_broker
from routing.cluster.clients import led_wills
from routing.cluster.clients.led_wills import LedWills
from routing.kept.wills import Will, key_of
from tests.routing.harness import PERSISTENT, passing

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


async def test_an_owner_is_back_before_who_leads_may_write_again(clock: MockClock) -> None:
    """The will that he had then was published, though he was there."""

    async def committed() -> None:
        await broker.retained.log.wait_committed(broker.retained.log.log_end_offset)

    async with open_broker(MemoryFiles()) as broker:
        keeping: Any = SimpleNamespace(retained=broker.retained, is_over=False, may_write=True, committed=committed)
        wills = LedWills(broker, broker.retained._store, cast("Any", keeping), 0)
        tag = PERSISTENT.log_tag
        first, second = [
            Will("guest", "amq.topic", "t", tag, tag, body, delay_ms=1000, holder=(2, PROCESS, number))
            for number, body in ((1, b"first"), (2, b"second"))
        ]
        wills.take(PROCESS, 0, "/", ("keep", "device", tuple(first)))
        wills.take(PROCESS, 1, "/", ("send", "device", first.holder, 1000))
        keeping.may_write = False
        await passing(clock, 1.1)
        keeping.may_write = True
        wills.take(PROCESS, 2, "/", ("returned", "device", False))
        wills.take(PROCESS, 3, "/", ("keep", "device", tuple(second)))
        await passing(clock, 10)
        assert broker.retained.get("/", "t") is None
        wills.take(PROCESS, 4, "/", ("send", "device", second.holder, 0))
        found = broker.retained.get("/", "t")
        assert found is not None
        assert found.body == b"second"
        keeping.is_over = True


@pytest.mark.parametrize("delay_ms", [0, 60_000])
async def test_what_the_log_refuses_means_the_same_when_it_is_said_again(delay_ms: int) -> None:
    """A delayed will whose owner came back afresh was dropped; and one that was to be sent was not published any more
    when the broker that had said so was gone before it said so again.
    """
    async with open_broker(MemoryFiles()) as broker:
        store = broker.retained._store
        keeping: Any = SimpleNamespace(retained=broker.retained, is_over=False, may_write=True)
        wills = LedWills(broker, store, cast("Any", keeping), 0)
        will = Will("guest", "amq.topic", "t", b"", None, b"gone", holder=(2, PROCESS, 1))
        said: list[tuple[Any, ...]] = [("keep", "device", tuple(will)), ("send", "device", (2, PROCESS, 1), delay_ms)]
        if delay_ms:
            said.append(("returned", "device", True))
        for position, fields in enumerate(said[:-1]):
            wills.take(PROCESS, position, "/", fields)
        store.log.error = OSError("the disk refuses")
        with pytest.raises(LogUnavailable):
            wills.take(PROCESS, len(said) - 1, "/", said[-1])
        store.log.error = None
        assert len(wills._waiting) + len(wills._holders) == 1
        wills.take(PROCESS, len(said) - 1, "/", said[-1])
        assert len(wills._open) == 1
        assert not wills._waiting
        assert not wills._holders
        keeping.is_over = True


async def test_the_will_of_who_is_there_after_all_does_not_wait_any_more(clock: MockClock) -> None:
    """His broker had stood still, or was cut off: it was published though that was back in time, with the client."""

    async def committed() -> None:
        await broker.retained.log.wait_committed(broker.retained.log.log_end_offset)

    async with open_broker(MemoryFiles()) as broker:
        keeping: Any = SimpleNamespace(retained=broker.retained, is_over=False, may_write=True, committed=committed)
        wills = LedWills(broker, broker.retained._store, cast("Any", keeping), 0)
        tag, delays_ms = PERSISTENT.log_tag, (0, 5000, 5000)
        for number, delay_ms in enumerate(delays_ms):
            kept = Will("guest", "amq.topic", f"t{number}", tag, tag, b"gone", None, delay_ms, 0, (2, PROCESS, number))
            wills.take(PROCESS, number, "/", ("keep", f"device-{number}", tuple(kept)))
        wills.look(lambda *_: True, 0)
        await passing(clock, 1)
        wills.take(PROCESS, 3, "/", ("send", "device-2", (2, PROCESS, 2), 5000))
        wills.look(lambda *_: False, 0)
        asked = [("/", f"device-{number}", number) for number in range(len(delays_ms))]
        assert wills.lost((2, PROCESS), asked) == [0]
        await passing(clock, 10)
        assert [broker.retained.get("/", f"t{number}") is not None for number in range(3)] == [True, False, True]
        assert wills._holders == {(2, PROCESS): {key_of("/", "device-1")}}
        assert not wills._gone
        wills.look(lambda *_: True, 0)
        await passing(clock, 6)
        assert broker.retained.get("/", "t1") is not None
        wills.look(lambda *_: True, 0)
        assert not wills._gone
        assert wills.lost((2, PROCESS), asked) == [0, 1, 2]
        keeping.is_over = True
