"""DescribeProducers: who writes to a partition, and since where a transaction is open there."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import DESCRIBE_PRODUCERS
from protocols.kafka.registry import serves
from routing.bites import bites


@serves(DESCRIBE_PRODUCERS, 0, 0)
async def describe_producers(door: Door, call: Call, request: Entity) -> Entity:
    """Each partition is answered for itself, by its leader; one that is named twice, once."""
    return Entity(
        topics=[
            Entity(
                name=name,
                partitions=[await _partition(door, name, index) async for index in bites(dict.fromkeys(indexes))],
            )
            async for name, indexes in bites({one.name: one.partition_indexes for one in request.topics}.items())
        ]
    )


async def _partition(door: Door, topic: str, index: int) -> Entity:
    try:
        door.require("read", topic)
        partition = door.led(topic, index)
        states = await partition.producers.states()
    except ENGINE_ERRORS as error:
        return Entity(
            partition_index=index, error_code=code_of(error), error_message=str(error) or None, active_producers=[]
        )
    transactions = partition.log.transactions
    opened = transactions.open if transactions is not None else {}
    return Entity(
        partition_index=index,
        error_code=ErrorCode.NONE,
        active_producers=[
            Entity(
                producer_id=one.producer_id,
                producer_epoch=one.epoch,
                last_sequence=one.last_sequence,
                last_timestamp=one.last_ms,
                coordinator_epoch=one.coordinator_epoch,
                current_txn_start_offset=opened[one.producer_id].first_offset if one.producer_id in opened else -1,
            )
            for one in states.active()
        ],
    )
