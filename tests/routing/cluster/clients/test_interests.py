"""Queues that end with their broker get what is published at another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from core_log.files import MemoryFiles
from protocols.amqp.adapter_properties import PROTOCOL
from protocols.amqp.properties import BasicProperties, encode_properties
from routing.cluster.clients.interests import INTERESTS_MAX, Interests
from routing.message import Properties, Slab
from routing.topology.interest import Interest
from routing.tracing import EXCHANGE, trace
from tests.routing.harness import TRANSIENT, Engine, engine, with_headers


class Link:
    """From one broker to another, at once; unless it is held, then when it is let go."""

    def __init__(self, to: int, source: int, there: Interests, here: Interests) -> None:
        self.broker = to
        self.room_bytes = 1 << 20
        self.forwarded: list[Slab] = []
        self.frames = 0
        self.held: list[Any] | None = None
        self._source, self._there, self._here = source, there, here

    def tell(self, number: int, anew: bool, more: Sequence[Interest], less: Sequence[Interest]) -> None:
        self.frames += 1

        def arrive() -> None:
            self._there.on_told(self._source, anew, more, less)
            self._here.on_noted(self, number)

        self._later(arrive)

    def forward(self, vhost: str, copies: tuple[str, ...], queue: str, slab: Slab, name: bytes = b"") -> None:
        self.forwarded.append(slab)
        self._later(lambda: self._there.on_forwarded(vhost, copies, queue, slab, name))

    def _later(self, what: Any) -> None:
        if self.held is None:
            what()
        else:
            self.held.append(what)

    def let_go(self) -> None:
        held, self.held = self.held or [], None
        for what in held:
            what()


class Two:
    """Two brokers; `links` by the number of the broker that has it, 1 or 2."""

    def __init__(self, engines: list[Engine]) -> None:
        self.engines = dict(enumerate(engines, 1))
        self.interests = {
            me: Interests(one.broker.topology, want_turn=lambda: None, now_ms=lambda: 0, settle_s=0.5)
            for me, one in self.engines.items()
        }
        for me, one in self.interests.items():
            one.brokers = lambda me=me: [3 - me]  # type: ignore[misc]
        self.links = {me: Link(3 - me, me, self.interests[3 - me], self.interests[me]) for me in (1, 2)}
        for me, link in self.links.items():
            self.interests[me].linked(link)

    def turn(self) -> None:
        for me, one in self.engines.items():
            one.turn()
            self.interests[me].end_turn()
        for one in self.engines.values():
            one.turn()


@asynccontextmanager
async def two() -> AsyncIterator[Two]:
    async with engine(MemoryFiles()) as first, engine(MemoryFiles()) as second:
        yield Two([first, second])


async def subscribed(both: Two, at: int, exchange: str, pattern: str, **options: Any) -> Any:
    """A client at one of them with a queue of its own, bound, and consuming."""
    one = both.engines[at]
    client = one.client()
    queue = (await one.broker.declare_queue("", exclusive=True, owner=client.session.owner)).name
    await one.broker.bind("queue", queue, exchange, pattern, owner=client.session.owner, **options)
    await client.consume(queue, no_ack=True)
    both.turn()
    return client


@pytest.mark.parametrize(("syntax", "pattern"), [("amqp", "a.*"), ("mqtt", "a.+")])
async def test_a_message_reaches_a_subscription_at_another_broker(syntax: str, pattern: str) -> None:
    async with two() as both:
        there = await subscribed(both, 2, "amq.topic", pattern, syntax=syntax)
        here = await subscribed(both, 1, "amq.topic", pattern, syntax=syntax)
        publisher = both.engines[1].client()
        publisher.publish("a.b", "wanted", exchange="amq.topic", properties=TRANSIENT)
        publisher.publish("b.b", "unwanted", exchange="amq.topic", properties=TRANSIENT, mandatory=True)
        both.turn()
        assert [one.body for one in there.deliveries] == ["wanted"]
        assert [one.body for one in here.deliveries] == ["wanted"]
        assert publisher.events == [("returned", ["unwanted"], "NO_ROUTE")]
        assert [len(link.forwarded) for link in both.links.values()] == [1, 0]


async def test_a_message_goes_once_however_many_want_it() -> None:
    async with two() as both:
        clients = [await subscribed(both, 2, "amq.fanout", f"key {number % 2}") for number in range(4)]
        publisher = both.engines[1].client()
        publisher.publish("k", *range(10), exchange="amq.fanout", properties=TRANSIENT)
        both.turn()
        assert [[one.body for one in client.deliveries] for client in clients] == [[str(n) for n in range(10)]] * 4
        assert len(both.links[1].forwarded) == 1


async def test_the_name_of_a_queue_leads_there() -> None:
    async with two() as both:
        client = both.engines[2].client()
        queue = (await both.engines[2].broker.declare_queue("", exclusive=True, owner=client.session.owner)).name
        await client.consume(queue, no_ack=True)
        both.turn()
        publisher = both.engines[1].client()
        publisher.publish(queue, "answer", properties=TRANSIENT, mandatory=True)
        both.turn()
        assert [one.body for one in client.deliveries] == ["answer"]
        both.engines[2].broker.release(client.session.owner)
        both.turn()
        publisher.publish(queue, "late", properties=TRANSIENT, mandatory=True)
        assert publisher.events == [("returned", ["late"], "NO_ROUTE")]


async def test_the_name_of_a_queue_that_went_and_was_made_anew_before_that_was_told_leads_there() -> None:
    async with two() as both:
        broker, client = both.engines[2].broker, both.engines[2].client()
        await broker.declare_queue("q", auto_delete=True)
        consumer = await client.consume("q", no_ack=True)
        both.turn()
        client.session.cancel(consumer)
        assert "q" not in broker.topology.queues
        await broker.declare_queue("q", auto_delete=True)
        await client.consume("q", no_ack=True)
        both.turn()
        publisher = both.engines[1].client()
        publisher.publish("q", "m", properties=TRANSIENT, mandatory=True)
        both.turn()
        assert publisher.events == []
        assert [one.body for one in client.deliveries] == ["m"]


async def test_it_ends_with_the_last_that_wants_it() -> None:
    async with two() as both:
        clients = [await subscribed(both, 2, "amq.direct", "k") for _ in range(2)]
        publisher = both.engines[1].client()
        for at, client in enumerate(clients):
            publisher.publish("k", at, exchange="amq.direct", properties=TRANSIENT, mandatory=True)
            both.turn()
            both.engines[2].broker.release(client.session.owner)
            both.turn()
        publisher.publish("k", "none", exchange="amq.direct", properties=TRANSIENT, mandatory=True)
        assert publisher.events == [("returned", ["none"], "NO_ROUTE")]
        assert [[one.body for one in client.deliveries] for client in clients] == [["0"], ["0", "1"]]


async def test_further_keys_travel_with_a_message() -> None:
    async with two() as both:
        clients = [await subscribed(both, 2, "amq.direct", key) for key in ("first", "copy", "other")]
        publisher = both.engines[1].client()
        slab = Slab("amq.direct", "first", TRANSIENT, [b"m"])
        publisher.session.publish(slab, copies=["copy"])
        both.turn()
        assert [len(client.deliveries) for client in clients] == [1, 1, 0]


async def test_through_an_exchange_that_is_bound_to_another_and_by_headers() -> None:
    async with two() as both:
        for one in both.engines.values():
            await one.broker.declare_exchange("outer", "fanout", durable=True)
            await one.broker.declare_exchange("inner", "headers", durable=True)
            await one.broker.bind("exchange", "inner", "outer", "")
        both.turn()
        client = both.engines[2].client()
        broker, owner = both.engines[2].broker, client.session.owner
        queue = (await broker.declare_queue("", exclusive=True, owner=owner)).name
        await broker.bind("queue", queue, "inner", "", {"kind": "x", "number": 3}, owner=owner)
        await client.consume(queue, no_ack=True)
        both.turn()
        publisher = both.engines[1].client()
        for kind in ("x", "y"):
            headers = with_headers({"kind": kind, "number": 3}, persistent=False)
            publisher.publish("", kind, exchange="outer", properties=headers)
        both.turn()
        assert [one.body for one in client.deliveries] == ["x"]


async def test_what_is_wanted_of_an_exchange_that_is_not_known_yet() -> None:
    async with two() as both:
        await both.engines[2].broker.declare_exchange("new", "direct", durable=True)
        client = await subscribed(both, 2, "new", "k")
        await both.engines[1].broker.declare_exchange("new", "direct", durable=True)
        both.engines[1].client().publish("k", "m", exchange="new", properties=TRANSIENT)
        both.turn()
        assert [one.body for one in client.deliveries] == ["m"]


async def test_a_durable_queue_there_gets_nothing_twice() -> None:
    """A queue that all brokers know is not the business of the one that a message was sent to."""
    async with two() as both:
        await both.engines[2].broker.declare_queue("lasting", durable=True)
        await both.engines[2].broker.bind("queue", "lasting", "amq.fanout", "")
        client = await subscribed(both, 2, "amq.fanout", "")
        both.engines[1].client().publish("", "m", exchange="amq.fanout", properties=TRANSIENT)
        both.turn()
        assert [one.body for one in client.deliveries] == ["m"]
        assert (await both.engines[2].broker.check_queue("lasting")).message_count == 0


async def test_what_divides_messages_is_chosen_by_who_takes_them() -> None:
    async with two() as both:
        for one in both.engines.values():
            await one.broker.declare_exchange("hash", "x-consistent-hash", durable=True)
            await one.broker.declare_exchange("all", "fanout", durable=True)
            await one.broker.bind("exchange", "hash", "all", "")
        owners = {me: one.client() for me, one in both.engines.items()}
        for me, client in owners.items():
            broker, owner = both.engines[me].broker, client.session.owner
            for exchange, pattern in (("hash", "1"), ("all", "")):
                queue = (await broker.declare_queue("", exclusive=True, owner=owner)).name
                await broker.bind("queue", queue, exchange, pattern, owner=owner)
                await client.consume(queue, tag=exchange, no_ack=True)
        both.turn()
        keys = [str(number) for number in range(40)]
        for publisher in (1, 2):
            for key in keys:
                both.engines[publisher].client().publish(key, key, exchange="all", properties=TRANSIENT)
            both.turn()
        chosen = {me: [one.body for one in client.deliveries if one.tag == "hash"] for me, client in owners.items()}
        assert sorted(chosen[1] + chosen[2]) == sorted(2 * keys), "each once, whoever took it"
        assert all(bodies and len(bodies) == 2 * len(set(bodies)) for bodies in chosen.values()), "the same by the same"
        for client in owners.values():
            assert sorted(one.body for one in client.deliveries if one.tag == "all") == sorted(2 * keys)


async def test_a_new_link_is_told_everything_and_a_broker_that_is_gone_is_forgotten() -> None:
    async with two() as both:
        client = both.engines[2].client()
        broker, owner = both.engines[2].broker, client.session.owner
        queue = (await broker.declare_queue("", exclusive=True, owner=owner)).name
        for number in range(INTERESTS_MAX + 1):
            await broker.bind("queue", queue, "amq.direct", str(number), owner=owner)
        both.turn()
        publisher = both.engines[1].client()
        both.interests[1].forget(2)
        publisher.publish("7", "m", exchange="amq.direct", properties=TRANSIENT, mandatory=True)
        assert len(publisher.events) == 1
        again = Link(1, 2, both.interests[1], both.interests[2])
        both.interests[2].linked(again)
        both.interests[2].lost(both.links[2])
        assert again.frames == 3
        publisher.publish("1000", "m", exchange="amq.direct", properties=TRANSIENT, mandatory=True)
        assert len(publisher.events) == 1
        both.links[1].room_bytes = 0
        publisher.publish("1000", "m", exchange="amq.direct", properties=TRANSIENT, mandatory=True)
        assert both.interests[1].dropped_messages == 1


@pytest.mark.parametrize("exchange", ["", "amq.direct"])
async def test_what_is_mandatory_is_returned_while_nothing_but_a_broker_without_a_link_wants_it(exchange: str) -> None:
    async with two() as both:
        client = both.engines[2].client()
        broker, owner = both.engines[2].broker, client.session.owner
        queue = (await broker.declare_queue("", exclusive=True, owner=owner)).name
        await broker.bind("queue", queue, "amq.direct", queue, owner=owner)
        both.turn()
        both.interests[1].lost(both.links[1])
        publisher = both.engines[1].client()
        to = {"exchange": exchange, "properties": TRANSIENT}
        publisher.publish(queue, "lost", **to)
        publisher.publish(queue, "told", mandatory=True, confirm=True, **to)
        both.turn()
        assert ("returned", ["told"], "NO_ROUTE") in publisher.events
        assert [event[0] for event in publisher.events] == ["returned", "confirm"]
        assert both.interests[1].dropped_messages == 1
        publisher.session.begin()
        publisher.publish(queue, "of a transaction", mandatory=True, **to)
        await publisher.session.commit()
        assert ("returned", ["of a transaction"], "NO_ROUTE") in publisher.events
        await subscribed(both, 1, "amq.direct", queue)
        publisher.events.clear()
        publisher.publish(queue, "wanted here", mandatory=True, exchange="amq.direct", properties=TRANSIENT)
        both.turn()
        assert publisher.events == []
        both.interests[1].linked(both.links[1])
        publisher.publish(queue, "again", mandatory=True, **to)
        assert publisher.events == []


async def test_who_binds_waits_until_all_have_noted_it() -> None:
    async with two() as both:
        link = both.links[2]
        link.held = []
        client = both.engines[2].client()
        broker, owner = both.engines[2].broker, client.session.owner
        queue = (await broker.declare_queue("", exclusive=True, owner=owner)).name
        await broker.bind("queue", queue, "amq.direct", "k", owner=owner)
        done = trio.Event()

        async def settled() -> None:
            await both.interests[2].settled()
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settled)
            await trio.testing.wait_all_tasks_blocked()
            assert not done.is_set()
            link.let_go()
            await done.wait()
        both.interests[2]._settle_s = 60
        with trio.fail_after(30):
            await both.interests[2].settled()
        both.interests[2]._settle_s = 0.1
        link.held = []
        await broker.bind("queue", queue, "amq.direct", "other", owner=owner)
        with trio.fail_after(5):
            await both.interests[2].settled()  # a silent one is not waited for longer than that


async def test_a_virtual_host_that_is_made_anew_knows_what_others_want() -> None:
    async with two() as both:
        for one in both.engines.values():
            await one.broker.set_vhost("other")
        both.interests[1].on_told(2, False, [Interest("other", "amq.direct", "k")], ())
        await both.engines[1].broker.delete_vhost("other")
        await both.engines[1].broker.set_vhost("other")
        vhost = both.engines[1].broker.topology.vhost("other")
        slab = Slab("amq.direct", "k", TRANSIENT, [b"m"])
        assert [len(route.topics) for route, _ in vhost.router.routed(slab)] == [1]


async def test_that_another_broker_had_a_queue_of_the_same_name_is_forgotten_with_the_queue() -> None:
    """It is asked of a queue that was just made: what was said of one before would have that one wait."""
    async with two() as both:
        broker, interests, link = both.engines[1].broker, both.interests[1], both.links[1]
        name = ("/", "q")

        async def make() -> None:
            await broker.declare_queue("q", durable=False)
            interests.end_turn()

        await make()
        interests.on_noted(link, 1, [name])
        assert interests.also_at(*name) == 2
        interests.on_noted(link, 1, [name])
        await broker.delete_queue("q")
        interests.end_turn()
        interests.on_noted(link, 1, [name])
        await make()
        assert interests.also_at(*name) is None


async def test_a_message_larger_than_all_that_may_wait_is_sent_where_nothing_does() -> None:
    async with two() as both:
        client = both.engines[2].client()
        broker, owner = both.engines[2].broker, client.session.owner
        queue = (await broker.declare_queue("", exclusive=True, owner=owner)).name
        both.turn()
        both.links[1].room_bytes = 10
        both.engines[1].client().publish(queue, "more than ten bytes", properties=TRANSIENT)
        assert [slab.bodies for slab in both.links[1].forwarded] == [[b"more than ten bytes"]]
        assert both.interests[1].dropped_messages == 0


@pytest.mark.parametrize("copies", [(), ("further",)])
async def test_the_window_of_an_exchange_counts_for_what_is_published_at_another_broker(copies: Sequence[str]) -> None:
    async with two() as both:
        for one in both.engines.values():
            await one.broker.set_policy("once", "^amq.fanout$", {"deduplication-window-ms": 10_000})
            await one.queue("durable")
            await one.bind("amq.fanout", "durable")
        there = await subscribed(both, 2, "amq.fanout", "")
        publisher = both.engines[1].client()
        for name in ("a", "b", "a"):
            properties = Properties(PROTOCOL, encode_properties(BasicProperties(message_id=name)), persistent=False)
            publisher.session.publish(Slab("amq.fanout", "", properties, [name.encode()]), copies=copies)
            both.turn()
        assert [one.body for one in there.deliveries] == ["a", "b"]
        router = publisher.session.vhost.router
        ((route, _),) = router.routed(Slab("amq.fanout", "", properties, [b"c"]), copies)
        assert [destinations.once_in_ms for _, destinations in route.homes] == [10_000], "its leader is told, too"


async def test_who_watches_the_firehose_at_another_broker_sees_what_is_published_here() -> None:
    async with two() as both:
        watcher = await subscribed(both, 2, EXCHANGE, "publish.#")
        trace(both.engines[1].broker, "/", True)
        await both.engines[1].queue("q")
        both.engines[1].client().publish("q", "seen")
        both.turn()
        assert [one.body for one in watcher.deliveries] == ["seen"]
