"""Partitions that a topic of a cluster gets while it is in use: by any broker, known to all, led by all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from core_log.absent_log import AbsentLog
from core_log.partition_log import PartitionLog
from gateway.described import described_topic
from gateway.etcd_process import EtcdProcess
from millrace import Consumer, Producer
from protocols.native.clients.client import Client
from protocols.native.errors import ErrorCode, MillraceError
from tests.gateway.test_member import Running, three, until

COUNT = 6


def counts(brokers: dict[int, Running]) -> set[int]:
    return {len(broker.server.broker.topics["t"].partitions) for broker in brokers.values()}


def logs_of(brokers: dict[int, Running], topic: str) -> list[PartitionLog]:
    return [found.log for broker in brokers.values() for found in broker.server.broker.topics[topic].partitions]


async def test_any_broker_gives_a_topic_more_and_all_lead_some(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "more") as (nursery, brokers):
        servers = [f"127.0.0.1:{broker.server.ports['native']}" for broker in brokers.values()]
        async with Client(servers[0]) as client, Client(servers[2]) as other:
            await client.create_topic("t", partitions=2, config={"min.insync.replicas": "2"})
            await client.create_topic("alone", config={"replication.factor": "1"})
            async with Producer(servers) as producer, Consumer(servers) as consumer:
                await consumer.assign("t")
                await (await producer.send("t", b"before", partition=1))
                await other.create_partitions("t", COUNT)
                await other.create_partitions("alone", 4)
                # Whoever asked is told last, but for a broker that takes seconds, as on a machine that is busy.
                await until(lambda: counts(brokers) == {COUNT})
                with pytest.raises(MillraceError, match="never fewer") as caught:
                    await client.create_partitions("t", 5)
                assert caught.value.code == ErrorCode.INVALID_ARGUMENT
                described = (await client.describe_topic("t")).partitions
                assert all(sorted(one.replicas) == [1, 2, 3] for one in described)
                assert {one.leader for one in described[2:]} == {1, 2, 3}
                with trio.fail_after(30):
                    while len(consumer.assignment) < COUNT:
                        await trio.sleep(0.01)
                    for number in range(COUNT):
                        await (await producer.send("t", b"after", partition=number))
                    read = [await anext(consumer) for _ in range(COUNT + 1)]
                assert sorted(record.partition for record in read) == sorted([1, *range(COUNT)])
            await until(lambda: sum(not isinstance(log, AbsentLog) for log in logs_of(brokers, "alone")) == 4)
            told = described_topic(await client.describe_topic("alone"))["partitions"]
            asked = next(iter(brokers))
            assert {one["partition"] for one in told if one["log_end_offset"] is not None} == {
                one["partition"] for one in told if one["replicas"] == [asked]
            }, "what others have alone is not said to be empty"
            # Two who ask at once get what they asked for, or are told why not.
            refused: list[MillraceError] = []

            async def ask(of: Client, count: int) -> None:
                try:
                    await of.create_partitions("t", count)
                except MillraceError as error:
                    refused.append(error)

            async with trio.open_nursery() as asking:
                asking.start_soon(ask, client, 8)
                asking.start_soon(ask, other, 7)
            await until(lambda: counts(brokers) == {8})
            assert all(error.code == ErrorCode.INVALID_ARGUMENT for error in refused)
            await brokers[2].stop()
            brokers[2] = Running(brokers[2].config)
            await nursery.start(brokers[2].run)
            topic = brokers[2].server.broker.topics["t"]
            assert len(topic.partitions) == 8
            await until(lambda: all(partition.log.high_watermark > 0 for partition in topic.partitions[:COUNT]))
            await client.delete_topic("t")
            await until(lambda: not any(topic.uid in log for log in brokers[2].cluster.elections.logs))


async def test_what_is_added_is_held_by_all_whoever_leads_until_a_group_has_read_the_rest(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    async with three(etcd, tmp_path, "splits") as (_, brokers):
        config = {"millrace.split.groups": "g", "millrace.split.settle.ms": "200"}
        servers = [f"127.0.0.1:{broker.server.ports['native']}" for broker in brokers.values()]

        def held(numbers: Iterable[int] = (1, 2, 3)) -> set[bool]:
            topics = [brokers[number].server.broker.topics["t"] for number in numbers]
            return {one.log.config.held for topic in topics for one in topic.partitions[2:]}

        async with Client(servers) as client, Producer(servers) as producer:
            await client.create_topic("t", partitions=2, config=config)
            await (await producer.send("t", b"before", partition=1))
            await client.create_partitions("t", 8)
            await until(lambda: counts(brokers) == {8})
            for number in range(2, 8):
                await (await producer.send("t", b"after", partition=number))
            assert held() == {True}
            leader = (await client.describe_topic("t")).partitions[0].leader
            assert leader is not None
            await brokers[leader].stop()
            left = [number for number in brokers if number != leader]
            async with Consumer(servers, "g", auto_offset_reset="earliest") as consumer:
                await consumer.assign("t")
                with trio.fail_after(40):
                    assert (await anext(consumer)).value == b"before"
                    with trio.move_on_after(0.5):
                        pytest.fail(f"{await anext(consumer)} is read before that is committed")
                    assert held(left) == {True}
                    await consumer.commit()
                    found = [await anext(consumer) for _ in range(6)]
            assert sorted(record.partition for record in found) == list(range(2, 8))
            await until(lambda: held(left) == {False})
