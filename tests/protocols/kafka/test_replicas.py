"""What a single broker says of its disk, its leaders and its replicas, and who may ask."""

from __future__ import annotations

import pytest

from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import (
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
)
from tests.protocols.kafka.door import Peer, batch_of, kafka_broker

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(6))
async def test_what_the_disk_has(version: int) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("a", partitions=2)
        await broker.create_topic("b")
        peer = Peer(broker)
        await peer.produce("a", batch_of([bytes(1000)]))
        (directory,) = (await peer.ask(DESCRIBE_LOG_DIRS, version, topics=None)).results
        sizes = {(topic.name, one.partition_index): one.partition_size for topic in directory.topics
                 for one in topic.partitions}  # fmt: skip
        assert sizes.pop(("a", 0)) > 1000
        assert sizes == {("a", 1): 0, ("b", 0): 0}
        asked = [Entity(topic="a", partitions=[1, 7]), Entity(topic="no", partitions=[0])]
        (directory,) = (await peer.ask(DESCRIBE_LOG_DIRS, version, topics=asked)).results
        assert [(one.name, len(one.partitions)) for one in directory.topics] == [("a", 1)]


@pytest.mark.parametrize("version", [1, 2])
async def test_partitions_stay_in_the_one_directory(version: int) -> None:
    """As kafka-reassign-partitions asks for it, by what it has printed."""
    async with kafka_broker() as broker:
        await broker.create_topic("a")
        peer, asked = Peer(broker), [Entity(name="a", partitions=[0, 1]), Entity(name="no", partitions=[0])]
        (directory,) = (await peer.ask(DESCRIBE_LOG_DIRS, 5, topics=None)).results
        missing, forbidden = ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for tags, path, codes in (
            (["administrator"], directory.log_dir, [[0, UNKNOWN], [UNKNOWN]]),
            (["administrator"], "/nowhere", [[missing] * 2, [missing]]),
            (["monitoring"], directory.log_dir, [[forbidden] * 2, [forbidden]]),
        ):
            await broker.rights.set_tags("guest", tags)
            reply = await peer.ask(ALTER_REPLICA_LOG_DIRS, version, dirs=[Entity(path=path, topics=asked)])
            assert [[one.error_code for one in topic.partitions] for topic in reply.results] == codes
            assert [topic.topic_name for topic in reply.results] == ["a", "no"]


@pytest.mark.parametrize("version", range(3))
async def test_the_only_broker_leads_already(version: int) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("a")
        peer = Peer(broker)
        asked = [Entity(topic="a", partitions=[0, 1]), Entity(topic="no", partitions=[0])]
        reply = await peer.ask(ELECT_LEADERS, version, topic_partitions=asked)
        codes = [[one.error_code for one in topic.partition_result] for topic in reply.replica_election_results]
        assert codes == [[ErrorCode.ELECTION_NOT_NEEDED, UNKNOWN], [UNKNOWN]]
        assert (await peer.ask(ELECT_LEADERS, version, topic_partitions=None)).replica_election_results == []
        if version:
            wrong = await peer.ask(ELECT_LEADERS, version, election_type=7, topic_partitions=None)
            assert wrong.error_code == ErrorCode.INVALID_REQUEST


async def test_the_only_broker_has_all_replicas() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("a")
        peer = Peer(broker)
        for replicas, code in (
            ([0], 0), ([1], ErrorCode.INVALID_REPLICA_ASSIGNMENT), (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
            ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ):  # fmt: skip
            partitions = [Entity(partition_index=0, replicas=replicas), Entity(partition_index=1, replicas=replicas)]
            topics = [Entity(name="a", partitions=partitions)]
            reply = await peer.ask(ALTER_PARTITION_REASSIGNMENTS, 1, topics=topics)
            assert [one.error_code for one in reply.responses[0].partitions] == [code, UNKNOWN]
        assert (await peer.ask(LIST_PARTITION_REASSIGNMENTS, 0, topics=None)).topics == []
        some = [Entity(name="a", partition_indexes=[0, 5]), Entity(name="no", partition_indexes=[0])]
        assert (await peer.ask(LIST_PARTITION_REASSIGNMENTS, 0, topics=some)).topics == []


async def test_who_may_not() -> None:
    async with kafka_broker() as broker:
        await broker.rights.set_tags("guest", [])
        peer, asked = Peer(broker), Entity(partition_index=3, replicas=[0])
        for api, version, said in (
            (DESCRIBE_LOG_DIRS, 5, {"topics": None}),
            (ELECT_LEADERS, 2, {"topic_partitions": None}),
            (ALTER_PARTITION_REASSIGNMENTS, 1, {"topics": [Entity(name="a", partitions=[asked])]}),
            (LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None}),
        ):
            reply = await peer.ask(api, version, **said)  # type: ignore[arg-type]
            assert reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if api is ALTER_PARTITION_REASSIGNMENTS:
                (topic,) = reply.responses
                found = [(one.partition_index, one.error_code) for one in topic.partitions]
                assert (topic.name, found) == ("a", [(3, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)])
