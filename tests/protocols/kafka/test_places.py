"""Where offsets, epochs, partitions and brokers are, as clients ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.memory_files import MemoryFiles
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS
from protocols.kafka.messages_records import FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, PRODUCE
from protocols.kafka.messages_transactions import DESCRIBE_PRODUCERS
from routing.access.grants import Permission
from routing.broker import Broker
from tests.protocols.kafka.door import Peer, batch_of, kafka_broker, records_of
from tests.support.home_cluster import Mesh, mesh, until
from tests.support.transactional import transactional

LARGEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -3, -4, -5, -6


async def offset(peer: Peer, version: int, timestamp: int, topic: str = "t", **more: Any) -> Any:
    """What a partition says of a time."""
    asked = Entity(partition_index=0, timestamp=timestamp, **more)
    reply = await peer.ask(LIST_OFFSETS, version, topics=[Entity(name=topic, partitions=[asked])])
    return reply.topics[0].partitions[0]


async def restarted(files: MemoryFiles) -> MemoryFiles:
    """A disk with two records of epoch 0, two of 1 and the beginning of 2."""
    for _ in range(2):
        async with kafka_broker(files) as broker:
            peer = Peer(broker)
            for value in (b"a", b"b"):
                assert (await peer.produce("t", batch_of([value]))).error_code == 0
            files = files.crash()
    return files


@pytest.mark.parametrize("version", range(12))
async def test_times_that_mean_something_else(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        for time_ms in (1_000_000, 3_000_000, 2_000_000):
            await peer.produce("t", batch_of([b"a"], timestamp_ms=time_ms))
        wanted = {
            LARGEST: (7, (1, 3_000_000)),
            EARLIEST_LOCAL: (8, (0, -1)),
            LATEST_TIERED: (9, (-1, -1)),
            EARLIEST_PENDING: (11, (-1, -1)),
        }
        for timestamp, (since, expected) in wanted.items():
            found = await offset(peer, version, timestamp)
            if version < since:
                assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
            else:
                assert (found.error_code, (found.offset, found.timestamp)) == (0, expected)
        assert (await offset(peer, version, -7)).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_the_largest_timestamp_of_nothing() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t")
        found = await offset(Peer(broker), 7, LARGEST)
        assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)


async def test_offsets_come_with_the_epoch_of_their_record() -> None:
    async with kafka_broker(await restarted(MemoryFiles())) as broker:
        peer = Peer(broker)
        found = [(one.offset, one.leader_epoch) for one in [await offset(peer, 6, when) for when in (-2, -1, 1)]]
        assert found == [(0, 0), (4, 2), (0, 0)]
        broker.topics["t"].partitions[0].log.delete_prefix(3)
        assert (await offset(peer, 6, -2)).leader_epoch == 1
        fenced = [(await offset(peer, 6, -1, current_leader_epoch=epoch)).error_code for epoch in (1, 2, 3)]
        assert fenced == [ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]


@pytest.mark.parametrize("version", range(5))
async def test_where_epochs_ended(version: int) -> None:
    async with kafka_broker(await restarted(MemoryFiles())) as broker:
        peer = Peer(broker)

        async def ask(epoch: int, topic: str = "t", partition: int = 0, current: int = -1) -> tuple[int, ...]:
            asked = Entity(partition=partition, leader_epoch=epoch)
            if version >= 2:
                asked.current_leader_epoch = current
            topics = [Entity(topic=topic, partitions=[asked])]
            reply = await peer.ask(OFFSET_FOR_LEADER_EPOCH, version, topics=topics)
            found = reply.topics[0].partitions[0]
            assert found.partition == partition
            return found.error_code, found.leader_epoch if version else epoch, found.end_offset

        assert [await ask(epoch) for epoch in (0, 1, 2)] == [(0, 0, 2), (0, 1, 4), (0, 2, 4)]
        assert [(await ask(epoch))[2] for epoch in (-1, 3)] == [-1, -1]
        assert (await ask(0, "none"))[0] == (await ask(0, "t", 5))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 2:
            assert (await ask(0, current=1))[0] == ErrorCode.FENCED_LEADER_EPOCH
        await broker.rights.set_permission("/", "guest", Permission("", "", "^other$"))
        assert (await ask(0))[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# Topics and brokers


@pytest.mark.parametrize("version", range(3))
async def test_which_brokers_there_are(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        reply = await peer.ask(DESCRIBE_CLUSTER, version)
        assert (reply.error_code, reply.controller_id, reply.cluster_id) == (0, 0, "millrace")
        assert [(one.broker_id, one.host, one.port) for one in reply.brokers] == [(0, "127.0.0.1", 9092)]
        assert reply.cluster_authorized_operations == -(1 << 31)
        told = await peer.ask(DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
        old = await peer.ask(METADATA, 9, topics=[], include_cluster_authorized_operations=True)
        assert told.cluster_authorized_operations == old.cluster_authorized_operations
        assert told.cluster_authorized_operations == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
        if version:
            refused = await peer.ask(DESCRIBE_CLUSTER, version, endpoint_type=2)
            assert (refused.error_code, refused.brokers) == (ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, [])


async def pages(broker: Broker, limit: int, *names: str) -> list[list[tuple[str, int, list[int]]]]:
    """All that is said of topics, page by page: name, error, partitions."""
    peer, cursor = Peer(broker), None
    found = []
    while True:
        reply = await peer.ask(
            DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[Entity(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append(
            [(one.name, one.error_code, [part.partition_index for part in one.partitions]) for one in reply.topics]
        )
        cursor = reply.next_cursor
        if cursor is None:
            return found


async def test_topics_are_described_page_by_page() -> None:
    async with kafka_broker() as broker:
        for name, count in (("b", 3), ("a", 2), ("c", 1)):
            await broker.create_topic(name, partitions=count)
        assert await pages(broker, 2) == [[("a", 0, [0, 1])], [("b", 0, [0, 1])], [("b", 0, [2]), ("c", 0, [0])]]
        assert await pages(broker, 9_999) == [[("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])]]
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await pages(broker, 0, "c", "none", "c", "a") == [
            [("a", 0, [0])],
            [("a", 0, [1])],
            [("c", 0, [0])],
            [("none", missing, [])],
        ]
        reply = await Peer(broker).ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[Entity(name="a")])
        (topic,) = reply.topics
        assert topic.topic_id == broker.topics["a"].id
        assert [(one.leader_id, one.replica_nodes, one.isr_nodes) for one in topic.partitions] == [(0, [0], [0])] * 2
        await broker.rights.set_permission("/", "guest", Permission("", "", "^b$"))
        assert await pages(broker, 10) == [[("b", 0, [0, 1, 2])]]
        assert await pages(broker, 10, "a") == [[("a", ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])]]


async def divided(found: Mesh) -> tuple[int, int]:
    """Who leads the topic `t`, and the one that does not, once both know it."""
    await until(lambda: all("t" in one.broker.topics for one in found.members.values()))

    def leads(number: int) -> bool:
        leadership = found.members[number].broker.topics["t"].partitions[0].leadership
        return leadership is not None and leadership.refusal() is None

    await until(lambda: any(map(leads, found.members)))
    leader = next(filter(leads, found.members))
    other = next(number for number in found.members if number != leader)
    await until(lambda: not leads(other))
    return leader, other


async def test_a_follower_tells_what_is_open_in_its_replica() -> None:
    """As kafka-transactions find-hanging --broker-id asks for all that a broker has, led there or not."""
    async with mesh() as found:
        await found.members[1].broker.create_topic("t", config={})
        leader, other = await divided(found)
        led, copy = (found.members[number].broker.topics["t"].partitions[0] for number in (leader, other))
        await until(lambda: copy.is_here)
        led.append(transactional(batch_of([b"x"]), 7, 3, 0))
        await until(lambda: copy.log.log_end_offset == 1)
        asked = [Entity(name="t", partition_indexes=[0])]
        reply = await Peer(found.members[other].broker).ask(DESCRIBE_PRODUCERS, 0, topics=asked)
        (partition,) = reply.topics[0].partitions
        assert partition.error_code == ErrorCode.NONE
        (producer,) = partition.active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.current_txn_start_offset) == (7, 3, 0)


async def test_who_compares_replicas_gets_what_a_follower_has() -> None:
    """As kafka-replica-verification asks; it takes replicas that answer nothing for ones that lag."""
    async with mesh() as found:
        topic = await found.members[1].broker.create_topic("t", config={})
        leader, other = await divided(found)
        led, copy = (found.members[number].broker.topics["t"].partitions[0] for number in (leader, other))
        led.append(batch_of([b"x"]))
        await until(lambda: copy.log.high_watermark == 1)
        for version in (4, 14, 15, 18):
            place = {"topic": "t"} if version < 13 else {"topic_id": topic.id}
            asked = Entity(partitions=[Entity(partition=0, fetch_offset=0, partition_max_bytes=1)], **place)
            who: dict[str, Any] = {"replica_id": -2} if version < 15 else {"replica_state": Entity(replica_id=-2)}
            for number in (leader, other):
                peer = Peer(found.members[number].broker)
                reply = await peer.ask(FETCH, version, topics=[asked], max_wait_ms=0, **who)
                partition = reply.responses[0].partitions[0]
                assert (partition.error_code, partition.high_watermark) == (ErrorCode.NONE, 1)
                assert [record.value for record in records_of(partition)] == [b"x"]


async def test_who_asks_the_wrong_broker_is_told_the_right_one() -> None:
    async with mesh() as found:
        topic = await found.members[1].broker.create_topic("t", config={})
        leader, other = await divided(found)
        peer = Peer(found.members[other].broker)
        peer.adapter.door.name = "peer"  # of the doors that these brokers tell of
        epoch = found.members[leader].broker.topics["t"].partitions[0].leader_epoch
        for version in (9, 10, 11):
            entry = Entity(index=0, records=[batch_of([b"x"])])
            said = {"acks": -1, "timeout_ms": 1000, "topic_data": [Entity(name="t", partition_data=[entry])]}
            reply = await peer.ask(PRODUCE, version, **said)
            check(reply, reply.responses[0].partition_responses[0], (leader, epoch) if version >= 10 else None)
        for version in (12, 15, 16, 18):
            place = {"topic": "t"} if version < 13 else {"topic_id": topic.id}
            entries = [Entity(partition=0, fetch_offset=0, partition_max_bytes=1)]
            said = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1, "rack_id": "", "session_epoch": -1}
            reply = await peer.ask(FETCH, version, topics=[Entity(partitions=entries, **place)], **said)
            check(reply, reply.responses[0].partitions[0], (leader, epoch) if version >= 16 else None)


def check(reply: Any, partition: Any, leader: tuple[int, int] | None) -> None:
    """It names the leader of a partition, and where that is; or nobody."""
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if leader is None:
        assert not partition.__dict__.get("current_leader")
        assert not reply.__dict__.get("node_endpoints")
        return
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == leader
    places = [(one.node_id, one.host, one.port) for one in reply.node_endpoints]
    assert places == [(leader[0], f"10.0.0.{leader[0]}", 9095)]


@pytest.mark.parametrize(("asked", "expected"), [(2_000_000, (1, 2_000_000)), (LARGEST, (1, 2_000_000))])
async def test_a_time_finds_what_was_confirmed_before_its_sync(asked: int, expected: tuple[int, int]) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a"], timestamp_ms=1_000_000))
        # With acks=1 nobody has asked for the sync: the question does.
        await peer.produce("t", batch_of([b"a"], timestamp_ms=2_000_000), acks=1)
        found = await offset(peer, 7, asked)
        assert (found.error_code, (found.offset, found.timestamp)) == (0, expected)
