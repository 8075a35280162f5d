"""CreateAcls: users may do more. What the table of rights cannot say is refused, entry by entry.

What is asked for together counts together: the four operations that make up `configure`, and DESCRIBE beside what
includes it.
"""

from __future__ import annotations

from protocols.kafka.adapter_acls import (
    ACCESSES,
    ALLOW,
    CLUSTER_NAME,
    CONFIGURE,
    EVERY_HOST,
    LOOKS,
    TAGS,
    Operation,
    Resource,
    accesses_of,
    in_turn,
    part_of,
    user_of,
)
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_admin import CREATE_ACLS
from protocols.kafka.registry import serves
from routing.access.grants import Access, Permission
from routing.access.name_patterns import NamePattern, join, parse
from routing.bites import bites

_Said = dict[tuple[str, int, int, str], set[int]]
"""The operations that are asked for, by principal and resource."""


@serves(CREATE_ACLS, 0, 3)
async def create_acls(door: Door, call: Call, request: Entity) -> Entity:
    """One after the other, in the order that `in_turn` says."""
    creations: list[Entity] = request.creations
    said: _Said = {}
    for one in creations:
        said.setdefault(_place(one), set()).add(one.operation)
    results = [Entity() for _ in creations]
    async for at in bites(in_turn(one.operation for one in creations)):
        one = creations[at]
        code, why = ErrorCode.NONE, None
        try:
            door.require_administrator()
            await _create(door, one, said[_place(one)])
        except ENGINE_ERRORS as error:
            code, why = code_of(error), str(error) or None
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                code = ErrorCode.INVALID_REQUEST  # no such user
        results[at] = Entity(error_code=code, error_message=why)
    return Entity(results=results)


def _place(one: Entity) -> tuple[str, int, int, str]:
    return one.principal, one.resource_type, one.resource_pattern_type, one.resource_name


async def _create(door: Door, one: Entity, said: set[int]) -> None:
    user = user_of(one.principal)
    if door.broker.rights.user(user) is None:
        raise _cannot(f"there is no user '{user}'")
    if one.host != EVERY_HOST or one.permission_type != ALLOW:
        raise _cannot("rights are allowed from every host ('*'), or not at all")
    part = part_of(one.resource_pattern_type, one.resource_name)
    if one.resource_type == Resource.CLUSTER:
        await _on_cluster(door, user, one)
    elif one.resource_type == Resource.TOPIC:
        accesses = _accesses(one.operation, said)
        await door.broker.rights.change_permission(
            door.config.virtual_host, user, lambda before: _added(before, part, accesses)
        )
    elif one.resource_type != Resource.GROUP:
        raise _cannot(f"there are no rights of their own on resources of type {one.resource_type}")


def _accesses(operation: int, said: set[int]) -> tuple[Access, ...]:
    """What an operation asks for; none for what the others include. Raises KafkaError."""
    if operation in CONFIGURE and not (said >= CONFIGURE or Operation.ALL in said):
        raise _cannot("CREATE, DELETE, ALTER and ALTER_CONFIGS are one right here: ask for all four together")
    accesses = accesses_of(operation)
    if not accesses and operation not in LOOKS:
        raise _cannot(f"operation {operation} is none of topics")
    return accesses


def _added(before: Permission, part: NamePattern, accesses: tuple[Access, ...]) -> Permission:
    parts = {access: parse(getattr(before, access)) for access in ACCESSES}
    if not accesses and not any(part in found for found in parts.values()):
        raise _cannot("DESCRIBE and DESCRIBE_CONFIGS are given with READ, WRITE or ALL, not alone")
    lacking = {access: join([*parts[access], part]) for access in accesses if part not in parts[access]}
    if any(part not in parse(expression) for expression in lacking.values()):
        raise _cannot("the user's rights are a regular expression that nothing can be added to")
    return before._replace(**lacking)


async def _on_cluster(door: Door, user: str, one: Entity) -> None:
    if one.resource_name != CLUSTER_NAME:
        raise _cannot(f"the cluster is called {CLUSTER_NAME!r}")
    found = door.broker.rights.user(user)
    tags = found.tags if found is not None else ()
    tag = next((tag for tag, operation in TAGS.items() if operation == one.operation), None)
    if tag is not None:
        if tag not in tags:
            await door.broker.rights.set_tags(user, [*tags, tag])
    elif one.operation not in (Operation.DESCRIBE, Operation.IDEMPOTENT_WRITE) and "administrator" not in tags:
        raise _cannot("on the cluster there are ALL (an administrator) and DESCRIBE_CONFIGS (who monitors)")


def _cannot(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)
