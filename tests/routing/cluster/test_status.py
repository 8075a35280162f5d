"""What an operator is shown and told of a cluster: brokers, partitions, and what is not as it should be."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.files import MemoryFiles
from core_log.log_config import LogConfig
from core_log.replication.state import LogState, decode, encode, log_key
from routing.administration import administer
from routing.broker import Broker, open_broker
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.health import place
from tests.routing.cluster.metadata.test_elections import One, epochs_of, start
from tests.routing.cluster.metadata.test_members import cluster, until
from tests.simulation.etcd_model import EtcdModel
from tests.support.replica_node import batch_of


async def asked(broker: Broker, name: str) -> Any:
    return await administer(broker, "guest", name, {})


async def partitions(broker: Broker) -> dict[tuple[str, int], dict[str, Any]]:
    found = await asked(broker, "cluster.partitions")
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return {(row["topic"], row["partition"]): row for row in rows}


def test_the_place_of_a_log() -> None:
    topics = {"ab-c": "orders"}
    assert place("home-3", topics) == ("__queues", 3)
    assert place("offsets-0", topics) == ("__offsets", 0)
    assert place("topic-ab-c-12", topics) == ("orders", 12)
    assert place("topic-gone-1", topics) == ("gone", 1)
    assert place("else", topics) == ("else", 0)


async def test_a_single_broker_is_the_only_replica_of_everything() -> None:
    async with open_broker(MemoryFiles()) as broker:
        topic = await broker.create_topic("t", partitions=2, config={})
        topic.partitions[1].append(batch_of(0, 10, 10))
        topic.partitions[1].log.request_sync()
        await topic.partitions[1].log.wait_committed(10)
        found = await asked(broker, "cluster.brokers")
        assert (found["broker"], found["controller"]) == (0, None)
        assert [(one["id"], one["alive"]) for one in found["brokers"]] == [(0, True)]
        there = await partitions(broker)
        homes = len(broker.topology.stripes)
        assert sorted(there) == [("__offsets", 0), *(("__queues", n) for n in range(homes)), ("t", 0), ("t", 1)]
        assert there["t", 1] == {
            "topic": "t", "partition": 1, "leader": 0, "epoch": 0, "replicas": [0], "isr": [0],
            "min_insync_replicas": 1, "log_end_offset": 10, "high_watermark": 10, "offsets_of": 0,
            "unclean_elections": False, "unclean_epoch": 0, "single_copy": True,
        }  # fmt: skip


async def test_what_the_metadata_says_of_a_cluster_is_shown_and_what_is_wrong_is_logged(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    mock_clock.autojump_threshold = 0
    caplog.set_level(logging.INFO, logger="routing.cluster.metadata.health")
    model = EtcdModel()
    async with cluster(model) as nursery:
        one, elections = await start(nursery, model, 1, MemoryFiles())
        two = await One(model, 2).start(nursery)
        await until(lambda: len(one.members.brokers) == 2)
        epochs = epochs_of(one)
        part = Cluster(one.store, one.members, elections)
        async with open_broker(one.files, cluster=part) as broker:
            log = part.open_log("home-0", "logs/home-0", LogConfig())
            mine = LogState(replicas=(1,), isr=((1, epochs[1]),))
            shared = LogState(replicas=(1, 2), isr=((1, epochs[1]), (2, epochs[2])), min_insync=2)
            elsewhere = LogState(replicas=(2,), isr=((2, epochs[2]),))
            states = {"home-0": mine, "topic-a-0": shared, "offsets-7": elsewhere}
            await one.store.change([], [(log_key(b"", name), encode(state)) for name, state in states.items()])
            await until(lambda: part.may_append("home-0"))
            log.append(batch_of(0, 10, 10))
            found = await partitions(broker)
            assert list(found) == [("__offsets", 7), ("__queues", 0), ("a", 0)]
            row = found["__queues", 0]
            assert (row["leader"], row["epoch"], row["replicas"], row["isr"]) == (1, 1, [1], [1])
            assert (row["log_end_offset"], row["high_watermark"], row["offsets_of"]) == (10, 0, 1)
            row = found["__offsets", 7]
            assert (row["leader"], row["replicas"], row["log_end_offset"]) == (2, [2], None)
            assert found["a", 0]["min_insync_replicas"] == 2
            assert [row["single_copy"] for row in found.values()] == [True, True, False]
            assert part.counters.snapshot()["single_copy"] == 1, "of what has a replica here"
            await trio.sleep(2)
            caplog.clear()
            two.kill()
            await until(lambda: len(one.members.brokers) == 1)
            await trio.sleep(2)
            said = [
                record.getMessage() for record in caplog.records if record.name == "routing.cluster.metadata.health"
            ]
            assert said == ["under-replicated: 1 partitions, a-0"], (
                "the one that only the other had is not this broker's"
            )
            found = await partitions(broker)
            assert found["__offsets", 7]["leader"] is None
            assert found["a", 0]["single_copy"], "the other replica is gone"
            assert part.counters.snapshot()["single_copy"] == 2
            brokers = await asked(broker, "cluster.brokers")
            assert (brokers["broker"], brokers["controller"]) == (1, 1)
            assert [(row["id"], row["alive"]) for row in brokers["brokers"]] == [(1, True), (2, False)]
            caplog.clear()
            entry = one.store.get(log_key(b"", "topic-a-0"))
            assert entry is not None
            assert entry.value is not None
            alone = LogState(replicas=(1,), isr=decode(entry.value).isr, leader=1, leader_epoch=9)
            await one.store.change([], [(entry.key, encode(alone))])
            await trio.sleep(2)
            said = [
                record.getMessage() for record in caplog.records if record.name == "routing.cluster.metadata.health"
            ]
            assert said == ["no partition is under-replicated any more"]
        one.kill()
