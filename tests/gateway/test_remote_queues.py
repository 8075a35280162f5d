"""Clients of a broker that leads none of their queues notice nothing of it: real clients, real links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import trio

from tests.support.engine_node import EngineNode, town_of


def connection(node: EngineNode) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0))


async def client(node: EngineNode, use: Callable[[Any], Any]) -> Any:
    """What a blocking client does with a channel."""

    def run() -> Any:
        with connection(node) as there:
            return use(there.channel())

    with trio.fail_after(20):
        return await trio.to_thread.run_sync(run)


async def test_what_is_published_is_confirmed_consumed_and_gone() -> None:
    async with town_of(1, 2) as town:

        def use(channel: Any) -> list[bytes]:
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for number in range(20):
                channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
            assert channel.queue_declare("q", passive=True).method.message_count == 20
            channel.basic_qos(prefetch_count=3)
            got = []
            for method, _, body in channel.consume("q", inactivity_timeout=2):
                got.append(body)
                assert not method.redelivered
                channel.basic_ack(method.delivery_tag)
                if len(got) == 20:
                    break
            channel.cancel()
            assert channel.queue_declare("q", passive=True).method.message_count == 0
            return got

        assert await client(town.nodes[2], use) == [b"%d" % number for number in range(20)]
