"""A leader that lacks what was committed, where that is allowed: who it is, what is lost, and who is told."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
import trio

from core_log.replication.state import encode, log_key
from gateway.etcd_process import EtcdProcess
from millrace import Consumer, LogTruncated, Producer, TransactionalProducer
from protocols.native.clients.client import Client
from protocols.native.errors import MillraceError
from tests.gateway.test_member import Running, three, until
from tests.gateway.test_member_topics import FOREVER
from tests.support.replica_node import bytes_of


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    return [(await anext(consumer)).value for _ in range(count)]


async def write(servers: list[str], word: str, count: int) -> None:
    async with Producer(servers) as producer:
        for number in range(count):
            await (await producer.send("t", f"{word} {number}".encode()))


async def test_who_is_left_leads_when_told_to_and_readers_learn_what_is_lost(
    etcd: EtcdProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with three(etcd, tmp_path, "unclean") as (nursery, brokers):

        def servers() -> list[str]:
            return [f"127.0.0.1:{broker.server.ports['native']}" for broker in brokers.values()]

        async def start(number: int) -> None:
            # At the ports of before, where clients look.
            brokers[number].config.listen.native = f"127.0.0.1:{brokers[number].server.ports['native']}"
            brokers[number] = Running(brokers[number].config)
            await nursery.start(brokers[number].run)

        async with Client(servers()) as client:
            await client.create_topic("t", config={**FOREVER, "min.insync.replicas": "1"})
        with trio.fail_after(60):
            await write(servers(), "kept", 3)
            log = f"topic-{brokers[1].server.broker.topics['t'].uid}-0"
            leader = brokers[1].cluster.leader_of(log)[0]
            assert leader is not None
            others = [number for number in brokers if number != leader]
            everywhere = [broker.server.broker.topics["t"].partitions[0].log for broker in brokers.values()]
            await until(lambda: all(found.high_watermark == 3 for found in everywhere))
            async with Consumer(servers(), auto_offset_reset="error", group="g") as consumer:
                await consumer.commit({("t", 0): 0})
                await consumer.assign("t")
                assert await values(consumer, 3) == [b"kept 0", b"kept 1", b"kept 2"]
                for number in others:
                    await brokers[number].stop()
                await until(lambda: brokers[leader].cluster.state_of(log).isr_brokers == [leader])  # type: ignore[union-attr]
                await write([servers()[leader - 1]], "lost", 5)
                assert (await values(consumer, 5))[-1] == b"lost 4"
                await brokers[leader].stop()
                for number in others:
                    await start(number)
                asked = brokers[others[0]]
                await until(lambda: asked.cluster.leader_of(log)[0] is None)
                async with Client(f"127.0.0.1:{asked.server.ports['native']}") as client:
                    with pytest.raises(MillraceError, match="no topic 'u'"):
                        await client.administer("cluster.unclean_elections", topic="u", on=True)
                    await client.administer("cluster.unclean_elections", topic="t", on=True)
                    await until(lambda: asked.cluster.leader_of(log)[0] in others)
                    found = await client.administer("cluster.partitions")
                    (row,) = [dict(zip(found["columns"], row)) for row in found["rows"] if row[0] == "t"]
                    assert (row["unclean_elections"], row["unclean_epoch"]) == (True, row["epoch"])
                assert "UNCLEAN ELECTION" in caplog.text
                counts = [brokers[number].cluster.counters.snapshot() for number in others]
                assert sum(found["unclean_elections"] for found in counts) == 1
                assert all(found["leaderless"] == 0 < found["under_replicated"] for found in counts)
                await write([servers()[number - 1] for number in others], "new", 7)
                with pytest.raises(LogTruncated, match="cut at offset 3, and had been read up to 8"):
                    await anext(consumer)
                assert await values(consumer, 7) == [b"new %d" % number for number in range(7)]
            # Who was leader comes back, with a high watermark above the cut, and has what the others have.
            await start(leader)
            logs = [broker.server.broker.topics["t"].partitions[0].log for broker in brokers.values()]
            await until(lambda: len(asked.cluster.state_of(log).isr) == 3)  # type: ignore[union-attr]
            await until(lambda: all(found.high_watermark == 10 for found in logs))
            counts = [broker.cluster.counters.snapshot() for broker in brokers.values()]
            assert sum(found["isr_expands"] for found in counts) >= 2
            assert sum(found["catch_up_bytes"] for found in counts) > 0
            assert all(found["replicas"] >= found["leaders"] for found in counts)
            assert len({bytes_of(found) for found in logs}) == 1  # type: ignore[arg-type]


async def test_what_every_cluster_has_is_led_again_when_its_only_replica_is_lost(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    async with three(etcd, tmp_path, "unclean-internal") as (_, brokers):
        cluster = brokers[1].cluster
        logs = ["transactions-0", "retained-0"]
        await until(lambda: all(log in cluster.elections.logs for log in logs))
        servers = [f"127.0.0.1:{broker.server.ports['native']}" for broker in brokers.values()]
        for log in logs:  # as where the first broker is gone for good before the others had a copy
            state = cluster.elections.logs[log].state
            alone = msgspec.structs.replace(state, replicas=(9, 1, 2), isr=((9, 1),), elr=()).led_by_nobody()
            await cluster.store.change([], [(log_key(b"", log), encode(alone))])
        await until(lambda: all(cluster.elections.logs[log].state.isr_brokers == [9] for log in logs))
        async with Client(servers) as client:
            await client.create_topic("t", config=FOREVER)
            for topic in ("__transactions", "__retained"):
                await client.administer("cluster.unclean_elections", topic=topic, on=True)
        await until(lambda: not cluster.elections.leaderless)
        await until(lambda: all(len(cluster.elections.logs[log].state.isr) == 2 for log in logs))
        with trio.fail_after(60):
            async with TransactionalProducer(servers, "some-id") as producer, producer.transaction():
                await producer.send("t", b"x")
