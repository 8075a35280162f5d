"""Dead letters through the engine: where they go, that none is lost or stuck, and that nobody waits for them."""

from __future__ import annotations

import errno
import json
import time
from typing import Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import FaultyFiles, MemoryFiles
from routing.facts import pack
from routing.message import Slab
from routing.session import Outcome
from tests.routing.harness import PERSISTENT, Client, Engine, engine, killed, passing, with_headers

DLX = {"x-dead-letter-exchange": "dlx"}


def through(queue: str) -> dict[str, Any]:
    """Of a queue that keeps nothing: it all goes to another one."""
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-max-length": 0}


async def with_dead_queue(e: Engine, **arguments: Any) -> None:
    """Queue `q` whose dead letters go to queue `dead`."""
    await e.broker.declare_exchange("dlx", "fanout", durable=True, auto_delete=False, internal=True, arguments={})
    await e.queue("dead")
    await e.bind("dlx", "dead")
    await e.queue("q", arguments=DLX | {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()})


async def taken(e: Engine, queue: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Take everything out of a queue: body, routing key and headers."""
    client = e.client()
    out = []
    while (got := await client.session.get(queue, no_ack=True)) is not None:
        headers = got.slab.properties_of(got.index).neutral.headers
        out.append((bytes(got.slab.bodies[got.index]).decode(), got.slab.key_of(got.index), headers))
    e.turn()
    client.session.close()
    return out


async def reject_all(e: Engine, client: Client) -> None:
    """Reject what was delivered."""
    e.turn()
    for delivery in client.deliveries:
        client.session.settle(delivery.id, delivery.id, Outcome.DISCARD)
    client.deliveries.clear()
    e.turn()


async def test_a_rejected_message_arrives_with_its_history() -> None:
    async with engine(MemoryFiles()) as e:
        await with_dead_queue(e)
        client = e.client()
        await client.consume("q")
        client.publish("q", "a", properties=with_headers({"h": 1}))
        await reject_all(e, client)
        await e.until(lambda: e.count("dead") == 1)
        ((body, key, headers),) = await taken(e, "dead")
        assert (body, key, headers["h"]) == ("a", "q", 1)
        (death,) = headers["x-death"]
        assert abs(death.pop("time") - e.broker.clock.now_ms() / 1000) < 5
        assert death == {"queue": "q", "reason": "rejected", "exchange": "", "routing-keys": ["q"], "count": 1}
        await e.until(lambda: e.broker.topology.queues["q"].outstanding == 0)


async def test_the_original_is_settled_only_when_the_copy_is_durable() -> None:
    files = MemoryFiles()
    async with engine(files, stripes=4) as e:
        await with_dead_queue(e)
        client = e.client()
        await client.publish_safely("q", *range(50))
        await client.consume("q")
        await reject_all(e, client)
        assert e.count("dead") == 50
        assert e.broker.topology.queues["q"].outstanding == 50
        after = files.crash()
    async with engine(after, stripes=4) as e:
        found = [body for body, _ in await e.drain("q")] + [body for body, _, _ in await taken(e, "dead")]
        assert set(found) == {str(number) for number in range(50)}


async def test_every_message_is_somewhere_after_a_kill_at_any_time() -> None:
    files = MemoryFiles()
    pictures = []
    async with engine(files, stripes=2) as e:
        await with_dead_queue(e)
        client = e.client()
        await client.publish_safely("q", *range(300))
        await client.consume("q")
        e.turn()
        for first in range(1, 301, 50):
            client.session.settle(first, first + 49, Outcome.DISCARD)
            e.turn()
            pictures.append(killed(files))
            await wait_all_tasks_blocked()
            pictures.append(files.crash())
        await e.until(lambda: e.broker.topology.queues["q"].outstanding == 0)
        await e.synced()
        pictures.append(files.crash())
    for picture in pictures:
        async with engine(picture, stripes=2) as e:
            found = [body for body, _ in await e.drain("q")] + [body for body, _, _ in await taken(e, "dead")]
            assert set(found) == {str(number) for number in range(300)}
    assert sorted(found) == sorted(map(str, range(300)))


async def test_expired_messages_and_those_of_too_long_queues_die_too(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as e:
        await with_dead_queue(e, message_ttl=100, max_length=3)
        e.client().publish("q", *range(5))
        e.turn()
        await e.until(lambda: e.count("dead") == 2)
        clock.jump(0.099)
        await wait_all_tasks_blocked()
        assert e.count("dead") == 2
        clock.jump(0.002)
        await e.until(lambda: e.count("dead") == 5)
        deaths = [(body, headers["x-death"][0]["reason"]) for body, _, headers in await taken(e, "dead")]
        assert deaths == [("0", "maxlen"), ("1", "maxlen"), ("2", "expired"), ("3", "expired"), ("4", "expired")]


async def test_without_a_place_to_go_they_are_dropped() -> None:
    async with engine(MemoryFiles()) as e:
        for name, arguments in {
            "no exchange": {"x-dead-letter-exchange": "missing"},
            "no queue": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "missing"},
            "itself": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "itself"},
        }.items():
            await e.queue(name, arguments=arguments | {"x-max-length": 1})
            e.client().publish(name, 1, 2)
            e.turn()
            queue = e.broker.topology.queues[name]
            assert (queue.message_count, queue.outstanding) == (1, 0)
        assert e.broker.dead_letters.counts == {"dropped": 3}


async def test_a_cycle_with_a_rejection_goes_round_and_one_without_does_not() -> None:
    async with engine(MemoryFiles()) as e:
        await e.queue("a", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
        await e.queue(
            "b", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-max-length": 0}
        )
        client = e.client()
        await client.consume("a")
        client.publish("a", "m")
        for _ in range(3):
            await e.until(lambda: bool(client.deliveries))
            await reject_all(e, client)
        await e.until(lambda: bool(client.deliveries))
        e.turn()
        await e.until(lambda: not e.broker.topology.queues["b"].outstanding)
        assert e.broker.dead_letters.counts == {"published": 6}
        await e.queue(
            "c", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d", "x-max-length": 0}
        )
        await e.queue(
            "d", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "c", "x-max-length": 0}
        )
        client.publish("c", "n")
        e.turn()
        await e.until(lambda: bool(e.broker.dead_letters.counts["dropped"]))
        assert e.broker.dead_letters.counts == {"published": 7, "dropped": 1}


async def test_copies_go_to_the_keys_of_the_message_or_to_that_of_the_queue() -> None:
    async with engine(MemoryFiles()) as e:
        await e.broker.declare_exchange("dlx", "direct", durable=True, auto_delete=False, internal=False, arguments={})
        for key in ("k", "copy", "own"):
            await e.queue(key)
            await e.bind("dlx", key, key)
        await e.queue("q", arguments=DLX | {"x-max-length": 0})
        await e.queue("r", arguments=DLX | {"x-max-length": 0, "x-dead-letter-routing-key": "own"})
        await e.bind("amq.direct", "q", "k")
        client = e.client()
        client.publish("k", "m", exchange="amq.direct", properties=with_headers({"CC": ["copy", "none"]}))
        client.publish("r", "n", properties=with_headers({"CC": ["copy"]}))
        e.turn()
        await e.until(lambda: all(e.count(key) for key in ("k", "copy", "own")))
        assert [await e.drain(key) for key in ("k", "copy", "own")] == [
            [("m", False)],
            [("m", False)],
            [("n", False)],
        ]


async def test_a_log_that_refuses_is_tried_again_and_nothing_is_lost(clock: MockClock) -> None:
    memory = MemoryFiles()
    faulty = FaultyFiles(memory)
    async with engine(faulty, stripes=1) as e:
        await with_dead_queue(e)
        client = e.client()
        await client.publish_safely("q", *range(20))
        await client.consume("q")
        e.turn()
        faulty.failing["write"] = errno.ENOSPC
        e.client().publish("dead", "first to fail")
        e.turn()
        await e.until(lambda: e.home("dead").log.error is not None)
        await reject_all(e, client)
        assert e.broker.topology.queues["q"].outstanding == 20
        clock.jump(3)
        await wait_all_tasks_blocked()
        assert e.count("dead") == 1
        faulty.failing.clear()
        clock.jump(1)

        def is_mended() -> bool:
            clock.jump(0.01)  # to the next try: a thread may have been at one, and failed
            return e.home("dead").log.error is None

        await e.until(is_mended)
        clock.jump(1)
        await e.until(lambda: e.count("dead") == 21 and not e.broker.topology.queues["q"].outstanding)


async def test_ten_thousand_at_once_hold_nobody_up(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as e:
        await with_dead_queue(e, message_ttl=1000)
        client = e.client()
        for _ in range(20):
            properties = with_headers({"n": json.dumps(_)})
            client.session.publish(Slab("", "q", properties, [b"x"] * 500))
        e.turn()
        turns: list[float] = []
        end_turn = e.broker.end_turn

        def timed() -> None:
            start = time.thread_time()
            end_turn()
            turns.append(time.thread_time() - start)

        e.broker.timers.after_turn = e.broker.flusher.after_turn = timed
        clock.jump(1.01)
        await e.until(lambda: e.count("dead") == 10_000)
        await e.until(lambda: not e.broker.topology.queues["q"].outstanding)
        assert max(turns) < 0.1
        assert e.broker.dead_letters._in_flight == e.broker.dead_letters._in_flight_bytes == 0


async def test_those_on_disk_are_read_again() -> None:
    async with engine(MemoryFiles(), stripe_cache_bytes=1, cold_read_bytes=4096, stripes=1) as e:
        await with_dead_queue(e)
        client = e.client()
        for number in range(30):
            await client.publish_safely("q", *(f"{number}-{each}-{'x' * 100}" for each in range(20)))
        taker = e.client()
        await taker.consume("q")
        e.turn()
        await e.until(lambda: len(taker.deliveries) == 600)
        await reject_all(e, taker)
        await e.until(lambda: e.count("dead") == 600)
        expected = [f"{number}-{each}-{'x' * 100}" for number in range(30) for each in range(20)]
        assert [body for body, _ in await e.drain("dead")] == expected


async def test_few_copies_are_under_way_at_a_time() -> None:
    async with engine(MemoryFiles(), dead_letters_in_flight_max=200) as e:
        await with_dead_queue(e)
        client = e.client()
        await client.publish_safely("q", *range(1000))
        await client.consume("q")
        await reject_all(e, client)
        assert 0 < e.count("dead") < 400
        await e.until(lambda: e.count("dead") == 1000)


@pytest.mark.parametrize("clean", [True, False])
async def test_what_waits_is_back_after_a_stop(clean: bool) -> None:
    files = MemoryFiles()
    async with engine(files, dead_letters_in_flight_max=10) as e:
        await with_dead_queue(e)
        client = e.client()
        await client.publish_safely("q", *range(1000))
        await client.consume("q")
        await reject_all(e, client)
        if not clean:
            files = files.crash()
    async with engine(files) as e:
        found = [body for body, _ in await e.drain("q")] + [body for body, _, _ in await taken(e, "dead")]
        assert set(found) == set(map(str, range(1000)))


async def test_those_scattered_over_the_disk_are_read_by_the_hundred(clock: MockClock) -> None:
    async with engine(MemoryFiles(), stripe_cache_bytes=1, cold_read_bytes=4096, stripes=1) as e:
        await with_dead_queue(e)
        client = e.client()
        facts = [pack(True, ttl_ms=1000 + number * 7919 % 2000) for number in range(2000)]
        slab = Slab("", "q", PERSISTENT, [b"%d" % number for number in range(2000)], facts=facts)
        client.session.publish(slab, confirm=True)
        e.turn()
        await e.until(lambda: client.confirmed == 2000)
        clock.jump(4)
        await e.until(lambda: e.count("dead") == 2000)
        assert {body for body, _ in await e.drain("dead")} == set(map(str, range(2000)))


async def test_at_least_once_they_wait_for_a_place_to_go_and_let_others_pass(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as e:
        await e.queue("there")
        terms = {
            "x-dead-letter-exchange": "dlx", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
            "x-message-ttl": 5,
        }  # fmt: skip
        await e.broker.declare_exchange("in", "fanout")
        await e.queue("q", arguments=terms)
        await e.bind("in", "q")
        client = e.client()
        for key in ("early", "there", "early", "there"):
            client.session.publish(Slab("in", key, PERSISTENT, [key.encode()]))
        e.turn()
        queue = e.broker.topology.queues["q"]
        await passing(clock, 2)
        assert (queue.message_count, queue.outstanding) == (0, 4), "the exchange is missing"
        await e.broker.declare_exchange("dlx", "direct", durable=True)
        await e.bind("dlx", "there", "there")
        await passing(clock, 2)
        await e.until(lambda: (e.count("there"), queue.outstanding) == (2, 2))
        await e.queue("early")
        await e.bind("dlx", "early", "early")
        await passing(clock, 2)
        await e.until(lambda: (e.count("early"), queue.outstanding) == (2, 0))
        assert e.broker.dead_letters.counts == {"published": 4}


async def test_at_least_once_a_cycle_is_kept_and_is_back_after_a_stop(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    files = MemoryFiles()
    terms = {
        "x-dead-letter-exchange": "", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
    }  # fmt: skip
    async with engine(files) as e:
        await e.queue("q", arguments=terms | {"x-dead-letter-routing-key": "q", "x-message-ttl": 50})
        await e.client().publish_safely("q", "m")
        await passing(clock, 2)
        queue = e.broker.topology.queues["q"]
        assert (queue.message_count, queue.outstanding) == (0, 1)
        assert caplog.messages[-1] == (
            "dead letters of queue q have to wait: exchange '' with key 'q' leads to queues alone that they died in "
            "before, by their header x-death"
        )
    async with engine(files) as e:
        queue = e.broker.topology.queues["q"]
        assert queue.message_count + queue.outstanding == 1


@pytest.mark.parametrize(
    "terms", [{"x-dead-letter-strategy": "at-least-once"}, {"x-overflow": "reject-publish"}], ids=["drops", "once"]
)
async def test_only_queues_that_refuse_what_is_too_much_keep_theirs(terms: dict[str, Any], clock: MockClock) -> None:
    async with engine(MemoryFiles()) as e:
        await e.queue("q", arguments=terms | {"x-dead-letter-exchange": "missing", "x-message-ttl": 5})
        e.client().publish("q", "m")
        e.turn()
        await passing(clock, 1)
        assert e.broker.topology.queues["q"].outstanding == 0
        assert e.broker.dead_letters.counts == {"dropped": 1}


async def test_many_without_a_place_to_go_are_tried_a_part_at_a_time(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as e:
        terms = {
            "x-dead-letter-exchange": "dlx", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
            "x-message-ttl": 5,
        }  # fmt: skip
        await e.queue("q", arguments=terms)
        e.client().publish("q", *range(3000))
        e.turn()
        await passing(clock, 5)
        assert e.broker.topology.queues["q"].outstanding == 3000
        await e.broker.declare_exchange("dlx", "fanout", durable=True)
        await e.queue("dead")
        await e.bind("dlx", "dead")
        await passing(clock, 5)
        await e.until(lambda: e.count("dead") == 3000 and not e.broker.topology.queues["q"].outstanding)


async def test_a_full_queue_that_refuses_publishes_takes_them() -> None:
    async with engine(MemoryFiles()) as e:
        await e.queue("dead", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        await e.queue("q", arguments=through("dead"))
        e.client().publish("q", *range(5))
        e.turn()
        await e.until(lambda: e.count("dead") == 5)
