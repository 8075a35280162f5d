"""Records that a group gets no further than, where its coordinator does not lead their topic: it follows, or has none
of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from core_log.record_batch import Record, iterate_records
from gateway.etcd_process import EtcdProcess
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import JOIN_GROUP, LEAVE_GROUP, OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP
from routing.broker import Broker
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.log_names import offsets_log
from tests.gateway.test_member import Running, three, until
from tests.protocols.kafka.door import Peer, batch_of
from tests.routing.republishing.test_poison_records import assignment

PAUSE_S = 0.02
LATER = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
FETCHES, DELAYS, EXPIRY = "millrace.dead.letter.fetches", "millrace.retry.delays.ms", "millrace.expiry.enable"


class Workers:
    """Members of a group that come one after the other, each of which dies of what it begins with."""

    def __init__(self, peer: Peer, group: str) -> None:
        self.peer = peer
        self.group = group

    async def begin(self, *topics: str) -> dict[str, int]:
        """Where the next one is told to go on."""
        joining = {
            "group_id": self.group, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000, "member_id": "",
            "protocol_type": "consumer", "protocols": [Entity(name="range", metadata=b"")],
        }  # fmt: skip
        joined = await self.ask(JOIN_GROUP, **joining)
        assert joined.error_code == 0
        me = {"group_id": self.group, "member_id": joined.member_id}
        parts = assignment(*((topic, (0,)) for topic in topics))
        share = Entity(member_id=joined.member_id, assignment=parts)
        await self.ask(SYNC_GROUP, **me, generation_id=joined.generation_id, assignments=[share])
        wanted = [Entity(name=topic, partition_indexes=[0]) for topic in topics]
        told = await self.ask(OFFSET_FETCH, 5, group_id=self.group, topics=wanted)
        assert told.error_code == 0
        left = await self.ask(LEAVE_GROUP, 2, **me)
        assert left.error_code == 0
        return {one.name: one.partitions[0].committed_offset for one in told.topics}

    async def ask(self, api: Any, version: int = 3, **fields: Any) -> Any:
        """Once the group is looked after there."""
        reply = await self.peer.ask(api, version, **fields)
        while reply.error_code in LATER:
            await trio.sleep(PAUSE_S)
            reply = await self.peer.ask(api, version, **fields)
        return reply

    async def commit(self, topic: str, offset: int) -> None:
        """As somebody without members does."""
        place = Entity(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = [Entity(name=topic, partitions=[place])]
        said: int = LATER[0]
        while said in LATER:
            await trio.sleep(PAUSE_S)
            reply = await self.peer.ask(
                OFFSET_COMMIT, 5, group_id=self.group, member_id="", generation_id_or_member_epoch=-1, topics=topics
            )
            said = reply.topics[0].partitions[0].error_code
        assert said == 0


def settled(cluster: Cluster, engine: Broker) -> list[tuple[str, int]]:
    """Groups with the broker that looks after them, and will go on to: it is the one that should."""
    names = [f"g{number}" for number in range(64)]
    states = [cluster.state_of(offsets_log(engine.offsets.log_of(name))) for name in names]  # type: ignore[union-attr]
    led = [(name, one.leader, one.replicas) for name, one in zip(names, states, strict=True) if one is not None]
    return [(name, leader) for name, leader, replicas in led if leader is not None and leader == replicas[0]]


async def records(brokers: dict[int, Running], topic: str) -> list[Record]:
    """Of the first partition, where it is led."""
    for one in brokers.values():
        partition = one.server.broker.topics[topic].partitions[0]
        if partition.forward is None:
            batches = await partition.log.read_cold(0, 1 << 20)
            return [record for batch in batches for record in iterate_records(batch)]
    return []


async def append(peer: Peer, topic: str, *values: bytes) -> None:
    """Once it is led there."""
    answer: Any = None
    while answer is None or answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        await trio.sleep(PAUSE_S)
        answer = await peer.produce(topic, batch_of(list(values)))
    assert answer.error_code == 0


async def test_a_coordinator_without_the_topic_puts_records_off_and_away(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "poison") as (_, brokers):
        engines = {number: one.server.broker for number, one in brokers.items()}
        for one in engines.values():
            one.config.group_initial_delay_ms = 0
        await until(lambda: settled(brokers[1].cluster, engines[1]))
        group, coordinator = settled(brokers[1].cluster, engines[1])[0]
        leader = coordinator % 3 + 1
        config = {FETCHES: "1", DELAYS: "1", EXPIRY: "true", "retention.ms": "-1"}
        await engines[1].create_topic("none", config=config, assignment=[[leader]])
        await engines[1].create_topic("follows", config=config, assignment=[[leader, coordinator]])
        await until(lambda: all({"none", "follows"} <= set(one.topics) for one in engines.values()))
        workers, names = Workers(Peer(engines[coordinator]), group), ("none", "follows")
        for topic in names:
            assert engines[coordinator].topics[topic].partitions[0].is_here == (topic == "follows")
            await append(Peer(engines[leader]), topic, b"a", b"b")
            await workers.commit(topic, 2)
        for _ in range(3):
            assert await workers.begin(*names) == dict.fromkeys(names, 2), "there is nothing to fail at"
        for topic in names:
            await append(Peer(engines[leader]), topic, b"c")
        assert await workers.begin(*names) == dict.fromkeys(names, 2)
        for topic in names:  # each by itself: a follower may hear of it later than who asks the leader
            with trio.fail_after(20):
                while await workers.begin(topic) != {topic: 3}:
                    await trio.sleep(PAUSE_S)
                while [one.value for one in await records(brokers, topic)] != [b"a", b"b", b"c", b"c"]:
                    await trio.sleep(0.01)
                while await workers.begin(topic) != {topic: 4}:
                    await trio.sleep(PAUSE_S)
            (letter,) = await records(brokers, f"{topic}.dlq")
            said = dict(letter.headers)
            assert (letter.value, said["x-dead-letter-offset"], said["x-dead-letter-topic"]) == (
                b"c", b"2", topic.encode(),
            )  # fmt: skip
