"""How much may wait in a queue, and what becomes of the rest; queues and consumers that come and go."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.files import MemoryFiles
from routing.facts import pack
from routing.message import Slab
from tests.routing.harness import PERSISTENT, engine, killed, passing
from tests.routing.queues.test_queue_rules import bodies_in


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({"x-max-length": 2}, ["3", "4"]),
        ({"x-max-length": 0}, []),
        ({"x-max-length-bytes": 3}, ["2", "3", "4"]),
        ({"x-max-length": 2, "x-overflow": "reject-publish"}, ["0", "1"]),
        ({"x-max-length-bytes": 1, "x-overflow": "reject-publish"}, ["0"]),
        ({"x-max-length": 2, "x-max-priority": 1}, ["3", "4"]),
    ],
)
async def test_a_full_queue(arguments: dict[str, Any], left: list[str]) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments=arguments)
        client = running.client()
        for number in range(5):
            client.publish("q", number, confirm=True)
            running.turn()
        await running.synced()
        refused = [event[1] for event in client.events if event[0] == "refuse"]
        rejects = arguments.get("x-overflow") == "reject-publish"
        assert refused == (list(range(len(left) + 1, 6)) if rejects else [])
        assert client.confirmed == (len(left) if rejects else 5)
        assert await bodies_in(running, "q") == left


async def test_part_of_a_slab_fits_and_other_queues_get_all_of_it() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
        await running.queue("all")
        for queue in ("q", "all"):
            await running.bind("amq.fanout", queue)
        client = running.client()
        client.publish("", 1, 2, 3, 4, 5, exchange="amq.fanout", confirm=True)
        await running.synced()
        assert client.events == [("confirm", 3), ("refuse", 4, 5)]
        assert await bodies_in(running, "q") == ["1", "2", "3"]
        assert await bodies_in(running, "all") == ["1", "2", "3", "4", "5"]


REJECT, REJECT_DLX = "reject-publish", "reject-publish-dlx"


@pytest.mark.parametrize("overflows", [(REJECT, REJECT), (REJECT, REJECT_DLX), (REJECT_DLX, REJECT)])
@pytest.mark.parametrize("confirm", [True, False])
async def test_what_a_full_queue_refuses_goes_to_those_that_have_room(
    overflows: tuple[str, str], confirm: bool
) -> None:
    async with engine(MemoryFiles()) as running:
        for queue, length, overflow in zip("ab", (2, 4), overflows, strict=True):
            terms = {"x-max-length": length, "x-overflow": overflow}
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"dead {queue}"}
            await running.queue(queue, arguments=terms | dead)
            await running.queue(f"dead {queue}")
            await running.bind("amq.fanout", queue)
        client = running.client()
        client.publish("", 1, 2, 3, exchange="amq.fanout", confirm=confirm)
        client.publish("k", 4, 5, 6, exchange="amq.fanout", confirm=confirm)
        running.turn()
        await running.synced()
        for queue, overflow, left in zip("ab", overflows, ("12", "1234"), strict=True):
            assert await bodies_in(running, queue) == list(left)
            died = [] if overflow == REJECT else [one for one in "123456" if one not in left]
            assert await bodies_in(running, f"dead {queue}") == died


@pytest.mark.parametrize("overflow", [REJECT, REJECT_DLX])
async def test_what_comes_back_to_a_queue_that_refuses_publishes_stays(overflow: str) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-length": 2, "x-overflow": overflow})
        client = running.client()
        for numbers in ((1, 2), (3, 4)):
            client.publish("q", *numbers)
            running.turn()
            for _ in numbers:
                assert await client.session.get("q", no_ack=False) is not None
        client.session.close()
        running.turn()
        assert await bodies_in(running, "q") == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("limit", "waits"), [({"x-max-length": 1}, 1), ({"x-max-length-bytes": 2}, 2), ({"x-max-length": 0}, 0)]
)
async def test_what_consumers_can_take_counts_once_in_a_turn(limit: dict[str, int], waits: int) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments=limit | {"x-overflow": REJECT})
        consumer = running.client()
        consumer.session.prefetch_default = 2
        await consumer.consume("q")
        client = running.client()
        for number in range(8):
            client.publish("q", number, confirm=True)
        await running.synced()
        assert consumer.take_bodies() == ["0", "1"]
        assert running.count("q") == waits
        assert client.confirmed == 2 + waits


async def test_what_goes_straight_through_does_not_count() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-length": 1})
        client = running.client()
        await client.consume("q")
        client.publish("q", 1, 2, 3)
        assert client.take_bodies() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "straight"),
    [
        ({"x-single-active-consumer": True}, [["0"], []]),
        ({"x-group-by": "routing-key"}, [["0"], []]),
        ({"x-max-priority": 1, "x-priority-window": 1}, [["0"], ["1"]]),
    ],
)
async def test_what_consumers_may_not_be_given_counts_though_they_have_credit(
    arguments: dict[str, Any], straight: list[list[str]]
) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-length": 2, "x-overflow": REJECT, **arguments})
        consumers = [running.client(), running.client()]
        for consumer, prefetch in zip(consumers, (1, 0), strict=True):
            consumer.session.set_prefetch(prefetch, per_session=False)
            await consumer.consume("q")
        client = running.client()
        for number in range(9):
            client.publish("q", number, confirm=True)
            running.turn()
        await running.synced()
        assert [consumer.take_bodies() for consumer in consumers] == straight
        assert running.count("q") == 2
        assert client.confirmed == 2 + sum(map(len, straight))


@pytest.mark.parametrize("how", ["stop", "kill", "kill after checkpoints", "kill after relocation"])
async def test_a_limit_in_bytes_is_exact_over_restarts(how: str, clock: MockClock) -> None:
    """Sizes differ; some messages are settled, some were delivered, some delayed."""
    files = MemoryFiles()
    limits = {"stripes": 1, "queue_segment_bytes": 4000, "checkpoint_interval_bytes": 1}
    wanted = 0
    async with engine(files, **limits) as running:
        await running.queue("q", arguments={"x-max-length-bytes": 100_000, "x-delayed": True, "x-max-priority": 2})
        await running.queue("r")
        client = running.client()
        facts = [pack(True, 1), pack(True, 0, None, 1000), 1]
        for number in range(30):
            bodies = [bytes(number * 10), bytes(7), bytes(number)]
            client.session.publish(Slab("", "q", PERSISTENT, bodies, facts=facts))
            client.publish("r", *["x" * 50] * 12)
            running.turn()
            wanted += number * 11
        queue = running.broker.topology.queues["q"]
        sizes = queue.rules.sizes
        assert sizes is not None
        assert sizes.waiting_bytes == wanted
        for _ in range(20):
            got = await client.session.get("q", no_ack=True)
            assert got is not None
            wanted -= len(got.slab.bodies[got.index])
        taken = await client.session.get("q", no_ack=False)
        assert taken is not None
        assert sizes.waiting_bytes == wanted - len(taken.slab.bodies[taken.index])
        await running.drain("r")
        await running.synced()
        home = running.home("q")
        for _ in range(8 if "after" in how else 0):
            running.broker.checkpoints.take(home)
            with trio.move_on_after(5):
                while home in running.broker.checkpoints._under_way:
                    await trio.lowlevel.checkpoint()
            await running.synced()
            if "relocation" in how:
                home.delete_dead_prefix()
        assert "relocation" not in how or (home.moves and home.log.log_start_offset)
        files = killed(files) if "kill" in how else files
    async with engine(files, **limits) as running:
        queue = running.broker.topology.queues["q"]
        assert queue.rules.sizes is not None
        assert queue.rules.sizes.waiting_bytes == wanted
        await passing(clock, 2)
        assert queue.rules.delayed_count == 0
        assert queue.rules.sizes.waiting_bytes == wanted + 30 * 7
        assert len(await running.drain("q")) == 70
        assert queue.rules.sizes.waiting_bytes == 0


@pytest.mark.parametrize("arguments", [{"x-message-ttl": 1000}, {"x-message-ttl": 1000, "x-max-priority": 2}])
async def test_what_has_expired_while_it_was_delivered_takes_no_room(
    arguments: dict[str, Any], clock: MockClock
) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-length-bytes": 100, **arguments})
        client = running.client()
        await client.consume("q")
        client.publish("q", "x" * 60)
        client.publish("q", "y" * 30)
        assert len(client.take()) == 2
        await passing(clock, 2)
        client.session.close()
        other = running.client()
        other.publish("q", "z" * 60)
        running.turn()
        assert running.count("q") == 1


async def test_what_stood_there_before_the_limit_came_counts_with_the_average() -> None:
    files = MemoryFiles()
    async with engine(files, stripes=1) as running:
        await running.queue("q")
        await running.client().publish_safely("q", *["x" * 1500] * 5)
        await running.broker.set_policy("short", "^q$", {"max-length-bytes": 10_000}, apply_to="queues")
        client = running.client()
        for _ in range(6):
            client.publish("q", "y" * 1500)
            running.turn()
        assert 6 <= running.count("q") < 11
        for _ in range(6):
            client.publish("q", "z" * 1500)
            running.turn()
        assert await bodies_in(running, "q") == ["z" * 1500] * 6


@pytest.mark.parametrize("definition", [{"max-length": 3}, {"max-length-bytes": 30}])
async def test_a_limit_that_comes_to_a_long_queue_is_enforced_in_many_turns(
    definition: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routing.queues.limits._AT_ONCE_MAX", 10)
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        await running.queue("dead")
        client = running.client()
        await client.publish_safely("q", *[f"{number:010}" for number in range(95)])
        counts = []
        running.broker.host.drops_seen.append(lambda queue, dropped: counts.append((dropped, queue.message_count)))
        dead = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
        await running.broker.set_policy("short", "^q$", definition | dead, apply_to="queues")
        running.turn()
        await running.until(lambda: running.count("q") == 3 and running.count("dead") == 92)
        assert counts == [(10, 95 - dropped) for dropped in range(10, 100, 10)] + [(2, 3)]
        assert await bodies_in(running, "q") == [f"{number:010}" for number in range(92, 95)]
        assert await bodies_in(running, "dead") == [f"{number:010}" for number in range(92)]


# --- unused queues, consumers -----------------------------------------------------------


async def test_an_unused_queue_goes(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-expires": 1000})
        client = running.client()
        await passing(clock, 0.9)
        assert await client.session.get("q", no_ack=True) is None
        await passing(clock, 0.9)
        consumer = await client.consume("q")
        await passing(clock, 5)
        client.session.cancel(consumer)
        await passing(clock, 0.9)
        await running.queue("q", arguments={"x-expires": 1000})
        await passing(clock, 0.9)
        await running.broker.check_queue("q")
        await passing(clock, 0.9)
        assert "q" in running.broker.topology.queues
        await passing(clock, 0.2)
        assert "q" not in running.broker.topology.queues


async def test_one_consumer_is_active_until_it_goes() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-single-active-consumer": True})
        first, second, publisher = running.client(), running.client(), running.client()
        await first.consume("q")
        await second.consume("q")
        publisher.publish("q", 1, 2, 3)
        assert first.take_bodies() == ["1", "2", "3"]
        assert second.take_bodies() == []
        first.session.close()
        assert second.take_bodies() == ["1", "2", "3"]


async def test_a_better_active_consumer_takes_over_when_all_is_settled() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-single-active-consumer": True})
        first, second, publisher = running.client(), running.client(), running.client()
        await first.consume("q")
        publisher.publish("q", 1)
        assert first.take_bodies() == ["1"]
        await second.session.consume("q", tag="c", no_ack=False, arguments={"x-priority": 1})
        publisher.publish("q", 2)
        assert first.take_bodies() + second.take_bodies() == []
        first.ack(1)
        assert (first.take_bodies(), second.take_bodies()) == ([], ["2"])


async def test_consumers_of_a_lower_priority_get_what_others_cannot_take() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        low, high, publisher = running.client(), running.client(), running.client()
        for client, priority in ((low, -5), (high, 5)):
            client.session.set_prefetch(2, per_session=False)
            await client.session.consume("q", tag="c", no_ack=False, arguments={"x-priority": priority})
        publisher.publish("q", 1, 2, 3, 4, 5)
        assert (high.take_bodies(), low.take_bodies()) == (["1", "2"], ["3", "4"])
        high.ack(1)
        assert (high.take_bodies(), low.take_bodies()) == (["5"], [])
