"""Exclusive consumers of a queue that another broker leads: where deliveries lie is kept until they are settled."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from routing.cluster.clients.remote_queue import RemoteQueue
from routing.facts import pack
from routing.message import Slab
from routing.unsettled import Outcome
from tests.routing.cluster.clients.test_no_ack import (
    PATIENCE_S,
    Client,
    scene,
    until_all_is_sent,
    until_all_is_somewhere,
)
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import town_of


@pytest.mark.parametrize("end", ["all has come", "on its way", "link lost"])
async def test_nothing_is_kept_of_deliveries_that_were_not_passed_on(end: str) -> None:
    async with town_of(1, 2, leader=1) as town:
        client = await scene(town)
        client.open = False
        client.session.prefetch_default = 100
        for number in range(3):
            consumer = await client.session.consume("q", tag=str(number), no_ack=False, exclusive=True)
            queue = consumer.queue
            assert isinstance(queue, RemoteQueue)
            client.open = True
            consumer.queue.wake()
            client.broker.end_turn()
            client.open = False
            if end != "on its way":
                await until_all_is_sent(town)
                await trio.testing.wait_all_tasks_blocked(0.01)
            if end == "link lost":
                town.nodes[1].engine.serving.links[2].link.replaced()
                await trio.testing.wait_all_tasks_blocked(0.01)
            client.session.cancel(consumer)
            client.broker.end_turn()
            await until_all_is_somewhere(town, client)
        with trio.fail_after(PATIENCE_S):
            while queue._places._runs:
                await trio.sleep(0.01)


async def test_nor_of_what_comes_when_it_has_cancelled() -> None:
    async with town_of(1, 2, leader=1) as town:
        client = await scene(town)
        consumer = await client.session.consume("q", tag="t", no_ack=False, exclusive=True, prefetch=100)
        queue = consumer.queue
        assert isinstance(queue, RemoteQueue)
        client.broker.end_turn()
        with trio.fail_after(PATIENCE_S):
            while len(client.given) < 100:
                await trio.sleep(0.01)
        client.session.cancel(consumer)
        (attachment,) = queue._attachments.values()
        queue.placed(attachment.number, 101, [500, 501])
        queue.delivered(attachment.link, attachment.number, 101, False, Slab("", "q", PERSISTENT, [b"1", b"2"]))
        client.session.settle_up_to(0, Outcome.ACK)
        assert not queue._places._runs


async def test_where_deliveries_lie_is_known_in_whatever_order_they_come() -> None:
    async with town_of(1, 2, leader=1) as town:
        leader = town.nodes[1].broker
        await leader.declare_queue("q", durable=True, arguments={"x-max-priority": 9})
        bodies = [b"%d" % number for number in range(9)]
        facts = [pack(True, number % 3) for number in range(9)]
        slab = Slab("", "q", PERSISTENT, bodies, raws=[PERSISTENT.raw] * 9, facts=facts)
        Client(town.nodes[1]).session.publish(slab)
        leader.end_turn()
        client = Client(town.nodes[2])
        consumer = await client.session.consume("q", tag="t", no_ack=False, exclusive=True, prefetch=100)
        client.broker.end_turn()
        with trio.fail_after(PATIENCE_S):
            while len(client.given) < 9:
                await trio.sleep(0.01)
        assert client.given == [b"2", b"5", b"8", b"1", b"4", b"7", b"0", b"3", b"6"]
        queue = consumer.queue
        assert isinstance(queue, RemoteQueue)
        places = [place for one in client.session.unsettled for place in one.offsets_of(one.first, one.end)]
        offsets = queue.offsets_of(places)
        assert offsets is not None
        assert [offset - min(offsets) for offset in offsets] == [2, 5, 8, 1, 4, 7, 0, 3, 6]
