"""How much waits in queues is told by every broker alike, whoever leads them: real links, a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest
import trio

from gateway.etcd_process import EtcdProcess
from routing import queue_lag
from routing.administration import administer, figures
from routing.administration.measures import Measures
from routing.broker import Broker
from routing.topics.offset_store import Committed
from tests.gateway.test_member import three, until
from tests.gateway.test_remote_queues import client, declare, send
from tests.support.engine_node import town_of
from tests.support.metrics import series
from tests.support.replica_node import batch_of

NAMES = ("a", "b", "c", "d")


async def told(broker: Broker, operation: str, *columns: str) -> dict[str, Any]:
    """What a broker answers: by name, some columns of each row."""
    found = await administer(broker, "guest", operation, {})
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return {row[columns[0]]: tuple(row[column] for column in columns[1:]) for row in rows}


def fill(channel: Any) -> None:
    """One more in line and delayed in each queue than in the one before it, and one that is delivered."""
    channel.confirm_delivery()
    for count, name in enumerate(NAMES, 1):
        declare(channel, name, delayed=True)
        send(channel, *["x"] * (count + 1), queue=name)
        send(channel, *["x"] * (count - 1), queue=name, headers={"x-delay": 3_600_000})
        channel.basic_get(name)


EXPECTED = {name: (count, 1, count - 1) for count, name in enumerate(NAMES, 1)}


async def all_say_so(brokers: list[Broker], given_back: bool) -> None:
    expected = {name: (ready + given_back, 1 - given_back, later) for name, (ready, _, later) in EXPECTED.items()}
    for broker in brokers:
        found = await told(broker, "queues.list", "name", "ready", "unacknowledged", "delayed")
        assert {name: found[name] for name in NAMES} == expected
        assert await told(broker, "delayed.count", "queue", "delayed") == {"b": (1,), "c": (2,), "d": (3,)}
        total = sum(ready + unacknowledged for ready, unacknowledged, _ in expected.values())
        assert (await told(broker, "vhosts.list", "name", "messages"))["/"] == (total,)


async def each_queue_is_measured_once(brokers: list[Broker]) -> None:
    found = [series(await Measures(broker, 100).families()) for broker in brokers]
    for name in NAMES:
        assert sum(("millrace_queue_messages_ready", "/", name) in one for one in found) == 1
    held = sum(one["millrace_messages_ready",] + one["millrace_messages_unacknowledged",] for one in found)
    assert held == sum(ready + unacknowledged for ready, unacknowledged, _ in EXPECTED.values())
    assert sum(one["millrace_partition_leaders",] for one in found) > 0
    assert {one["millrace_partitions_leaderless",] for one in found} == {0}


async def groups_are_measured_wherever_partitions_lie(brokers: list[Broker]) -> None:
    """By the broker that looks after a group, whoever leads the partition."""
    topic = await brokers[0].create_topic("spread", assignment=[[1], [2], [3]], config={"retention.ms": "-1"})
    places = {(topic.name, number): Committed(0) for number in range(3)}
    for broker in brokers:
        await until(lambda broker=broker: "spread" in broker.topics)
        here = next(one for one in broker.topics["spread"].partitions if one.is_here)
        await until(lambda here=here: here.leadership.refusal() is None)
        here.append(batch_of(0, 5, 10))
        here.log.request_sync()
        await until(lambda here=here: here.log.high_watermark == 5)
    for broker in brokers:
        parts = broker.topics["spread"].partitions
        await until(lambda parts=parts: all(one.is_here or one.forward is not None for one in parts))
    await brokers[0].offsets.commit("everywhere", places)
    found: dict[tuple[str, ...], float] = {}
    for broker in brokers:
        one = series(await Measures(broker, 100).families())
        assert not (found.keys() & one.keys() & {key for key in one if "everywhere" in key})
        found |= one
    for number in range(3):
        assert found["millrace_group_lag_records", "everywhere", "spread", str(number)] == 5
        assert found["millrace_group_lag_seconds", "everywhere", "spread", str(number)] > 1e5  # two days
        assert found["millrace_topic_end_offset", "spread", str(number)] == 5
    await groups_are_moved_on_wherever_partitions_lie(brokers)


async def groups_are_moved_on_wherever_partitions_lie(brokers: list[Broker]) -> None:
    """Likewise, and once."""
    rule = {"millrace.max.lag": "2", "millrace.max.lag.action": "skip", "millrace.max.lag.groups": "everywhere"}
    await brokers[0].topic_control.alter_topic("spread", lambda config: config | rule)
    for broker in brokers:
        parts = broker.topics["spread"].partitions
        await until(lambda parts=parts: all(one.log.config.max_lag == 2 for one in parts))
        await broker.lag_rules.look()
    known = await brokers[0].offsets.fetch("everywhere")
    assert sorted(known.items()) == [(("spread", number), Committed(3)) for number in range(3)]
    await until(lambda: any(broker.lag_rules.skips for broker in brokers))  # one's own look may have come before ours
    counts = sorted((broker.lag_rules.skips, broker.lag_rules.skipped_records) for broker in brokers)
    assert counts == [(0, 0), (0, 0), (3, 9)]
    rule = {"millrace.max.lag": "1", "millrace.max.lag.action": "dead-letter"}
    await brokers[0].topic_control.alter_topic("spread", lambda config: config | rule)
    for broker in brokers:
        parts = broker.topics["spread"].partitions
        await until(lambda parts=parts: all(one.log.config.max_lag == 1 for one in parts))
    moved = {("spread", number): Committed(4) for number in range(3)}
    with trio.fail_after(20):
        while await brokers[0].offsets.fetch("everywhere") != moved:  # until somebody leads the new topic
            for broker in brokers:
                await broker.lag_rules.look()
            await trio.sleep(0.05)
    assert sorted(broker.lag_rules.dead_letters > 2 for broker in brokers) == [False, False, True]
    assert (await brokers[0].topics["spread.dlq"].partitions[0].ends())[1] >= 3


async def readers_of_queues_are_told_of_by_leaders(brokers: list[Broker]) -> None:
    """Each once, whichever broker a reader asks."""
    for name in NAMES:
        said = {"name": name, "reader": "spark", "lease_ms": 60_000}
        asked = next(one for one in brokers if one.topology.queues[name].elsewhere)
        await administer(asked, "guest", "queues.reserve", {**said, "position": 0, "count": 1})
        await administer(asked, "guest", "queues.lease", {**said, "offset": 0})
    pages = [(await administer(one, "guest", "queues.readers", {"group": "spark"}))["rows"] for one in brokers]
    found = sorted((name, mode, lag) for page in pages for _, name, _, mode, _, lag, age_ms in page if age_ms < 60_000)
    counts = [(name, ready) for name, (ready, _, _) in EXPECTED.items()]
    assert found == sorted(
        one for name, ready in counts for one in ((name, "browse", ready), (name, "consume", ready + 1))
    )
    assert [queue_lag.groups(one) for one in brokers] == [{"spark"} if page else set() for page in pages]


async def test_all_brokers_say_the_same_and_nothing_of_a_leader_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with town_of(1, 2, 3) as town:
        town.lead(1, 2)
        await town.linked()

        def use(channel: Any) -> None:
            fill(channel)
            trio.from_thread.run(all_say_so, [node.broker for node in town.nodes.values()], False)

        await client(town.nodes[3], use)
        led = [name for name in NAMES if town.nodes[1].broker.topology.queues[name].partition.index == 1]
        assert 0 < len(led) < len(NAMES)
        town.lead(1, None)
        monkeypatch.setattr(figures, "_PATIENCE_S", 0.3)
        found = await told(town.nodes[3].broker, "queues.list", "name", "delayed")
        assert found == {name: (None if name in led else EXPECTED[name][2],) for name in NAMES}
        counted = await told(town.nodes[3].broker, "delayed.count", "queue", "delayed")
        assert counted == {name: delayed for name, delayed in found.items() if delayed != (0,)}


async def test_members_say_the_same(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "told") as (_, members):
        brokers = [one.server.broker for one in members.values()]
        cluster = brokers[0].cluster
        assert cluster is not None
        await until(lambda: all(cluster.leader_of(f"home-{n}")[0] for n in range(len(brokers[0].topology.stripes))))
        await until(lambda: all(len(broker.engine.forwarding.links) == 2 for broker in brokers if broker.engine))

        def use() -> None:
            port = members[2].server.ports["amqp"]
            with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)) as there:
                fill(there.channel())

        await trio.to_thread.run_sync(use)
        await until(lambda: not any(queue.outstanding for broker in brokers for queue in broker.topology.all_queues()))
        await all_say_so(brokers, True)
        await each_queue_is_measured_once(brokers)
        await groups_are_measured_wherever_partitions_lie(brokers)
        await readers_of_queues_are_told_of_by_leaders(brokers)
