"""A leader that may not serve for a while: what it does of itself waits as well, and nothing is lost."""

from __future__ import annotations

import trio

from routing.session import Outcome
from tests.support.home_cluster import mesh, until


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
