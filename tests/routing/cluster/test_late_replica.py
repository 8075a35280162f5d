"""A replica that comes when the start of a home's log is gone knows all that stood there and still matters."""

from __future__ import annotations

from typing import Any

import trio

from routing.queues.homes.relocation import end_of_stragglers
from routing.session import Outcome
from tests.routing.cluster.test_homes import all_committed
from tests.routing.publishing.test_deduplication import confirmed, publish
from tests.support.home_cluster import Member, mesh, until

SEGMENT_BYTES = 200_000
CROWD = 20_000


async def keep_house(member: Member) -> None:
    """Write again what pins old segments, and let these go."""
    home = member.home("crowd")
    with trio.fail_after(30):
        while end_of_stragglers(home) or member.log(0).log_start_offset < CROWD // 2:
            member.broker.checkpoints.take(home)
            while home in member.broker.checkpoints._under_way:
                member.turn()
                await trio.sleep(0.001)
            await all_committed(member, 0)
            home.delete_dead_prefix()
            await all_committed(member, 0)


async def test_ids_sizes_and_counts_of_returns_are_known_to_a_replica_that_comes_late() -> None:
    async with mesh(2, queue_segment_bytes=SEGMENT_BYTES, stripe_cache_bytes=100_000) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("once", arguments={"x-deduplication-window-ms": 3_600_000})
        await one.queue("counted", arguments={"x-queue-type": "quorum", "x-delivery-limit": 50})
        await one.queue("limited", arguments={"x-max-length-bytes": 1 << 30})
        await one.queue("crowd")
        client = one.client()
        publish(client, "once", "a", "b", "c")
        await confirmed(one, client)
        assert len(await one.drain("once")) == 3
        await client.publish_safely("limited", "." * 1234, "." * 17)
        await client.publish_safely("counted", "old")
        taker = one.client()
        await taker.consume("counted")
        for _ in range(3):
            (delivery,) = taker.take()
            taker.session.settle(delivery.id, delivery.id, Outcome.REQUEUE)
        taker.session.close()
        for first in range(0, CROWD, 2_000):
            await client.publish_safely("crowd", *range(first, first + 2_000))
        await one.broker.purge_queue("crowd")
        await all_committed(one, 0)
        await keep_house(one)
        assert one.home("counted").moves, "what is there was written again"
        sizes = one.broker.topology.queues["limited"].rules.sizes
        assert sizes is not None
        assert sizes.waiting_bytes == 1251

        late = await brokers.add(3)
        await brokers.settled(0)
        await all_committed(one, 0)
        await until(lambda: late.log(0).high_watermark == one.log(0).log_end_offset)
        assert late.log(0).log_start_offset > CROWD // 2
        returned = [tries.returns for tries in one.broker.topology.queues["counted"].returns.tries.values()]  # type: ignore[union-attr]
        await brokers.kill(1)
        await brokers.settled(0)
        if not late.leads(0):
            disk = await brokers.kill(2)
            await brokers.add(2, disk)
        leader = await brokers.settled(0)
        assert leader is late
        queues = late.broker.topology.queues
        assert queues["counted"].returns is not None
        assert [tries.returns for tries in queues["counted"].returns.tries.values()] == returned
        assert queues["limited"].rules.sizes is not None
        assert queues["limited"].rules.sizes.waiting_bytes == 1251
        client = late.client()
        publish(client, "once", "b", "new", "a")
        await confirmed(late, client)
        assert [body for body, _ in await late.drain("once")] == ["new"]
        assert [body for body, _ in await late.drain("counted")] == ["old"]


async def test_what_was_written_again_is_there_twice_until_all_replicas_in_sync_have_it() -> None:
    around: dict[str, Any] = {"queue_segment_bytes": SEGMENT_BYTES, "stripe_cache_bytes": 100_000}
    async with mesh(3, fsync="interval", fsync_interval_ms=10, **around) as brokers:
        one = brokers.leader(0)
        for member in brokers.members.values():
            member.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("q")
        await one.queue("crowd")
        client = one.client()
        await client.publish_safely("q", "straggler")
        for first in range(0, CROWD, 2_000):
            await client.publish_safely("crowd", *range(first, first + 2_000))
        await one.broker.purge_queue("crowd")
        await all_committed(one, 0)
        await brokers.kill(one.me)
        one = await brokers.settled(0)
        await one.client().publish_safely("q", "late")  # in this epoch queues are defined behind what may go
        await one.client().publish_safely("crowd", "late")
        await all_committed(one, 0)
        home = one.home("crowd")
        one.cut()
        one.broker.checkpoints.take(home)
        await until(lambda: home.moves)
        await until(lambda: home.log.flushed_offset >= home.moved_before)
        assert home.log.high_watermark < home.moved_before, "nobody else has it"
        home.delete_dead_prefix()
        assert home.log.log_start_offset == 0
        assert one.log(0).segments[1].base_offset < home.first_live_offset, "else it would stay anyway"


async def test_ids_are_known_to_a_replica_that_was_killed_when_they_had_gone_from_its_log() -> None:
    async with mesh(2, queue_segment_bytes=SEGMENT_BYTES, stripe_cache_bytes=100_000) as brokers:
        for member in brokers.members.values():
            member.broker.topology.place_queue = lambda queue_id, arguments: 0
        one = brokers.leader(0)
        other = next(member for member in brokers.members.values() if member is not one)
        await one.queue("once", arguments={"x-deduplication-window-ms": 3_600_000})
        await one.queue("crowd")
        client = one.client()
        publish(client, "once", "a", "b", "c")
        await confirmed(one, client)
        assert len(await one.drain("once")) == 3
        for first in range(0, CROWD, 2_000):
            await client.publish_safely("crowd", *range(first, first + 2_000))
        await one.broker.purge_queue("crowd")
        await all_committed(one, 0)
        await keep_house(one)
        await until(lambda: other.log(0).log_start_offset > CROWD // 2)
        disk = await brokers.kill(other.me)
        await until(lambda: len(one.part.state_of("home-0").isr) == 1)
        again = await brokers.add(other.me, disk)
        await until(lambda: len(one.part.state_of("home-0").isr) == 2)
        await until(lambda: again.log(0).high_watermark == one.log(0).log_end_offset)
        await brokers.kill(one.me)
        leader = await brokers.settled(0)
        assert leader is again
        client = leader.client()
        publish(client, "once", "b", "new", "a")
        await confirmed(leader, client)
        assert [body for body, _ in await leader.drain("once")] == ["new"]
