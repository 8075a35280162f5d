"""How many queues a virtual host may have: all that there are count, at whichever broker."""

from __future__ import annotations

import pytest
import trio

from routing.errors import NoRoomForQueue
from tests.support.engine_node import town_of


async def test_queues_that_end_with_other_brokers_count() -> None:
    async with town_of(1, 2, stripes=1) as town:
        one, two = (town.nodes[number].broker for number in (1, 2))
        vhost = one.topology.vhosts["/"]
        await one.set_vhost("/", limits={"max-queues": 3})
        await one.declare_queue("durable", durable=True)
        named = (await two.declare_queue("")).name
        with trio.fail_after(10):
            await two.declare_queue("", exclusive=True, owner=two)
            while sum(map(vhost.is_others, [named, *(queue.name for queue in two.topology.owned[two])])) < 2:
                await trio.sleep(0.001)
            for broker in (one, two):
                with pytest.raises(NoRoomForQueue, match=r"queue limit in vhost '/' \(3\) is reached"):
                    await broker.declare_queue("", exclusive=True, owner=broker)
            await two.delete_queue(named)
            while vhost.is_others(named):
                await trio.sleep(0.001)
            await one.declare_queue("", exclusive=True, owner=one)
