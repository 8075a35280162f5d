"""A queue that goes with its last consumer is gone when the client is told that it consumes no more: who declares it
then, at any broker of a cluster, has one that stays.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pika
import trio
from pika.adapters.blocking_connection import BlockingChannel

from gateway.etcd_process import EtcdProcess
from tests.gateway.test_member import three


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def consumes(channel: BlockingChannel, queue: str, *, durable: bool) -> str:
    channel.queue_declare(queue, durable=durable, auto_delete=True)
    tag: str = channel.basic_consume(queue, lambda *_: None)
    return tag


def declares_anew(first: int, second: int, name: str, durable: bool) -> None:
    """One consumes a queue no more, another declares it."""
    one, other = connect(first), connect(second)
    channel, others = one.channel(), other.channel()
    others.confirm_delivery()
    for end in ("cancel", "channel", "connection"):
        tag = consumes(channel, name, durable=durable)
        if end == "cancel":
            channel.basic_cancel(tag)
        elif end == "channel":
            channel.close()
            channel = one.channel()
        else:
            one.close()
        others.queue_declare(name, durable=durable, auto_delete=True)
        other.process_data_events(0.02)
        others.basic_publish("", name, end.encode(), mandatory=True)
        others.queue_declare(name, passive=True)
        assert others.basic_get(name, auto_ack=True)[2] == end.encode()
        others.queue_delete(name)
    other.close()


async def test_who_declares_it_anew_has_one_that_stays(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "going") as (_, brokers):
        ports = [one.server.ports["amqp"] for one in brokers.values()]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for first, second in product(ports, ports):
                    for durable in (True, False):
                        name = f"{first}-{second}-{durable}"
                        nursery.start_soon(trio.to_thread.run_sync, declares_anew, first, second, name, durable)
