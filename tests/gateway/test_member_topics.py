"""Topics of a cluster: made at any broker, led by one, kept by three; what clients are told by each of them."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio

from core_log.absent_log import AbsentLog
from core_log.errors import Conflict
from core_log.metadata.etcd_store import EtcdStore
from core_log.metadata.store import Guard
from core_log.replica_log import ReplicaLog
from core_log.replication.state import encode, log_key
from gateway.etcd_process import EtcdProcess
from millrace import BlockingConsumer, BlockingProducer
from protocols.native import wire
from protocols.native.clients.client import Client, Link, LinkConfig
from protocols.native.errors import ErrorCode, MillraceError
from routing.cluster.metadata.log_names import topic_log
from routing.errors import NotLeader
from tests.gateway.test_member import Running, refusal, three, until
from tests.support.replica_node import batch_of

FOREVER = {"retention.ms": "-1"}
"""The batches of these tests are old: a broker that looks for such in its first second must not take them."""


@asynccontextmanager
async def link(broker: Running) -> AsyncIterator[Link]:
    found = Link(f"127.0.0.1:{broker.server.ports['native']}", LinkConfig())
    await found.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        yield found
        nursery.cancel_scope.cancel()


_rounds = itertools.count()


async def produce(to: Link, *entries: tuple[str, int], acks: int = -1) -> list[tuple[int, int]]:
    """(error code or 0, base offset) of each."""
    again = next(_rounds)
    said = [wire.ProduceEntry(topic, index, again, memoryview(batch_of(0, 10, 10))) for topic, index in entries]
    with trio.fail_after(30):
        reply = await to.request(wire.Produce(0, acks, 5000, said), wire.ProduceReply)  # type: ignore[arg-type]
    return [(error[0] if error is not None else 0, offset) for error, offset in reply.entries]


async def produced(to: Link, *entry: Any) -> int:
    """The base offset, once it is taken: a broker whose process stood still is no leader for a moment."""
    with trio.fail_after(30):
        while True:
            ((code, offset),) = await produce(to, entry)
            if not code:
                return offset
            assert code in (ErrorCode.NOT_LEADER, ErrorCode.NOT_ENOUGH_REPLICAS)
            await trio.sleep(0.05)


async def fetch(to: Link, topic: str, index: int, offset: int = 0, wait_ms: int = 0) -> wire.FetchedPartition:
    entry = wire.FetchEntry(topic, index, offset, 1 << 20)
    with trio.fail_after(30):
        return (await to.request(wire.Fetch(0, wait_ms, 1, 1 << 20, [entry]), wire.FetchReply)).entries[0]


async def leaders(to: Link, topic: str) -> list[wire.PartitionMetadata]:
    reply = await to.request(wire.Metadata(0, [topic], False), wire.MetadataReply)
    ((_, error, partitions),) = reply.topics
    assert error is None, error
    return partitions


async def make_topics(brokers: dict[int, Running]) -> None:
    """At one broker: `t` of three partitions at all of them, and `one` at a single one."""
    async with Client(f"127.0.0.1:{brokers[2].server.ports['native']}") as client:
        await client.create_topic("t", partitions=3, config=FOREVER)
        with pytest.raises(MillraceError, match=r"replication.factor=4 is more than there are brokers \(3\)"):
            await client.create_topic("u", config={"replication.factor": "4"})
        await client.create_topic("one", config={**FOREVER, "replication.factor": "1"})
    for broker in brokers.values():  # whoever changed something is answered when all know it
        for partition in broker.server.broker.topics["t"].partitions:
            assert isinstance(partition.log, ReplicaLog)
    await until(lambda: _in_sync(brokers[3], 3))


async def only_leaders_answer(links: dict[int, Link], told: list[wire.PartitionMetadata]) -> None:
    for partition in told:
        for number, one in links.items():
            leads = number == partition.leader
            if leads:
                assert await produced(one, "t", partition.partition) == 0
            else:
                assert await produce(one, ("t", partition.partition)) == [(ErrorCode.NOT_LEADER, -1)]
            fetched = await fetch(one, "t", partition.partition)
            if leads:
                assert (fetched.error, fetched.high_watermark) == (None, 10)
            else:
                text = f"broker {partition.leader} leads partition {partition.partition} of topic 't' (epoch 1)"
                assert fetched.error == (ErrorCode.NOT_LEADER, True, text)


async def test_a_topic_made_at_one_broker_is_led_and_kept_by_all(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "topics") as (_, brokers):
        await make_topics(brokers)
        async with link(brokers[1]) as first, link(brokers[2]) as second, link(brokers[3]) as third:
            links = {1: first, 2: second, 3: third}
            reply = await third.request(wire.Metadata(0, ["t"], False), wire.MetadataReply)
            assert reply.nodes == [(n, "127.0.0.1", brokers[n].server.ports["native"]) for n in (1, 2, 3)]
            told = reply.topics[0][2]
            assert sorted(partition.leader for partition in told) == [1, 2, 3]
            assert all(sorted(partition.replicas) == sorted(partition.isr) == [1, 2, 3] for partition in told)
            await only_leaders_answer(links, told)
            topics = {number: broker.server.broker.topics["t"] for number, broker in brokers.items()}
            logs = [partition.log for topic in topics.values() for partition in topic.partitions]
            await until(lambda: all(log.high_watermark == 10 for log in logs))
            # Deleted records are deleted on all of them.
            leading = next(p.leader for p in told if p.partition == 1)
            with trio.fail_after(30):
                assert await topics[leading].partitions[1].delete_records(4) == 4
            assert [topic.partitions[1].log.log_start_offset for topic in topics.values()] == [4, 4, 4]
            with pytest.raises(NotLeader):
                await topics[leading % 3 + 1].partitions[1].delete_records(5)
            # One that only one broker has.
            (alone,) = await leaders(first, "one")
            assert alone.replicas == alone.isr == [alone.leader]
            assert await produced(links[alone.leader], "one", 0) == 0
            other = brokers[alone.leader % 3 + 1].server.broker.topics["one"]
            assert isinstance(other.partitions[0].log, AbsentLog)
            assert isinstance(other.partitions[0].error(), NotLeader)
            assert other.error() is None, "exchanges reach its leader"


async def test_who_leads_a_topic_may_go_and_leads_again_when_it_is_back(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "goes") as (nursery, brokers):
        await make_topics(brokers)
        async with link(brokers[1]) as asked:
            leader = (await leaders(asked, "t"))[0].leader
        following = leader % 3 + 1
        async with link(brokers[leader]) as to:
            assert await produced(to, "t", 0) == 0
        nursery.start_soon(brokers[leader].stop)
        await until(lambda: brokers[following].cluster.state_of(_log(brokers, following)).leader != leader)  # type: ignore[union-attr]
        async with link(brokers[following]) as asked:
            now = (await leaders(asked, "t"))[0]
        assert now.leader not in (leader, -1)
        assert now.leader_epoch == 2
        async with link(brokers[now.leader]) as to:
            assert await produced(to, "t", 0) == 10
        await brokers[leader].over.wait()
        brokers[leader] = Running(brokers[leader].config)
        await nursery.start(brokers[leader].run)
        again = brokers[leader].server.broker.topics["t"].partitions[0].log
        await until(lambda: again.high_watermark == 20)
        # It is the preferred leader, and gets its partition back by itself.
        await until(lambda: brokers[leader].cluster.may_append(_log(brokers, leader)))
        async with link(brokers[leader]) as back:
            assert await produced(back, "t", 0) == 20
        async with Client(f"127.0.0.1:{brokers[leader].server.ports['native']}") as client:
            await client.delete_topic("t")
        for broker in brokers.values():
            assert "t" not in broker.server.broker.topics
            assert not [name for name in broker.cluster.replicas.by_name if name.startswith("topic-")][1:]
        await until(lambda: not any(list(tmp_path.glob("*/topics/t-*")) + list(tmp_path.glob("*/deleting/*"))))


def _in_sync(broker: Running, count: int, topic: str = "t") -> bool:
    logs = broker.cluster.elections.logs
    uid = broker.server.broker.topics[topic].uid
    return all(len(known.state.isr) == count for name, known in logs.items() if uid in name)


def _log(brokers: dict[int, Running], number: int) -> str:
    return f"topic-{brokers[number].server.broker.topics['t'].uid}-0"


async def test_too_few_replicas_refuse_before_anything_is_appended(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "few") as (nursery, brokers):
        async with Client(f"127.0.0.1:{brokers[1].server.ports['native']}") as client:
            await client.create_topic("t", config={**FOREVER, "min.insync.replicas": "3"})
        async with link(brokers[1]) as asked:
            (partition,) = await leaders(asked, "t")
        leader, gone = partition.leader, partition.leader % 3 + 1
        async with link(brokers[leader]) as to:
            assert await produced(to, "t", 0) == 0
            await brokers[gone].stop()
            log = brokers[leader].server.broker.topics["t"].partitions[0].log
            await until(lambda: len(brokers[leader].cluster.state_of(_log(brokers, leader)).isr) == 2)  # type: ignore[union-attr]
            assert await produce(to, ("t", 0)) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
            assert log.log_end_offset == 10
            assert await produce(to, ("t", 0), acks=1) == [(0, 10)]
            fetched = await fetch(to, "t", 0, 10)
            assert (fetched.error, fetched.high_watermark, len(fetched.records)) == (None, 10, 0)
            brokers[gone] = Running(brokers[gone].config)
            await nursery.start(brokers[gone].run)
            await until(lambda: log.high_watermark == 20)
            assert await produced(to, "t", 0) == 20


async def test_a_topic_is_made_with_the_replicas_asked_for_while_a_broker_is_not_there(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    config = {**FOREVER, "replication.factor": "3", "min.insync.replicas": "3"}
    async with three(etcd, tmp_path, "without") as (nursery, brokers):
        async with Client(f"127.0.0.1:{brokers[1].server.ports['native']}") as client:
            await client.create_topic("t", config=FOREVER | {"replication.factor": "3"})
            await brokers[3].stop()
            await until(lambda: 3 not in brokers[1].cluster.members.brokers)
            await client.create_topic("u", config=config)
            await client.create_partitions("t", 2)
            with pytest.raises(MillraceError, match=r"replication.factor=4 is more than there are brokers \(3\)"):
                await client.create_topic("v", config={"replication.factor": "4"})
        async with link(brokers[1]) as asked:
            (made,) = await leaders(asked, "u")
        assert sorted(made.replicas) == [1, 2]
        async with link(brokers[made.leader]) as to:
            assert await produce(to, ("u", 0)) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)], "its minimum holds"
        brokers[3] = Running(brokers[3].config)
        await nursery.start(brokers[3].run)
        await until(lambda: _in_sync(brokers[3], 3) and _in_sync(brokers[3], 3, "u"))
        async with link(brokers[3]) as asked:
            (made,) = await leaders(asked, "u")
        assert sorted(made.replicas) == sorted(made.isr) == [1, 2, 3]


async def test_blocking_clients_find_leaders_and_follow_them(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "blocking") as (_, brokers):
        servers = [f"127.0.0.1:{broker.server.ports['native']}" for broker in brokers.values()]
        sent = [(b"%d" % (number % 7), b"%d" % number) for number in range(200)]

        def write(part: list[tuple[bytes, bytes]]) -> None:
            with BlockingProducer(servers, timeout_s=5) as producer:
                for key, value in part:
                    producer.send("t", value, key)

        def read() -> list[tuple[bytes | None, bytes | None]]:
            found: list[tuple[bytes | None, bytes | None]] = []
            with BlockingConsumer(",".join(servers), "g", auto_offset_reset="earliest", timeout_s=5) as consumer:
                consumer.assign("t")
                while len(found) < 200:
                    found += [(record.key, record.value) for record in consumer.fetch()]
            return found

        async with Client(servers) as client:
            await client.create_topic("t", partitions=5, config=FOREVER)
            with trio.fail_after(20):
                await trio.to_thread.run_sync(write, sent[:100])
            ends = await client.list_offsets([("t", number) for number in range(5)], "latest")
            assert sum(end or 0 for end in ends) == 100
            await brokers[1].stop()
            with trio.fail_after(20):
                await trio.to_thread.run_sync(write, sent[100:])
                found = await trio.to_thread.run_sync(read)
        assert sorted(found) == sorted(sent)  # type: ignore[type-var]
        for key in range(7):
            values = [value for of, value in found if of == b"%d" % key]
            assert values == [value for of, value in sent if of == b"%d" % key], "each key in its order"


async def test_a_replica_that_is_to_be_elsewhere_is_moved_aside_and_may_come_back(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    async with three(etcd, tmp_path, "aside") as (_, brokers):
        async with Client(f"127.0.0.1:{brokers[1].server.ports['native']}") as client:
            await client.create_topic("t", config=FOREVER)
        log, store = _log(brokers, 1), brokers[1].cluster.store
        leader = brokers[1].cluster.leader_of(log)[0]
        assert leader is not None
        gone = leader % 3 + 1
        partition = brokers[gone].server.broker.topics["t"].partitions[0]

        async def place(replicas: tuple[int, ...]) -> None:
            while True:
                known = brokers[1].cluster.elections.logs[log]
                isr = tuple(member for member in known.state.isr if member[0] in replicas)
                state = msgspec.structs.replace(known.state, replicas=replicas, isr=isr, factor=len(replicas))
                try:
                    await store.change(
                        [Guard(log_key(b"", log), known.mod_revision)], [(log_key(b"", log), encode(state))]
                    )
                    return
                except Conflict:
                    continue

        async with link(brokers[leader]) as to:
            assert await produced(to, "t", 0) == 0
            others = tuple(number for number in (leader, leader % 3 + 1, (leader + 1) % 3 + 1) if number != gone)
            await place(others)
            await until(lambda: isinstance(partition.log, AbsentLog))
            assert log not in brokers[gone].cluster.replicas.by_name
            assert await produced(to, "t", 0) == 10
            await place((*others, gone))
            await until(lambda: partition.log.high_watermark == 20)
            await until(lambda: len(brokers[leader].cluster.state_of(log).isr) == 3)  # type: ignore[union-attr]


async def test_a_topic_that_nobody_has_seen_being_deleted_keeps_its_files(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(etcd, tmp_path, "unseen") as (nursery, brokers):
        await make_topics(brokers)
        async with link(brokers[1]) as first:
            told = await leaders(first, "t")
            leader = told[0].leader
            async with link(brokers[leader]) as to:
                assert await produced(to, "t", 0) == 0
        away, deleted = brokers[3], trio.Event()
        store = away.server.broker.metadata
        assert isinstance(store, EtcdStore)

        async def compacted() -> None:
            await deleted.wait()
            store._must_read = True

        def kept(broker: Running) -> int:
            return sum(path.stat().st_size for path in Path(broker.config.data_dir).glob("topics/t-0.*/*.log"))

        await until(lambda: all(map(kept, brokers.values())))
        monkeypatch.setattr(store, "_watch", compacted)
        store._watching.cancel()
        nursery.start_soon(brokers[1].server.broker.delete_topic, "t")
        await until(lambda: "t" not in brokers[1].server.broker.topics and not kept(brokers[1]))
        deleted.set()
        await until(lambda: "t" not in away.server.broker.topics)
        monkeypatch.undo()
        assert "one" in away.server.broker.topics
        await away.stop()
        assert kept(away)


async def test_an_etcd_that_has_lost_the_cluster_takes_nothing_away(etcd: EtcdProcess, tmp_path: Path) -> None:
    def logs() -> list[Path]:
        return sorted(tmp_path.glob("*/topics/*"))

    with pytest.raises(BaseException) as caught:  # noqa: PT012
        async with three(etcd, tmp_path, "lost") as (_, brokers):
            await make_topics(brokers)
            there = logs()
            assert len(there) == 10
            key, end = (base64.b64encode(text).decode() for text in (b"/millrace/lost/", b"/millrace/lost0"))
            async with httpx.AsyncClient() as client:
                url = f"http://{etcd.address}/v3/kv/deleterange"
                (await client.post(url, json={"key": key, "range_end": end})).raise_for_status()
            await trio.sleep(30)
    assert "etcd does not know cluster 'lost' any more" in refusal(caught.value)
    assert logs() == there


async def test_who_is_to_lead_in_an_epoch_that_is_over_leads_in_a_later_one(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "over") as (_, brokers):
        await make_topics(brokers)
        broker = brokers[1].server.broker
        name = topic_log(broker.topics["t"].uid, 0)
        store, cluster = brokers[1].cluster.store, brokers[1].cluster
        known = cluster.elections.logs[name]
        leader = known.state.leader
        assert leader is not None
        async with link(brokers[leader]) as to:
            assert await produced(to, "t", 0) == 0
            earlier = msgspec.structs.replace(known.state, leader_epoch=known.state.leader_epoch - 1)
            await store.change([], [(log_key(b"", name), encode(earlier))])
            await until(lambda: cluster.elections.logs[name].state.leader_epoch > known.state.leader_epoch)
            assert await produced(to, "t", 0) == 10
            assert (await fetch(to, "t", 0)).high_watermark == 20
