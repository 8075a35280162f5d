"""Homes whose leader hands over while there is more to it than what clients publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from core_log.record_batch import BatchBuilder, validate
from core_log.replication.leader import Leader
from core_log.replication.state import Change
from routing.administration import administer
from routing.cluster.clients.transaction_effects import Target
from routing.cluster.metadata.log_names import TRANSACTIONS, log_of_kind
from routing.republishing.dead_letters import _Flight
from routing.republishing.later import NAME as LATER
from routing.republishing.later import _Worker
from routing.republishing.parked_records import Releaser
from routing.topics.topic_partition import TopicPartition
from routing.topology.parked import DELAYED_PREFIX
from tests.core_log.helpers import read_all
from tests.routing.cluster.test_topics_handed_over import led
from tests.routing.harness import Client, body_of
from tests.support.home_cluster import Member, Mesh, mesh, until

TTL_MS = 50
DEAD = {"x-message-ttl": TTL_MS, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


async def declared(brokers: Mesh, homes: dict[str, int], **arguments: Any) -> None:
    one = brokers.members[1]
    for name, index in homes.items():
        one.broker.topology.place_queue = lambda queue_id, arguments, index=index: index  # type: ignore[misc]
        await one.queue(name, arguments=arguments if name == "q" else {})
    await until(lambda: all(set(homes) <= set(m.broker.topology.queues) for m in brokers.members.values()))


def publishing_to_both(member: Member) -> Client:
    """In a transaction."""
    client = member.client()
    client.session.begin()
    client.publish("q", "x")
    client.publish("other", "x")
    return client


@pytest.mark.parametrize("home", [0, 1], ids=["here", "elsewhere"])
async def test_who_hands_over_waits_for_dead_letters_that_are_under_way(home: int) -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        await declared(brokers, {"dead": home, "q": 0}, **DEAD)
        assert one.leads(0)
        letters = one.broker.dead_letters
        landed, under_way = letters._landed, list[_Flight]()
        letters._landed = under_way.append  # type: ignore[method-assign]
        role, client = one.part.role_of("home-0"), one.client()
        assert role is not None
        await client.publish_safely("q", *range(3))
        await until(lambda: under_way)
        await one.one.members.update(draining=True)
        await until(lambda: role.closed_until_s is not None)
        letters._landed = landed  # type: ignore[method-assign]
        for flight in under_way:
            landed(flight)
        one.turn()
        await until(lambda: not one.leads(0))
        await one.one.members.update(draining=False)
        await brokers.settled(0)
        await client.publish_safely("q", "last")
        leader = await brokers.settled(home)
        found: list[str] = []
        while "last" not in found:
            await until(lambda: leader.count("dead"))
            found += [body for body, _ in await leader.drain("dead")]
        assert found == ["0", "1", "2", "last"]


async def test_who_gets_a_message_meanwhile_has_it_from_the_next_leader() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one, two = brokers.members[1], brokers.members[2]
        await declared(brokers, {"q": 0})
        assert one.leads(0)
        await one.client().publish_safely("q", "x", "y")
        role, swap, asked, found = one.part.role_of("home-0"), one.part.states._swap, trio.Event(), list[str]()

        async def swap_later(of: Leader, change: Change) -> None:
            if of is role:
                await asked.wait()
            await swap(of, change)

        async def get(member: Member) -> None:
            got = await member.client().session.get("q", no_ack=False)
            assert got is not None
            found.append(body_of(got))

        one.part.states._swap = swap_later  # type: ignore[method-assign]
        await one.one.members.update(draining=True)
        await until(lambda: role is not None and role.handing_over)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                one.home("q").suspended = True
                nursery.start_soon(get, one)
                nursery.start_soon(get, two)
                await trio.testing.wait_all_tasks_blocked(0.005)
                assert not found
                asked.set()
        assert sorted(found) == ["x", "y"]
        await one.one.members.update(draining=False)


async def test_a_rewind_goes_on_at_the_next_leader() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        await declared(brokers, {"q": 0}, **{"x-retain": "1h"})
        assert one.leads(0)
        client = one.client()
        for number in range(200):
            client.publish("q", number)
            one.turn()
        await until(lambda: one.count("q") == 200)
        await one.drain("q")
        await one.synced()
        role, moved = one.part.role_of("home-0"), False
        given: dict[str, Any] = {"name": "q", "since_ms": 0}
        wait_for_room = one.broker.flusher.wait_for_room

        async def hand_over() -> None:
            nonlocal moved
            if not moved:
                moved = True
                await one.one.members.update(draining=True)
                await until(lambda: role is not None and role.closed_until_s is not None)
            await wait_for_room()

        one.broker.flusher.wait_for_room = hand_over  # type: ignore[method-assign]
        replayed, left = list[int](), 1
        with trio.fail_after(20):
            while left:
                done = await administer(one.broker, "guest", "queues.rewind", given)
                given |= {"after": done["last"], "before": done["before"]}
                replayed.append(done["replayed"])
                left = done["left"]
        assert moved
        assert not one.leads(0)
        leader = await brokers.settled(0)
        assert [body for body, _ in await leader.drain("q")] == [str(number) for number in range(200)]
        assert sum(replayed) == 200
        await one.one.members.update(draining=False)


async def park(topic_at: Member, partition: TopicPartition) -> None:
    builder = BatchBuilder(0, 0, 1_000)
    builder.add(0, None, b"x", [("x-delay", b"1")])
    data = builder.build()
    await topic_at.broker.delayed.park(partition, [validate(data)], [data])


@pytest.mark.parametrize("kind", [Releaser, _Worker], ids=["to a topic", "to an exchange"])
async def test_who_hands_over_waits_for_what_is_due_and_under_way(
    kind: type[Releaser] | type[_Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know that it has been published, and the next leader would have it published again."""
    async with mesh(serve_each_other=True) as brokers:
        topic_at, partition = await led(brokers, **{"millrace.delay.enable": "true"})
        client = topic_at.client()
        await topic_at.queue("due")
        await topic_at.bind("amq.topic", "due", "#")
        await topic_at.broker.later.make_ready("/")
        name = LATER if kind is _Worker else f"{DELAYED_PREFIX}t"
        settle, held = kind._settle, list[partial[None]]()
        monkeypatch.setattr(kind, "_settle", lambda *arguments: held.append(partial(settle, *arguments)))
        if kind is _Worker:
            await client.publish_safely("k", "x", exchange=LATER)
        else:
            await park(topic_at, partition)
        await until(lambda: held)
        index = topic_at.broker.topology.queues[name].partition.index
        leader = await brokers.settled(index)
        role = leader.part.role_of(f"home-{index}")
        assert role is not None
        await leader.one.members.update(draining=True)
        await until(lambda: role.closed_until_s is not None)
        await trio.sleep(0.1)
        assert leader.leads(index)
        monkeypatch.undo()
        for each in held:
            each()
        for member in brokers.members.values():
            member.turn()
        await until(lambda: not leader.leads(index))
        await leader.one.members.update(draining=False)
        leader = await brokers.settled(index)
        await until(lambda: not leader.count(name) and not leader.broker.topology.queues[name].outstanding)
        if kind is _Worker:
            at = await brokers.settled(leader.broker.topology.queues["due"].partition.index)
            await until(lambda: at.count("due"))
            assert [body for body, _ in await at.drain("due")] == ["x"]
        else:
            assert [value for _, value in read_all(partition.log)] == [b"x"]


