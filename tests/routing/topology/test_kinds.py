"""Exchanges of every kind in a running engine: where messages go, through alternates, hashes, histories and loops."""

from __future__ import annotations

from collections import Counter

import pytest

from core_log.files import MemoryFiles
from routing.errors import PreconditionFailed
from routing.message import Slab
from tests.routing.harness import PERSISTENT, Client, Engine, engine, with_headers

HEADER = {"hash-header": "h"}


async def queues(running: Engine, exchange: str, *names: str, key: str = "1") -> None:
    """Queues that are bound to an exchange with one key."""
    for name in names:
        await running.queue(name)
        await running.bind(exchange, name, key)


async def bodies(running: Engine, queue: str) -> list[str]:
    return [body for body, _ in await running.drain(queue)]


def returned(client: Client) -> list[str]:
    """Bodies of the messages that came back."""
    return [body for event in client.events if event[0] == "returned" for body in event[1]]


# --- alternate exchanges ---------------------------------------------------------------------


async def test_what_leads_nowhere_goes_to_the_alternate_exchange() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        broker, client = running.broker, running.client()
        await broker.declare_exchange("x", "direct", durable=True, arguments={"alternate-exchange": "spare"})
        await queues(running, "x", "q", key="k")
        client.publish("k", "direct", exchange="x", mandatory=True)
        client.publish("odd", "no such exchange", exchange="x", mandatory=True)
        assert returned(client) == ["no such exchange"]
        await broker.declare_exchange(
            "spare", "direct", durable=True, internal=True, arguments={"alternate-exchange": "last"}
        )
        await broker.declare_exchange("last", "fanout", durable=True, arguments={"alternate-exchange": "x"})
        await queues(running, "spare", "s", key="odd")
        client.publish("odd", "one step", exchange="x", mandatory=True)
        client.publish("other", "a loop", exchange="x", mandatory=True)
        assert returned(client) == ["no such exchange", "a loop"]
        await queues(running, "last", "l", key="")
        client.publish("other", "two steps", exchange="x", mandatory=True)
        assert returned(client) == ["no such exchange", "a loop"]
        await broker.declare_exchange("up", "fanout")
        await broker.bind("exchange", "x", "up", "")
        client.publish("other", "from above", exchange="up", mandatory=True)
        running.turn()
    async with engine(files) as running:
        assert [await bodies(running, name) for name in "qsl"] == [
            ["direct"], ["one step"], ["two steps", "from above"],
        ]  # fmt: skip
        client = running.client()
        client.publish("other", "again", exchange="x", mandatory=True)
        assert await bodies(running, "l") == ["again"]
        await running.broker.delete_exchange("last")
        client.publish("other", "gone", exchange="x", mandatory=True)
        assert returned(client) == ["gone"]


async def test_the_default_exchange_as_an_alternate_follows_the_queues() -> None:
    async with engine(MemoryFiles()) as running:
        client = running.client()
        await running.broker.declare_exchange("x", "fanout", arguments={"alternate-exchange": ""})
        client.publish("q", 1, exchange="x", mandatory=True)
        await running.queue("q")
        client.publish("q", 2, exchange="x", mandatory=True)
        assert returned(client) == ["1"]
        assert await bodies(running, "q") == ["2"]


# --- hashes and chance -----------------------------------------------------------------------


def spread(running: Engine, messages: int) -> list[str]:
    """The queue of each of so many differing keys."""
    vhost = running.broker.topology.vhost("/")
    exchange, neutral = vhost.exchange("x"), lambda: with_headers({}).neutral
    return [vhost.router.resolve(exchange, (f"key {at}",), neutral).queues[0].name for at in range(messages)]


async def test_consistent_hash_spreads_by_weight_and_stays_the_same_through_restarts() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.broker.declare_exchange("x", "x-consistent-hash", durable=True)
        await queues(running, "x", *(f"q{number}" for number in range(10)), key="10")
        first = spread(running, 20_000)
        found = Counter(first)
        assert len(found) == 10
        assert all(abs(count - 2000) < 200 for count in found.values()), found
    async with engine(files) as running:
        assert spread(running, 20_000) == first
        await running.broker.unbind("queue", "q3", "x", "10")
        now = spread(running, 20_000)
        assert all(before == after for before, after in zip(first, now) if before != "q3")
        await running.bind("x", "q3", "20")
        found = Counter(spread(running, 22_000))
        assert abs(found["q3"] - 4000) < 400


