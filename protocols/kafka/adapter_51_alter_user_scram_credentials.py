"""AlterUserScramCredentials: passwords that come salted, and credentials that go.

A password that is set in this way is the user's only one, at every door: what was kept of another goes, also for a
mechanism that the request does not name. A user who is not there is made, who may do nothing yet.
"""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_scram_mechanisms import mechanism_of
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_users import ALTER_USER_SCRAM_CREDENTIALS
from protocols.kafka.registry import serves
from routing.access import scram
from routing.access.scram import Credential
from routing.bites import bites


@serves(ALTER_USER_SCRAM_CREDENTIALS, 0, 0)
async def alter_user_scram_credentials(door: Door, call: Call, request: Entity) -> Entity:
    """One user after the other."""
    asked: dict[str, tuple[list[Entity], list[Entity]]] = {}
    for at, said in enumerate((request.deletions, request.upsertions)):
        for one in said:
            asked.setdefault(one.name, ([], []))[at].append(one)
    results = []
    async for name, (deletions, upsertions) in bites(asked.items()):
        code, why = ErrorCode.NONE, None
        try:
            door.require_administrator()
            mechanisms = [one.mechanism for one in (*deletions, *upsertions)]
            if len(set(mechanisms)) < len(mechanisms):
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"A user credential cannot be altered twice: {name}")
            changes: dict[str, Credential | None] = {_existing(door, one): None for one in deletions}
            changes |= {mechanism_of(one.mechanism): _made(one) for one in upsertions}
            await door.broker.rights.set_scram(name, changes)
        except ENGINE_ERRORS as error:
            code, why = code_of(error), str(error) or None
            if code == ErrorCode.INVALID_REQUEST:
                code = ErrorCode.UNACCEPTABLE_CREDENTIAL
        results.append(Entity(user=name, error_code=code, error_message=why))
    return Entity(results=results)


def _existing(door: Door, asked: Entity) -> str:
    mechanism = mechanism_of(asked.mechanism)
    if mechanism not in door.broker.rights.scram_iterations(asked.name):
        text = f"Attempt to delete a user credential that does not exist: {asked.name}"
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
    return mechanism


def _made(asked: Entity) -> Credential:
    mechanism = mechanism_of(asked.mechanism)
    least, most = scram.ITERATIONS_MIN, scram.ITERATIONS_MAX
    if not least <= asked.iterations <= most:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"iterations are {least} to {most}")
    if not 0 < len(asked.salt) <= scram.SALT_BYTES_MAX or len(asked.salted_password) != scram.key_bytes(mechanism):
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "no salt, or a salted password of another length")
    return scram.salted_credential(mechanism, bytes(asked.salted_password), bytes(asked.salt), asked.iterations)
