"""Priorities, times to live, delays, limits and the end of unused queues, on an engine whose time stands still."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import MemoryFiles
from routing.administration.operations import administer
from routing.facts import pack
from routing.message import Slab
from routing.queues.homes.scattered import Scattered
from routing.queues.line import Line
from routing.session import Outcome
from tests.routing.harness import PERSISTENT, Client, Engine, body_of, engine, killed, passing


def slab(key: str, bodies: list[str], facts: list[int] | int, exchange: str = "") -> Slab:
    encoded = [body.encode() for body in bodies]
    return Slab(exchange, key, PERSISTENT, encoded, facts=[facts] * len(bodies) if isinstance(facts, int) else facts)


async def bodies_in(running: Engine, queue: str) -> list[str]:
    return [body for body, _ in await running.drain(queue)]


def prioritised(client: Client, *priorities: int, queue: str = "q") -> None:
    names = [f"{at}:{priority}" for at, priority in enumerate(priorities)]
    client.session.publish(slab(queue, names, [pack(True, priority) for priority in priorities]))


# --- priorities ------------------------------------------------------------------------


async def test_the_highest_priority_goes_first_and_order_is_kept_within_one() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-priority": 5})
        client = running.client()
        prioritised(client, 1, 9, 0, 5, 1, 0)
        running.turn()
        assert await bodies_in(running, "q") == ["1:9", "3:5", "0:1", "4:1", "2:0", "5:0"]


async def test_queues_without_levels_do_not_look_at_priorities() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        prioritised(running.client(), 1, 9, 0)
        running.turn()
        assert await bodies_in(running, "q") == ["0:1", "1:9", "2:0"]


@pytest.mark.parametrize("crash", [False, True])
async def test_priorities_survive_a_restart_and_returned_messages_keep_theirs(crash: bool) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q", arguments={"x-max-priority": 10})
        client = running.client()
        prioritised(client, 0, 3, 7, 3, 0, 7)
        await running.synced()
        session = client.session
        got = [await session.get("q", no_ack=False) for _ in range(3)]
        assert [body_of(one) for one in got if one] == ["2:7", "5:7", "1:3"]
        client.ack(2)
        client.requeue(1)
        client.requeue(3)
        running.turn()
        await running.synced()
        if crash:
            files = killed(files)
    async with engine(files) as running:
        assert await running.drain("q") == [
            (body, crash or body in ("2:7", "1:3")) for body in ("2:7", "1:3", "3:3", "0:0", "4:0")
        ]


async def test_an_urgent_message_overtakes_a_backlog_and_is_delivered_in_one_run_with_others() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-priority": 3})
        publisher, client = running.client(), running.client()
        prioritised(publisher, *([0, 1] * 50))
        running.turn()
        client.session.set_prefetch(4, per_session=False)
        await client.consume("q")
        assert client.take_bodies() == ["1:1", "3:1", "5:1", "7:1"]
        publisher.session.publish(slab("q", ["urgent"], pack(True, 3)))
        client.ack(1)
        assert client.take_bodies() == ["urgent"]
        client.ack(3, 5)
        assert client.take_bodies() == ["9:1", "11:1", "13:1"]
        client.requeue(2)
        assert client.take_bodies() == ["3:1"]
        client.session.close()
        rest = await bodies_in(running, "q")
        assert rest == [f"{at}:1" for at in (3, 9, 11, 13, *range(15, 100, 2))] + [f"{at}:0" for at in range(0, 100, 2)]


async def test_a_window_holds_back_what_is_not_more_urgent() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-priority": 9, "x-priority-window": 1})
        publisher, client = running.client(), running.client()
        client.session.set_prefetch(10, per_session=False)
        await client.consume("q")
        prioritised(publisher, 0, 0, 0)
        assert client.take_bodies() == ["0:0"]
        publisher.session.publish(slab("q", ["urgent", "urgent too"], pack(True, 9)))
        assert client.take_bodies() == ["urgent"]
        client.ack(1, 2)
        assert client.take_bodies() == ["urgent too"]
        client.ack(3)
        assert client.take_bodies() == ["1:0"]


async def test_a_window_knows_what_is_settled_of_the_urgent() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-priority": 9, "x-priority-window": 1})
        publisher, client = running.client(), running.client()
        await client.consume("q")
        for priority in (0, 5):
            prioritised(publisher, priority)
            assert client.take_bodies() == [f"0:{priority}"]
        client.ack(2)
        prioritised(publisher, 3, 3)
        assert client.take_bodies() == ["0:3"], "it is more urgent than all that is left"
        client.ack(1)
        assert client.take_bodies() == []
        client.ack(3)
        assert client.take_bodies() == ["1:3"]


@pytest.mark.parametrize("turns", ["in turn", "ranked", "least"])
async def test_who_has_a_full_window_holds_nobody_up(turns: str) -> None:
    told = {"x-consumer-turns": "least-unsettled"} if turns == "least" else {}
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-priority": 9, "x-priority-window": 2, **told})
        publisher, full, idle = running.client(), running.client(), running.client()
        await full.consume("q", arguments={"x-priority": 1 if turns == "ranked" else 0})
        prioritised(publisher, 5, 0)
        assert full.take_bodies() == ["0:5", "1:0"]
        await idle.consume("q")
        for _ in range(2):
            prioritised(publisher, 5, 5)
            assert idle.take_bodies() == ["0:5", "1:5"], "whoever of the two would be next"
            assert full.take_bodies() == []
            idle.ack(idle.session.next_id - 2, idle.session.next_id - 1)


# --- times to live ---------------------------------------------------------------------


async def test_messages_expire_on_time_wherever_they_stand(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        client.session.publish(slab("q", ["long", "short", "none"], [pack(True, 0, 600_000), pack(True, 0, 60), 1]))
        client.publish("q", "plain")
        running.turn()
        await passing(clock, 0.055)
        assert running.count("q") == 4
        await passing(clock, 0.01)
        assert running.count("q") == 3
        assert await bodies_in(running, "q") == ["long", "none", "plain"]


async def test_the_lower_of_the_two_times_counts(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-message-ttl": 1000})
        client = running.client()
        client.session.publish(slab("q", ["a", "b", "c"], [pack(True, 0, 5000), pack(True, 0, 200), 1]))
        running.turn()
        await passing(clock, 0.3)
        assert running.count("q") == 2
        await passing(clock, 0.69)
        assert running.count("q") == 2
        client.publish("q", "d")
        running.turn()
        await passing(clock, 0.05)
        assert await bodies_in(running, "q") == ["d"]


async def test_what_is_delivered_does_not_expire_but_does_when_it_comes_back(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        await client.consume("q")
        client.session.publish(slab("q", ["a", "b"], [pack(True, 0, 100), pack(True, 0, 300)]))
        assert client.take_bodies() == ["a", "b"]
        await passing(clock, 0.2)
        client.session.close()
        running.turn()
        assert running.count("q") == 1
        await passing(clock, 0.2)
        assert running.count("q") == 0
        assert running.broker.topology.queues["q"].outstanding == 0


async def test_zero_is_at_once_unless_somebody_waits(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-message-ttl": 0})
        client = running.client()
        client.publish("q", "a")
        assert await client.session.get("q", no_ack=True) is None
        assert running.count("q") == 0
        await client.consume("q", no_ack=True)
        client.publish("q", "b")
        assert client.take_bodies() == ["b"]


async def test_of_a_large_slab_each_message_expires_at_its_own_time(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-priority": 3})
        client = running.client()
        lives = [None if at % 5 == 4 else 100 * (10 - at % 10) for at in range(40)]
        facts = [pack(True, at % 3, ttl_ms) for at, ttl_ms in enumerate(lives)]
        client.session.publish(slab("q", [str(at) for at in range(40)], facts))
        running.turn()
        for now_ms in range(50, 1100, 100):
            assert running.count("q") == sum(ttl_ms is None or ttl_ms > now_ms - 10 for ttl_ms in lives)
            await passing(clock, 0.1 if now_ms > 50 else 0.15)
        rising = sorted((at for at in range(40) if lives[at] is None), key=lambda at: (-(at % 3), at))
        assert await bodies_in(running, "q") == [str(at) for at in rising]


@pytest.mark.parametrize("crash", [False, True])
async def test_times_go_on_over_a_restart(clock: MockClock, crash: bool) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q")
        await running.queue("t", arguments={"x-message-ttl": 3_000_000})
        client = running.client()
        lives = [pack(True, 0, 1), pack(True, 0, 3_600_000), 1]
        client.session.publish(slab("q", ["gone", "stays", "for ever"], lives))
        client.publish("t", "with the queue")
        await running.synced()
        if crash:
            files = killed(files)
    await passing(clock, 0.1)
    async with engine(files) as running:
        await passing(clock, 0.005)
        assert running.count("t") == 1
        await passing(clock, 3_100)
        assert running.count("t") == 0
        assert await bodies_in(running, "q") == ["stays", "for ever"]


@pytest.mark.parametrize("down_s", [0.1, 30])
@pytest.mark.parametrize("levels", [0, 3])
async def test_after_a_start_messages_of_many_queues_expire_at_their_own_times(
    clock: MockClock, levels: int, down_s: float
) -> None:
    """Whether the first of a block expires later, or while nothing runs."""
    files, dice, queues = MemoryFiles(), random.Random(levels), ("p", "q", "r")
    lives: dict[str, list[int]] = {queue: [] for queue in queues}
    async with engine(files, stripes=1) as running:
        for queue in queues:
            await running.queue(queue, arguments={"x-max-priority": levels} if levels else {})
        client = running.client()
        for _ in range(6000):
            queue = dice.choice(queues)
            lives[queue].append(dice.choice([20_000, 40_000, 60_000, 80_000]) + 1000 * dice.randrange(3))
            name = f"{len(lives[queue]) - 1}"
            client.session.publish(slab(queue, [name], pack(True, dice.randrange(5), lives[queue][-1])))
            if not dice.randrange(9):
                running.turn()
        await running.synced()
        files = killed(files)
        began_s = trio.current_time()
    await passing(clock, down_s)
    async with engine(files, stripes=1) as running:
        for until_s in (down_s, 35, 65):
            await passing(clock, began_s + until_s - trio.current_time())
            await passing(clock, 0.005)
            for queue in queues:
                assert running.count(queue) == sum(life > 1000 * until_s for life in lives[queue])
        for queue in queues:
            left = [at for at, life in enumerate(lives[queue]) if life > 65_000]
            assert left
            assert sorted(map(int, await bodies_in(running, queue))) == left


async def test_a_million_stale_timers_are_swept(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        for _ in range(30):
            for count in [1000] + [7] * 200:
                client.session.publish(slab("q", ["x"] * count, pack(True, 0, 3_600_000)))
                running.turn()
            await passing(clock, 0.001)
            assert await running.broker.purge_queue("q") == 2400
        client.session.publish(slab("q", ["x"], pack(True, 0, 5)))
        running.turn()
        await passing(clock, 0.02)
        timing = running.broker.topology.queues["q"].rules.timing
        assert timing is not None
        assert timing._expiry is not None
        assert len(timing._expiry) < 10_000


@pytest.mark.parametrize("count", [1, 5000])
async def test_who_consumes_is_given_nothing_that_is_over_however_much_that_is(count: int, clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        await client.consume("q", prefetch=1)
        client.publish("q", "first")
        client.session.publish(slab("q", ["over"] * count, pack(True, 0, 100)))
        client.publish("q", "last")
        ((delivery),) = client.take()
        clock.jump(0.2)  # nothing has run since
        client.ack(delivery.id)
        got = client.take_bodies()
        await wait_all_tasks_blocked(0.001)
        assert got + client.take_bodies() == ["last"]


async def test_who_gets_is_given_nothing_that_is_over_however_much_that_is(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        client.session.publish(slab("q", ["over"] * 5000, pack(True, 0, 100)))
        client.publish("q", "last")
        running.turn()
        clock.jump(0.2)  # nothing has run since
        assert await bodies_in(running, "q") == ["last"]


# --- delays ----------------------------------------------------------------------------


async def delaying(running: Engine) -> None:
    await running.queue("q", arguments={"x-delayed": True})


async def test_delayed_messages_come_in_the_order_of_their_times_behind_what_is_there(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await delaying(running)
        client = running.client()
        delays = [pack(True, 0, None, 300), pack(True, 0, None, 100), 1, pack(True, 0, None, 200)]
        client.session.publish(slab("q", ["300", "100", "now", "200"], delays))
        running.turn()
        queue = running.broker.topology.queues["q"]
        assert (queue.message_count, queue.rules.delayed_count) == (1, 3)
        await passing(clock, 0.25)
        client.publish("q", "later")
        running.turn()
        assert queue.message_count == 4
        await passing(clock, 0.1)
        assert await bodies_in(running, "q") == ["now", "100", "200", "later", "300"]


async def test_a_delayed_message_begins_to_live_when_it_is_due(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await delaying(running)
        running.client().session.publish(slab("q", ["a"], pack(True, 0, 100, 1000)))
        running.turn()
        await passing(clock, 1.05)
        assert running.count("q") == 1
        await passing(clock, 0.1)
        assert running.count("q") == 0


async def test_a_delayed_message_that_lives_for_no_time_is_for_who_waits_when_it_is_due(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await delaying(running)
        client = running.client()
        client.session.publish(slab("q", ["a"], [pack(True, 0, 0, 1000)]))
        running.turn()
        await passing(clock, 1.05)
        assert running.count("q") == 0
        await client.consume("q", no_ack=True)
        assert client.take_bodies() == []
        client.session.publish(slab("q", ["b", "c"], [pack(True, 0, 0, 1000), pack(True, 0, 20, 1000)]))
        running.turn()
        await passing(clock, 1.05)
        assert client.take_bodies() == ["b"], "and what lived for some time is over"


async def test_delayed_messages_can_be_listed_and_cancelled_and_are_not_purged(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await delaying(running)
        running.client().session.publish(slab("q", ["a", "b"], [pack(True, 0, None, 500), pack(True, 0, None, 600)]))
        running.turn()
        rules = running.broker.topology.queues["q"].rules
        listed = sorted(rules.delayed())
        assert [due - listed[0][0] for due, _ in listed] == [0, 100]
        assert await running.broker.purge_queue("q") == 0
        assert rules.cancel_delayed(listed[0][1])
        assert not rules.cancel_delayed(listed[0][1])
        await passing(clock, 1)
        assert await bodies_in(running, "q") == ["b"]
        assert running.home("q").first_live_offset == running.home("q").next_offset


async def test_who_is_told_that_a_delayed_message_is_cancelled_never_gets_it() -> None:
    files = MemoryFiles()
    async with engine(files, settle_delay_ms=60_000) as running:
        await delaying(running)
        running.client().session.publish(slab("q", ["a", "b"], [pack(True, 0, None, 500), pack(True, 0, None, 600)]))
        await running.synced()
        first, _ = (await administer(running.broker, "guest", "delayed.list", {"queue": "q"}))["rows"]
        await administer(running.broker, "guest", "delayed.cancel", {"queue": "q", "id": first[0]})
        files = files.crash()
    async with engine(files) as running:
        assert running.broker.topology.queues["q"].rules.delayed_count == 1


@pytest.mark.parametrize("crash", [False, True])
async def test_delays_survive_a_restart(clock: MockClock, crash: bool) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await delaying(running)
        client = running.client()
        delays = [pack(True, 0, None, 1), pack(True, 0, None, 3_600_000), pack(True, 0, None, 1 << 40)]
        client.session.publish(slab("q", ["soon", "hour", "years"], delays))
        await running.synced()
        if crash:
            files = killed(files)
    async with engine(files) as running:
        await passing(clock, 0.1)
        assert running.count("q") == (1 if crash else running.count("q"))
        await passing(clock, 3_700)
        assert await bodies_in(running, "q") == ["soon", "hour"]
        assert running.broker.topology.queues["q"].rules.delayed_count == 1


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 5}])
async def test_a_delayed_message_that_was_given_back_is_so_after_a_clean_stop(
    arguments: dict[str, int], clock: MockClock
) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q", arguments={"x-delayed": True} | arguments)
        client = running.client()
        client.session.publish(slab("q", ["plain", "late"], [pack(True), pack(True, 0, 5000, 500)]))
        client.session.publish(slab("q", ["last"], pack(True)))
        running.turn()
        await passing(clock, 1)
        assert [body_of(got) for _ in range(3) if (got := await client.session.get("q", no_ack=False))] == [
            "plain", "last", "late",
        ]  # fmt: skip
        client.requeue(1, 3)
        prioritised(client, 0)
        running.turn()
    async with engine(files) as running:
        client = running.client()
        found = [await client.session.get("q", no_ack=False) for _ in range(4)]
        given = [("plain", True), ("late", True), ("last", True), ("0:0", False)]
        assert [(body_of(got), got.redelivered) for got in found if got] == given
        client.requeue(1, 4)
        running.turn()
    async with engine(files) as running:
        await passing(clock, 10)
        assert await bodies_in(running, "q") == ["plain", "last", "0:0"]


@pytest.mark.parametrize("durable", [True, False])
async def test_only_queues_that_heed_delays_have_messages_wait(durable: bool, clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files, stripes=1) as running:
        for name in ("waits", "waits-too", "at-once"):
            arguments = {} if name == "at-once" else {"x-delayed": True}
            await running.queue(name, durable=durable, arguments=arguments)
            await running.bind("amq.fanout", name)
        client = running.client()
        delays = [pack(True, 0, None, 500), 1]
        client.session.publish(slab("", ["late", "now"], delays, exchange="amq.fanout"), confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 2)
        assert [running.count(name) for name in ("waits", "waits-too", "at-once")] == [1, 1, 2]
        assert await bodies_in(running, "at-once") == ["late", "now"]
        await passing(clock, 1)
        for name in ("waits", "waits-too"):
            assert await bodies_in(running, name) == ["now", "late"]


async def test_delays_are_not_honoured_where_nobody_asks_for_it() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        running.client().session.publish(slab("q", ["a"], pack(True, 0, None, 100_000)))
        running.turn()
        assert await bodies_in(running, "q") == ["a"]


# --- copies ----------------------------------------------------------------------------


ASKING = [pack(True, 2, 60_000), pack(True, 0), pack(True, 3), pack(True, 1, 3_600_000), pack(True, 3, 60_000)]
"""What five messages ask for; two of them live for a minute."""


@pytest.mark.parametrize("how", ["move", "reject"])
@pytest.mark.parametrize("cold", [False, True])
async def test_copies_ask_for_what_their_originals_asked_for(how: str, cold: bool, clock: MockClock) -> None:
    """Whether they lie together or far apart, in memory or not; dead letters do not expire again."""
    files = MemoryFiles()
    limits = {"stripes": 1} | ({"stripe_cache_bytes": 1, "cold_read_bytes": 2000} if cold else {})
    async with engine(files, **limits) as running:
        levels = {"x-max-priority": 3}
        await running.queue("q", arguments=levels | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"})
        await running.queue("d", arguments=levels)
        await running.queue("between")
        client = running.client()
        for number in range(10):
            names = [f"{number}.{at}" for at in range(5)]
            client.session.publish(slab("q", names, ASKING))
            client.publish("between", *["x" * 900] * 5)
            running.turn()
        await running.synced()
        if how == "move":
            moved = await administer(running.broker, "guest", "queues.move", {"source": "q", "destination": "d"})
            assert moved == {"moved": 50, "left": 0}
        else:
            await client.consume("q")
            running.turn()
            await running.until(lambda: len(client.deliveries) == 50)
            client.session.settle_up_to(0, Outcome.DISCARD)
            running.turn()
            await running.until(lambda: running.count("d") == 50)
        if how == "move":
            await passing(clock, 100)
        found = [int(body[-1]) for body in await bodies_in(running, "d")]
        lasting = [2] * 10 + [3] * 10 + [1] * 10
        assert found == (lasting if how == "move" else [2, 4] * 10 + [0] * 10 + [3] * 10 + [1] * 10)


# --- messages that are not in memory any more --------------------------------------------


async def test_the_few_messages_left_of_a_slab_stay_in_memory_when_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = Scattered.read
    monkeypatch.setattr(Scattered, "read", lambda all, offsets: reads.append(1) or read(all, offsets))
    async with engine(MemoryFiles(), stripes=1, stripe_cache_bytes=20_000) as running:
        await running.queue("q", arguments={"x-max-priority": 10})
        client = running.client()
        low: list[str] = []
        for start in range(0, 3000, 100):
            names = [str(number) for number in range(start, start + 100)]
            facts = [pack(True, 0 if number % 10 == 3 else 1 + number % 9) for number in range(start, start + 100)]
            low += names[3::10]
            client.session.publish(slab("q", names, facts))
            await running.synced()
            client.session.set_prefetch(90, per_session=False)
            consumer = await client.consume("q")
            running.turn()
            client.session.cancel(consumer)
            assert set(client.take_bodies()) == set(names) - set(low)
            client.session.settle_up_to(0, Outcome.ACK)
            running.turn()
        client.session.set_prefetch(0, per_session=False)
        await client.consume("q")
        running.turn()
        got = client.take_bodies()
        assert not reads
        assert got == low


async def test_scattered_messages_are_read_back_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    peek, read = Line.peek, Scattered.read
    monkeypatch.setattr(Line, "peek", lambda line, count: reads.append("peek") or peek(line, count))
    monkeypatch.setattr(Scattered, "read", lambda all, offsets: reads.append("read") or read(all, offsets))
    async with engine(MemoryFiles(), stripes=1, stripe_cache_bytes=0, queue_segment_bytes=20_000) as running:
        await running.queue("q", arguments={"x-max-priority": 100})
        client = running.client()
        for start in range(0, 3000, 100):
            names = [str(number) for number in range(start, start + 100)]
            client.session.publish(slab("q", names, [pack(True, int(name) * 7 % 100) for name in names]))
            await running.synced()
        client.session.set_prefetch(0, per_session=False)
        consumer = await client.consume("q", no_ack=True)
        got: list[str] = client.take_bodies()
        while len(got) < 3000:
            await running.until(lambda: bool(client.deliveries))
            got += client.take_bodies()
            running.turn()  # one that others end: nothing more is asked for while a read is under way
        assert got == [str(number) for number in sorted(range(3000), key=lambda number: (-(number * 7 % 100), number))]
        assert consumer.queue.outstanding == 0
        assert reads.count("read") <= 4
        assert reads.count("peek") <= 101 * 4