@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-delayed-message"])
async def test_a_hash_of_a_header_is_not_remembered_by_routing_key(kind: str) -> None:
    async with engine(MemoryFiles()) as running:
        client = running.client()
        arguments = HEADER | {"x-delayed-type": "x-consistent-hash"}
        await running.broker.declare_exchange("x", kind, arguments=arguments)
        await queues(running, "x", "a", "b", "c")
        for number in range(300):
            properties = with_headers({"h": f"customer {number % 30}"})
            client.publish("same", number % 30, exchange="x", properties=properties)
        found = [await bodies(running, name) for name in "abc"]
        assert all(found)
        assert not set(found[0]) & set(found[1]) | set(found[1]) & set(found[2]) | set(found[0]) & set(found[2])
        client.publish("same", "none", exchange="x")
        client.publish("other", "none", exchange="x")
        assert sorted([len(await bodies(running, name)) for name in "abc"]) == [0, 0, 2]


async def test_binding_keys_of_a_consistent_hash_are_weights() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.declare_exchange("x", "x-consistent-hash")
        await running.queue("q")
        for key, text in (
            ("x", 'The binding key must be an integer: <<"x">>'),
            ("", "The binding key must be an integer: <<>>"),
            ("1_0", 'The binding key must be an integer: <<"1_0">>'),
            ("1.5", 'The binding key must be an integer: <<"1.5">>'),
            ("0", "The binding key must be greater than 0"),
            ("-1", "The binding key must be greater than 0"),
        ):
            with pytest.raises(PreconditionFailed) as caught:
                await running.bind("x", "q", key)
            assert str(caught.value) == text
        assert not running.broker.topology.exchanges["x"].bindings
        client = running.client()
        client.publish("k", 1, exchange="x", mandatory=True)
        assert returned(client) == ["1"]


async def test_modulus_hash_and_random() -> None:
    async with engine(MemoryFiles()) as running:
        for kind in ("x-modulus-hash", "x-random"):
            await running.broker.declare_exchange("x", kind)
            await queues(running, "x", "a", "b", "c", key="any")
            first = spread(running, 3000)
            assert all(abs(first.count(name) - 1000) < 200 for name in "abc"), (kind, Counter(first))
            assert (spread(running, 3000) == first) == (kind == "x-modulus-hash")
            client = running.client()
            for number in range(30):
                client.publish("same", number, exchange="x")
            client.publish("same", *range(30, 60), exchange="x")  # one slab
            counts = [len(await bodies(running, name)) for name in "abc"]
            assert sum(counts) == 60
            assert (max(counts) == 60) == (kind == "x-modulus-hash")
            await running.broker.delete_exchange("x")
        await running.broker.declare_exchange("x", "x-random", arguments={"alternate-exchange": "amq.fanout"})
        await running.bind("amq.fanout", "a")
        running.client().publish("k", 1, exchange="x", mandatory=True)
        assert await bodies(running, "a") == ["1"]


# --- history ---------------------------------------------------------------------------------


async def test_recent_history_is_sent_to_who_is_bound_later() -> None:
    async with engine(MemoryFiles()) as running:
        broker, client = running.broker, running.client()
        await broker.declare_exchange("x", "x-recent-history", arguments={"x-recent-history-length": 5})
        await running.queue("first")
        client.publish("k", *range(12), exchange="x", mandatory=True)
        assert len(returned(client)) == 12
        await running.bind("x", "first")
        assert await bodies(running, "first") == ["7", "8", "9", "10", "11"]
        client.publish("a", "new", exchange="x")
        client.publish("b", "secret", exchange="x", properties=with_headers({"x-recent-history-no-store": True}))
        assert await bodies(running, "first") == ["new", "secret"]
        await broker.declare_exchange("y", "direct")
        await queues(running, "y", "by key", key="a")
        await broker.bind("exchange", "y", "x", "")
        assert await bodies(running, "by key") == ["new"]
        await broker.create_topic("t")
        await broker.bind("topic", "t", "x", "")
        running.turn()
        assert broker.topics["t"].partitions[0].log.log_end_offset == 5
        for number in range(30):
            client.publish("k", number, exchange="x")
        await running.queue("late")
        await running.bind("x", "late")
        assert await bodies(running, "late") == ["25", "26", "27", "28", "29"]
        await broker.unbind("queue", "late", "x", "")
        await running.bind("x", "late")
        assert len(await bodies(running, "late")) == 5


