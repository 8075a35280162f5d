"""AlterPartitionReassignments: partitions are to have other replicas, or go back to those that they had.

What is answered is that it is asked for; `adapter_46_list_partition_reassignments.py` tells what is still under way.
"""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_replicas import log_of, partition_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import ALTER_PARTITION_REASSIGNMENTS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.cluster.metadata.operating import cancel_move, factor_of, move
from routing.errors import InvalidArgument


@serves(ALTER_PARTITION_REASSIGNMENTS, 0, 1)
async def alter_partition_reassignments(door: Door, call: Call, request: Entity) -> Entity:
    """One partition after the other."""
    same = not request.allow_replication_factor_change
    reply = Entity(
        error_code=ErrorCode.NONE, error_message=None, responses=[], allow_replication_factor_change=not same
    )
    try:
        door.require_administrator()
    except KafkaError as error:
        reply.error_code = error.code
    async for topic in bites(request.topics):
        if reply.error_code == ErrorCode.NONE:
            found = [await _altered(door, topic.name, one, same_factor=same) async for one in bites(topic.partitions)]
        else:  # Java's client counts the partitions of any reply
            found = [_answer(one, reply.error_code) for one in topic.partitions]
        reply.responses.append(Entity(name=topic.name, partitions=found))
    return reply


async def _altered(door: Door, topic: str, asked: Entity, *, same_factor: bool) -> Entity:
    code, why = ErrorCode.NONE, None
    try:
        await _alter(door, topic, asked, same_factor=same_factor)
    except InvalidArgument as error:
        code, why = ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(error)
    except ENGINE_ERRORS as error:
        code, why = code_of(error), str(error) or None
    return _answer(asked, code, why)


def _answer(asked: Entity, code: ErrorCode, why: str | None = None) -> Entity:
    return Entity(partition_index=asked.partition_index, error_code=code, error_message=why)


async def _alter(door: Door, topic: str, asked: Entity, *, same_factor: bool) -> None:
    cluster, replicas = door.broker.cluster, asked.replicas
    partition_of(door, topic, asked.partition_index)
    if replicas is None:
        if cluster is None or not await cancel_move(cluster, log_of(door, topic, asked.partition_index)):
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return
    if not replicas or len(set(replicas)) != len(replicas):
        raise InvalidArgument("a partition has replicas, each on another broker")
    log = "" if cluster is None else log_of(door, topic, asked.partition_index)
    known = None if cluster is None else cluster.elections.logs.get(log)
    there = 1 if known is None else factor_of(known.state)
    if same_factor and len(replicas) != there:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, f"the partition has {there} replicas")
    if cluster is not None:
        await move(cluster, log, replicas)
    elif replicas != [0]:
        raise InvalidArgument("the only broker there is has the id 0")
