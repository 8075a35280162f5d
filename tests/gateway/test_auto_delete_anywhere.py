"""A queue that goes with its last consumer is gone when the client is told that it consumes no more: who declares it
then, at any broker of a cluster, has one that stays, and once somebody has deleted it, at any, what is published
anywhere comes back.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pika
import pytest
import trio

from gateway.etcd_process import EtcdProcess
from tests.gateway.test_member import three


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def ends(port: int, queue: str, end: str) -> pika.BlockingConnection:
    """Who has consumed a queue, and does no more; most of what is in it was not delivered."""
    connection = connect(port)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    tag = channel.basic_consume(queue, lambda *_: None)
    if end == "cancel":
        channel.basic_cancel(tag)
    elif end == "channel":
        channel.close()
    else:
        connection.close()
    return connection


def declares_anew(ports: list[int]) -> None:
    """One has declared a queue, another consumes it no more, a third declares it: at all these brokers."""
    connections = [connect(port) for port in ports]
    channels = [connection.channel() for connection in connections]
    for channel in channels:
        channel.confirm_delivery()
    places = ((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 1, 2))
    for (first, second, third), durable, end in product(places, (True, False), ("cancel", "channel", "connection")):
        name = f"{first}-{second}-{third}-{durable}-{end}"
        one, other = channels[first], channels[third]
        one.queue_declare(name, durable=durable, auto_delete=True)
        for _ in range(3):
            one.basic_publish("", name, b"old", mandatory=True)
        ended = ends(ports[second], name, end)
        declared = other.queue_declare(name, durable=durable, auto_delete=True).method
        assert declared.message_count == 0, f"{name}: what is declared is the old one"
        other.basic_publish("", name, b"new", mandatory=True)
        assert other.basic_get(name, auto_ack=True)[2] == b"new"
        other.queue_delete(name)
        with pytest.raises(pika.exceptions.UnroutableError):
            one.basic_publish("", name, b"late", mandatory=True)
        if ended.is_open:
            ended.close()
    for connection in connections:
        connection.close()


async def test_who_declares_it_anew_has_one_that_stays(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "going") as (_, brokers):
        ports = [one.server.ports["amqp"] for one in brokers.values()]
        await trio.to_thread.run_sync(declares_anew, ports)
