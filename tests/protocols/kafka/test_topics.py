"""Topics made, given partitions and deleted through the Kafka door, request by request."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.errors import Conflict
from core_log.memory_files import MemoryFiles
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_RECORDS, DELETE_TOPICS
from protocols.kafka.messages_records import LIST_OFFSETS
from protocols.kafka.registry import SERVED
from routing.access.grants import Permission
from routing.topology.entries import Entry
from tests.protocols.kafka.door import Peer, batch_of, kafka_broker, records_of
from tests.routing.topology.test_changes_by_others import other


def asking(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> Entity:
    configs = [Entity(name=key, value=value) for key, value in more.pop("config", {}).items()]
    assigned = enumerate(more.pop("assigned", []))
    return Entity(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[Entity(partition_index=index, broker_ids=list(ids)) for index, ids in assigned],
        configs=configs,
    )


async def create(peer: Peer, *topics: Entity, version: int = 6, validate_only: bool = False) -> list[Any]:
    reply = await peer.ask(CREATE_TOPICS, version, topics=list(topics), timeout_ms=30_000, validate_only=validate_only)
    found: list[Any] = reply.topics
    return found


@pytest.mark.parametrize("version", range(SERVED[CREATE_TOPICS.key].version_max + 1))
async def test_topics_are_made(version: int) -> None:
    async with kafka_broker(auto_create_partitions=3) as broker:
        config = {"retention.ms": "1000"}
        made = await create(
            Peer(broker), asking("a", 2, config=config), asking("b", -1, -1), asking("c", -1, -1, assigned=[[0], [0]]),
            version=version,
        )  # fmt: skip
        assert [(one.name, one.error_code) for one in made] == [("a", 0), ("b", 0), ("c", 0)]
        assert {name: len(topic.partitions) for name, topic in broker.topics.items()} == {"a": 2, "b": 3, "c": 2}
        assert broker.topics["a"].partitions[0].log.config.retention_ms == 1000
        if version >= 7:
            assert [one.topic_id for one in made] == [broker.topics[name].id for name in "abc"]
        if version >= 5:
            assert [(one.num_partitions, one.replication_factor) for one in made] == [(2, 1), (3, 1), (2, 1)]


async def test_topics_that_could_be_made_are_not_if_nobody_wants_them() -> None:
    async with kafka_broker() as broker:
        made = await create(Peer(broker), asking("a", 2), asking("b", 0), validate_only=True)
        assert [one.error_code for one in made] == [0, ErrorCode.INVALID_PARTITIONS]
        assert made[0].num_partitions == 2
        assert not broker.topics


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (asking("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (asking("no/ne"), ErrorCode.INVALID_TOPIC),
        (asking(""), ErrorCode.INVALID_TOPIC),
        (asking("__offsets"), ErrorCode.INVALID_TOPIC),
        (asking("x" * 250), ErrorCode.INVALID_TOPIC),
        (asking("x", 0), ErrorCode.INVALID_PARTITIONS),
        (asking("x", -2), ErrorCode.INVALID_PARTITIONS),
        (asking("x", 1_001), ErrorCode.INVALID_PARTITIONS),
        (asking("x", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (asking("x", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (asking("x", config={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (asking("x", config={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (asking("x", config={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (asking("x", 1, -1, assigned=[[0]]), ErrorCode.INVALID_REQUEST),
        (asking("x", -1, 1, assigned=[[0]]), ErrorCode.INVALID_REQUEST),
        (asking("x", -1, -1, assigned=[[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (asking("x", -1, -1, assigned=[[0], []]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (asking("x", -1, -1, assigned=[[0, 0]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_what_cannot_be_made_says_why_and_keeps_no_other_from_it(asked: Entity, code: ErrorCode) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("there")
        refused, made = await create(Peer(broker), asked, asking("good"))
        assert (refused.error_code, made.error_code) == (code, 0), refused.error_message
        assert refused.error_message
        assert set(broker.topics) == {"there", "good"}


async def test_a_name_that_is_there_twice_is_refused_as_such() -> None:
    async with kafka_broker() as broker:
        twice, once = await create(Peer(broker), asking("a"), asking("b"), asking("a"))
        assert (twice.name, twice.error_code, once.error_code) == ("a", ErrorCode.INVALID_REQUEST, 0)
        assert set(broker.topics) == {"b"}
        reply = await Peer(broker).ask(DELETE_TOPICS, 5, topic_names=["b", "b"], timeout_ms=0)
        assert [one.error_code for one in reply.responses] == [ErrorCode.INVALID_REQUEST]
        assert set(broker.topics) == {"b"}


@pytest.mark.parametrize("version", range(6))
async def test_topics_are_deleted(version: int) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("a")
        peer = Peer(broker)
        await peer.produce("a", batch_of([b"x"]))
        reply = await peer.ask(DELETE_TOPICS, version, topic_names=["a", "none"], timeout_ms=30_000)
        found = [(one.name, one.error_code) for one in reply.responses]
        assert found == [("a", 0), ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert not broker.topics


async def test_topics_are_deleted_by_their_ids() -> None:
    async with kafka_broker() as broker:
        ids = [(await broker.create_topic(name)).id for name in "abc"]
        asked = [(None, ids[0]), ("b", bytes(16)), (None, b"x" * 16), (None, bytes(16)), ("c", ids[2])]
        topics = [Entity(name=name, topic_id=topic_id) for name, topic_id in asked]
        reply = await Peer(broker).ask(DELETE_TOPICS, 6, topics=topics, timeout_ms=30_000)
        wrong = ErrorCode.INVALID_REQUEST
        found = [(one.name, one.topic_id, one.error_code) for one in reply.responses]
        assert found[:2] == [("a", ids[0], 0), ("b", ids[1], 0)]
        assert [code for _, _, code in found[2:]] == [ErrorCode.UNKNOWN_TOPIC_ID, wrong, wrong]
        assert set(broker.topics) == {"c"}


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_topic_that_others_make_anew_meanwhile_is_not_deleted(by_id: bool) -> None:
    """Of a plan that another broker's change had overtaken, the topic that has the name then was deleted."""
    async with kafka_broker() as broker:
        catalog = broker.topology.catalog
        theirs = other(broker)
        former, made = ({"partitions": 1, "config": {}, "id": bytes([n] * 16), "uid": str(n)} for n in (1, 2))
        await theirs.change([Entry(("topic", "t"), former, True)])
        write = catalog.change

        async def change(*arguments: Any, **options: Any) -> None:
            catalog.change = write  # type: ignore[method-assign]
            await theirs.change([Entry(("topic", "t"), None, True)])
            await theirs.change([Entry(("topic", "t"), made, True)])
            raise Conflict("overtaken")

        catalog.change = change  # type: ignore[method-assign]
        topic = Entity(name=None, topic_id=former["id"]) if by_id else Entity(name="t", topic_id=bytes(16))
        (found,) = (await Peer(broker).ask(DELETE_TOPICS, 6, topics=[topic], timeout_ms=30_000)).responses
        assert broker.topics["t"].id == made["id"]
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (found.error_code, found.topic_id) == (unknown, former["id"])


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(version: int) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("a")
        await broker.create_topic("b")
        peer = Peer(broker)

        async def add(*topics: Entity, validate_only: bool = False) -> list[int]:
            reply = await peer.ask(
                CREATE_PARTITIONS, version, topics=list(topics), timeout_ms=30_000, validate_only=validate_only
            )
            return [one.error_code for one in reply.results]

        def more(name: str, count: int, assigned: list[list[int]] | None = None) -> Entity:
            found = None if assigned is None else [Entity(broker_ids=one) for one in assigned]
            return Entity(name=name, count=count, assignments=found)

        assert await add(more("a", 3), validate_only=True) == [0]
        assert len(broker.topics["a"].partitions) == 1
        assert await add(more("a", 3), more("b", 2, [[0]]), more("c", 2)) == [0, 0, 3]
        assert [len(broker.topics[name].partitions) for name in "ab"] == [3, 2]
        wrong, unassigned = ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await add(more("a", 2), more("b", 2)) == [wrong] * 2
        assert await add(more("a", 0), more("b", 5_000)) == [wrong] * 2
        assert await add(more("a", 5, [[0]]), more("b", 3, [[7]])) == [unassigned] * 2
        assert await add(more("a", 4), more("a", 5)) == [ErrorCode.INVALID_REQUEST] * 2
        assert [len(broker.topics[name].partitions) for name in "ab"] == [3, 2]


