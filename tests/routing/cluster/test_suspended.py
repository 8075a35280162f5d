"""A leader that may not serve for a while: what it does of itself waits as well, and nothing is lost."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import trio

from core_log.replication.moves import asked
from core_log.replication.state import encode, log_key
from routing.cluster.clients.streams import Slabs
from routing.errors import BrokerError, PreconditionFailed
from routing.message import Numbered, Slab
from routing.queues.homes.home import for_others
from routing.session import Outcome
from tests.routing.harness import PERSISTENT
from tests.support.home_cluster import mesh, until

PUBLISHER = 1 << 20


async def test_no_dead_letters_are_made_while_another_broker_may_lead() -> None:
    async with mesh(dead_letter_retry_ms=10) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        await one.queue("dead", durable=False)
        client = one.client()
        await client.publish_safely("q", *range(3))
        await client.consume("q")
        taken = client.take()
        clock = one.part._clock
        one.part._clock = lambda: trio.current_time() + 60
        client.session.settle(taken[0].id, taken[2].id, Outcome.DISCARD)
        one.turn()
        assert not one.leads(0)
        assert one.broker.dead_letters.counts["published"] == 0
        one.part._clock = clock
        await until(lambda: one.count("dead") == 3)
        assert [body for body, _ in await one.drain("dead")] == ["0", "1", "2"]


async def test_what_is_published_while_two_hand_overs_fail_is_taken_behind_what_came_between_them() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        role, client = one.part.role_of("home-0"), one.client()
        assert role is not None
        # Nobody else has a turn meanwhile, so nothing is committed.
        for waits, goes_in in (("first", "second"), ("third", "fourth")):
            role.handing_over = True
            one.turn()
            client.publish("q", waits, confirm=True)
            one.turn()
            role.handing_over = False
            one.turn()
            client.publish("q", goes_in, confirm=True)
            one.turn()
        assert not client.events
        await until(lambda: client.confirmed == 4, 5)
        assert [body for body, _ in await one.drain("q")] == ["first", "second", "third", "fourth"]


async def test_what_one_home_has_taken_waits_for_the_other_behind_what_waits_there() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        for home, name in enumerate(("waiting", "taking")):
            one.broker.topology.place_queue = lambda queue_id, arguments, home=home: home
            await one.queue(name)
            await one.bind("amq.fanout", name)
        role, client = one.part.role_of("home-0"), one.client()
        assert role is not None

        def publish(exchange: str, key: str, number: int) -> None:
            slab = Slab(exchange, key, PERSISTENT, [b"%d" % number])
            slab.once = Numbered(PUBLISHER, array("H", [number]))
            client.session.publish(slab, confirm=True)
            one.turn()

        publish("", "taking", 2)  # as by a broker that was killed before all had it
        role.handing_over = True
        one.turn()
        for number in (1, 2):
            publish("amq.fanout", "", number)
        role.handing_over = False
        one.turn()
        await until(lambda: client.confirmed == 3, 5)
        assert [body for body, _ in await one.drain("waiting")] == ["1", "2"]
        assert [body for body, _ in await one.drain("taking")] == ["2", "1"]


@pytest.mark.parametrize("fails", [False, True], ids=["at once", "after it had given up"])
async def test_dead_letters_come_to_a_queue_that_another_broker_leads(*, fails: bool) -> None:
    async with mesh(dead_letter_retry_ms=10, patience_s=0.3, serve_each_other=True) as brokers:
        one, two = brokers.members[1], brokers.members[2]
        places = iter((0, 1))
        one.broker.topology.place_queue = lambda queue_id, arguments: next(places)
        await one.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        await one.queue("dead")
        known = one.part.elections.logs["home-1"]
        await one.part.store.change([], [(log_key(b"", "home-1"), encode(asked(known.state, 2)))])
        await until(lambda: two.leads(1) and one.leads(0))
        client = one.client()
        await client.publish_safely("q", *range(3))
        await client.consume("q")
        taken = client.take()
        if fails:
            for _, asking in one.asking:
                asking.cut()
        client.session.settle(taken[0].id, taken[2].id, Outcome.DISCARD)
        one.turn()
        if fails:
            letters = one.broker.dead_letters
            await until(lambda: letters._waiting and not letters._flights)
            one.broker.engine.forwarding.patience_s = 30  # what is on its way now is not to be given up
            one.dial(two, brokers.nursery)
            await one.client().publish_safely("dead", "later")
        await until(lambda: one.broker.topology.queues["q"].outstanding == 0)
        assert two.count("dead") == 3 + fails


@pytest.mark.parametrize("asked", [1, 2])
async def test_nobody_counts_or_purges_what_another_broker_may_lead(asked: int) -> None:
    async with mesh(serve_each_other=True) as brokers, trio.open_nursery() as nursery:
        one, broker = brokers.members[1], brokers.members[asked].broker
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await one.client().publish_safely("q", *range(3))
        await until(lambda: "q" in broker.topology.queues)
        clock = one.part._clock
        one.part._clock = lambda: trio.current_time() + 60
        found: list[int] = []

        async def look() -> None:
            found.append((await broker.check_queue("q")).message_count)
            found.append(await broker.purge_queue("q"))

        nursery.start_soon(look)
        await trio.sleep(0.05)
        assert not found
        one.part._clock = clock
        await until(lambda: len(found) == 2)
        assert found == [3, 3]


@pytest.mark.parametrize("asked", [1, 2])
async def test_whether_a_queue_is_empty_or_unused_is_not_refused_where_its_count_would_be_waited_for(
    asked: int,
) -> None:
    """Who deleted it so while its leader was not certain, or had just become it, had his connection closed."""
    async with mesh(serve_each_other=True) as brokers, trio.open_nursery() as nursery:
        one, broker = brokers.members[1], brokers.members[asked].broker
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        for name in ("full", "unused"):
            await one.queue(name)
            await one.client().publish_safely(name, *range(3))
        await until(lambda: "unused" in broker.topology.queues)
        clock = one.part._clock
        one.part._clock = lambda: trio.current_time() + 60
        found: list[int | type[Exception]] = []

        async def delete(**conditions: Any) -> None:
            try:
                found.append(await broker.delete_queue(**conditions))
            except BrokerError as error:
                found.append(type(error))

        nursery.start_soon(lambda: delete(name="full", if_empty=True))
        nursery.start_soon(lambda: delete(name="unused", if_unused=True))
        await trio.sleep(0.05)
        assert not found
        one.part._clock = clock
        await until(lambda: len(found) == 2)
        assert set(found) == {PreconditionFailed, 3}


async def test_what_is_said_again_and_cut_off_comes_before_what_was_published_behind_it() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        client = one.client()

        def publish(*numbers: int) -> None:
            slab = Slab("", "q", PERSISTENT, [b"%d" % number for number in numbers])
            slab.once = Numbered(PUBLISHER, array("H", numbers))
            client.session.publish(slab, confirm=True)

        with for_others((one.broker.topology.stripes[0],)):
            publish(1, 2)
        client = one.client()
        for numbers in ((1,), (2, 3), (4,)):
            publish(*numbers)
        one.part.replicas.registered(0)
        assert not one.broker.topology.led
        await brokers.members[2].one.store.revoke(one.one.store.lease_id)
        await until(lambda: client.confirmed == 4)
        assert [body for body, _ in await brokers.leader(0).drain("q")] == ["1", "2", "3", "4"]


async def test_what_the_next_leader_is_known_to_have_committed_is_confirmed_whatever_the_disk_here_does() -> None:
    async with mesh() as brokers:
        one = brokers.members[1]
        assert one.broker.engine is not None
        stream, log = one.broker.engine.forwarding.stream("home-0"), one.part.replicas.by_name["home-0"].log
        slab = Slab("", "q", PERSISTENT, [b"1", b"2"])
        assert log.on_known is not None
        stream.reserve(2, slab.size, Slabs((1,), 0, slab), 100, 102)
        log.on_known(101)
        assert stream.committed_offset == 0
        log.on_known(102)
        assert stream.committed_offset == stream.next_position == 2
