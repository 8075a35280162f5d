"""DescribeTransactions: where transactional ids stand."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS
from protocols.kafka.adapter_transactional import require_id, transaction_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import DESCRIBE_TRANSACTIONS
from protocols.kafka.registry import serves
from routing.bites import bites


@serves(DESCRIBE_TRANSACTIONS, 0, 0)
async def describe_transactions(door: Door, call: Call, request: Entity) -> Entity:
    """Each id is answered for itself, by who looks after it; one that is named twice, once."""
    once = dict.fromkeys(request.transactional_ids)
    return Entity(transaction_states=[_described(door, name) async for name in bites(once)])


def _described(door: Door, name: str) -> Entity:
    try:
        require_id(door, name)
        state = door.broker.coordinator.describe(name)
    except ENGINE_ERRORS as error:
        return Entity(
            error_code=transaction_code_of(error),
            transactional_id=name,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=-1,
            producer_id=-1,
            producer_epoch=-1,
            topics=[],
        )
    topics: dict[str, list[int]] = {}
    for topic, index in state.partitions:
        if door.allows("read", topic):
            topics.setdefault(topic, []).append(index)
    return Entity(
        error_code=ErrorCode.NONE,
        transactional_id=name,
        transaction_state=state.stage.value,
        transaction_timeout_ms=state.timeout_ms,
        transaction_start_time_ms=state.started_ms,
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        topics=[Entity(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )
