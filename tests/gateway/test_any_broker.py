"""Three brokers with a real etcd and real links: what a client does at one of them is known at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.etcd_process import EtcdProcess
from routing.errors import StorageUnavailable
from routing.message import Slab
from routing.topics.offset_store import Committed
from tests.gateway.test_member import Running, three, until
from tests.routing.harness import TRANSIENT, Client, Engine


async def subscriber(engine: Engine, exchange: str, pattern: str, **options: Any) -> Client:
    client = engine.client()
    owner = client.session.owner
    queue = (await engine.broker.declare_queue("", exclusive=True, owner=owner)).name
    await engine.broker.bind("queue", queue, exchange, pattern, owner=owner, **options)
    await client.consume(queue, no_ack=True)
    engine.turn()
    return client


async def test_subscriptions_and_names_of_queues_reach_beyond_their_broker(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "interests") as (_, brokers):
        engines = {}
        for number, one in brokers.items():
            after_turn = one.server.broker.after_turn
            engines[number] = Engine(one.server.broker)
            one.server.broker.after_turn = after_turn  # the server's, which sends
        await until(lambda: all(len(one.server.broker.engine.forwarding.links) == 2 for one in brokers.values()))  # type: ignore[union-attr]
        clients = {}
        for number in (2, 3):
            clients[number] = await subscriber(engines[number], "amq.topic", "news.*")
        mqtt = await subscriber(engines[1], "amq.topic", "news.+", syntax="mqtt")
        publisher = engines[1].client()
        for number in range(100):
            publisher.publish(f"news.{number}", number, exchange="amq.topic", properties=TRANSIENT)
        engines[1].turn()
        bodies = [str(number) for number in range(100)]
        await until(lambda: all(len(client.deliveries) >= 100 for client in (*clients.values(), mqtt)))
        for client in (*clients.values(), mqtt):
            assert [one.body for one in client.deliveries] == bodies

        (queue,) = list(engines[3].broker.topology.queues)
        publisher.publish(queue, "to you alone", properties=TRANSIENT, mandatory=True)
        engines[1].turn()
        await until(lambda: clients[3].deliveries[-1].body == "to you alone")
        assert not publisher.events

        await brokers[3].stop()
        slab = Slab("", queue, TRANSIENT, [b"gone"])
        await until(lambda: not engines[1].broker.topology.vhosts["/"].router.routed(slab)[0][0].topics)
        assert engines[1].broker.engine is not None
        assert engines[1].broker.engine.interests.dropped_messages == 0


async def patiently(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask again while the link to whoever has it is away: brokers that get no processor are silent."""
    with trio.fail_after(40):
        while True:
            try:
                return await ask()
            except StorageUnavailable:
                await trio.sleep(0.05)


async def test_group_offsets_are_kept_once_and_told_by_all(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "offsets") as (nursery, brokers):
        first = brokers[1].server.broker
        for topic in ("t", "gone"):
            await first.create_topic(topic, partitions=1)
        place = ("t", 0)
        groups = [f"group {number}" for number in range(9)]
        for at, group in enumerate(groups):
            offsets = brokers[1 + at % 3].server.broker.offsets
            await patiently(
                partial(offsets.commit, group, {place: Committed(at + 1, "note"), ("gone", 0): Committed(7)})
            )
        for broker in brokers.values():
            for at, group in enumerate(groups):
                fetch = partial(broker.server.broker.offsets.fetch, group, [place])
                assert await patiently(fetch) == {place: Committed(at + 1, "note")}
        await brokers[2].stop()
        await first.delete_topic("gone")
        third = brokers[3].server.broker
        for at, group in enumerate(groups):
            assert await patiently(partial(first.offsets.fetch, group)) == {place: Committed(at + 1, "note")}
            await patiently(partial(first.offsets.commit, group, {place: Committed(at + 100)}))
            assert await patiently(partial(third.offsets.fetch, group)) == {place: Committed(at + 100)}
        await brokers[3].stop()
        with pytest.raises(StorageUnavailable, match=r"too few|nobody leads"):
            await first.offsets.commit("of nobody", {place: Committed(0)})  # it may be kept all the same
        brokers[2] = Running(brokers[2].config)
        await nursery.start(brokers[2].run)
        second = brokers[2].server.broker
        for at, group in enumerate(groups):
            assert await patiently(partial(second.offsets.fetch, group)) == {place: Committed(at + 100)}
