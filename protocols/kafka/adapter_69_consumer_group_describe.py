"""ConsumerGroupDescribe: who is in a group that the broker divides, what each member reads, and is to read."""

from __future__ import annotations

from protocols.kafka.adapter_03_metadata import sees
from protocols.kafka.adapter_15_describe_groups import OPERATIONS
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import CONSUMER_GROUP_DESCRIBE
from protocols.kafka.registry import serves
from routing.bites import bites
from routing.groups.assignors import NOWHERE, Places
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.errors import UnknownGroup

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


@serves(CONSUMER_GROUP_DESCRIBE, 0, 1)
async def consumer_group_describe(door: Door, call: Call, request: Entity) -> Entity:
    """One that is not there, or divided by its members, is not found; one that is named twice is described once."""
    groups = [_described(door, name) async for name in bites(dict.fromkeys(request.group_ids))]
    for one in groups:
        if request.include_authorized_operations and one.error_code == ErrorCode.NONE:
            one.authorized_operations = OPERATIONS
    return Entity(groups=groups)


def _described(door: Door, name: str) -> Entity:
    reply = Entity(error_code=ErrorCode.NONE, group_id=name, group_state="", assignor_name="", members=[])
    try:
        found = door.broker.groups.describe(name)
    except UnknownGroup:
        reply.error_code, reply.error_message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} not found."
    except ENGINE_ERRORS as error:
        reply.error_code, reply.error_message = code_of(error), str(error)
    else:
        if isinstance(found, ConsumerGroup):
            _fill(door, reply, found)
            if not all(sees(door, topic) for topic in _topics_of(reply)):
                # Topics that the user may not know of: as Kafka does, nothing is told of the group then.
                why = "The group has described topic(s) that the client is not authorized to describe."
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return Entity(
                    error_code=code, error_message=why, group_id=name, group_state="", assignor_name="", members=[]
                )
        else:
            reply.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            reply.error_message = f"Group {name} is not a consumer group."
    return reply


def _topics_of(group: Entity) -> set[str]:
    """All that are named in what is told of a group."""
    named = {topic for member in group.members for topic in member.subscribed_topic_names}
    for member in group.members:
        for places in (member.assignment, member.target_assignment):
            named.update(one.topic_name for one in places.topic_partitions)
    return named


def _fill(door: Door, reply: Entity, group: ConsumerGroup) -> None:
    reply.group_state, reply.assignor_name = group.state, group.assignor
    reply.group_epoch, reply.assignment_epoch = group.epoch, group.assignment_epoch
    reply.members = [
        Entity(
            member_id=member.id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex=member.pattern,
            assignment=_assignment(door, member.held),
            target_assignment=_assignment(door, group.target.get(member.id, NOWHERE)),
            member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
        )
        for member in group.members.values()
    ]


def _assignment(door: Door, places: Places) -> Entity:
    found: dict[bytes, list[int]] = {}
    for topic, number in sorted(places):
        found.setdefault(topic, []).append(number)
    topics = door.broker.topics.by_id
    return Entity(
        topic_partitions=[
            Entity(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=numbers)
            for topic_id, numbers in found.items()
            if topic_id in topics
        ]
    )
