"""Clients without static membership that are static members by their client id."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support import broker_process

aiokafka = pytest.importorskip("aiokafka")
admin = pytest.importorskip("aiokafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
CONFIG = "[engine]\ngroup_initial_delay_ms = 0\n[kafka]\nstatic_client_ids = 'worker-[0-9]+'\n"


class Watched(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc, name-defined]
    """How often a member was given its partitions."""

    def __init__(self) -> None:
        self.generations = 0

    async def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.generations += 1


async def _started(server: str, topic: str, client_id: str) -> tuple[Any, Watched]:
    listener = Watched()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=server, group_id="g", client_id=client_id, heartbeat_interval_ms=200,
        auto_offset_reset="earliest",
    )  # fmt: skip
    consumer.subscribe([topic], listener=listener)
    await consumer.start()
    return consumer, listener


async def _restarted(server: str) -> None:
    topic = f"static.{uuid.uuid4().hex}"
    client = admin.AIOKafkaAdminClient(bootstrap_servers=server)
    await client.start()
    await client.create_topics([admin.NewTopic(topic, 4, 1)])
    await client.close()
    first, _ = await _started(server, topic, "worker-1")
    second, watched = await _started(server, topic, "worker-2")
    while not (len(first.assignment()) == len(second.assignment()) == 2):
        await asyncio.sleep(0.02)
    before, generations = first.assignment(), watched.generations
    await first.stop()
    first, own = await _started(server, topic, "worker-1")
    while not own.generations:
        await asyncio.sleep(0.02)
    assert first.assignment() == before
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=server) as producer:
        for partition in range(4):
            await producer.send_and_wait(topic, b"%d" % partition, partition=partition)
    for member in (first, second):
        got = {(await member.getone()).partition for _ in range(2)}
        assert got == {one.partition for one in member.assignment()}
    assert watched.generations == generations, "the other one has heard of nothing"
    await first.stop()
    await second.stop()


def test_who_is_restarted_in_time_has_its_partitions_and_nobody_is_stopped(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    with broker_process(tmp_path / "data", doors=DOORS, arguments=["--config", str(config)]) as broker:
        asyncio.run(asyncio.wait_for(_restarted(f"127.0.0.1:{broker.ports['kafka']}"), 60))
