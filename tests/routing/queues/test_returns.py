"""Delivery limits and retries through the engine, on a clock that is moved by hand, and over stops of every kind."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import MemoryFiles
from routing.administration import operations
from routing.errors import NotFound
from routing.queues.returns import COUNT_HEADER
from routing.queues.settings import QueueSettings
from routing.session import Outcome
from tests.routing.harness import Client, Engine, engine, killed, passing

TO_D = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"}
QUORUM = TO_D | {"x-queue-type": "quorum", "x-delivery-limit": 2}
LADDER = {"x-retry": [1000, 5000, 60_000], "x-retry-then": "dead"}


class Taker(Client):
    """Gets one message at a time; `counts` are the delivery counts of what it got."""

    def __init__(self, running: Engine) -> None:
        super().__init__(running, object())
        self.counts: list[int | None] = []

    def deliver(self, consumer: Any, first_id: int, slab: Any, start: int, stop: int, redelivered: bool) -> None:
        super().deliver(consumer, first_id, slab, start, stop, redelivered)
        self.counts += [slab.properties_of(at).neutral.headers.get(COUNT_HEADER) for at in range(start, stop)]

    def nack_all(self, outcome: Outcome = Outcome.REQUEUE) -> list[str]:
        """Give back what is there; the bodies."""
        taken = self.take()
        for delivery in taken:
            self.session.settle(delivery.id, delivery.id, outcome)
        self.engine.turn()
        return [delivery.body for delivery in taken]


async def taker(running: Engine, queue: str = "q") -> Taker:
    client = Taker(running)
    await client.consume(queue)
    running.turn()
    return client


async def reasons(running: Engine, queue: str) -> list[tuple[str, str, str]]:
    """Body, reason and queue of the latest death of what is in a queue."""
    out = []
    session = running.client().session
    while (got := await session.get(queue, no_ack=True)) is not None:
        death = got.slab.properties_of(got.index).neutral.headers["x-death"][0]
        out.append((bytes(got.slab.bodies[got.index]).decode(), death["reason"], death["queue"]))
    running.turn()
    return out


async def test_a_message_comes_back_as_often_as_the_limit_says_and_tells_how_often() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("d")
        await running.queue("q", arguments=QUORUM)
        client = await taker(running)
        client.publish("q", "a", "b")
        running.turn()
        for _ in range(3):
            await running.until(lambda: len(client.deliveries) == 2)
            assert client.nack_all() == ["a", "b"]
        await running.until(lambda: running.count("d") == 2)
        assert client.counts == [None, None, 1, 1, 2, 2]
        assert await reasons(running, "d") == [("a", "delivery_limit", "q"), ("b", "delivery_limit", "q")]
        queue = running.broker.topology.queues["q"]
        await running.until(lambda: not queue.outstanding)
        assert queue.returns is not None
        assert not queue.returns.tries


async def test_consumers_that_vanish_count_for_the_limit() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-queue-type": "quorum", "x-delivery-limit": 1})
        running.client().publish("q", "poison")
        for _ in range(2):
            client = await taker(running)
            assert client.take_bodies() == ["poison"]
            client.session.close()
            running.turn()
        assert (await taker(running)).take_bodies() == []
        await running.until(lambda: not running.broker.topology.queues["q"].outstanding)


def test_quorum_queues_have_rabbitmqs_limit() -> None:
    assert QueueSettings.effective({"x-queue-type": "quorum"}).delivery_limit == 20
    assert QueueSettings.effective({"x-queue-type": "quorum", "x-delivery-limit": -1}).delivery_limit is None
    assert QueueSettings.effective({}).delivery_limit is None


@pytest.mark.parametrize(("outcome", "reason"), [(Outcome.REQUEUE, "delivery_limit"), (Outcome.DISCARD, "rejected")])
async def test_a_ladder_is_climbed_gap_by_gap(clock: MockClock, outcome: Outcome, reason: str) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("dead")
        await running.queue("q", arguments=LADDER)
        client = await taker(running)
        client.publish("q", "fails")
        running.turn()
        assert client.nack_all(outcome) == ["fails"]
        for gap_s in (1, 5, 60):
            client.publish("q", "other")
            running.turn()
            assert client.take_bodies() == ["other"]
            await passing(clock, gap_s - 0.002)
            assert client.take_bodies() == []
            await passing(clock, 0.004)
            assert client.nack_all(outcome) == ["fails"]
        await running.until(lambda: running.count("dead") == 1)
        assert await reasons(running, "dead") == [("fails", reason, "q")]


async def test_the_ladder_ends_in_the_dead_letter_exchange_if_it_names_no_queue(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("d")
        arguments = {"x-retry": [10], "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"}
        await running.queue("q", arguments=arguments)
        client = await taker(running)
        client.publish("q", "m")
        running.turn()
        client.nack_all()
        await passing(clock, 0.02)
        client.nack_all()
        await running.until(lambda: running.count("d") == 1)


async def test_a_missing_queue_at_the_end_of_the_ladder_loses_nothing(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-retry": [10], "x-retry-then": "dead"})
        client = await taker(running)
        client.publish("q", "m")
        running.turn()
        client.nack_all()
        await passing(clock, 0.02)
        client.nack_all()
        await passing(clock, 2)
        assert running.broker.topology.queues["q"].outstanding == 1
        await running.queue("dead")
        await passing(clock, 2)
        await running.until(lambda: running.count("dead") == 1)


async def test_a_vanished_consumer_is_no_failure(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments=LADDER)
        running.client().publish("q", "m")
        for _ in range(10):
            client = await taker(running)
            assert client.take_bodies() == ["m"]
            client.session.close()
        client = await taker(running)
        assert client.nack_all() == ["m"]
        await passing(clock, 1.01)
        assert client.take_bodies() == ["m"]


async def test_rabbitmqs_delayed_retry(clock: MockClock) -> None:
    arguments = {
        "x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 100, "x-delayed-retry-max": 250,
        "x-delivery-limit": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d",
    }  # fmt: skip
    async with engine(MemoryFiles()) as running:
        await running.queue("d")
        await running.queue("q", arguments=arguments)
        client = await taker(running)
        client.publish("q", "m")
        running.turn()
        assert client.nack_all() == ["m"]
        for gap_ms in (100, 200, 250, 250):
            await passing(clock, gap_ms / 1000 - 0.002)
            assert client.take_bodies() == []
            await passing(clock, 0.004)
            assert client.nack_all() == ["m"]
        await running.until(lambda: running.count("d") == 1)


@pytest.mark.parametrize("how", ["stop", "kill", "power", "checkpoint"])
async def test_counts_and_gaps_outlive_the_process(clock: MockClock, how: str) -> None:
    files = MemoryFiles()
    async with engine(files, checkpoint_interval_bytes=1 if how == "checkpoint" else 64 << 20) as running:
        await running.queue("dead")
        await running.queue("q", arguments=LADDER | {"x-max-priority": 3})
        client = await taker(running)
        await client.publish_safely("q", *range(6))
        await running.until(lambda: len(client.deliveries) == 6)
        client.session.settle(1, 2, Outcome.REQUEUE)
        client.session.settle(6, 6, Outcome.ACK)
        running.turn()
        await passing(clock, 1.01)
        await running.until(lambda: len(client.deliveries) == 8)
        client.session.settle(7, 7, Outcome.DISCARD)
        await running.synced()
        if how == "checkpoint":
            for partition in running.broker.topology.stripes:
                running.broker.checkpoints.take(partition)
            for _ in range(50):
                await wait_all_tasks_blocked(0.002)
        if how == "kill":
            files = killed(files)
        elif how != "stop":
            files = files.crash()
    async with engine(files) as running:
        client = await taker(running)
        await running.until(lambda: len(client.deliveries) >= 4)
        # 0 failed twice and waits five seconds, 1 failed once and is back, 2 to 4 were only delivered.
        assert sorted(client.take_bodies()) == ["1", "2", "3", "4"]
        await passing(clock, 4.9)
        assert client.take_bodies() == []
        await passing(clock, 0.2)
        await running.until(lambda: bool(client.deliveries))
        (again,) = client.take()
        assert again.body == "0"
        assert again.redelivered
        assert client.counts[-1] == 2
        client.session.settle(again.id, again.id, Outcome.REQUEUE)
        running.turn()
        await passing(clock, 59.9)
        assert client.take_bodies() == []
        await passing(clock, 0.2)
        assert client.nack_all() == ["0"]
        await running.until(lambda: running.count("dead") == 1)


async def test_rules_may_come_and_go() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = await taker(running)
        client.publish("q", "m")
        running.turn()
        queue = running.broker.topology.queues["q"]
        assert client.nack_all() == ["m"]
        queue.apply_settings(QueueSettings(delivery_limit=1))
        assert client.nack_all() == ["m"]
        assert client.nack_all() == ["m"]
        queue.apply_settings(QueueSettings())
        assert client.take_bodies() == []
        assert (queue.message_count, queue.outstanding) == (0, 0)


async def test_a_policy_is_a_ladder(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        await running.queue("dlq")
        client = await taker(running)
        client.publish("q", "m")
        running.turn()
        await running.broker.set_policy("ladder", "^q$", {"retry": [100], "retry-then": "dlq"}, apply_to="queues")
        assert client.nack_all() == ["m"]
        assert client.take_bodies() == []
        await passing(clock, 0.11)
        assert client.nack_all() == ["m"]
        await running.until(lambda: running.count("dlq") == 1)


async def test_what_waits_for_its_next_try_is_listed_and_cancelled_like_what_is_delayed(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q", arguments=LADDER)
        client = Taker(running)
        await client.consume("q")
        client.publish("q", "a", "b")
        assert client.nack_all() == ["a", "b"]
        await passing(clock, 2)
        assert client.nack_all(Outcome.DISCARD) == ["a", "b"]

        async def administer(name: str, **arguments: Any) -> Any:
            return await operations.administer(running.broker, "guest", name, {"queue": "q"} | arguments)

        listed = await administer("delayed.list")
        assert listed["columns"] == ["id", "due_at_ms", "failures"]
        (cancelled, due_ms, failures), (_, _, others) = listed["rows"]
        assert (failures, others) == (2, 2)
        assert due_ms == running.broker.clock.now_ms() + 5000
        await administer("delayed.cancel", id=cancelled)
        with pytest.raises(NotFound):
            await administer("delayed.cancel", id=cancelled)
        assert len((await administer("delayed.list"))["rows"]) == 1
        await running.synced()
        files = killed(files)
    async with engine(files) as running:
        await passing(clock, 10)
        assert await running.drain("q") == [("b", True)]
        assert running.home("q").first_live_offset == running.home("q").next_offset
