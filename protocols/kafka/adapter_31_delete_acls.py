"""DeleteAcls: users may do less.

What goes is what the table of rights has for the entries that a filter means, with all that is one right with it; each
entry that is gone then is told of. One that is meant and stays is told of with an error: because it goes with others,
or because a filter that names nobody does not make who asks somebody who may not ask again.
"""

from __future__ import annotations

from protocols.kafka.adapter_acls import (
    ACCESSES,
    ALLOW,
    CLUSTER_NAME,
    EVERY_HOST,
    TAGS,
    Acl,
    Filter,
    Operation,
    Pattern,
    Resource,
    accesses_of,
    entries,
    in_turn,
    resource_of,
)
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import DELETE_ACLS
from protocols.kafka.registry import serves
from routing.access.grants import Permission
from routing.access.name_patterns import join, parse
from routing.bites import bites

_INCLUDED = "it is included in READ, WRITE and ALTER, and goes with these"
_OWN = "it is what lets you ask for this, and goes where the filter has your name"


@serves(DELETE_ACLS, 0, 3)
async def delete_acls(door: Door, call: Call, request: Entity) -> Entity:
    """One filter after the other, in the order that `in_turn` says."""
    results = [Entity() for _ in request.filters]
    async for at in bites(in_turn(one.operation for one in request.filters)):
        results[at] = await _deleted(door, request.filters[at])
    return Entity(filter_results=results)


async def _deleted(door: Door, asked: Entity) -> Entity:
    wanted = Filter.of(asked)
    before: set[Acl] = set()
    try:
        door.require_administrator()
        before = set(entries(door.broker.rights, door.config.virtual_host))
        meant = sorted(filter(wanted.matches, before))
        own = None if wanted.principal else _administrator(door)
        for user in dict.fromkeys(acl.user for acl in meant):
            await _take_away(door, user, [acl for acl in meant if acl.user == user and acl != own])
    except ENGINE_ERRORS as error:
        return Entity(error_code=code_of(error), error_message=str(error) or None, matching_acls=[])
    after = set(entries(door.broker.rights, door.config.virtual_host))
    matching = [_entry(acl, ErrorCode.NONE, None) for acl in sorted(before - after)]
    matching += [
        _entry(acl, ErrorCode.INVALID_REQUEST, _OWN if acl == own else _INCLUDED) for acl in meant if acl in after
    ]
    return Entity(error_code=ErrorCode.NONE, error_message=None, matching_acls=matching)


def _administrator(door: Door) -> Acl:
    """What makes who asks an administrator."""
    return Acl(door.owner[0], Resource.CLUSTER, Pattern.LITERAL, CLUSTER_NAME, Operation.ALL)


async def _take_away(door: Door, user: str, meant: list[Acl]) -> None:
    rights = door.broker.rights
    operations = {acl.operation for acl in meant if acl.resource == Resource.CLUSTER}
    found = rights.user(user)
    if operations and found is not None:
        await rights.set_tags(user, [tag for tag in found.tags if TAGS.get(tag) not in operations])
    topics = [acl for acl in meant if acl.resource == Resource.TOPIC]
    if topics:
        await rights.change_permission(door.config.virtual_host, user, lambda before: _less(before, user, topics))


def _less(before: Permission, user: str, meant: list[Acl]) -> Permission:
    gone = {(access, acl.pattern, acl.name) for acl in meant for access in accesses_of(acl.operation)}
    after = {
        access: [part for part in parse(getattr(before, access)) if (access, *resource_of(part)) not in gone]
        for access in ACCESSES
    }
    changed = {access: join(parts) for access, parts in after.items() if parts != parse(getattr(before, access))}
    return before._replace(**changed)


def _entry(acl: Acl, code: ErrorCode, why: str | None) -> Entity:
    return Entity(
        error_code=code,
        error_message=why,
        resource_type=acl.resource,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=EVERY_HOST,
        operation=acl.operation,
        permission_type=ALLOW,
    )
