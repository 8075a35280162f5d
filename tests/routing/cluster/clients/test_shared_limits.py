"""Consumers of one channel that share a limit, of queues that another broker leads."""

from __future__ import annotations

from collections.abc import Callable

import trio

from routing.message import Slab
from routing.unsettled import Outcome
from tests.routing.cluster.clients.test_served_consumers import Reader
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, Town, town_of


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.001)


def publish(town: Town, queue: str, *bodies: bytes) -> None:
    Reader(town.nodes[1]).session.publish(Slab("", queue, PERSISTENT, list(bodies)))
    town.nodes[1].broker.end_turn()


async def worker(node: EngineNode, limit: int) -> Reader:
    """One for tasks of two queues, as Celery's: a limit for both together."""
    found = Reader(node)
    found.session.set_prefetch(limit, per_session=True)
    for queue in ("a", "b"):
        await found.session.consume(queue, tag=queue, no_ack=False)
    node.broker.end_turn()
    return found


def done(one: Reader) -> None:
    one.session.settle_up_to(0, Outcome.ACK)
    one.session.broker.end_turn()


async def test_what_a_worker_cannot_be_given_as_it_is_busy_with_another_queue_goes_to_one_that_waits() -> None:
    async with town_of(1, 2, 3, leader=1) as town:
        for queue in ("a", "b"):
            await town.nodes[1].broker.declare_queue(queue, durable=True)
        busy = await worker(town.nodes[2], 1)
        publish(town, "a", b"takes an hour")
        await until(lambda: busy.got == 1)
        idle = await worker(town.nodes[3], 1)
        for number in range(3):
            publish(town, "b", b"%d" % number)
            await until(lambda number=number: idle.got == number + 1)  # type: ignore[misc]
            done(idle)
        assert (busy.bodies, idle.bodies) == ([b"takes an hour"], [b"0", b"1", b"2"])
        assert not any(idle.redelivered)
        done(busy)
        publish(town, "b", b"x", b"y")
        await until(lambda: busy.got + idle.got == 6)
        assert busy.bodies[1:] + idle.bodies[3:] in ([b"x", b"y"], [b"y", b"x"])


async def test_what_went_back_comes_in_its_order_with_what_was_sent_meanwhile() -> None:
    async with town_of(1, 2, leader=1) as town:
        for queue in ("a", "b"):
            await town.nodes[1].broker.declare_queue(queue, durable=True)
        one = await worker(town.nodes[2], 8)
        forwarding, sent = town.nodes[2].engine.forwarding, 0
        for _ in range(4):
            publish(town, "a", *[b"a"] * 8)
            await until(lambda: one.session.outstanding == 8)
            publish(town, "b", b"%d" % sent, b"%d" % (sent + 1))
            sent += 2
            await until(lambda: bool(forwarding.held_up))
            while forwarding.held_up:
                await trio.sleep(0.001)
            publish(town, "b", b"%d" % sent)  # which may be on its way while those go back
            sent += 1
            await trio.lowlevel.checkpoint()
            with trio.fail_after(10):
                while len(one.bodies) < 8 * (sent // 3) + sent or one.session.outstanding:
                    done(one)
                    await trio.sleep(0.001)
        assert [body for body in one.bodies if body != b"a"] == [b"%d" % number for number in range(sent)]
        assert not any(one.redelivered)
