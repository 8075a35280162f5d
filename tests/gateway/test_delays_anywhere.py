"""Queues that end with another broker, and heed `x-delay` or do not, whoever publishes to them."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pika
import trio

from tests.gateway.test_remote_queues import connection
from tests.support.engine_node import town_of

DELAY_S = 0.25


async def test_who_heeds_delays_does_so_for_publishers_at_any_broker_and_nobody_else_does() -> None:
    async with town_of(1, 2, leader=1) as town:

        def use() -> dict[tuple[int, str], set[str]]:
            with ExitStack() as stack:
                one, two = (stack.enter_context(connection(town.nodes[broker])).channel() for broker in (1, 2))
                one.exchange_declare("hash", "x-consistent-hash", durable=True)
                delayed = {"x-delayed-type": "x-consistent-hash"}
                one.exchange_declare("late", "x-delayed-message", durable=True, arguments=delayed)
                one.queue_declare("here", durable=True, arguments={"x-delayed": True})
                for name in ("heeds", "not"):
                    two.queue_declare(name, exclusive=True, arguments={"x-delayed": True} if name == "heeds" else {})
                    two.queue_bind(name, "amq.fanout")
                one.queue_bind("here", "amq.fanout")
                two.queue_declare("only", exclusive=True, arguments={"x-delayed": True})
                two.queue_bind("only", "hash", "1")
                two.queue_declare("waits", exclusive=True)
                two.queue_bind("waits", "late", "1")
                waited: dict[tuple[int, str], set[str]] = {}
                for number, channel in ((1, one), (2, two)):
                    channel.confirm_delivery()
                    for exchange in ("amq.fanout", "hash", "late"):
                        properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": int(DELAY_S * 1000)})
                        channel.basic_publish(exchange, "k", b"x", properties)
                    begun, late, left = time.monotonic(), set(), {"heeds", "not", "here", "only", "waits"}
                    while left and time.monotonic() < begun + 10:
                        for name in sorted(left):
                            if two.basic_get(name, auto_ack=True)[0] is not None:
                                left.discard(name)
                                if time.monotonic() > begun + DELAY_S / 2:
                                    late.add(name)
                    waited[number, "late"], waited[number, "left"] = late, left
                return waited

        late = {"heeds", "here", "only", "waits"}
        assert await trio.to_thread.run_sync(use) == {
            (1, "late"): late, (1, "left"): set(), (2, "late"): late, (2, "left"): set()
        }  # fmt: skip
