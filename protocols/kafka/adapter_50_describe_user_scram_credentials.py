"""DescribeUserScramCredentials: by which SCRAM mechanisms users can log in."""

from __future__ import annotations

from collections import Counter

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_scram_mechanisms import NUMBERS
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_users import DESCRIBE_USER_SCRAM_CREDENTIALS
from protocols.kafka.registry import serves
from routing.bites import bites


@serves(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0)
async def describe_user_scram_credentials(door: Door, call: Call, request: Entity) -> Entity:
    """Of some users, or of all that have any."""
    try:
        door.require_administrator(looks=True)
    except KafkaError as error:
        return Entity(error_code=error.code, error_message=str(error) or None, results=[])
    named = Counter(one.name for one in request.users or ())
    if named:
        results = [_described(door, name, twice=count > 1) async for name, count in bites(named.items())]
    else:
        found = [_described(door, one.name, twice=False) for one in door.broker.rights.users]
        results = [one for one in found if one.error_code == ErrorCode.NONE]
    return Entity(error_code=ErrorCode.NONE, error_message=None, results=results)


def _described(door: Door, name: str, *, twice: bool) -> Entity:
    reply = Entity(user=name, error_code=ErrorCode.NONE, error_message=None, credential_infos=[])
    kept = door.broker.rights.scram_iterations(name)
    if twice:
        reply.error_code = ErrorCode.DUPLICATE_RESOURCE
        reply.error_message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif not kept:
        reply.error_code = ErrorCode.RESOURCE_NOT_FOUND
        reply.error_message = f"Attempt to describe a user credential that does not exist: {name}"
    reply.credential_infos = [
        Entity(mechanism=NUMBERS[mechanism], iterations=iterations) for mechanism, iterations in sorted(kept.items())
    ]
    if twice:
        reply.credential_infos = []
    return reply