async def test_a_transaction_is_not_put_into_what_is_being_handed_over() -> None:
    """The next leader might have it, without anybody knowing: then it would be there twice."""
    async with mesh(serve_each_other=True) as brokers, trio.open_nursery() as nursery:
        one = brokers.members[1]
        await declared(brokers, {"q": 0, "other": 1})
        assert one.leads(0)
        shared, role = one.broker.transactions.shared, one.part.role_of("home-0")
        assert shared is not None
        assert role is not None
        decide, apply, swap = shared._decide, shared._apply, one.part.states._swap
        applied, told, log = trio.Event(), trio.Event(), one.log(0)
        advance = log.advance_high_watermark

        async def swap_later(of: Leader, change: Change) -> None:
            if of is role:
                await told.wait()
            await swap(of, change)

        async def decide_before(number: int, key: bytes, record: bytes) -> bool:
            found = await decide(number, key, record)
            await one.one.members.update(draining=True)
            await until(lambda: role.handing_over)
            return found

        def put(*arguments: Any, **options: Any) -> Mapping[int, Sequence[Target]]:
            applied.set()
            log.advance_high_watermark = lambda offset: None  # type: ignore[method-assign]
            return apply(*arguments, **options)

        one.part.states._swap, shared._decide, shared._apply = swap_later, decide_before, put  # type: ignore[method-assign]
        client = publishing_to_both(one)
        nursery.start_soon(client.session.commit)
        await applied.wait()
        one.turn()
        await until(lambda: len({member.log(0).log_end_offset for member in brokers.members.values()}) == 1)
        told.set()
        await until(lambda: not one.leads(0))
        log.advance_high_watermark = advance  # type: ignore[method-assign]
        await one.one.members.update(draining=False)
        for index, name in enumerate(("q", "other")):
            leader = await brokers.settled(index)
            await until(lambda leader=leader, name=name: leader.count(name))  # type: ignore[misc]
            await until(lambda: not shared._works)
            assert [body for body, _ in await leader.drain(name)] == ["x"]


