"""Homes that may be led by who lacks something, where nobody else is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import trio

from core_log.memory_files import MemoryFiles
from core_log.metadata.store import MetadataEntry
from core_log.replication.state import LogState, decode, encode, log_key
from routing.cluster.metadata import operating
from routing.cluster.metadata.log_names import home_log
from tests.routing.cluster.test_homes import all_committed, home_of
from tests.support.home_cluster import Member, Mesh, mesh, until


async def until_standbys_have_all(brokers: Mesh, leader: Member, index: int) -> None:
    """The standbys of all others have taken all of it in, and say so in a checkpoint."""
    for member in brokers.members.values():
        if member is not leader:
            await until(lambda member=member: member.files.exists(f"queues/{index}/checkpoint"))  # type: ignore[misc]


async def led_uncleanly(brokers: Mesh, leader: Member, index: int, disks: dict[int, MemoryFiles]) -> None:
    """A broker that is not in sync leads from now on; then those come back that were."""
    log = home_log(index)
    await operating.allow_unclean(leader.part, [log], on=True)
    await until(lambda: leader.part.state_of(log).unclean_epoch > 0)
    for me, disk in disks.items():
        await brokers.add(me, disk)
    assert await brokers.settled(index) is leader


async def test_queues_are_what_the_log_of_an_unclean_leader_says() -> None:
    async with mesh(checkpoint_interval_bytes=1, housekeeping_interval_ms=20) as brokers:
        one = brokers.members[1]
        await one.queue("q")
        index = home_of(one, "q")
        log = home_log(index)
        await one.client().publish_safely("q", *range(10))
        await all_committed(one, index)
        late = await brokers.kill(3)
        await until(lambda: len(one.part.state_of(log).isr) == 2)
        await one.client().publish_safely("q", *range(10, 20))  # of which the third has nothing
        leader = brokers.leader(index)
        reader = leader.client()
        for _ in range(5):
            assert await reader.session.get("q", no_ack=True)
        leader.turn()
        await all_committed(leader, index)
        await until_standbys_have_all(brokers, leader, index)
        three = await brokers.add(3, late)
        three.cut()
        disks = {me: await brokers.kill(me) for me in (1, 2)}
        await until(lambda: three.part.state_of(log).leader is None)
        await trio.sleep(0.05)
        assert three.part.state_of(log).leader is None, "nobody leads who lacks something"
        await led_uncleanly(brokers, three, index, disks)
        assert three.count("q") == 10
        await three.client().publish_safely("q", *range(20, 25))
        await all_committed(three, index)
        await brokers.kill(3)
        leader = await brokers.settled(index)
        assert leader.me in disks, "it had what is lost now, and a checkpoint that knew of it"
        expected = [*range(10), *range(20, 25)]
        assert await leader.drain("q") == [(str(n), True) for n in expected]


async def test_queues_are_what_the_log_says_of_an_unclean_leader_that_had_nothing() -> None:
    """What the others have goes as a whole: no epoch of theirs is in its log."""
    async with mesh(checkpoint_interval_bytes=1, housekeeping_interval_ms=20) as brokers:
        one = brokers.members[1]
        await one.queue("q")
        index = home_of(one, "q")
        log = home_log(index)
        nothing = await brokers.kill(3)
        await until(lambda: len(one.part.state_of(log).isr) == 2)
        leader = await brokers.settled(index)
        await leader.client().publish_safely("q", *range(20))
        await all_committed(leader, index)
        await until_standbys_have_all(brokers, leader, index)
        three = await brokers.add(3, nothing)
        three.cut()
        disks = {me: await brokers.kill(me) for me in (1, 2)}
        await led_uncleanly(brokers, three, index, disks)
        assert three.count("q") == 0
        await three.client().publish_safely("q", *range(20, 50))
        reader = three.client()
        for _ in range(5):
            assert await reader.session.get("q", no_ack=True)
        three.turn()
        await all_committed(three, index)
        await brokers.kill(3)
        leader = await brokers.settled(index)
        assert leader.me in disks, "it had what is lost now, and a checkpoint that knew of it"
        assert leader.count("q") == 25
        assert await leader.drain("q") == [(str(n), True) for n in range(25, 50)]


async def test_an_unclean_election_that_is_asked_for_once_allows_no_other() -> None:
    async with mesh() as brokers:
        leader, key = await brokers.settled(0), log_key(b"", home_log(0))
        part: Any = leader.part
        told: list[LogState] = []

        def tell(_: int, entries: Sequence[MetadataEntry]) -> None:
            told.extend(decode(entry.value) for entry in entries if entry.key == key and entry.value is not None)

        async def wait_for(*replicas: int) -> None:
            state = msgspec.structs.replace(part.state_of(home_log(0)), replicas=replicas, isr=((9, 1),), elr=())
            await part.store.change([], [(key, encode(state.led_by_nobody()))])

        part.store.listeners.append(tell)
        assert await operating.elect_uncleanly(part, home_log(0)) == operating.Elected.NOT_NEEDED
        await wait_for(9, 8)
        assert await operating.elect_uncleanly(part, home_log(0)) == operating.Elected.UNAVAILABLE
        await wait_for(9, 2, 3)
        before = part.state_of(home_log(0))
        assert await operating.elect_uncleanly(part, home_log(0)) == operating.Elected.DONE
        state = part.state_of(home_log(0))
        assert (state.leader, state.isr_brokers) == (2, [2])
        assert state.leader_epoch == state.unclean_epoch > before.leader_epoch
        assert not any(state.unclean for state in told), "a kill between two steps would have left it so"