async def test_who_may_not_changes_nothing() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("a")
        await broker.rights.set_permission("/", "guest", Permission("mine", ".*", ".*"))
        peer = Peer(broker)
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert [one.error_code for one in await create(peer, asking("b"), asking("mine"))] == [refused, 0]
        reply = await peer.ask(DELETE_TOPICS, 5, topic_names=["a"], timeout_ms=0)
        assert [one.error_code for one in reply.responses] == [refused]
        topics = [Entity(name="a", count=2, assignments=None)]
        more = await peer.ask(CREATE_PARTITIONS, 3, topics=topics, timeout_ms=0, validate_only=False)
        assert [one.error_code for one in more.results] == [refused]
        assert set(broker.topics) == {"a", "mine"}
        assert len(broker.topics["a"].partitions) == 1


async def begins(peer: Peer, topic: str) -> int:
    topics = [Entity(name=topic, partitions=[Entity(partition_index=0, timestamp=-2)])]
    reply = await peer.ask(LIST_OFFSETS, 1, replica_id=-1, topics=topics)
    offset: int = reply.topics[0].partitions[0].offset
    return offset


async def delete_records(
    peer: Peer, offset: int, *, topic: str = "t", partition: int = 0, version: int = 2, timeout_ms: int = 30_000
) -> Any:
    topics = [Entity(name=topic, partitions=[Entity(partition_index=partition, offset=offset)])]
    reply = await peer.ask(DELETE_RECORDS, version, topics=topics, timeout_ms=timeout_ms)
    (found,) = reply.topics[0].partitions
    return found


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_and_stay_deleted_over_a_restart(version: int) -> None:
    files = MemoryFiles()
    async with kafka_broker(files) as broker:
        peer = Peer(broker)
        for _ in range(3):
            await peer.produce("t", batch_of([b"a", b"b"]))
        found = await delete_records(peer, 3, version=version)
        assert (found.low_watermark, found.error_code) == (3, 0)
        assert (await peer.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert [one.offset for one in records_of(await peer.fetch("t", 3))] == [2, 3, 4, 5]
        assert (await delete_records(peer, 1, version=version)).low_watermark == 3, "it never goes back"
        files = files.crash()
    async with kafka_broker(files) as broker:
        peer = Peer(broker)
        assert await begins(peer, "t") == 3
        before = broker.topics["t"].partitions[0].log.size_bytes
        assert (await delete_records(peer, -1, version=version)).low_watermark == 6
        assert broker.topics["t"].partitions[0].log.size_bytes == 0 < before
        assert (await peer.produce("t", batch_of([b"c"]))).base_offset == 6
        files = files.crash()
    async with kafka_broker(files) as broker:
        assert await begins(Peer(broker), "t") == 6
        assert [one.value for one in records_of(await Peer(broker).fetch("t", 6))] == [b"c"]


async def test_who_gives_no_time_to_delete_records_waits_for_no_other_replicas() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a", b"b"]))
        found = await delete_records(peer, 1, timeout_ms=0)
        assert (found.low_watermark, found.error_code) == (1, ErrorCode.NONE), "there are none"


async def test_records_that_cannot_be_deleted() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a", b"b"]))
        for offset in (3, -2):
            assert (await delete_records(peer, offset)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete_records(peer, 0, topic="no")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await delete_records(peer, 0, partition=1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.create_topic("compacted", config={"cleanup.policy": "compact"})
        assert (await delete_records(peer, 0, topic="compacted")).error_code == ErrorCode.POLICY_VIOLATION
        await broker.rights.set_permission("/", "guest", Permission("", ".*", ".*"))
        refused = await delete_records(peer, 1)
        assert (refused.error_code, refused.low_watermark) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
        assert await begins(peer, "t") == 0
