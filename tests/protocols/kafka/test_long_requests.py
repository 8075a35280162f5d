"""Requests that name thousands of things: others have their turns while they are served."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from protocols.kafka.codec import Entity
from protocols.kafka.messages_admin import (
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOPIC_PARTITIONS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
)
from protocols.kafka.messages_groups import LEAVE_GROUP, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from protocols.kafka.messages_records import LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, PRODUCE
from protocols.kafka.messages_transactions import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)
from protocols.kafka.messages_users import ALTER_USER_SCRAM_CREDENTIALS
from protocols.kafka.schema import Api
from tests.protocols.kafka.door import Peer, kafka_broker
from tests.support.turns import Turns

COUNT = 30_000
NAMES = [f"none-{number}" for number in range(COUNT)]
NUMBERS = range(COUNT)


FEW = 3000
"""Of what takes long each."""


def each(field: str, many: int = COUNT, /, **more: Any) -> list[Entity]:
    """So many things, told apart by name or number."""
    values = NUMBERS if field in ("partition", "partition_index", "producer_id") else NAMES
    return [Entity(**{field: value}, **more) for value in values[:many]]


def of_topic(**fields: Any) -> dict[str, Any]:
    """What is said of one topic."""
    return {"topics": [Entity(**fields)]}


ACL = {"resource_type": 2, "resource_pattern_type": 3, "principal": "User:no", "host": "*", "operation": 3}
NEW = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
MARKER = {"producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
COMMITTED = {"committed_offset": 0, "committed_metadata": None}
LOOKED_AT = {"timeout_ms": 0, "validate_only": True}
TRANSACTION = {
    "v3_and_below_transactional_id": "x",
    "v3_and_below_producer_id": 1,
    "v3_and_below_producer_epoch": 0,
    "v3_and_below_topics": [Entity(name="t", partitions=NUMBERS)],
}
PRODUCED = [Entity(name="t", partition_data=[Entity(index=number, records=b"") for number in NUMBERS])]
REQUESTS: list[tuple[Api, int, dict[str, Any]]] = [
    (PRODUCE, 7, {"transactional_id": None, "acks": 1, "timeout_ms": 0, "topic_data": PRODUCED}),
    (METADATA, 9, {"topics": each("name"), "allow_auto_topic_creation": False}),
    (DESCRIBE_CONFIGS, 4, {"resources": each("resource_name", resource_type=2)}),
    (LIST_OFFSETS, 7, of_topic(name="t", partitions=each("partition_index", timestamp=-1))),
    (OFFSET_FETCH, 7, {"group_id": "g", "topics": each("name", partition_indexes=[0])}),
    (OFFSET_FETCH, 8, {"groups": each("group_id", topics=None)}),
    (OFFSET_COMMIT, 8, {"group_id": "g", **of_topic(name="t", partitions=each("partition_index", **COMMITTED))}),
    (OFFSET_DELETE, 0, {"group_id": "g", **of_topic(name="t", partitions=each("partition_index"))}),
    (OFFSET_FOR_LEADER_EPOCH, 4, of_topic(topic="t", partitions=each("partition", leader_epoch=0))),
    (LEAVE_GROUP, 5, {"group_id": "g", "members": each("member_id")}),
    (DELETE_RECORDS, 2, of_topic(name="t", partitions=each("partition_index", offset=0))),
    (CREATE_TOPICS, 7, {"topics": each("name", FEW, **NEW), **LOOKED_AT}),
    (DELETE_TOPICS, 5, {"topic_names": NAMES, "timeout_ms": 0}),
    (CREATE_PARTITIONS, 3, {"topics": each("name", count=2, assignments=None), **LOOKED_AT}),
    (INCREMENTAL_ALTER_CONFIGS, 1, {"resources": each("resource_name", resource_type=2, configs=[])}),
    (DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": each("name"), "cursor": None}),
    (ELECT_LEADERS, 2, {"topic_partitions": [Entity(topic="t", partitions=NUMBERS)]}),
    (CREATE_ACLS, 3, {"creations": each("resource_name", permission_type=3, **ACL)}),
    (DESCRIBE_PRODUCERS, 0, of_topic(name="t", partition_indexes=NUMBERS)),
    (DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": NAMES}),
    (
        WRITE_TXN_MARKERS,
        1,
        {"markers": each("producer_id", FEW, **MARKER, **of_topic(name="none", partition_indexes=[0]))},
    ),
    (ADD_PARTITIONS_TO_TXN, 3, TRANSACTION),
    (ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": each("name", mechanism=1)}),
]


@pytest.mark.parametrize(
    ("api", "version", "fields"), REQUESTS, ids=[f"{api.name}-{version}" for api, version, _ in REQUESTS]
)
async def test_others_have_their_turn_while_one_request_asks_for_much(
    api: Api, version: int, fields: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routing.bites.BITE_S", 0.001)  # whatever the machine does within one
    others = Turns()
    async with kafka_broker() as broker, trio.open_nursery() as nursery:
        await broker.create_topic("t")
        peer = Peer(broker)
        data = peer.encoded(api, version, **fields)
        nursery.start_soon(others.take)
        await trio.lowlevel.checkpoint()
        others.count = 0
        await peer.receive(data)
        assert others.count >= 3
        nursery.cancel_scope.cancel()