async def test_a_commit_goes_to_the_next_leader_of_the_records_of_transactions() -> None:
    """Who was asked to keep the record hands over before it is asked; nobody but the other brokers leads any."""
    async with mesh(serve_each_other=True) as brokers:
        one, two = brokers.members[1], brokers.members[2]
        await declared(brokers, {"q": 0, "other": 1})
        shared = two.broker.transactions.shared
        assert shared is not None
        keeper, asked = shared.keeper, list[object]()

        async def keeper_before(number: int) -> object:
            found = await keeper(number)
            if not asked:
                asked.append(found)
                await one.one.members.update(draining=True)
                await until(lambda: not list(one.broker.transactions.shared.stores.led()))  # type: ignore[union-attr]
            return found

        mine = next(
            number
            for number in range(shared.stores.count)
            if two.part.leader_of(log_of_kind(TRANSACTIONS, number))[0] == 1
        )
        shared._log_for_records = lambda: mine  # type: ignore[method-assign]
        shared.keeper = keeper_before  # type: ignore[method-assign, assignment]
        client = publishing_to_both(two)
        with trio.fail_after(4):
            await client.session.commit()
        assert asked
        await one.one.members.update(draining=False)


async def test_a_commit_waits_for_a_leader_of_the_records_of_transactions() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        await declared(brokers, {"q": 0, "other": 1})
        shared = one.broker.transactions.shared
        assert shared is not None
        for me in (2, 3):
            await brokers.members[me].one.members.update(draining=True)
        await until(
            lambda: {one.part.leader_of(log_of_kind(TRANSACTIONS, n))[0] for n in range(shared.stores.count)} == {1}
        )
        led = shared.stores.led
        waited = trio.current_time() + 0.2
        shared.stores.led = lambda: led() if trio.current_time() > waited else iter(())  # type: ignore[method-assign]
        client = publishing_to_both(one)
        with trio.fail_after(4):
            await client.session.commit()


async def test_what_is_committed_may_be_handed_over_while_the_rest_is_waited_for() -> None:
    async with mesh(serve_each_other=True) as brokers, trio.open_nursery() as nursery:
        one = brokers.members[1]
        await declared(brokers, {"q": 0})
        shared, log, stands, found = one.broker.transactions.shared, one.log(0), True, list[bool]()
        assert shared is not None
        advance = log.advance_high_watermark
        log.advance_high_watermark = lambda offset: None  # type: ignore[method-assign]
        one.client().publish("q", "x")
        one.turn()
        slow = Target(log, log.log_end_offset, lambda: True)
        other = Target(log, log.high_watermark, lambda: stands)

        async def wait() -> None:
            found.append(await shared.reached([slow, other]))

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked(0.005)
        stands = False
        log.advance_high_watermark = advance  # type: ignore[method-assign]
        await until(lambda: found)
        assert found == [True]


@pytest.mark.parametrize("at", [1, 2], ids=["here", "elsewhere"])
async def test_who_hands_over_waits_for_transactions_that_settle_something(at: int) -> None:
    async with mesh(serve_each_other=True) as brokers:
        one, its = brokers.members[1], brokers.members[at]
        await declared(brokers, {"done": 1, "q": 0})
        assert one.leads(0)
        role, client, decided = one.part.role_of("home-0"), its.client(), trio.Event()
        assert role is not None
        assert its.broker.engine is not None
        transactions = its.broker.engine.transactions
        decide, begun, others = transactions._decide, list[bytes](), brokers.members[3].client()

        async def late(number: int, key: bytes, record: bytes) -> bool:
            begun.append(key)
            await decided.wait()
            return await decide(number, key, record)

        transactions._decide = late  # type: ignore[method-assign]
        await one.client().publish_safely("q", "task")
        await client.consume("q")
        await until(lambda: its.turn() or client.deliveries)
        await others.consume("q")
        client.session.begin()
        client.publish("done", "result")
        client.ack(client.deliveries[0].id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.session.commit)
            await until(lambda: begun)
            await one.one.members.update(draining=True)
            await until(lambda: role.closed_until_s is not None)
            decided.set()
        await until(lambda: not one.leads(0))
        await one.one.members.update(draining=False)
        client.session.close()
        leader = await brokers.settled(0)
        assert await leader.drain("q") == []
        assert not others.deliveries
        assert [body for body, _ in await (await brokers.settled(1)).drain("done")] == ["result"]
