"""Dead letters for queues that end with another broker."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pika
import trio

from tests.gateway.test_remote_queues import connection
from tests.support.engine_node import town_of


async def test_a_dead_letter_goes_by_its_further_keys_to_queues_of_other_brokers_too() -> None:
    async with town_of(1, 2, leader=1) as town:

        def use() -> dict[str, Any]:
            with ExitStack() as stack:
                one, two = (stack.enter_context(connection(town.nodes[broker])).channel() for broker in (1, 2))
                one.exchange_declare("dead", "direct", durable=True)
                one.queue_declare("q", durable=True, arguments={"x-dead-letter-exchange": "dead"})
                for name, key in (("first", "q"), ("further", "cc")):
                    two.queue_declare(name, exclusive=True)
                    two.queue_bind(name, "dead", key)
                one.confirm_delivery()
                one.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2, headers={"CC": ["cc"]}))
                one.basic_reject(one.basic_get("q")[0].delivery_tag, requeue=False)
                found: dict[str, Any] = {}
                until_s = time.monotonic() + 5
                while len(found) < 2 and time.monotonic() < until_s:
                    for name in ("first", "further"):
                        body = two.basic_get(name, auto_ack=True)[2]
                        if body is not None:
                            found[name] = body
                return found

        assert await trio.to_thread.run_sync(use) == {"first": b"x", "further": b"x"}
