"""Both brokers count alike what a consumer of another broker has been sent, in bytes."""

from __future__ import annotations

import trio

from routing.message import Slab
from routing.unsettled import Outcome
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import EngineNode, town_of


class Worker:
    """It keeps the sizes of what it is given."""

    def __init__(self, node: EngineNode) -> None:
        self.sizes: list[int] = []
        self.session = node.broker.session(self, protocol="amqp", owner=self)  # type: ignore[arg-type]

    def deliver(self, consumer: object, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        self.sizes += map(len, slab.bodies[start:stop])

    def acknowledge(self) -> None:
        self.session.settle_up_to(0, Outcome.ACK)
        self.session.broker.end_turn()

    def writable(self) -> bool:
        return True


async def test_who_has_the_small_ones_of_a_slab_goes_on_being_given_some() -> None:
    async with town_of(1, 2, stripes=1) as town:
        leader, workers = town.nodes[1].broker, [Worker(town.nodes[2]), Worker(town.nodes[2])]
        await leader.declare_queue("q", durable=True)
        for worker in workers:
            await worker.session.consume("q", tag="c", no_ack=False, prefetch=1)
        publisher = Worker(town.nodes[1]).session
        for slab in range(1, 9):
            publisher.publish(Slab("", "q", PERSISTENT, [bytes(600_000), b"small"]))
            leader.end_turn()
            with trio.move_on_after(5):
                while [len(worker.sizes) for worker in workers] != [slab, slab]:
                    await trio.sleep(0.001)
            assert [len(worker.sizes) for worker in workers] == [slab, slab]
            for worker in workers:
                worker.acknowledge()
        assert sorted(set(workers[0].sizes + workers[1].sizes)) == [5, 600_000]
