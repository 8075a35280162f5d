"""What is refused of publishes to a queue that another broker leads."""

from __future__ import annotations

import trio

from core_log.partition_log import PartitionLog
from routing.message import Slab
from routing.session import Session
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, town_of

FULL_SOON = {"x-max-length": 1, "x-overflow": "reject-publish"}


class Publisher:
    """It notes what it is told, if it asks."""

    def __init__(self, node: EngineNode) -> None:
        self.session: Session = node.broker.session(self, protocol="amqp", owner=self)  # type: ignore[arg-type]
        self.told: list[tuple[str, int, int]] = []

    def publish(self, *, confirm: bool) -> None:
        self.session.publish(Slab("", "q", PERSISTENT, [b"x", b"y"]), confirm=confirm)
        self.session.broker.end_turn()

    def confirm(self, up_to: int) -> None:
        self.told.append(("confirm", up_to, up_to))

    def refuse(self, first: int, last: int, error: Exception) -> None:
        self.told.append(("refuse", first, last))

    def writable(self) -> bool:
        return True


async def test_the_leader_does_not_tell_of_them_for_ever_where_nobody_waits() -> None:
    async with town_of(1, 2, leader=1) as town:
        leader, forwarding = town.nodes[1], town.nodes[2].engine.forwarding
        await leader.broker.declare_queue("q", durable=True, arguments=FULL_SOON)
        publisher = Publisher(town.nodes[2])
        with trio.fail_after(10):
            for count in range(1, 101):
                publisher.publish(confirm=False)
                (stream,) = [one for one in forwarding.streams.values() if one.next_position]
                while stream.written_offset < 2 * count:
                    await trio.sleep(0.001)
            served = leader.engine.serving.links[2].publisher
            assert served is not None
            taken = served.logs[stream.name]
            while taken.refused:
                await trio.sleep(0.001)
        assert taken.next_position == 200


async def test_who_waits_is_told_of_his_own_when_others_do_not_wait() -> None:
    async with town_of(1, 2, leader=1) as town:
        await town.nodes[1].broker.declare_queue("q", durable=True, arguments=FULL_SOON)
        one, other = Publisher(town.nodes[2]), Publisher(town.nodes[2])
        with trio.fail_after(10):
            for count in range(1, 21):
                other.publish(confirm=False)
                one.publish(confirm=True)
                while not one.told or one.told[-1][2] < 2 * count:
                    await trio.sleep(0.001)
        assert one.told == [("refuse", 2 * at + 1, 2 * at + 2) for at in range(20)]
        assert not other.told


async def test_to_say_that_they_are_known_costs_no_sync() -> None:
    async with town_of(1, 2, leader=1, stripes=1) as town:
        leader = town.nodes[1].broker
        await leader.declare_queue("q", durable=True, arguments=FULL_SOON)
        publisher = Publisher(town.nodes[2])
        log = leader.topology.queues["q"].partition.log
        assert isinstance(log, PartitionLog)
        asked: list[None] = []
        log.request_sync = lambda: asked.append(None)  # type: ignore[method-assign]
        served = town.nodes[1].engine.serving.links[2].publisher
        assert served is not None
        with trio.fail_after(10):
            for _ in range(20):
                publisher.publish(confirm=False)
                await trio.sleep(0.002)
            while not served.logs or served.logs["home-0"].refused or served.logs["home-0"].next_position < 40:
                await trio.sleep(0.001)
        assert not asked
        del log.request_sync  # the end waits for one


async def test_what_is_refused_of_publishes_that_nobody_waits_for_is_no_failure_of_others() -> None:
    async with town_of(1, 2, leader=1, stripes=1) as town:
        for queue, arguments in (("q", FULL_SOON), ("free", {})):
            await town.nodes[1].broker.declare_queue(queue, durable=True, arguments=arguments)
        one, other = Publisher(town.nodes[2]), Publisher(town.nodes[2])
        with trio.fail_after(10):
            for count in range(1, 21):
                other.publish(confirm=False)
                one.session.publish(Slab("", "free", PERSISTENT, [b"x"]), confirm=True)
                one.session.broker.end_turn()
                while not one.told or one.told[-1][2] < count:
                    await trio.sleep(0.001)
        assert {what for what, _, _ in one.told} == {"confirm"}


async def test_what_the_next_leader_refuses_is_told_though_the_one_before_has_refused_what_lies_behind() -> None:
    async with town_of(1, 2, 3, leader=1, stripes=1) as town:
        await town.nodes[1].broker.declare_queue("q", durable=True, arguments=FULL_SOON)
        log = town.nodes[1].broker.topology.queues["q"].partition.log
        assert isinstance(log, PartitionLog)
        log.request_sync = lambda: None  # type: ignore[method-assign]
        publisher = Publisher(town.nodes[3])
        stream = town.nodes[3].engine.forwarding.streams["home-0"]
        with trio.fail_after(10):
            publisher.publish(confirm=True)
            while stream.written_offset < 2:
                await trio.sleep(0.001)
            assert (stream.committed_offset, publisher.told) == (0, [])
            town.lead(0, 2)
            Publisher(town.nodes[2]).session.publish(Slab("", "q", PERSISTENT, [b"sooner"]))
            while not publisher.told:
                await trio.sleep(0.001)
        assert publisher.told == [("refuse", 1, 2)]
