"""Who publishes and then counts, purges or deletes means what was published as well, at any broker of a cluster."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest
import trio
from pika.exceptions import ChannelClosedByBroker

from gateway.etcd_process import EtcdProcess
from tests.gateway.test_member import three, until


def publishes_and_asks(port: int) -> None:
    """What a blocking client does with one channel."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()

        def publish() -> None:
            channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))

        for _ in range(10):
            publish()
            assert channel.queue_declare("q", passive=True).method.message_count == 1
            publish()
            assert channel.queue_purge("q").method.message_count == 2
            assert channel.basic_get("q") == (None, None, None)
            publish()
            assert channel.queue_declare("q", durable=True).method.message_count == 1
            assert channel.queue_purge("q").method.message_count == 1
        publish()
        with pytest.raises(ChannelClosedByBroker, match="not empty"):
            channel.queue_delete("q", if_empty=True)
        channel = connection.channel()
        publish()
        assert channel.queue_purge("q").method.message_count == 2
        channel.queue_delete("q", if_empty=True)
        channel.queue_declare("q", durable=True)


async def test_what_was_published_before_counts(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "counted") as (_, brokers):
        await brokers[1].server.broker.declare_queue("q", durable=True)
        await until(lambda: all("q" in one.server.broker.topology.queues for one in brokers.values()))
        for one in brokers.values():
            with trio.fail_after(60):
                await trio.to_thread.run_sync(publishes_and_asks, one.server.ports["amqp"])
