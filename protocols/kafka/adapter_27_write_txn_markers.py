"""WriteTxnMarkers: an operator ends what a transaction has left open in partitions that are led here.

Brokers tell each other over links of their own. What is asked for here is what `kafka-transactions.sh abort` does about
a partition whose transaction nobody looks after any more; it takes the tag `administrator`.
"""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS
from protocols.kafka.adapter_transactional import transaction_code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_transactions import WRITE_TXN_MARKERS
from protocols.kafka.registry import serves
from routing.administration.operations import CHANGES, require_tag
from routing.bites import bites
from routing.log_transactions.links import Ending


@serves(WRITE_TXN_MARKERS, 0, 1)
async def write_txn_markers(door: Door, call: Call, request: Entity) -> Entity:
    """One partition after the other; answered when all markers are committed."""
    return Entity(
        markers=[
            Entity(
                producer_id=one.producer_id,
                topics=[
                    Entity(
                        name=topic.name,
                        partitions=[
                            Entity(partition_index=index, error_code=await _mark(door, one, topic.name, index))
                            async for index in bites(topic.partition_indexes)
                        ],
                    )
                    async for topic in bites(one.topics)
                ],
            )
            async for one in bites(request.markers)
        ]
    )


async def _mark(door: Door, asked: Entity, topic: str, index: int) -> ErrorCode:
    try:
        if door.grants is None:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        try:
            require_tag(door.broker, door.grants.user, "the end of a transaction", CHANGES)
        except ENGINE_ERRORS:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED) from None
        partition = door.led(topic, index)
        ending = Ending(asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.coordinator_epoch)
        await door.broker.coordinator.endings.mark(partition, ending)
    except KafkaError as error:
        return error.code
    except ENGINE_ERRORS as error:
        return transaction_code_of(error)
    return ErrorCode.NONE
