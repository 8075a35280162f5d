"""Groups that are too far behind: said once, moved on if that is asked for, and told without reading a record."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from routing.administration.measures import Measures
from routing.config import BrokerConfig
from routing.errors import InvalidConfig
from routing.topics.topic_config import log_config
from tests.routing.harness import Engine, engine, passing
from tests.routing.queues.test_views import append
from tests.support.metrics import series

PLACE = ("t", 0)
SKIP = {"millrace.max.lag.action": "skip", "millrace.max.lag.groups": "g, h"}


async def topic(running: Engine, **config: str) -> None:
    await running.broker.create_topic("t", config={"millrace.max.lag": "4"} | config)
    await append(running, *range(10))


async def stand(running: Engine, group: str, offset: int) -> None:
    await running.broker.offsets.commit(group, {PLACE: (offset, "note")})


async def position(running: Engine, group: str) -> int:
    return (await running.broker.offsets.fetch(group, [PLACE]))[PLACE][0]


async def counted(running: Engine) -> list[float]:
    found = series(await Measures(running.broker, 100).families())
    return [found[f"millrace_group_lag_{what}",] for what in ("alerts", "skips", "skipped_records")]


async def test_it_is_said_once_until_a_group_has_caught_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        await running.broker.create_topic("free")
        await running.broker.offsets.commit("g", {("free", 0): (0, ""), ("t", 7): (0, "")})
        look = running.broker.lag_rules.look
        await stand(running, "g", 5)
        await stand(running, "near", 6)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "read", None)
            patch.setattr(PartitionLog, "read_cold", None)
            for _ in range(3):
                await look()
        (said,) = [one.getMessage() for one in caplog.records if one.name == "routing.groups.lag_rules"]
        assert said == "group g is 5 records behind in partition 0 of topic t, more than 4"
        assert await counted(running) == [1, 0, 0]
        await stand(running, "g", 10)
        await look()
        await stand(running, "g", 0)
        await look()
        assert await position(running, "g") == 0
        assert await counted(running) == [2, 0, 0]
        await running.broker.topics["t"].partitions[0].log.delete_records(7)
        await look()
        await stand(running, "late", 0)
        await look()
        assert await counted(running) == [2, 0, 0], "what is gone is nothing to be behind of"


async def test_groups_that_are_named_are_moved_on(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running, **SKIP)
        for group, offset in (("g", 2), ("h", 7), ("other", 0)):
            await stand(running, group, offset)
        for _ in range(2):
            await running.broker.lag_rules.look()
        assert [await position(running, group) for group in ("g", "h", "other")] == [6, 7, 0]
        assert (await running.broker.offsets.fetch("g", [PLACE]))[PLACE][1] == "note"
        assert await counted(running) == [1, 1, 4]
        said = [one.getMessage() for one in caplog.records if one.name == "routing.groups.lag_rules"]
        assert said[1:] == ["group g skips 4 records of partition 0 of topic t, and goes on at 6"]
        await running.broker.topic_control.alter_topic("t", lambda config: {})
        await stand(running, "g", 0)
        await running.broker.lag_rules.look()
        assert await position(running, "g") == 0


async def test_a_position_that_a_transaction_may_change_is_let_be() -> None:
    async def there() -> None:
        pass

    async with engine(MemoryFiles()) as running:
        await topic(running, **SKIP)
        await stand(running, "g", 1)
        offsets = running.broker.groups._store_of("g")
        assert offsets is not None
        await offsets.commit_pending("g", 7, {PLACE: (3, "")}, there)
        await running.broker.lag_rules.look()
        assert await position(running, "g") == 1
        await offsets.end_pending("g", 7, committed=True)
        await running.broker.lag_rules.look()
        assert await position(running, "g") == 6
        assert await counted(running) == [1, 1, 3]


async def test_it_is_looked_at_now_and_then(mock_clock: MockClock) -> None:
    often = {"housekeeping_interval_ms": 1000, "reclaim_interval_ms": 10_000, "group_offsets_retention_ms": 1 << 50}
    async with engine(MemoryFiles(), **often) as running:
        await topic(running, **{"retention.ms": "-1"} | SKIP)
        await stand(running, "g", 0)
        for _ in range(12):
            await passing(mock_clock, 1)
        assert await position(running, "g") == 6


def test_only_groups_that_are_named_can_be_moved() -> None:
    config = {"millrace.max.lag": "4", "millrace.max.lag.action": "skip"}
    with pytest.raises(InvalidConfig, match=r"wants millrace\.max\.lag\.groups"):
        log_config(config, BrokerConfig())
    with pytest.raises(InvalidConfig, match="is none of alert, skip"):
        log_config(config | {"millrace.max.lag.action": "dead-letter"}, BrokerConfig())
    found = log_config(config | {"millrace.max.lag.groups": "a,b"}, BrokerConfig())
    assert (found.max_lag, found.max_lag_action, list(found.max_lag_groups)) == (4, "skip", ["a", "b"])
