"""DescribeAcls: the rights of users, as lists of who may do what."""

from __future__ import annotations

from protocols.kafka.adapter_acls import ALLOW, EVERY_HOST, Filter, entries, grouped
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import DESCRIBE_ACLS
from protocols.kafka.registry import serves


@serves(DESCRIBE_ACLS, 0, 3)
async def describe_acls(door: Door, call: Call, request: Entity) -> Entity:
    """Those that a filter means."""
    try:
        door.require_administrator(looks=True)
    except KafkaError as error:
        return Entity(error_code=error.code, error_message=str(error) or None, resources=[])
    wanted = Filter.of(request)
    found = [one for one in entries(door.broker.rights, door.config.virtual_host) if wanted.matches(one)]
    resources = [
        Entity(
            resource_type=resource,
            resource_name=name,
            pattern_type=pattern,
            acls=[
                Entity(principal=one.principal, host=EVERY_HOST, operation=one.operation, permission_type=ALLOW)
                for one in acls
            ],
        )
        for (resource, pattern, name), acls in grouped(found).items()
    ]
    return Entity(error_code=ErrorCode.NONE, error_message=None, resources=resources)
