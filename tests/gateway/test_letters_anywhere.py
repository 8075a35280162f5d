"""Dead letters for queues that end with another broker."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pika
import pytest
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


@pytest.mark.parametrize("by", ["", "dead"])
async def test_a_message_that_expires_does_not_go_round_between_queues_of_two_brokers(by: str) -> None:
    async with town_of(1, 2, leader=1) as town:

        def declare(channel: Any, name: str, then: str) -> None:
            letters = {"x-dead-letter-exchange": by, "x-dead-letter-routing-key": then}
            channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 10, **letters})
            if by:
                channel.queue_bind(name, by, name)

        def use() -> tuple[int, Any]:
            with ExitStack() as stack:
                one, two = (stack.enter_context(connection(town.nodes[broker])).channel() for broker in (1, 2))
                one.exchange_declare("dead", "direct", durable=True)
                declare(one, "a", "b")
                declare(two, "b", "a")
                one.confirm_delivery()
                one.basic_publish("", "a", b"x")
                until_s = time.monotonic() + 5
                while sum(deaths()) < 2 and time.monotonic() < until_s:
                    time.sleep(0.001)
                time.sleep(0.1)  # in which it would have gone round some times more
                died = sum(deaths())
                for name in ("a", "b"):  # a client that publishes what has died is not concerned
                    died_before = pika.BasicProperties(headers={"x-death": [{"queue": name, "reason": "expired"}]})
                    (two if name == "a" else one).basic_publish(by, name, b"y", died_before)
                while sum(deaths()) < died + 2 and time.monotonic() < until_s:
                    time.sleep(0.001)
                return died, sum(deaths())

        def deaths() -> list[int]:
            return [node.broker.host.deaths["expired"] for node in town.nodes.values()]

        assert await trio.to_thread.run_sync(use) == (2, 4)
