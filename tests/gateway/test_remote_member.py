"""AMQP clients of members of a real cluster: any broker serves them, and a leader that stops is not noticed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pika
import trio

from gateway.etcd_process import EtcdProcess
from tests.gateway.test_member import Running, three, until

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connection(one: Running) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", one.server.ports["amqp"], heartbeat=0))


async def test_a_leader_that_stops_is_not_noticed(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "any") as (_, brokers):
        homes = brokers[1].server.broker.topology.stripes
        await until(lambda: all(brokers[1].cluster.leader_of(f"home-{n}")[0] for n in range(len(homes))))
        await until(lambda: all(len(one.server.broker.engine.forwarding.links) == 2 for one in brokers.values()))  # type: ignore[union-attr]
        confirmed: list[int] = []
        got: list[tuple[int, bool]] = []
        over = threading.Event()

        queue_name = "q"

        def declare() -> None:
            with connection(brokers[2]) as there:
                there.channel().queue_declare(queue_name, durable=True)

        await trio.to_thread.run_sync(declare)
        index = brokers[1].server.broker.topology.queues[queue_name].partition.index
        away = brokers[1].cluster.leader_of(f"home-{index}")[0]
        assert away is not None
        publisher, consumer = (one for one in brokers if one != away)

        def publish() -> None:
            with connection(brokers[publisher]) as there:
                channel = there.channel()
                channel.confirm_delivery()
                number = 0
                while not over.is_set():
                    channel.basic_publish("", queue_name, b"%d" % number, PERSISTENT)
                    confirmed.append(number)
                    number += 1
                    time.sleep(0.002)

        def consume() -> None:
            with connection(brokers[consumer]) as there:
                channel = there.channel()
                channel.basic_qos(prefetch_count=10)
                for method, _, body in channel.consume(queue_name, inactivity_timeout=1):
                    if method is not None:
                        got.append((int(body), method.redelivered))
                        channel.basic_ack(method.delivery_tag)
                    elif over.is_set():
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, publish)
            nursery.start_soon(trio.to_thread.run_sync, consume)
            try:
                await until(lambda: len(got) > 50)
                await brokers[away].stop()
                there = len(confirmed)
                await until(lambda: len(confirmed) > there + 50 and len(got) > there + 50)
            finally:
                over.set()
        numbers = [number for number, _ in got]
        assert set(confirmed) <= set(numbers)
        first = [number for number, redelivered in got if not redelivered]
        assert len(first) == len(set(first)), "a message came twice and did not say so"


async def test_exchanges_reach_topics_wherever_they_are_led(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "routed") as (_, brokers):
        broker = brokers[1].server.broker
        await until(lambda: all(len(one.server.broker.engine.forwarding.links) == 2 for one in brokers.values()))  # type: ignore[union-attr]
        topic = await broker.create_topic("t", partitions=6)
        await broker.declare_exchange("x", "topic", durable=True)
        await broker.bind("topic", "t", "x", "#")
        names = [f"topic-{topic.uid}-{index}" for index in range(6)]
        await until(lambda: all(broker.cluster.leader_of(name)[0] for name in names))  # type: ignore[union-attr]
        assert len({broker.cluster.leader_of(name)[0] for name in names}) > 1  # type: ignore[union-attr]

        def publish() -> None:
            for one in brokers.values():
                with connection(one) as there:
                    channel = there.channel()
                    channel.confirm_delivery()
                    for number in range(60):
                        channel.basic_publish("x", f"key.{number}", b"%d" % number, PERSISTENT)

        await trio.to_thread.run_sync(publish)
        found = [
            brokers[leader].server.broker.topics["t"].partitions[index].log.high_watermark
            for index, name in enumerate(names)
            if (leader := broker.cluster.leader_of(name)[0]) is not None  # type: ignore[union-attr]
        ]
        assert sum(found) == 180
        assert all(found)
