"""How far readers of queues are behind that are no consumers: in messages, and how old the oldest of them is."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from core_log.files import MemoryFiles
from routing import queue_lag
from routing.access.grants import Permission
from routing.administration import administer
from routing.administration.measures import Measures
from routing.errors import AccessRefused, InvalidArgument, LimitExceeded, NotFound, PreconditionFailed
from routing.facts import pack
from routing.message import Properties
from routing.queues.waiting import waiting_between
from routing.topics.leases import LEASES_MAX
from tests.routing.harness import PROTOCOL, Engine, engine, killed, passing
from tests.support.metrics import series

HOUR_MS = 3_600_000


async def ask(running: Engine, operation: str, user: str = "guest", **arguments: Any) -> Any:
    return await administer(running.broker, user, operation, arguments)


async def reserve(running: Engine, position: int, count: int, name: str = "q", reader: str = "r") -> None:
    said = {"name": name, "reader": reader, "position": position, "count": count, "lease_ms": HOUR_MS}
    await ask(running, "queues.reserve", **said)


async def stands(running: Engine, offset: int, lease_ms: int = HOUR_MS, name: str = "q", reader: str = "r") -> None:
    await ask(running, "queues.lease", name=name, reader=reader, offset=offset, lease_ms=lease_ms)


async def shown(running: Engine, user: str = "guest", **arguments: Any) -> list[list[Any]]:
    """Without the virtual host."""
    found = await ask(running, "queues.readers", user, **arguments)
    assert found["columns"] == ["vhost", "queue", "group", "mode", "offset", "lag", "lag_ms"]
    return [row[1:] for row in found["rows"]]


async def filled(running: Engine, *numbers: int, name: str = "q") -> None:
    client = running.client()
    await client.publish_safely(name, *numbers)
    client.session.close()


async def test_who_consumes_is_behind_by_what_waits_and_what_it_is_not_done_with(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q")
        await filled(running, *range(10))
        await passing(clock, 5)
        await filled(running, *range(10))
        assert await shown(running) == []
        await reserve(running, 0, 4)
        assert await shown(running) == [["q", "r", "consume", 0, 20, 5000]]
        await reserve(running, 4, 6)
        assert await shown(running) == [["q", "r", "consume", 4, 16, 5000]]
        await reserve(running, 10, 0, reader="another")
        await reserve(running, 10, 10)
        await passing(clock, 1)
        assert await shown(running, group="r") == [["q", "r", "consume", 10, 10, 1000]]
        assert await shown(running, group="another") == [["q", "another", "consume", 10, 0, 0]]
        await running.synced()
        found = killed(files)
    async with engine(found) as running:
        assert (await shown(running))[0][:5] == ["q", "r", "consume", 10, 10]
        await reserve(running, 20, 0)
        assert await shown(running) == [["q", "r", "consume", 20, 0, 0]]
        await passing(clock, HOUR_MS / 1000 + 1)
        assert await shown(running) == [], "it was not heard of"


async def test_who_browses_is_behind_by_what_waits_from_there_on(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        for name in ("q", "other"):
            await running.queue(name)
        await filled(running, *range(10))
        await filled(running, *range(5), name="other")
        end = (await ask(running, "queues.ends", name="q"))["end"]
        await stands(running, end)
        assert await shown(running) == [["q", "r", "browse", end, 0, 0]]
        await passing(clock, 5)
        await filled(running, *range(10, 20))
        await passing(clock, 2)
        assert await shown(running) == [["q", "r", "browse", end, 10, 2000]]
        assert queue_lag.groups(running.broker) == {"r"}
        await stands(running, 0)
        assert await shown(running) == [["q", "r", "browse", 0, 20, 7000]], "the last word counts"
        client = running.client()
        await client.session.get("q", no_ack=False)
        assert (await shown(running))[0][4:] == [19, 7000], "what a consumer holds does not wait"
        client.session.close()
        running.turn()
        assert (await shown(running))[0][4:] == [20, 7000], "it was given back"
        await running.drain("q")
        assert await shown(running) == [["q", "r", "browse", 0, 0, 0]]
        await stands(running, 0, 0)
        await stands(running, 0, 0, name="other")
        assert (await shown(running), queue_lag.groups(running.broker)) == ([], set())


async def test_who_browses_is_forgotten_when_it_is_not_heard_of_and_with_the_queue(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        for name in ("q", "gone"):
            await running.queue(name)
            await stands(running, 0, 10_000, name=name)
        await running.broker.delete_queue("gone")
        await passing(clock, 9)
        assert [row[0] for row in await shown(running)] == ["q"]
        queue_lag.tidy(running.broker)
        assert running.broker.browsed.keys() == {("/", "q")}
        await passing(clock, 2)
        assert (await shown(running), queue_lag.groups(running.broker)) == ([], set())
        queue_lag.tidy(running.broker)
        assert not running.broker.browsed


async def test_priorities_delays_and_transient_queues() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-priority": 5})
        client = running.client()
        for number in range(6):
            properties = Properties(PROTOCOL, b"", persistent=True, facts=pack(True, number % 3))
            client.publish("q", number, properties=properties, confirm=True)
            running.turn()
        third = waiting_between([running.broker.topology.queues["q"]], 0, 1 << 40)[2]
        await stands(running, third)
        assert (await shown(running))[0][4] == 4
        await reserve(running, 0, 2)  # the two of the highest priority, both further on
        assert [row[2:5] for row in await shown(running)] == [["consume", 0, 6], ["browse", third, 2]]
        await running.queue("light", durable=False)
        client.publish("light", 1)
        running.turn()
        await stands(running, 0, name="light")
        (row,) = [row for row in await shown(running) if row[0] == "light"]
        assert row[4:] == [1, None], "nobody knows how old it is"
        found = series(await Measures(running.broker, 100).families())
        assert found["millrace_group_queue_lag_messages", "r", "/", "light", "browse"] == 1
        assert ("millrace_group_queue_lag_seconds", "r", "/", "light", "browse") not in found


async def test_figures_for_monitoring_look_up_an_age_once(clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        await filled(running, *range(10))
        await stands(running, 0)
        await reserve(running, 0, 3, reader="taker")
        await passing(clock, 5)
        measures = Measures(running.broker, 100)
        for age in (5, 6):
            found = series(await measures.families())
            for group, mode, lag in (("r", "browse", 7), ("taker", "consume", 10)):
                assert found["millrace_group_queue_lag_messages", group, "/", "q", mode] == lag
                assert found["millrace_group_queue_lag_seconds", group, "/", "q", mode] == age
            monkeypatch.setattr(queue_lag, "published_at", None)
            await passing(clock, 1)
        monkeypatch.undo()
        few = {one.name: one for one in await Measures(running.broker, 1).families()}
        for what in ("messages", "seconds"):
            assert few[f"millrace_group_queue_lag_{what}"].left_off == 1


async def test_who_may_say_and_see_what() -> None:
    async with engine(MemoryFiles()) as running:
        for name in ("q", "other"):
            await running.queue(name)
            await stands(running, 0, name=name)
        await running.broker.rights.add_user("ada", b"x")
        assert await shown(running, "ada") == []
        await running.broker.rights.set_permission("/", "ada", Permission("", "", "other"))
        assert [row[0] for row in await shown(running, "ada")] == ["other"]
        with pytest.raises(AccessRefused):
            await ask(running, "queues.lease", "ada", name="q", reader="r", offset=0, lease_ms=1)
        for given, error in (
            ({"offset": -1}, InvalidArgument),
            ({"reader": ""}, InvalidArgument),
            ({"name": "nowhere"}, NotFound),
        ):
            with pytest.raises(error):
                await stands(running, **{"offset": 0, **given})  # type: ignore[arg-type]
        for number in range(1, LEASES_MAX):
            await stands(running, 0, reader=f"r{number}")
        with pytest.raises(LimitExceeded):
            await stands(running, 0, reader="one more")
        await running.broker.create_topic("t", partitions=1, config={})
        await running.queue("seen", arguments={"x-queue-type": "view", "x-view-topic": "t"})
        with pytest.raises(PreconditionFailed, match="is a view"):
            await stands(running, 0, name="seen")
