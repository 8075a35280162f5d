"""ElectLeaders: the first replica of a partition is to lead it, or, uncleanly, any replica where nobody does.

1. A leader that lives hands over, so nothing stops. It is answered when it has, or when the request's time is over.
2. The only broker there is leads everything already.
"""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_replicas import all_partitions, log_of, partition_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import ELECT_LEADERS
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.cluster.metadata.operating import Elected, elect_preferred, elect_uncleanly

_PREFERRED, _UNCLEAN = 0, 1
_CODES = {
    Elected.DONE: ErrorCode.NONE,
    Elected.NOT_NEEDED: ErrorCode.ELECTION_NOT_NEEDED,
    Elected.UNDER_WAY: ErrorCode.REQUEST_TIMED_OUT,
}


@serves(ELECT_LEADERS, 0, 2)
async def elect_leaders(door: Door, call: Call, request: Entity) -> Entity:
    """One partition after the other; where all are asked for, those that need none are not told of."""
    try:
        door.require_administrator()
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
    except KafkaError as error:
        return Entity(error_code=error.code, replica_election_results=[])
    everything = request.topic_partitions is None
    if everything:
        asked = list(all_partitions(door))
    else:
        asked = [(one.topic, one.partitions) for one in request.topic_partitions]
    deadline = door.clock() + min(max(request.timeout_ms, 0), door.config.admin_timeout_ms_max) / 1000
    results = []
    async for topic, indexes in bites(asked):
        found = [await _elected(door, request.election_type, topic, index, deadline) async for index in bites(indexes)]
        if everything:
            found = [one for one in found if one.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        if found or not everything:
            results.append(Entity(topic=topic, partition_result=found))
    return Entity(error_code=ErrorCode.NONE, replica_election_results=results)


async def _elected(door: Door, kind: int, topic: str, index: int, deadline: float) -> Entity:
    try:
        code, why = await _elect(door, kind, topic, index, max(deadline - door.clock(), 0)), None
    except ENGINE_ERRORS as error:
        code, why = code_of(error), str(error) or None
    return Entity(partition_id=index, error_code=code, error_message=why)


async def _elect(door: Door, kind: int, topic: str, index: int, timeout_s: float) -> ErrorCode:
    cluster = door.broker.cluster
    if cluster is None:
        partition_of(door, topic, index)
        return ErrorCode.ELECTION_NOT_NEEDED
    log = log_of(door, topic, index)
    if kind == _PREFERRED:
        found = await elect_preferred(cluster, log, timeout_s=timeout_s)
        return _CODES.get(found, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    if door.topic(topic).is_stream:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {topic!r} is a stream, which knows no unclean elections")
    found = await elect_uncleanly(cluster, log)
    return _CODES.get(found, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
