"""What is set aside for a reader in a cluster: asked of any broker, and the same with the next leader."""

from __future__ import annotations

import pytest
import trio

from routing.errors import BrokerError, PreconditionFailed
from routing.queues.homes.carried_states import carried_states
from routing.queues.settlement import RESERVED_KEY, decode_reserved
from tests.routing.test_readers import ask, browse, read, reserve, texts
from tests.support.home_cluster import Member, mesh, until


async def test_a_reader_goes_on_with_the_next_leader_from_any_broker() -> None:
    async with mesh(serve_each_other=True) as brokers:
        one = brokers.members[1]
        await one.queue("q")
        index = one.home("q").index
        leader = await brokers.settled(index)
        await leader.client().publish_safely("q", *range(100))
        other = next(member for member in brokers.members.values() if member is not leader)
        await until(lambda: "q" in other.broker.topology.queues)
        assert await browse(other) == texts(0, 100)
        assert await reserve(other, 0, 40) == (40, 60)
        assert await reserve(other, 10, 40) == (50, 50)
        assert await read(other, 10, 50, bytes_max=300) == texts(10, 50)
        await brokers.kill(leader.me)
        following = await brokers.settled(index)
        asked = next(member for member in brokers.members.values() if member not in (leader, following))

        async def again(member: Member) -> list[str]:
            with trio.fail_after(20):
                while True:
                    try:
                        return await read(member, 10, 50)
                    except PreconditionFailed:
                        raise
                    except BrokerError:
                        await trio.sleep(0.05)

        assert await again(following) == texts(10, 50)
        assert await again(asked) == texts(10, 50)
        assert await reserve(asked, 50, 5) == (55, 45)
        assert [body for body, _ in await following.drain("q")] == texts(55, 100)
        assert await ask(asked, "queues.give_back", reader="r") == 5
        assert [body for body, _ in await following.drain("q")] == texts(50, 55)


async def test_a_replica_that_comes_late_knows_what_is_reserved() -> None:
    async with mesh(2, queue_segment_bytes=20_000) as brokers:
        one = brokers.members[1]
        one.broker.topology.place_queue = lambda queue_id, arguments: 0
        await one.queue("p")
        await one.queue("q")
        client = one.client()
        home = one.home("q")
        await client.publish_safely("q", *range(10))
        await reserve(one, 0, 10)
        for number in range(20):
            await client.publish_safely("p", *(f"{number}-{n}" + "." * 100 for n in range(50)))
        assert len(await one.drain("p")) == 1000
        await reserve(one, 10, 0)
        await client.publish_safely("q", *range(10, 20))
        assert await reserve(one, 10, 4) == (14, 6)
        await one.drain("p")
        with trio.fail_after(30):
            while one.log(0).log_start_offset < 900:
                one.turn()
                home.delete_dead_prefix()
                one.broker.checkpoints.take(home)
                await trio.sleep(0.02)
        late = await brokers.add(3)
        await brokers.settled(0)
        await until(lambda: late.log(0).high_watermark == one.log(0).high_watermark)
        disk = await brokers.kill(1)
        await brokers.settled(0)
        await brokers.kill(2)
        await brokers.add(1, disk)
        leader = await brokers.settled(0)
        if leader is late:
            assert await read(leader, 10, 14) == texts(10, 14)
        with pytest.raises(PreconditionFailed):
            await read(leader, 9, 14)
        assert [body for body, _ in await leader.drain("q")] == texts(14, 20)


async def test_readers_come_and_go_while_a_late_replica_is_told_of_them() -> None:
    async with mesh(2) as brokers:
        one = brokers.members[1]
        await one.queue("q")
        one = await brokers.settled(one.home("q").index)
        await one.client().publish_safely("q", *range(10))
        for reader in ("first", "second", "third"):
            await reserve(one, 0, 2, reader=reader)
        carried = carried_states(one.home("q"))
        told = [next(carried)]
        await ask(one, "queues.give_back", reader="second")
        for reader in ("fourth", "fifth"):
            await reserve(one, 0, 1, reader=reader)
        told += carried
        readers = [decode_reserved(value).reader for key, value in told if key == RESERVED_KEY]
        assert readers == ["first", "third"], "of the others the log says it anyway, behind where this began"
