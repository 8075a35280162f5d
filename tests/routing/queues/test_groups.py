"""Queues that give messages of one key to one consumer at a time."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import MemoryFiles
from routing.errors import InvalidArgument
from routing.message import Slab
from routing.queues.homes import scattered
from routing.session import Outcome
from tests.routing.harness import PERSISTENT, Client, Engine, body_of, engine, killed, with_headers

GROUPED = {"x-group-by": "routing-key"}


async def worker(running: Engine, *, prefetch: int = 1, queue: str = "q", no_ack: bool = False) -> Client:
    client = running.client()
    client.session.set_prefetch(prefetch, per_session=False)
    await client.consume(queue, no_ack=no_ack)
    return client


async def grouped(running: Engine, **arguments: Any) -> Client:
    """A queue `q` of the exchange `keys`, and who publishes to it."""
    await running.broker.declare_exchange("keys", "fanout", durable=True)
    await running.queue("q", arguments=GROUPED | {name.replace("_", "-"): value for name, value in arguments.items()})
    await running.bind("keys", "q")
    return running.client()


def publish(client: Client, *keyed: str) -> None:
    """Messages named by their keys and numbers, in one slab: `a1` has the key `a`."""
    keys = [name[0] for name in keyed]
    bodies = [name.encode() for name in keyed]
    client.session.publish(Slab("keys", keys[0], PERSISTENT, bodies, keys=keys))


async def test_a_key_goes_to_one_consumer_until_it_has_settled_all_of_it() -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running)
        publish(client, "a1", "a2", "a3", "b1", "b2")
        one, two, three = [await worker(running) for _ in range(3)]
        assert one.take_bodies() == ["a1"]
        assert two.take_bodies() == ["b1"]
        assert three.take_bodies() == []
        two.ack(1)
        assert [each.take_bodies() for each in (one, two, three)] == [[], [], ["b2"]]
        one.ack(1)
        assert [body for each in (one, two, three) for body in each.take_bodies()] == ["a2"]
        assert running.count("q") == 1


async def test_who_holds_a_key_gets_more_of_it_as_far_as_it_has_credit() -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running)
        one = await worker(running, prefetch=3)
        two = await worker(running, prefetch=3)
        publish(client, "a1", "a2")
        assert one.take_bodies() == ["a1", "a2"]
        publish(client, "a3", "a4", "b1")
        assert one.take_bodies() == ["a3"]
        assert two.take_bodies() == ["b1"]


async def test_what_is_given_back_comes_before_the_rest_of_its_key() -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running)
        publish(client, "a1", "b1", "a2", "b2", "a3")
        one = await worker(running)
        two = await worker(running)
        assert (one.take_bodies(), two.take_bodies()) == (["a1"], ["b1"])
        one.session.close()
        two.ack(1)
        got = []
        for at in range(2, 6):
            got += two.take()
            two.ack(at)
        assert [(each.body, each.redelivered) for each in got if each.body[0] == "a"] == [
            ("a1", True),
            ("a2", False),
            ("a3", False),
        ]
        assert [each.body for each in got if each.body[0] == "b"] == ["b2"]


async def test_refused_messages_free_their_key() -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running)
        publish(client, "a1", "a2")
        one = await worker(running)
        assert one.take_bodies() == ["a1"]
        one.session.settle(1, 1, Outcome.DISCARD)
        assert one.take_bodies() == ["a2"]


async def test_keys_by_header_and_messages_without_it() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-group-by": "order"})
        client = running.client()
        for order, body in (("7", "1"), ("7", "2"), (None, "3"), (None, "4"), (8, "5")):
            properties = PERSISTENT if order is None else with_headers({"order": order})
            client.publish("q", body, properties=properties)
        one, two, three, four = [await worker(running) for _ in range(4)]
        got = [body for each in (one, two, three, four) for body in each.take_bodies()]
        assert sorted(got) == ["1", "3", "4", "5"]


async def test_single_gets_hold_keys_as_well() -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running)
        publish(client, "a1", "a2", "b1")
        running.turn()
        session = running.client().session
        got = [await session.get("q", no_ack=False) for _ in range(3)]
        assert [None if one is None else body_of(one) for one in got] == ["a1", "b1", None]
        one = await worker(running)
        assert one.take_bodies() == []
        session.settle(1, 1, Outcome.ACK)
        assert one.take_bodies() == ["a2"]


@pytest.mark.parametrize("crash", [False, True])
async def test_order_by_key_survives_a_restart(crash: bool) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        client = await grouped(running)
        publish(client, "a1", "b1", "a2", "b2", "a3")
        one = await worker(running)
        assert one.take_bodies() == ["a1"]
        await running.synced()
        if crash:
            files = killed(files)
    async with engine(files) as running:
        assert running.count("q") == 5
        assert [body for body, _ in await running.drain("q")] == ["a1", "b1", "a2", "b2", "a3"]


async def test_limits_and_purges_reach_what_is_set_aside() -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running, x_max_length=3)
        one = await worker(running)
        publish(client, "a1", "a2", "a3", "a4", "a5")
        assert one.take_bodies() == ["a1"]
        assert running.count("q") == 3
        assert await running.broker.purge_queue("q") == 3
        publish(client, "a6", "b1")
        one.ack(1)
        assert one.take_bodies() == ["a6"]
        assert running.count("q") == 1


async def test_what_is_set_aside_expires(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running, x_message_ttl=1000)
        one, two = await worker(running), await worker(running)
        publish(client, "a1", "a2", "a3")
        assert (one.take_bodies(), two.take_bodies()) == (["a1"], [])
        assert running.count("q") == 2
        clock.jump(1.1)
        await wait_all_tasks_blocked()
        assert running.count("q") == 0
        publish(client, "a4")
        one.ack(1)
        assert one.take_bodies() + two.take_bodies() == ["a4"]


async def test_a_get_finds_what_waits_behind_messages_that_went_while_they_were_set_aside(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running, x_message_ttl=1000)
        publish(client, "a1", "b1")
        running.turn()
        got = await client.session.get("q", no_ack=True)
        assert got is not None
        assert body_of(got) == "a1"  # and b1 was looked at
        clock.jump(2)
        await wait_all_tasks_blocked()
        publish(client, "c1")
        running.turn()
        assert await running.drain("q") == [("c1", False)]


async def test_a_policy_groups_a_queue_that_is_there_and_lets_it_go_again() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.declare_exchange("keys", "fanout", durable=True)
        await running.queue("q")
        await running.bind("keys", "q")
        client = running.client()
        publish(client, "a1", "a2", "b1", "a3")
        await running.broker.set_policy("grouped", "^q$", {"group-by": "routing-key"})
        one, two = await worker(running), await worker(running)
        assert (one.take_bodies(), two.take_bodies()) == (["a1"], ["b1"])
        await running.broker.delete_policy("grouped")
        two.ack(1)
        assert two.take_bodies() == ["a2"]
        assert running.count("q") == 1


async def test_consumers_that_settle_nothing_get_everything_in_order() -> None:
    async with engine(MemoryFiles()) as running:
        client = await grouped(running)
        publish(client, "a1", "b1", "a2")
        one = await worker(running, prefetch=0, no_ack=True)
        assert one.take_bodies() == ["a1", "b1", "a2"]
        publish(client, "a3")
        assert one.take_bodies() == ["a3"]
        assert running.broker.topology.queues["q"].outstanding == 0


async def test_senseless_words_are_refused() -> None:
    async with engine(MemoryFiles()) as running:
        for arguments in ({"x-group-by": 7}, {"x-group-by": ""}, GROUPED | {"x-max-priority": 3}):
            with pytest.raises(InvalidArgument, match="x-group-by"):
                await running.queue("q", arguments=arguments)


@pytest.mark.parametrize("seed", range(6))
async def test_workers_come_and_go_and_every_key_keeps_its_order(seed: int) -> None:
    """Little memory: messages have to be read again; some workers give theirs back or go away with them."""
    chance = random.Random(seed)
    config = {"stripe_cache_bytes": 1 << 12, "cold_read_bytes": 1 << 12} if seed % 2 else {}
    if seed > 3:
        config["grouped_messages_max"] = 20
    async with engine(MemoryFiles(), **config) as running:
        client = await grouped(running)
        numbers: dict[str, int] = defaultdict(int)
        keys = [chr(ord("a") + at) for at in range(20)]
        total = 600
        for at in range(0, total, 20):
            names = []
            for _ in range(20):
                key = chance.choice(keys)
                numbers[key] += 1
                names.append(f"{key}{numbers[key]}")
            publish(client, *names)
            if at % 100 == 0:
                running.turn()
        await running.synced()
        workers: list[Client] = []
        settled: dict[str, list[int]] = defaultdict(list)
        pending: dict[Client, list[Any]] = {}
        for _ in range(20_000):
            if sum(map(len, settled.values())) == total:
                break
            if len(workers) < 6 and chance.random() < 0.3:
                workers.append(await worker(running, prefetch=chance.choice([1, 1, 3, 10])))
                pending[workers[-1]] = []
            await wait_all_tasks_blocked()
            for one in workers:
                pending[one] += one.take()
            held: dict[str, set[int]] = defaultdict(set)
            for number, one in enumerate(workers):
                for each in pending[one]:
                    held[each.body[0]].add(number)
            assert all(len(holders) == 1 for holders in held.values())
            if not workers:
                continue
            if not any(pending.values()):
                await running.until(lambda: any(one.deliveries for one in workers))
                continue
            one = chance.choice(workers)
            if pending[one] and chance.random() < 0.8:
                first = pending[one].pop(0)
                one.ack(first.id)
                settled[first.body[0]].append(int(first.body[1:]))
            elif chance.random() < 0.1:
                workers.remove(one)
                pending.pop(one)
                one.session.close()
        wrong = {key: found for key, found in settled.items() if found != sorted(set(found))}
        missing = total - sum(map(len, settled.values()))
        assert (wrong, missing) == ({}, 0), (running.count("q"), running.broker.topology.queues["q"].outstanding)
        assert settled == {key: list(range(1, count + 1)) for key, count in numbers.items()}
        groups = running.broker.topology.queues["q"].groups
        assert groups is not None
        for one in workers:
            one.session.close()
        left = [groups._held, groups._key_of, groups._theirs, groups._again]
        assert not any(left)


async def test_what_one_consumer_has_read_is_not_pushed_out_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with messages of which few fit into what is kept."""
    monkeypatch.setattr(scattered, "_KEPT_BYTES_MAX", 1)
    monkeypatch.setattr(scattered, "_READ_BYTES_MAX", 1)
    monkeypatch.setattr(scattered, "_AT_ONCE_MAX", 1)
    async with engine(MemoryFiles(), stripes=1, stripe_cache_bytes=0, cold_read_bytes=1) as running:
        await running.queue("q", arguments={"x-group-by": "routing-key"})
        await running.bind("amq.topic", "q", "#")
        publisher, first = running.client(), running.client()
        for key in "abcd" * 2:
            await publisher.publish_safely(key, key, exchange="amq.topic")
        await first.consume("q")
        while len(first.deliveries) < 8:
            running.turn()
            await trio.sleep(0.001)
        first.session.close()
        clients = [running.client(), running.client()]
        for client in clients:
            await client.consume("q")
        turns = 0
        while sum(len(client.deliveries) for client in clients) < 8:
            assert (turns := turns + 1) < 300, "they read in turn, and nobody is given anything"
            running.turn()
            await trio.sleep(0.001)
