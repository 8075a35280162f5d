"""Who publishes and then gets has the message, at any broker, though a queue has it only once others keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gateway.etcd_process import EtcdProcess
from routing.queues.homes import replicated_partition
from tests.gateway.test_member import three, until
from tests.routing.harness import Client, Engine


async def published_and_got(client: Client, body: str) -> str | None:
    found: list[str | None] = []

    async def get() -> None:
        got = await client.session.get("q", no_ack=True)
        found.append(None if got is None else bytes(got.slab.bodies[got.index]).decode())

    client.publish("q", body)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get)
        await trio.testing.wait_all_tasks_blocked(0.001)
        client.engine.turn()
    return found[0]


async def test_who_publishes_and_then_gets_has_the_message(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(etcd, tmp_path, "got") as (_, brokers):
        await brokers[1].server.broker.declare_queue("q", durable=True)
        await until(lambda: all("q" in one.server.broker.topology.queues for one in brokers.values()))
        for number, one in brokers.items():
            broker = one.server.broker
            after_turn = broker.after_turn
            client = Engine(broker).client()
            broker.after_turn = after_turn  # the server's, which sends
            for count in range(10):
                assert await published_and_got(client, f"{number}-{count}") == f"{number}-{count}"
        monkeypatch.setattr(replicated_partition, "_GIVEN_WITHIN_S", 0.0)
        with trio.fail_after(20):  # once it comes too late: replicas may be as quick as the get
            while await published_and_got(client, "not waited for") is not None:
                pass