@pytest.mark.parametrize("refused", [set(), {3}, {0, 4}, {1, 3}, {2, 3, 4}, {0, 1, 2, 3, 4}])
async def test_history_has_as_many_as_there_may_be_however_the_others_lie_among_them(refused: set[int]) -> None:
    async with engine(MemoryFiles()) as running:
        broker, client = running.broker, running.client()
        await broker.declare_exchange("x", "x-recent-history", arguments={"x-recent-history-length": 3})
        client.publish("k", "before", exchange="x")
        raws = [with_headers({"x-recent-history-no-store": True} if n in refused else {}).raw for n in range(5)]
        client.session.publish(Slab("x", "k", PERSISTENT, [b"%d" % n for n in range(5)], raws=raws))
        await running.queue("q")
        await running.bind("x", "q")
        expected = ["before", *(str(n) for n in range(5) if n not in refused)][-3:]
        assert await bodies(running, "q") == expected


# --- delays, several keys --------------------------------------------------------------------


async def test_routes_through_a_delayed_exchange_are_marked() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.declare_exchange("d", "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})
        await broker.declare_exchange("up", "fanout")
        await queues(running, "d", "q", key="a.#")
        await broker.bind("exchange", "d", "up", "")
        vhost = broker.topology.vhost("/")
        for exchange, key, delayed in (("d", "a.b", True), ("up", "a.b", True), ("", "q", False), ("up", "b", True)):
            reached = vhost.router.resolve(vhost.exchange(exchange), (key,), lambda: with_headers({}).neutral)
            assert reached.delayed == delayed
            assert [queue.name for queue in reached.queues] == ([] if key == "b" else ["q"])


async def test_several_routing_keys_reach_each_place_once() -> None:
    async with engine(MemoryFiles()) as running:
        broker, client = running.broker, running.client()
        await queues(running, "amq.topic", "a", "b", "c", key="x.*")
        await running.bind("amq.topic", "a", "y")

        def publish(exchange: str, key: str, body: object, *extra: str) -> None:
            slab = Slab(exchange, key, PERSISTENT, [str(body).encode()])
            client.session.publish(slab, mandatory=True, copies=extra)

        publish("amq.topic", "x.1", 1, "y", "x.2")
        publish("amq.topic", "no", 2, "y")
        publish("amq.topic", "no", 3, "nor this")
        publish("", "a", 4, "b", "a", "missing")
        publish("amq.topic", "y", 5)
        await broker.unbind("queue", "a", "amq.topic", "y")
        publish("amq.topic", "no", 6, "y")
        assert returned(client) == ["3", "6"]
        assert [await bodies(running, name) for name in "abc"] == [["1", "2", "4", "5"], ["1", "4"], ["1"]]


async def test_a_change_makes_only_those_forget_whom_it_concerns() -> None:
    async with engine(MemoryFiles()) as running:
        broker, client = running.broker, running.client()
        await broker.declare_exchange("up", "fanout")
        await broker.declare_exchange("down", "direct")
        await broker.bind("exchange", "down", "up", "")
        await queues(running, "down", "q", key="k")
        for exchange in ("up", "down", "amq.fanout", "amq.topic", ""):
            client.publish("k", 1, exchange=exchange)
        cached = broker.topology.vhost("/").router._by_exchange

        def known() -> set[str]:
            return {name for name, cache in cached.items() if cache.routes}

        assert known() == {"up", "down", "amq.fanout", "amq.topic", ""}
        await running.bind("amq.fanout", "q")
        assert known() == {"up", "down", "amq.topic", ""}
        await running.bind("down", "q", "other")
        assert known() == {"up", "down", "amq.topic", ""}, "no other key is concerned"
        await running.queue("r")
        await running.bind("down", "r", "k")
        assert known() == {"amq.topic", ""}
        assert await bodies(running, "q") == ["1", "1"]
