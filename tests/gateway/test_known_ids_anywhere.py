"""Records that are to be there once, in a cluster: whoever leads knows what the leaders before it took."""

from __future__ import annotations

import time
from pathlib import Path

import pika
import pytest
import trio
from pika.exceptions import NackError

from core_log.batch_header import validate
from core_log.record_batch import BatchBuilder
from core_log.wall_clock import wall_clock_ms
from gateway.etcd_process import EtcdProcess
from protocols.native.clients.blocking import BlockingClient
from protocols.native.clients.blocking_consumer import BlockingConsumer
from tests.gateway.test_member import three, until
from tests.gateway.test_streams_anywhere import Reader, Town, read
from tests.routing.harness import with_headers
from tests.routing.topics.test_streams import STREAM
from tests.support.cluster import cluster_processes

WINDOW_MS = 600_000


def batch_of(*ids: str) -> bytes:
    builder = BatchBuilder(0, 0, wall_clock_ms())
    for number, one in enumerate(ids):
        builder.add(number, b"s", one.encode(), [("message-id", one.encode())])
    return builder.build()


async def publish(there: Town, number: int, *ids: str) -> None:
    """By a client of one broker, until all are confirmed; what a leader that goes refuses is sent again."""
    while True:
        client = there.engines[number].client()
        for one in ids:
            client.publish("s", one, properties=with_headers({"message-id": one}), confirm=True)
        client.engine.turn()
        await until(lambda client=client: client.confirmed == len(ids) or "refuse" in dict(client.events))  # type: ignore[misc]
        client.session.close()
        if client.confirmed == len(ids):
            return
        await trio.sleep(0.02)


async def test_the_next_leader_knows_what_was_published_through_any_broker(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "once") as (_, brokers):
        there, first = Town(brokers), brokers[1].server.broker
        arguments = STREAM | {"x-deduplication-window-ms": WINDOW_MS}
        await first.declare_queue("s", durable=True, arguments=arguments)
        await until(lambda: all("s" in one.broker.topology.vhosts["/"].streams for one in there.engines.values()))
        await until(lambda: any(there.stream(number)._partition.forward is None for number in brokers))
        for number in brokers:
            await publish(there, number, "a", "b", f"of {number}")
        expected = ["a", "b", "of 1", "of 2", "of 3"]
        leader = there.leader
        await there.brokers[leader].stop()
        del there.brokers[leader]
        await until(lambda: any(there.stream(number)._partition.forward is None for number in there.brokers))
        for number in there.brokers:
            await publish(there, number, *expected, f"later of {number}")
        expected += [f"later of {number}" for number in there.brokers]
        partition = there.stream(there.leader)._partition
        batch = batch_of("b", "c")
        await partition.append_once([validate(batch)], [batch])
        partition.log.request_sync()
        for number in there.brokers:
            reader = Reader(there.engines[number])
            await reader.read("s", "first")
            assert await read(reader, len(expected) + 1) == [*expected, "c"]


@pytest.mark.soak
def test_a_leader_that_is_killed_leaves_what_it_knew(tmp_path: Path) -> None:
    """A queue and a topic, by AMQP: what was confirmed is there once, though it is sent again to the next leader."""
    with cluster_processes(tmp_path, relayed=False) as cluster:
        with BlockingClient(cluster.server(1)) as native:
            native.create_topic("t", config={"millrace.deduplication.window.ms": str(WINDOW_MS)})
            native.bind_topic("t", "amq.topic", "once")
        cluster.until_whole(topics=["t"])
        (partition,) = [one for one in cluster.status(1)["partitions"] if one["topic"] == "t"]
        killed = partition["leader"]
        left = next(number for number in cluster.brokers if number != killed)
        address = pika.ConnectionParameters("127.0.0.1", cluster.brokers[left].amqp_port, heartbeat=0)
        with pika.BlockingConnection(address) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True, arguments={"x-deduplication-window-ms": WINDOW_MS})
            channel.queue_bind("q", "amq.topic", "once")

            def send(number: int) -> None:
                said = pika.BasicProperties(delivery_mode=2, message_id=f"id {number}")
                while True:
                    try:
                        return channel.basic_publish("amq.topic", "once", b"%d" % number, said)
                    except NackError:
                        time.sleep(0.05)

            for number in range(20):
                send(number)
            cluster.kill9(killed)
            for number in range(25):
                send(number)
            expected = [b"%d" % number for number in range(25)]
            assert [channel.basic_get("q", auto_ack=True)[2] for _ in expected] == expected
            assert channel.basic_get("q") == (None, None, None)
        with BlockingConsumer(cluster.server(left), auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            found: list[bytes | None] = []
            while found[-1:] != expected[-1:]:
                found += [record.value for record in consumer.fetch()]
        assert found == expected
