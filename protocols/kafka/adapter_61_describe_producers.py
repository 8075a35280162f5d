"""DescribeProducers: who writes to a partition, and since where a transaction is open there."""

from __future__ import annotations

from core_log.partition_log import PartitionLog
from core_log.producer_states import ActiveProducer
from core_log.transaction_index import OpenTransaction
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_transactions import DESCRIBE_PRODUCERS
from protocols.kafka.registry import serves
from routing.bites import bites

_UNKNOWN = -1


@serves(DESCRIBE_PRODUCERS, 0, 0)
async def describe_producers(door: Door, call: Call, request: Entity) -> Entity:
    """Each partition is answered for itself, by its leader or a follower; one that is named twice, once."""
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
        log, known = await _known(door, topic, index)
    except ENGINE_ERRORS as error:
        return Entity(
            partition_index=index, error_code=code_of(error), error_message=str(error) or None, active_producers=[]
        )
    opened = dict(log.transactions.open) if log.transactions is not None else {}
    producers = [_producer(one, opened.pop(one.producer_id, None)) for one in known]
    for producer_id, one in opened.items():  # it was forgotten, or nobody here keeps account
        silent = ActiveProducer(producer_id, one.producer_epoch, _UNKNOWN, one.since_ms, _UNKNOWN)
        producers.append(_producer(silent, one))
    return Entity(partition_index=index, error_code=ErrorCode.NONE, active_producers=producers)


async def _known(door: Door, topic: str, index: int) -> tuple[PartitionLog, list[ActiveProducer]]:
    """A partition's log, and the producers that are known of. A follower knows of none, but has their transactions; it
    is asked by who looks through all that a broker has. Raises KafkaError, BrokerError, LogError.
    """
    partition = door.held(topic, index)
    if partition.leadership is not None and partition.leadership.refusal() is not None:
        return partition.log, []
    states = await partition.producers.states()
    return partition.log, list(states.active())


def _producer(one: ActiveProducer, opened: OpenTransaction | None) -> Entity:
    return Entity(
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        last_sequence=one.last_sequence,
        last_timestamp=one.last_ms,
        coordinator_epoch=one.coordinator_epoch,
        current_txn_start_offset=opened.first_offset if opened is not None else _UNKNOWN,
    )
